"""Neighbouring sets of a codebook joined into larger ones: fewer numbers to look up and to add."""

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

        Places that no code uses repeat others of the same set, which leaves its minimum and maximum as they are.
        """
        word = (np.arange(self.words) >> self.shift[:, None]) & self.mask[:, None]  # (M, words)
        apart = np.take_along_axis(table, word[None], axis=2).astype(np.float64)
        joined: np.ndarray = np.add.reduceat(apart, self.starts, axis=1)
        return joined

    def scores(self, table: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Score joined codes (Q, n, M') by tables (Q, M, K), adding entries in float64, set by set: (Q, n)."""
        Q, n, _ = codes.shape
        scores = np.empty((Q, n))
        width = max(1, min(n, CACHED // table.shape[1]))  # codes at a time
        step = max(1, CACHED // (table.shape[1] * width))  # queries at a time
        for start in range(0, Q, step):
            some = slice(start, start + step)
            for first in range(0, n, width):
                few = slice(first, first + width)
                scores[some, few] = self._scores(table[some], codes[some, few])
        return scores

    def _scores(self, table: np.ndarray, codes: np.ndarray) -> np.ndarray:
        M, K = table.shape[1:]
        entries = table.transpose(1, 0, 2).astype(np.float64)  # (M, q, K)
        first = np.arange(0, entries.size, K).reshape(M, -1, 1)
        found = entries.ravel().take(self.split(codes).transpose(2, 0, 1) + first)  # (M, q, n)
        total = np.zeros(found.shape[1:])
        for more in found:  # numpy's own sum may use another order
            total += more
        return total
