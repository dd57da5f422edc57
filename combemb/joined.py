"""Neighbouring sets of a codebook joined into sets of at most 16 words, the 4-bit numbers that fast scan reads."""

import numpy as np

WORDS = 16


class Joined:
    """How the M sets of a codebook become M' sets of 16 words: two of K = 4, four of K = 2; K = 8 is padded.

    A joined word is c_1 + K_1 (c_2 + K_2 (...)), so that a set's own word is a shift and a mask away.

    >>> joined = Joined((4, 4, 8))
    >>> joined.join(np.array([[1, 2, 7]], np.uint8)), joined.split(np.array([[9, 7]], np.uint8))
    (array([[9, 7]], dtype=uint8), array([[1, 2, 7]], dtype=uint8))
    """

    def __init__(self, sizes: tuple[int, ...]):
        """Join from the left as long as there are no more than 16 words; sizes are 2, 4, 8 or 16."""
        self.sizes = sizes
        self.place: list[tuple[int, int]] = []  # of each set: which joined set, and by how many bits it is shifted
        n, words = -1, WORDS
        for K in sizes:
            if words * K > WORDS:
                n, words = n + 1, 1
            self.place.append((n, words.bit_length() - 1))
            words *= K
        self.n_sets = n + 1  # M'

    @property
    def nbytes(self) -> int:
        """What a stored code takes: 4 bits per joined set, in whole bytes."""
        return (self.n_sets + 1) // 2

    def join(self, codes: np.ndarray) -> np.ndarray:
        """Codes (N, M) -> joined ones (N, M') uint8."""
        joined = np.zeros((len(codes), self.n_sets), np.uint8)
        for (n, shift), word in zip(self.place, codes.T, strict=True):
            joined[:, n] |= word.astype(np.uint8) << shift
        return joined

    def split(self, joined: np.ndarray) -> np.ndarray:
        """Joined codes (..., M') -> codes (..., M) uint8."""
        return np.stack([self.words(joined, m) for m in range(len(self.sizes))], axis=-1)

    def words(self, joined: np.ndarray, m: int) -> np.ndarray:
        """The words of set m: joined codes (..., M') -> (...) uint8."""
        n, shift = self.place[m]
        found: np.ndarray = (joined[..., n] >> shift) & (self.sizes[m] - 1)
        return found

    def tables(self, table: np.ndarray) -> np.ndarray:
        """Sums of what the words of each joined word score: (Q, M, K) -> (Q, M', 16) float64.

        Places that no code has repeat others of the same set, so that they change neither its least nor its largest.
        """
        joined = np.zeros((len(table), self.n_sets, WORDS))
        word = np.arange(WORDS)
        for m, (n, shift) in enumerate(self.place):
            joined[:, n] += table[:, m].astype(np.float64)[:, (word >> shift) & (self.sizes[m] - 1)]
        return joined
