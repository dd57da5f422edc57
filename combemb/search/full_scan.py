"""Codes of any codebook, all of them scored by every search."""

import numpy as np

from combemb.search.codebook import Codebook
from combemb.system.arrays import to_numpy, to_tensor

CODES_AT_ONCE = 2**16  # bounds the work space of `codebook.scores`


class FullScan:
    """Distinct codes (N, M); `nearest` scores all of them by `codebook.scores`, so that it leaves none out."""

    def __init__(self, codebook: Codebook, stored: np.ndarray):
        self.codebook, self.stored = codebook, stored

    def codes(self, rows: np.ndarray) -> np.ndarray:
        """Return the codes of these rows, (n,) to (n, M) uint8."""
        return np.asarray(self.stored[rows])

    def n_scored(self, _: int) -> int:
        """Return the number of codes that `nearest` scores: all."""
        return len(self.stored)

    def nearest(self, queries: np.ndarray, _: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the rows (Q, N) of all codes, their scores (Q, N), and minus infinity (Q,) as the bound of others."""
        scores = np.empty((len(queries), len(self.stored)))
        for start in range(0, len(self.stored), CODES_AT_ONCE):
            some = slice(start, start + CODES_AT_ONCE)
            scores[:, some] = to_numpy(self.codebook.scores(queries, to_tensor(self.stored[some])))
        if not np.isfinite(scores).all():
            raise ValueError("queries get scores that are not finite; remove or fix queries with NaN or huge values")
        return np.broadcast_to(np.arange(len(self.stored)), scores.shape), scores, np.full(len(queries), -np.inf)
