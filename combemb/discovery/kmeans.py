"""K-means for class discovery: labelled items stay in their class, the others join one or form new clusters."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import scipy
import torch
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from combemb.data.labels import Labels
from combemb.discovery.points import read_points
from combemb.search.codebook import Codebook, checked_codes
from combemb.system.arrays import Array, to_numpy
from combemb.system.errors import require
from combemb.system.progress import Display

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Chunks = Iterator[tuple[slice, np.ndarray]]
Finder = Callable[[slice, np.ndarray], Ints]  # returns the clusters of a slice and its items
Result = TypeVar("Result")

CHUNK_BYTES = 4 * 2**20  # a chunk of items and scores stays in the cache between assignment and update
SPANS, SPAN_ITEMS = 32, 1_000  # threads share a fixed number of parts, so that results do not depend on the threads
START_ITEMS, START_ITEMS_PER_CLUSTER = 2**14, 256  # k-means++ samples items down to the larger of both numbers
LEAST_COUNT = 1e-300  # avoids a division by zero for clusters without items

_libraries = cache(ThreadpoolController)  # the search for libraries whose threads can be limited takes milliseconds


@dataclass(frozen=True, eq=False)
class Clustering:
    """K clusters, none empty: their centres (K, D) float32, and the `assignment` (N,) int64 of items to clusters.

    inertia is the sum of squared distances of the items to their centres, times their weights.
    """

    centres: np.ndarray
    assignment: np.ndarray
    inertia: float
    n_iterations: int


def kmeans(
    x: Array,
    n_clusters: int,
    labels: Array | Labels | None = None,
    *,
    weights: Array | None = None,
    start: Array | None = None,
    seed: int = 0,
    n_starts: int = 5,
    n_iterations: int = 100,
    tolerance: float = 1e-4,
    progress: bool | None = None,
) -> Clustering:
    """Cluster items; labelled items never leave the cluster of their class.

    Parameters
    ----------
    x : array of shape (N, D)
        A numpy array or a torch tensor.
    n_clusters : int
        Number of clusters K, at least the number of labelled classes C.
    labels : ints of shape (N,) or Labels, optional
        Classes 0 to C-1, or -1 for unlabelled items. Cluster c < C is class c; clusters C and up are new.
    weights : array of shape (N,), optional
        How often each item counts.
    start : array of shape (K, D), optional
        Initial centres. By default, k-means++ draws those of new clusters from the unlabelled items.
    seed, n_starts : int
        Seed of these draws, and how often to start; the result with the smallest inertia is returned.
    n_iterations, tolerance : int, float
        A start ends after n_iterations, when no item moves, or when the squared moves of all centres sum to at most
        `tolerance` times the mean variance of a feature.
    progress : bool, optional
        Whether to show progress; by default on a terminal only.

    Returns
    -------
    Clustering
    """
    require(min(n_starts, n_iterations) >= 1, f"{n_starts=} and {n_iterations=} must both be at least 1")
    points = read_points(x)
    classes, n_seen = _read_classes(labels, len(points), n_clusters)
    items = _Rows(points, None, _read_weights(weights, len(points)))
    free = items if n_seen == 0 else items.take(np.flatnonzero(classes < 0))
    if len(free) < n_clusters - n_seen:
        raise TooManyClusters(len(free), n_clusters, n_seen)
    lloyd = _Lloyd(items, free, classes, n_clusters, n_seen)
    given = None if start is None else _read_start(start, n_clusters, points.shape[1])
    n_starts = n_starts if given is None and n_clusters > n_seen else 1  # otherwise all starts are the same
    with Display("clustering", n_starts * n_iterations, "iterations", progress) as display:
        generators = (np.random.default_rng((seed, number)) for number in range(n_starts))
        starts = (lloyd.draw_start(rng) if given is None else given for rng in generators)
        ends = (lloyd.run(centres, n_iterations, tolerance, display) for centres in starts)
        return min(ends, key=lambda found: found.inertia)


def kmeans_of_codes(
    codes: Array, codebook: Codebook, n_clusters: int, labels: Array | Labels | None = None, **options: Any
) -> Clustering:
    """Cluster codes by the vectors they stand for: `kmeans` on the distinct ones, weighted by their counts.

    Parameters
    ----------
    codes, codebook : uint8 array of shape (N, M), Codebook
        Codes, and what decodes them.
    n_clusters, labels, **options
        As for `kmeans`.

    Returns
    -------
    Clustering
    """
    distinct, places = np.unique(checked_codes(codes, codebook.sizes), axis=0, return_inverse=True)
    classes, _ = _read_classes(labels, len(places), n_clusters)
    n_kinds = int(classes.max(initial=-1)) + 2
    kinds, places, counts = np.unique(places.ravel() * n_kinds + classes + 1, return_inverse=True, return_counts=True)
    x = codebook.decode(distinct[kinds // n_kinds])
    found = kmeans(x, n_clusters, kinds % n_kinds - 1, weights=counts, **options)
    return Clustering(found.centres, found.assignment[places], found.inertia, found.n_iterations)


class _Rows:
    """All or some rows of x, with weights; read as float32 a chunk at a time."""

    def __init__(self, x: np.ndarray, rows: Ints | None, weights: Floats) -> None:
        self.x, self.rows, self.weights = x, rows, weights

    def __len__(self) -> int:
        return len(self.x) if self.rows is None else len(self.rows)

    def take(self, rows: Ints) -> "_Rows":
        """Return some of the rows."""
        return _Rows(self.x, rows if self.rows is None else self.rows[rows], self.weights[rows])

    def __getitem__(self, places: slice | Ints) -> np.ndarray:
        return np.asarray(self.x[places if self.rows is None else self.rows[places]], np.float32)

    def spread(self, work: Callable[[Chunks], Result], n_columns: int = 0) -> list[Result]:
        """Return the results of `work` on the chunks of each span of rows, in as many threads as torch has."""
        step = max(1, CHUNK_BYTES // (4 * (self.x.shape[1] + n_columns)))  # work makes n_columns numbers of each row

        def chunks(first: int, end: int) -> Chunks:
            for start in range(first, end, step):
                chunk = slice(start, min(start + step, end))
                yield chunk, self[chunk]

        n_spans = min(SPANS, len(self) // SPAN_ITEMS + 1)
        spans = list(pairwise(len(self) * i // n_spans for i in range(n_spans + 1)))
        with _libraries().limit(limits=1, user_api="blas"):
            if n_spans == 1:
                return [work(chunks(*spans[0]))]
            with ThreadPoolExecutor(torch.get_num_threads()) as pool:
                return list(pool.map(lambda span: work(chunks(*span)), spans))

    def distances_to(self, points: np.ndarray, own: Ints | None = None) -> np.ndarray:
        """Return squared distances (P, n) to points (P, D), or (1, n) to that of each item; 0 for equal items."""
        found = np.empty((len(points) if own is None else 1, len(self)), np.float32)

        def work(chunks: Chunks) -> None:
            for chunk, x in chunks:
                for point, distances in zip(points if own is None else [points[own[chunk]]], found, strict=True):
                    differences = x - point
                    distances[chunk] = np.einsum("nd,nd->n", differences, differences)

        self.spread(work)
        return found

    def distances_to_own(self, centres: Floats, assignment: Ints) -> Floats:
        """Return squared distances (n,) of each item to its centre."""
        return np.asarray(self.distances_to(centres.astype(np.float32), assignment)[0], np.float64)

    def grouped(self, clusters_of: Finder, n_clusters: int) -> tuple[Ints, Floats]:
        """Return the cluster (n,) of each item, and the weighted sum (K, D) of the items of each cluster."""
        assignment = np.empty(len(self), np.int64)

        def work(chunks: Chunks) -> Floats:
            sums = np.zeros((n_clusters, self.x.shape[1]))
            for chunk, x in chunks:
                clusters = assignment[chunk] = clusters_of(chunk, x)
                weights, columns = self.weights[chunk].astype(np.float32), np.arange(len(x) + 1)  # an item is a column
                sums += scipy.sparse.csc_array((weights, clusters, columns), (n_clusters, len(x))) @ x
            return sums

        return assignment, sum(self.spread(work, n_columns=n_clusters), np.zeros((n_clusters, self.x.shape[1])))


class _Lloyd:
    """Alternates assignment and update of the `free` items; the labelled ones enter by their sums alone."""

    def __init__(self, items: _Rows, free: _Rows, classes: Ints, n_clusters: int, n_seen: int) -> None:
        self.items, self.free, self.classes, self.n_clusters, self.n_seen = items, free, classes, n_clusters, n_seen
        labelled = np.flatnonzero(classes >= 0)
        fixed, own = items.take(labelled), classes[labelled]
        _, self.sums = fixed.grouped(lambda chunk, _: own[chunk], n_clusters)  # (K, D), 0 for new clusters
        self.counts = np.bincount(own, fixed.weights, n_clusters)  # (K,)
        self.variance = _mean_variance(items)

    def draw_start(self, rng: np.random.Generator) -> Floats:
        """Return centres (K, D): means of seen classes, and new ones by k-means++, each the best of a few draws."""
        n_seen, free = self.n_seen, self.free
        n_items = max(START_ITEMS, START_ITEMS_PER_CLUSTER * (self.n_clusters - n_seen))
        if len(free) > n_items:
            free = free.take(np.sort(rng.choice(len(free), n_items, replace=False)))
        centres = self.sums / np.maximum(self.counts, LEAST_COUNT)[:, None]
        closest = np.full(len(free), np.inf)
        if n_seen > 0:
            nearest, _ = free.grouped(_nearest_of(centres[:n_seen]), n_seen)
            closest = free.distances_to_own(centres, nearest)
        n_tries = 2 + int(np.log(self.n_clusters))
        for k in range(n_seen, self.n_clusters):
            pull = free.weights * np.where(np.isinf(closest), 1, closest)
            if not pull.any():
                self._require_distinct()
                pull = free.weights
            cumulative = np.cumsum(pull)
            drawn = np.searchsorted(cumulative, rng.random(n_tries) * cumulative[-1], side="right")
            candidates = free[np.minimum(drawn, len(free) - 1)]  # (n_tries, D)
            distances = np.minimum(free.distances_to(candidates), closest)  # (n_tries, n)
            best = int(np.argmin(distances @ free.weights))
            centres[k], closest = candidates[best], distances[best]
        return centres

    def run(self, centres: Floats, n_iterations: int, tolerance: float, display: Display) -> Clustering:
        """Iterate from centres (K, D) to the end."""
        before: Ints | None = None
        for n in range(1, n_iterations + 1):
            nearest, sums = self.free.grouped(_nearest_of(centres), self.n_clusters)
            self._fill_empty(nearest, sums)
            left, centres = centres, self._means(nearest, sums)
            display.advance(1)
            is_still = before is not None and np.array_equal(before, nearest)
            if is_still or np.square(left - centres).sum() <= tolerance * self.variance:
                display.advance(n_iterations - n)
                break
            before = nearest
        assignment = self.classes.copy()
        assignment[assignment < 0] = nearest
        inertia = float(self.items.distances_to_own(centres, assignment) @ self.items.weights)
        return Clustering(centres.astype(np.float32), assignment, inertia, n)

    def _means(self, nearest: Ints, sums: Floats) -> Floats:
        counts = self.counts + np.bincount(nearest, self.free.weights, self.n_clusters)
        return np.asarray((self.sums + sums) / np.maximum(counts, LEAST_COUNT)[:, None])

    def _fill_empty(self, nearest: Ints, sums: Floats) -> None:
        """Move the item farthest from its mean, and its equals, into each new cluster without items; in place."""
        sizes = np.bincount(nearest, minlength=self.n_clusters)
        for k in self.n_seen + np.flatnonzero(sizes[self.n_seen :] == 0):
            distances = self.free.distances_to_own(self._means(nearest, sums), nearest)  # 0 where all are equal
            may_leave = (nearest < self.n_seen) | (sizes[nearest] > 1)
            far = int(np.argmax(np.where(may_leave, distances, -1)))
            donor, x = nearest[far], self.free[far : far + 1]
            if distances[far] <= 1e-12 * np.square(x).sum():  # 0, but for rounding
                self._require_distinct()
            moved = np.flatnonzero((nearest == donor) & (self.free.distances_to(x)[0] == 0))
            if donor >= self.n_seen and len(moved) == sizes[donor]:
                moved = np.array([far])
            share = self.free.weights[moved].sum() * x.astype(np.float64)
            sums[[donor, k]] += np.concatenate([-share, share])
            sizes[[donor, k]] += [-len(moved), len(moved)]
            nearest[moved] = k

    def _require_distinct(self) -> None:
        if (n := len(np.unique(self.free[:], axis=0))) < self.n_clusters - self.n_seen:
            raise TooManyClusters(n, self.n_clusters, self.n_seen)


def _nearest_of(centres: Floats) -> Finder:
    """Return a finder of the nearest centre, the first in a tie.

    |x - c|^2 without the terms that all centres share is |c - m|^2 + 2 m.(c - m) - 2 x.(c - m) for any m. The mean of
    the centres as m keeps most digits of items far from the origin.
    """
    middle = centres.mean(axis=0)
    offsets = centres - middle
    bias = (np.square(offsets).sum(axis=1) + 2 * offsets @ middle).astype(np.float32)
    factors = np.ascontiguousarray(-2 * offsets.T, np.float32)  # (D, K)

    def find(_: slice, x: np.ndarray) -> Ints:
        scores = x @ factors
        scores += bias
        return np.asarray(scores.argmin(axis=1))

    return find


def _mean_variance(items: _Rows) -> float:
    """Return the variance of a feature, averaged over features."""
    origin = items[:1]

    def work(chunks: Chunks) -> Floats:
        moments = np.zeros((2, items.x.shape[1]))
        for chunk, x in chunks:
            differences, weights = x - origin, items.weights[chunk].astype(np.float32)
            moments += weights @ differences, weights @ np.square(differences)
        return moments

    first, second = np.sum(items.spread(work), axis=0) / items.weights.sum()
    return float(np.mean(second - np.square(first)))


def _read_classes(labels: Array | Labels | None, n: int, n_clusters: int) -> tuple[Ints, int]:
    """Return labels as (N,) int64, and the number of seen classes C."""
    found = np.full(n, -1) if labels is None else to_numpy(labels.values if isinstance(labels, Labels) else labels)
    if found.shape != (n,) or found.dtype.kind not in "iu":
        raise ValueError(f"labels have shape {found.shape} and dtype {found.dtype}; give {n} ints, -1 if unlabelled")
    classes = found.astype(np.int64)
    require(classes.min() >= -1, f"labels hold {classes.min()}; give 0 to C-1, and -1 if unlabelled")
    present = np.unique(classes[classes >= 0])
    if not np.array_equal(present, np.arange(len(present))):
        missing = np.setdiff1d(np.arange(len(present)), present)[0]
        raise ValueError(f"labels reach {present[-1]} but none is {missing}; number the classes 0 to C-1 without gaps")
    if n_clusters < max(len(present), 1):
        raise ValueError(f"n_clusters={n_clusters} for {len(present)} labelled classes; give at least that, and 1")
    return classes, len(present)


def _read_weights(weights: Array | None, n: int) -> Floats:
    found = np.ones(n) if weights is None else to_numpy(weights).astype(np.float64)
    if found.shape != (n,) or not (np.isfinite(found) & (found > 0)).all():
        raise ValueError(f"weights have shape {found.shape}; give {n} finite numbers above 0, one for each item")
    return found


def _read_start(start: Array, n_clusters: int, n_features: int) -> Floats:
    found = read_points(start).astype(np.float64)
    if found.shape != (n_clusters, n_features):
        raise ValueError(f"start has shape {found.shape}; give one centre per cluster, {(n_clusters, n_features)}")
    return found


class TooManyClusters(ValueError):
    """More new clusters were asked for than there are distinct unlabelled items."""

    def __init__(self, n_distinct: int, n_clusters: int, n_seen: int):
        self.n_distinct = n_distinct
        super().__init__(
            f"n_clusters={n_clusters} asks for {n_clusters - n_seen} new clusters, but only {n_distinct} of the "
            f"unlabelled items are distinct; use at most {n_seen + n_distinct} clusters"
        )
