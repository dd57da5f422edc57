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
from torch import Tensor

from combemb.data.embeddings import as_array, check_finite
from combemb.search.codebook import Codebook, checked_codes
from combemb.system.progress import Display

Array = Tensor | np.ndarray
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Chunks = Iterator[tuple[slice, np.ndarray]]
Finder = Callable[[slice, np.ndarray], Ints]  # from a slice and its items to their clusters
Result = TypeVar("Result")

CHUNK_BYTES = 4 * 2**20  # of items and their scores at a time: stays in the cache between assignment and update
SPANS, SPAN_ITEMS = 32, 1_000  # threads share this many parts; fixed, so that results do not depend on the threads
START_ITEMS, START_ITEMS_PER_CLUSTER = 2**14, 256  # k-means++ looks at the larger number, drawn at random from more
TINY = 1e-300  # instead of a count of 0
SMALLEST, LARGEST = 1e-15, 1e15  # of the largest value, so that squares and their sums stay in the range of float32


@dataclass(frozen=True, eq=False)
class Clustering:
    """K clusters of N items, none empty.

    centres (K, D) float32: the mean of each cluster's items. assignment (N,) int64: positions in `centres`.
    inertia: the squared distances of the items to their centres, times their weights, summed.
    """

    centres: np.ndarray
    assignment: np.ndarray
    inertia: float
    n_iterations: int


def kmeans(
    x: Array,
    n_clusters: int,
    labels: Array | None = None,
    *,
    weights: Array | None = None,
    start: Array | None = None,
    seed: int = 0,
    n_starts: int = 5,
    n_iterations: int = 100,
    tolerance: float = 1e-4,
    progress: bool | None = None,
) -> Clustering:
    """Cluster x (N, D) into n_clusters; with labels (N,), 0 to C-1 or -1 if unlabelled, cluster c < C is class c.

    Labelled items never leave their class; clusters C and up are new. The best of n_starts wins, each by k-means++ on
    the unlabelled items, or the one `start` (K, D) given. A start ends when no item moves, after n_iterations, or when
    the centres' squared moves sum to at most `tolerance` times the mean variance of a feature. weights (N,): how often
    an item counts.
    """
    if min(n_starts, n_iterations) < 1:
        raise ValueError(f"n_starts={n_starts} and n_iterations={n_iterations} must both be at least 1")
    points = read_points(x)
    classes, n_seen = _read_classes(labels, len(points), n_clusters)
    items = _Items(points, None, _read_weights(weights, len(points)))
    free = items if n_seen == 0 else items.take(np.flatnonzero(classes < 0))
    if len(free) < n_clusters - n_seen:
        raise TooManyClusters(len(free), n_clusters, n_seen)
    lloyd = _Lloyd(items, free, classes, n_clusters, n_seen)
    given = None if start is None else _read_start(start, n_clusters, points.shape[1])
    best: Clustering | None = None
    n_starts = n_starts if given is None and n_clusters > n_seen else 1  # else all starts are the same
    with Display("clustering", n_starts * n_iterations, "iterations", progress) as display:
        for number in range(n_starts):
            rng = np.random.default_rng((seed, number))
            centres = lloyd.draw_start(rng) if given is None else given
            found = lloyd.run(centres, n_iterations, tolerance, display)
            best = found if best is None or found.inertia < best.inertia else best
    assert best is not None
    return best


def kmeans_of_codes(
    codes: Array, codebook: Codebook, n_clusters: int, labels: Array | None = None, **options: Any
) -> Clustering:
    """Cluster codes (N, M) by the vectors they stand for: `kmeans` on the distinct ones, weighted by their counts."""
    distinct, places = np.unique(checked_codes(codes, codebook.sizes), axis=0, return_inverse=True)
    classes, _ = _read_classes(labels, len(places), n_clusters)
    n_kinds = int(classes.max(initial=-1)) + 2
    kinds, places, counts = np.unique(places.ravel() * n_kinds + classes + 1, return_inverse=True, return_counts=True)
    x = codebook.decode(distinct[kinds // n_kinds])
    found = kmeans(x, n_clusters, kinds % n_kinds - 1, weights=counts, **options)
    return Clustering(found.centres, found.assignment[places], found.inertia, found.n_iterations)


class _Items:
    """Rows of x, all or some, with weights; read as float32 a chunk at a time."""

    def __init__(self, x: np.ndarray, rows: Ints | None = None, weights: Floats | None = None) -> None:
        self.x, self.rows = x, rows
        self.weights = np.ones(len(self)) if weights is None else weights

    def __len__(self) -> int:
        return len(self.x) if self.rows is None else len(self.rows)

    def take(self, rows: Ints) -> "_Items":
        """Some of the items."""
        return _Items(self.x, rows if self.rows is None else self.rows[rows], self.weights[rows])

    def __getitem__(self, places: slice | Ints) -> np.ndarray:
        return np.asarray(self.x[places if self.rows is None else self.rows[places]], np.float32)

    def spread(self, work: Callable[[Chunks], Result], n_columns: int = 0) -> list[Result]:
        """What `work` makes of each span of items, in as many threads as torch has.

        A span comes in chunks: slices with their items, for work that makes n_columns more numbers of each item.
        """
        step = max(1, CHUNK_BYTES // (4 * (self.x.shape[1] + n_columns)))

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

    def distances_to(self, points: np.ndarray) -> np.ndarray:
        """Squared distances (P, n) float32 to a few points (P, D): by differences, so that equal items have 0."""
        found = np.empty((len(points), len(self)), np.float32)

        def work(chunks: Chunks) -> None:
            for chunk, x in chunks:
                for point, distances in zip(points, found, strict=True):
                    distances[chunk] = _squares(x - point)

        self.spread(work)
        return found

    def distances_to_own(self, centres: Floats, assignment: Ints) -> Floats:
        """Squared distances (n,) to the centre of each item."""
        found, places = np.empty(len(self)), centres.astype(np.float32)

        def work(chunks: Chunks) -> None:
            for chunk, x in chunks:
                found[chunk] = _squares(x - places[assignment[chunk]])

        self.spread(work)
        return found

    def grouped(self, clusters_of: Finder, n_clusters: int) -> tuple[Ints, Floats]:
        """The cluster (n,) of each item, and the sums (K, D) over each cluster of its items times their weights."""
        assignment = np.empty(len(self), np.int64)

        def work(chunks: Chunks) -> Floats:
            sums = np.zeros((n_clusters, self.x.shape[1]))
            for chunk, x in chunks:
                clusters = assignment[chunk] = clusters_of(chunk, x)
                weights, columns = self.weights[chunk].astype(np.float32), np.arange(len(x) + 1)  # an item is a column
                sums += scipy.sparse.csc_array((weights, clusters, columns), (n_clusters, len(x))) @ x
            return sums

        return assignment, sum(self.spread(work, n_columns=n_clusters), np.zeros((n_clusters, self.x.shape[1])))

    def n_distinct(self) -> int:
        """How many of the items differ."""
        return len(np.unique(self[:], axis=0))


@cache
def _libraries() -> ThreadpoolController:
    """Whose threads can be limited; looking for them takes milliseconds."""
    return ThreadpoolController()


class _Lloyd:
    """Alternates assignment and update; only `free` items are looked at, the labelled ones enter by their sums."""

    def __init__(self, items: _Items, free: _Items, classes: Ints, n_clusters: int, n_seen: int) -> None:
        self.items, self.free, self.classes, self.n_clusters, self.n_seen = items, free, classes, n_clusters, n_seen
        labelled = np.flatnonzero(classes >= 0)
        fixed, own = items.take(labelled), classes[labelled]
        _, self.sums = fixed.grouped(lambda chunk, _: own[chunk], n_clusters)  # (K, D), 0 for new clusters
        self.counts = np.bincount(own, fixed.weights, n_clusters)  # (K,)
        self.variance = _mean_variance(items)

    def draw_start(self, rng: np.random.Generator) -> Floats:
        """Centres (K, D): the means of the seen classes, and new ones by k-means++.

        Each new one is the best of a few unlabelled items, drawn by their squared distance to the nearest centre.
        """
        n_seen, free = self.n_seen, self.free
        n_items = max(START_ITEMS, START_ITEMS_PER_CLUSTER * (self.n_clusters - n_seen))
        if len(free) > n_items:
            free = free.take(np.sort(rng.choice(len(free), n_items, replace=False)))
        centres = self.sums / np.maximum(self.counts, TINY)[:, None]
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
        """From centres (K, D) to the end."""
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
        means: Floats = (self.sums + sums) / np.maximum(counts, TINY)[:, None]
        return means

    def _fill_empty(self, nearest: Ints, sums: Floats) -> None:
        """Give each new cluster without items the one farthest from the mean of its cluster, and its equals; in place.

        A cluster of equal items has no distances and so keeps them, whatever else rounding may say.
        """
        sizes = np.bincount(nearest, minlength=self.n_clusters)
        for k in self.n_seen + np.flatnonzero(sizes[self.n_seen :] == 0):
            distances = self.free.distances_to_own(self._means(nearest, sums), nearest)
            may_leave = (nearest < self.n_seen) | (sizes[nearest] > 1)
            far = int(np.argmax(np.where(may_leave, distances, -1)))
            donor, x = nearest[far], self.free[far : far + 1]
            if distances[far] <= 1e-12 * np.square(x).sum():  # what rounding leaves of 0
                self._require_distinct()
            moved = np.flatnonzero((nearest == donor) & (self.free.distances_to(x)[0] == 0))
            if donor >= self.n_seen and len(moved) == sizes[donor]:
                moved = np.array([far])
            share = self.free.weights[moved].sum() * x.astype(np.float64)
            sums[[donor, k]] += np.concatenate([-share, share])
            sizes[[donor, k]] += [-len(moved), len(moved)]
            nearest[moved] = k

    def _require_distinct(self) -> None:
        if (n := self.free.n_distinct()) < self.n_clusters - self.n_seen:
            raise TooManyClusters(n, self.n_clusters, self.n_seen)


def _nearest_of(centres: Floats) -> Finder:
    """Finds the nearest centre of items, the first in a tie.

    |x - c|^2 less what all centres share is |c - m|^2 + 2 m.(c - m) - 2 x.(c - m) for any m; with the mean of the
    centres, items far from the origin lose no more digits than they must.
    """
    middle = centres.mean(axis=0)
    offsets = centres - middle
    bias = (np.square(offsets).sum(axis=1) + 2 * offsets @ middle).astype(np.float32)
    factors = np.ascontiguousarray(-2 * offsets.T, np.float32)  # (D, K)

    def find(_: slice, x: np.ndarray) -> Ints:
        scores = x @ factors
        scores += bias
        nearest: Ints = scores.argmin(axis=1)
        return nearest

    return find


def _squares(differences: np.ndarray) -> np.ndarray:
    """Squared length of each row."""
    found: np.ndarray = np.einsum("nd,nd->n", differences, differences)
    return found


def _mean_variance(items: _Items) -> float:
    """Of a feature, the mean over features."""
    origin = items[:1]

    def work(chunks: Chunks) -> Floats:
        moments = np.zeros((2, items.x.shape[1]))
        for chunk, x in chunks:
            differences, weights = x - origin, items.weights[chunk].astype(np.float32)
            moments += weights @ differences, weights @ np.square(differences)
        return moments

    first, second = np.sum(items.spread(work), axis=0) / items.weights.sum()
    return float(np.mean(second - np.square(first)))


def read_points(x: Array, name: str = "x") -> np.ndarray:
    """Items x (N, D), finite and of a size whose squares float32 can hold; ValueError else."""
    points = as_array(x)
    if points.ndim != 2:
        raise ValueError(f"{name} has shape {points.shape}; clustering takes (N, D), for example one view as x[:, 0]")
    check_finite(points, allow_constant=True)
    largest = max(abs(float(points.min())), abs(float(points.max())))
    if largest > LARGEST or 0 < largest < SMALLEST:
        raise ValueError(f"{name} reaches {largest:g}, whose square leaves the range of float32; scale it")
    return points


def _read_classes(labels: Array | None, n: int, n_clusters: int) -> tuple[Ints, int]:
    """Labels as (N,) int64, and the number of seen classes C."""
    found = np.full(n, -1) if labels is None else _numpy(labels)
    if found.shape != (n,) or found.dtype.kind not in "iu":
        raise ValueError(f"labels have shape {found.shape} and dtype {found.dtype}; give {n} ints, -1 if unlabelled")
    classes = found.astype(np.int64)
    if classes.min() < -1:
        raise ValueError(f"labels hold {classes.min()}; give 0 to C-1, and -1 if unlabelled")
    present = np.unique(classes[classes >= 0])
    if not np.array_equal(present, np.arange(len(present))):
        missing = np.setdiff1d(np.arange(len(present)), present)[0]
        raise ValueError(f"labels reach {present[-1]} but none is {missing}; number the classes 0 to C-1 without gaps")
    if n_clusters < max(len(present), 1):
        raise ValueError(f"n_clusters={n_clusters} for {len(present)} labelled classes; give at least that, and 1")
    return classes, len(present)


def _read_weights(weights: Array | None, n: int) -> Floats | None:
    if weights is None:
        return None
    found = _numpy(weights).astype(np.float64)
    if found.shape != (n,) or not (np.isfinite(found) & (found > 0)).all():
        raise ValueError(f"weights have shape {found.shape}; give {n} finite numbers above 0, one for each item")
    return found


def _numpy(values: Array) -> np.ndarray:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def _read_start(start: Array, n_clusters: int, n_features: int) -> Floats:
    found = read_points(start).astype(np.float64)
    if found.shape != (n_clusters, n_features):
        raise ValueError(f"start has shape {found.shape}; give one centre per cluster, {(n_clusters, n_features)}")
    return found


class TooManyClusters(ValueError):
    """More new clusters than there are distinct unlabelled items."""

    def __init__(self, n_distinct: int, n_clusters: int, n_seen: int):
        self.n_distinct = n_distinct
        super().__init__(
            f"n_clusters={n_clusters} asks for {n_clusters - n_seen} new clusters, but the unlabelled items are only "
            f"{n_distinct} distinct ones; give n_clusters of at most {n_seen + n_distinct}"
        )
