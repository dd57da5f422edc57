"""Codes of any codebook, stored as they are; every search scores all of them."""

from typing import Self

import numpy as np

from combemb.search.codebook import Codebook
from combemb.system.arrays import Array, to_numpy, to_tensor
from combemb.system.errors import require

CODES_AT_ONCE = 2**16  # bounds the work space of `codebook.scores`


class FullScan:
    """N distinct codes (N, M), all scored by `codebook.scores`. It has what `FastScan` has."""

    value_bits = 8

    def __init__(self, codebook: Codebook, stored: np.ndarray | None = None):
        self.codebook, self.n_columns = codebook, len(codebook.sizes)
        self.stored = np.empty((0, self.n_columns), np.uint8) if stored is None else stored

    def of(self, codes: np.ndarray) -> Self:
        """Return a scan of these codes (N, M)."""
        return type(self)(self.codebook, codes)

    def of_stored(self, stored: np.ndarray, _: int) -> Self:
        """Return the scan with this attribute `stored`."""
        return self.of(stored)

    def join(self, codes: np.ndarray) -> np.ndarray:
        """Return a copy of the codes, which may be the caller's own."""
        return codes.copy()

    split = join

    def prepare(self, queries: Array) -> np.ndarray:
        """Return the queries as an array (Q, D)."""
        found = to_numpy(queries)
        require(found.ndim == 2, f"queries have shape {found.shape}; give (Q, D)")
        return found

    def codes(self, rows: np.ndarray) -> np.ndarray:
        """Return the codes of these rows, (n,) to (n, M) uint8."""
        return np.asarray(self.stored[rows])

    def n_scored(self, _: int) -> int:
        """Return the number of all codes."""
        return len(self.stored)

    def nearest(self, queries: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the rows (Q, N) of all codes, their scores (Q, N), and minus infinity (Q,): no code is left out."""
        scores = np.empty((len(queries), n))
        for start in range(0, n, CODES_AT_ONCE):
            some = slice(start, start + CODES_AT_ONCE)
            scores[:, some] = to_numpy(self.codebook.scores(queries, to_tensor(self.stored[some])))
        if not np.isfinite(scores).all():
            raise ValueError("queries get scores that are not finite; remove or fix queries with NaN or huge values")
        return np.broadcast_to(np.arange(n), scores.shape), scores, np.full(len(queries), -np.inf)
