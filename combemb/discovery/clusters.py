"""Items in clusters: what a discovery found, or what people made of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np

NEITHER = "neither"


@dataclass(frozen=True, eq=False)
class Clusters:
    """N items in K clusters, first the C seen classes, then the novel ones.

    Attributes
    ----------
    names : object array of shape (K,)
        Seen classes as they were given, then those of the novel ones.
    n_seen, n_novel_interval : int, tuple of int
        Number of seen classes C, and the smallest and the largest plausible number of novel classes.
    assignment, nearest : int64 arrays of shape (N,)
        Cluster of each item, and the one it would be in without its label.
    distance : float32 array of shape (N,)
        Distance of each item to the centre of its cluster.
    confidence : float32 array of shape (N,)
        1 for labelled items, otherwise the probability of the cluster, as calibrated on hidden labels.
    is_labelled : bool array of shape (N,)
        Items that had a label.
    centres : float32 array of shape (K, d)
        Centre of each cluster.
    """

    names: np.ndarray
    n_seen: int
    n_novel_interval: tuple[int, int]
    assignment: np.ndarray
    nearest: np.ndarray
    distance: np.ndarray
    confidence: np.ndarray
    is_labelled: np.ndarray
    centres: np.ndarray

    def __len__(self) -> int:
        return len(self.assignment)

    @property
    def n_novel(self) -> int:
        """Number of novel classes: estimated, unless it was given."""
        return len(self.names) - self.n_seen

    @property
    def clusters(self) -> np.ndarray:
        """Name of the cluster of each item, an object array of shape (N,)."""
        return np.asarray(self.names[self.assignment])

    @property
    def is_novel(self) -> np.ndarray:
        """Which items are in novel classes, a bool array of shape (N,)."""
        return np.asarray(self.assignment >= self.n_seen)

    @property
    def sizes(self) -> dict[Any, int]:
        """Number of items of each cluster by its name, labelled ones included."""
        return dict(zip(self.names, np.bincount(self.assignment, minlength=len(self.names)).tolist(), strict=True))

    @cached_property
    def neighbours(self) -> dict[Any, Any]:
        """Nearest seen class of each novel one, by their centres; empty without seen classes."""
        if self.n_seen == 0:
            return {}
        nearest = distances(self.centres[self.n_seen :], self.centres[: self.n_seen]).argmin(axis=1)
        return dict(zip(self.names[self.n_seen :], self.names[nearest], strict=True))

    @property
    def neither(self) -> str:
        """What `predict` returns for an item that is far from all clusters."""
        return next(free_names(NEITHER, set(self.names), bare=True))

    def exemplars(self, cluster: Any, n: int = 10) -> np.ndarray:
        """Return the rows of the items nearest to the centre of a cluster, the nearest first.

        Parameters
        ----------
        cluster, n : int or str, int
            One of `names`, and the maximum number of rows.

        Returns
        -------
        int64 array
        """
        return self._rows(cluster, self.distance)[:n]

    def borderline(self, cluster: Any, n: int = 10) -> np.ndarray:
        """Return the rows of the least confident items of a cluster, as `exemplars` does; labelled ones come last."""
        return self._rows(cluster, np.where(self.is_labelled, 2, self.confidence))[:n]

    def _rows(self, cluster: Any, by: np.ndarray) -> np.ndarray:
        """Return the rows of the items of a cluster in the order of `by` (N,)."""
        place = [i for i, name in enumerate(self.names) if name == cluster]
        if not place:
            raise ValueError(f"there is no cluster {cluster!r}; choose one of {', '.join(map(repr, self.names[:9]))}")
        rows = np.flatnonzero(self.assignment == place[0])
        return np.asarray(rows[np.argsort(by[rows], kind="stable")])


def free_names(word: str, taken: set[Any], bare: bool = False) -> Iterator[str]:
    """Yield word-1, word-2, ... except those taken; if `bare`, the word itself comes first."""
    if bare and word not in taken:
        yield word
    yield from (name for name in (f"{word}-{i}" for i in count(1)) if name not in taken)


def distances(x: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return distances (n, K) float64, computed relative to the mean of the centres to keep their digits."""
    middle = centres.mean(axis=0, dtype=np.float64)
    a, b = x - middle, centres - middle
    squares = np.square(a).sum(axis=1)[:, None] - 2 * a @ b.T + np.square(b).sum(axis=1)
    return np.asarray(np.sqrt(np.maximum(squares, 0)))
