"""Regions of the space and their labels: where few of many items are labelled, classes are probably novel.

If the labelled items of a class are a random part of it, labels are as frequent everywhere in it. Items of a novel
class have neighbours without labels. Unlike the Gaussians, this assumes no shape of a class.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from combemb.discovery.kmeans import kmeans

ITEMS_PER_REGION, MAX_REGIONS = 15, 250
WIDTH = 0.05  # cosine by which a region must be nearer to count e times as much
PRIOR_LABELS = 0.5  # in each region, beside as many unlabelled items as labels come with on average
N_ITERATIONS = 15  # of k-means


@dataclass(frozen=True, eq=False)
class Regions:
    """R directions `centres` (R, d), with the numbers `labelled` and `free` (R,) of labelled and unlabelled items."""

    centres: np.ndarray
    labelled: np.ndarray
    free: np.ndarray

    @classmethod
    def none(cls, d: int) -> Self:
        """Return no region at all; nothing is evident then."""
        return cls(np.zeros((0, d), np.float32), np.zeros(0), np.zeros(0))

    @classmethod
    def fit(cls, y: np.ndarray, is_labelled: np.ndarray, seed: int) -> Self:
        """Return the regions of points (N, d), some of which are labelled (N,)."""
        if is_labelled.all() or not is_labelled.any():
            return cls.none(y.shape[1])
        unit, rng = _unit(y), np.random.default_rng(seed)
        R = min(-(-len(y) // ITEMS_PER_REGION), MAX_REGIONS)
        start = np.unique(unit[rng.permutation(len(y))[:R]], axis=0)  # a careful start takes longer than the rest
        R = len(start)
        found = kmeans(unit, R, start=start, n_iterations=N_ITERATIONS, progress=False)
        sizes = np.bincount(found.assignment, minlength=R)
        labelled = np.bincount(found.assignment, is_labelled, R)
        return cls(_unit(found.centres), labelled, sizes - labelled)

    def evidence(self, y: np.ndarray) -> np.ndarray:
        """Return the log-odds (n,) of having no label around points, above those of all items; 0 without regions."""
        if len(self.centres) == 0:
            return np.zeros(len(y))
        cosines = _unit(y) @ self.centres.T
        weights = np.exp((cosines - cosines.max(axis=1, keepdims=True)) / WIDTH)
        odds = self.free.sum() / self.labelled.sum()
        free, labelled = weights @ self.free, weights @ self.labelled
        return np.asarray(np.log((free + PRIOR_LABELS * odds) / (labelled + PRIOR_LABELS) / odds))


def _unit(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-30), np.float32)
