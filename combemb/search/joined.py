"""Neighbouring sets of a codebook joined into larger ones: fewer numbers to look up and to add."""

import math

import numpy as np

CACHED = 2**18  # numbers that stay in a cache while they are worked on


class Joined:
    """Join the M sets of a codebook into M' sets of 16 words: two of K = 4, four of K = 2; K = 8 is padded.

    Joined words are the 4-bit numbers that fast scan reads; with `words=256` they are bytes. A joined word is
    c_1 + K_1 (c_2 + K_2 (...)), so that a shift and a mask give the word of each set.

    >>> joined = Joined((4, 4, 8))
    >>> joined.join(np.array([[1, 2, 7]], np.uint8)), joined.split(np.array([[9, 7]], np.uint8))
    (array([[9, 7]], dtype=uint8), array([[1, 2, 7]], dtype=uint8))
    """

    def __init__(self, sizes: tuple[int, ...], words: int = 16):
        """Join from the left up to this number of words; sizes are 2, 4, 8 or 16."""
        self.words, shifts, so_far = words, [], words
        for K in sizes:
            so_far = so_far if so_far * K <= words else 1
            shifts.append(so_far.bit_length() - 1)
            so_far *= K
        self.shift, self.mask = np.array(shifts), np.array(sizes) - 1
        self.of_set = np.cumsum(self.shift == 0) - 1  # the joined set of each set
        self.starts = np.flatnonzero(self.shift == 0)  # the first set of each joined one
        word = (np.arange(words) >> self.shift[:, None]) & self.mask[:, None]
        self.places = word + max(sizes) * np.arange(len(sizes))[:, None]  # (M, words), of joined words in M * K entries

    @property
    def n_sets(self) -> int:
        """M', the number of joined sets."""
        return len(self.starts)

    def join(self, codes: np.ndarray) -> np.ndarray:
        """Join codes, (N, M) to (N, M') uint8."""
        joined = np.zeros((len(codes), self.n_sets), np.uint8)
        for n, shift, words in zip(self.of_set, self.shift, codes.T, strict=True):
            joined[:, n] |= words.astype(np.uint8) << np.uint8(shift)
        return joined

    def split(self, joined: np.ndarray) -> np.ndarray:
        """Split joined codes, (..., M') to (..., M) uint8."""
        found: np.ndarray = (joined[..., self.of_set] >> self.shift.astype(np.uint8)) & self.mask.astype(np.uint8)
        return found

    def tables(self, table: np.ndarray) -> np.ndarray:
        """Return the score of each joined word, the sum over its words: (Q, M, K) to (Q, M', words) float64.

        K is the size of the largest set. Places that no code uses repeat others of the same set, which leaves its
        minimum and maximum as they are.
        """
        apart = table.reshape(len(table), -1).take(self.places, axis=1).astype(np.float64)
        joined: np.ndarray = np.add.reduceat(apart, self.starts, axis=1)
        return joined

    def scores(self, entries: np.ndarray, codes: np.ndarray, *, is_joined: bool) -> np.ndarray:
        """Score joined codes (M', Q, n): the sum of the entries that they name (Q, n) float64.

        Entries are those of `tables` in any order if `is_joined`, otherwise a table (Q, M, K), set by set.
        """
        _, Q, n = codes.shape
        if Q * n * len(self.mask) <= CACHED:
            return self._scores(entries, codes, is_joined)
        scores = np.empty((Q, n))
        width = max(1, min(n, CACHED // len(self.mask)))  # codes at a time
        step = max(1, CACHED // (len(self.mask) * width))  # queries at a time
        for start in range(0, Q, step):
            some = slice(start, start + step)
            for first in range(0, n, width):
                few = slice(first, first + width)
                scores[some, few] = self._scores(entries[some], codes[:, some, few], is_joined)
        return scores

    def _scores(self, entries: np.ndarray, codes: np.ndarray, is_joined: bool) -> np.ndarray:
        codes = codes if is_joined else np.moveaxis(self.split(np.moveaxis(codes, 0, 2)), 2, 0)
        q, m, n_words = entries.shape
        first = n_words * (np.arange(m)[:, None] + m * np.arange(q))
        found = entries.ravel().take(codes + first[..., None])  # (m, q, n)
        if is_joined:
            return np.asarray(found.sum(axis=0))
        total = np.zeros((q, codes.shape[2]))
        for more in found:  # numpy's own sum may use another order
            total += more
        return total


def largest_sums(table: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return bounds of the sizes of all sums of entries (Q, M, K), one from each set, and whether these are exact.

    All entries are multiples of the last place of the smallest one, and so are their sums: in float64 and in any order
    they are exact below 2^53 of it. Bounds are (Q,).
    """
    size = np.abs(table)
    bounds = size.max(axis=2, initial=0).sum(axis=1, dtype=np.float64)
    smallest = size.min(initial=np.inf)
    if smallest == 0:
        smallest = size.min(initial=np.inf, where=size > 0)
    _, exponent = math.frexp(smallest)
    return bounds, float(bounds.max(initial=0)) <= 2.0 ** (52 + max(exponent - 24, -149))  # of float32
