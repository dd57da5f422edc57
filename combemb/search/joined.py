"""Neighbouring sets of a codebook joined into larger ones: fewer numbers to look up and to add."""

import numpy as np

NUMBERS = 2**18  # worked on at a time: what stays in a cache


class Joined:
    """How the M sets of a codebook become M' sets of 16 words: two of K = 4, four of K = 2; K = 8 is padded.

    These are the 4-bit numbers that fast scan reads. With `words=256` they are bytes.

    A joined word is c_1 + K_1 (c_2 + K_2 (...)), so that a set's own word is a shift and a mask away.

    >>> joined = Joined((4, 4, 8))
    >>> joined.join(np.array([[1, 2, 7]], np.uint8)), joined.split(np.array([[9, 7]], np.uint8))
    (array([[9, 7]], dtype=uint8), array([[1, 2, 7]], dtype=uint8))
    """

    def __init__(self, sizes: tuple[int, ...], words: int = 16):
        """Join from the left as long as there are no more words than this; sizes are 2, 4, 8 or 16."""
        self.words, shifts, so_far = words, [], words
        for K in sizes:
            so_far = so_far if so_far * K <= words else 1
            shifts.append(so_far.bit_length() - 1)
            so_far *= K
        self.shift, self.mask = np.array(shifts), np.array(sizes) - 1
        self.of_set = np.cumsum(self.shift == 0) - 1  # which joined set a set is in
        self.starts = np.flatnonzero(self.shift == 0)  # the first set of each joined one

    @property
    def n_sets(self) -> int:
        """M', the number of joined sets."""
        return len(self.starts)

    def join(self, codes: np.ndarray) -> np.ndarray:
        """Codes (N, M) -> joined ones (N, M') uint8."""
        joined = np.zeros((len(codes), self.n_sets), np.uint8)
        for n, shift, words in zip(self.of_set, self.shift, codes.T, strict=True):
            joined[:, n] |= words.astype(np.uint8) << np.uint8(shift)
        return joined

    def split(self, joined: np.ndarray) -> np.ndarray:
        """Joined codes (..., M') -> codes (..., M) uint8."""
        found: np.ndarray = (joined[..., self.of_set] >> self.shift.astype(np.uint8)) & self.mask.astype(np.uint8)
        return found

    def tables(self, table: np.ndarray) -> np.ndarray:
        """Sums of what the words of each joined word score: (Q, M, K) -> (Q, M', words) float64.

        Places that no code has repeat others of the same set, so that they change neither its least nor its largest.
        """
        word = (np.arange(self.words) >> self.shift[:, None]) & self.mask[:, None]  # (M, words)
        apart = np.take_along_axis(table, word[None], axis=2).astype(np.float64)
        joined: np.ndarray = np.add.reduceat(apart, self.starts, axis=1)
        return joined

    def scores(self, table: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Scores (Q, n) of joined codes (Q, n, M') by tables (Q, M, K): entries added in float64, set by set."""
        Q, n, _ = codes.shape
        scores = np.empty((Q, n))
        width = max(1, min(n, NUMBERS // table.shape[1]))  # codes at a time
        step = max(1, NUMBERS // (table.shape[1] * width))  # queries at a time
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
        for more in found:  # numpy's own sum may take another order
            total += more
        return total
