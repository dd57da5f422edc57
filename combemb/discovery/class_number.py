"""Other ways to count the novel classes: by the sizes of seen classes, or as GCD or DTC do."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import scipy

from combemb.discovery.kmeans import kmeans, kmeans_of_codes
from combemb.discovery.metrics import matched
from combemb.discovery.points import as_float32
from combemb.search.codebook import Codebook
from combemb.system.errors import require

MAX_COUNTED_ITEMS = 20_000  # more are sampled before they are counted
MIN_LABELLED_PER_CLASS = 5  # kept in such a sample, where there are as many
ROUGH_CLUSTERS_PER_CLASS = 4  # k-means starts once for more clusters: a rough answer is enough there
MAX_SILHOUETTE_ITEMS = 3_000
N_TRIED = 20  # numbers of classes that a search tries, about
MAX_WITHOUT_LABELS = 100  # clusters
MAX_NOVEL_PER_SEEN, MAX_NOVEL = 10, 200  # whichever allows more novel clusters
PROBE_SHARE = 0.4  # of the seen classes, as in DTC
MIN_CLUSTER_SHARE = 0.01  # DTC drops smaller clusters, compared with the largest

Ints = np.ndarray


@dataclass(frozen=True)
class ClassNumber:
    """An estimated number n of novel classes, which may be as low as `low` and as high as `high`."""

    n: int
    low: int
    high: int


@dataclass(frozen=True, eq=False)
class Pile:
    """Items to count: embeddings x (N, D), and labels (N,) that are 0 to C-1, or -1 if unlabelled.

    The codebook encodes x, for "codes".
    """

    x: np.ndarray
    labels: Ints
    codebook: Codebook | None = None
    seed: int = 0
    progress: bool | None = False

    @property
    def n_seen(self) -> int:
        """C, the number of seen classes."""
        return int(self.labels.max(initial=-1)) + 1

    @property
    def most_novel(self) -> int:
        """The largest number of novel classes that `by_accuracy` and `by_probes` try."""
        return min(3 * self.n_seen + 10, int((self.labels < 0).sum()) // 2, _n_apart(self.x, self.labels))

    def some(self) -> "Pile":
        """Return the items that are counted."""
        if len(self.x) <= MAX_COUNTED_ITEMS:
            return self
        rows = counted_rows(self.labels, self.seed)
        return replace(self, x=np.asarray(self.x[rows]), labels=self.labels[rows])

    def clusters(self, n_clusters: int, labels: Ints | None, n_starts: int = 3, codes: Ints | None = None) -> Ints:
        """Return the cluster of each item by k-means on x or its codes; labelled items stay in that of their class."""
        more: dict[str, Any] = {"n_starts": n_starts, "n_iterations": 30, "seed": self.seed, "progress": self.progress}
        if codes is None or self.codebook is None:
            return kmeans(self.x, n_clusters, labels, **more).assignment
        return kmeans_of_codes(codes, self.codebook, n_clusters, labels, **more).assignment


def counted_rows(labels: Ints, seed: int, n_items: int = MAX_COUNTED_ITEMS) -> Ints:
    """Return rows of a sample: all, or `n_items` drawn at random and a few labelled ones per class; ascending."""
    if len(labels) <= n_items:
        return np.arange(len(labels))
    order = np.random.default_rng(seed).permutation(len(labels))
    labels = labels[order]
    by_class = np.argsort(labels, kind="stable")
    place = np.arange(len(labels)) - np.searchsorted(labels[by_class], labels[by_class])  # 0, 1, ... in each class
    is_kept = (place < MIN_LABELLED_PER_CLASS) & (labels[by_class] >= 0)
    return np.union1d(order[:n_items], order[by_class[is_kept]])


def check_count_by(count_by: str, codebook: Codebook | None) -> None:
    """Raise a ValueError unless count_by is one of `COUNTERS` and has what it counts."""
    known = ("merging", *COUNTERS)
    require(count_by in known, f"{count_by=} is unknown; choose one of {', '.join(known)}")
    has_codes = count_by != "codes" or codebook is not None
    require(has_codes, "count_by='codes' counts codes, but there is no codebook; choose count_by='merging'")


def count_novel(pile: Pile, count_by: str = "sizes") -> ClassNumber:
    """Estimate the number of novel classes; without any label, by the silhouette.

    Parameters
    ----------
    pile : Pile
        Items; a sample of them is counted if there are very many.
    count_by : {"sizes", "codes", "gcd", "dtc"}
        One of `COUNTERS`; "codes" requires the codebook of the pile.

    Returns
    -------
    ClassNumber
    """
    if not (pile.labels < 0).any():
        return ClassNumber(0, 0, 0)
    if (pile.x == pile.x[0]).all():
        return ClassNumber(1, 1, 1) if pile.n_seen == 0 else ClassNumber(0, 0, 0)
    some = pile.some()
    return COUNTERS[count_by](some) if some.n_seen > 0 else by_silhouette(some)


def by_sizes(pile: Pile, of_codes: bool = False) -> ClassNumber:
    """Count as many classes as the items in novel clusters would fill, if these have the mean size of the seen classes.

    K-means makes k novel clusters beside the seen classes. The number of items in them, divided by the mean size of the
    seen clusters, is the number of classes that they are worth. k begins too large and becomes what k clusters were
    worth, until k clusters are worth k. If classes are well separated, more clusters are hardly worth more.
    """
    C, worths = pile.n_seen, {0: 0.0}
    assert pile.codebook is not None or not of_codes, "codes are counted without a codebook"
    codes = pile.codebook.encode(pile.x).numpy() if of_codes and pile.codebook is not None else None

    def worth(k: int) -> float:
        """Return how many seen classes the items of k novel clusters would fill."""
        if k not in worths:
            n_starts = 5 if C + k <= ROUGH_CLUSTERS_PER_CLASS * C else 1
            sizes = np.bincount(pile.clusters(C + k, pile.labels, n_starts, codes), minlength=C + k)
            worths[k] = sizes[C:].sum() / sizes[:C].mean()
        return worths[k]

    n_apart = _n_apart(pile.x if codes is None else codes, pile.labels)
    n_labelled, n_unlabelled = int((pile.labels >= 0).sum()), int((pile.labels < 0).sum())
    most = min(n_apart, max(MAX_NOVEL_PER_SEEN * C, MAX_NOVEL))
    k = first = min(most, -(-n_unlabelled * C // n_labelled))  # what all items would be worth, if none was seen
    while (n := int(worth(k) + 0.5)) < k:
        k = n
    if 0 < k == first < n_apart:  # seen clusters hold little more than their labelled items: their sizes mean nothing
        return by_probes(pile)
    more = worth(min(max(C, 2 * k + 1), most))
    return ClassNumber(k, min(k, int(worth(k))), max(k, round(more)))


def by_accuracy(pile: Pile) -> ClassNumber:
    """Count as GCD does: search the number of plain k-means clusters that agree best with the labels (Brent)."""
    is_labelled = pile.labels >= 0
    known = pile.labels[is_labelled]
    most = min(pile.most_novel, _n_different(pile.x) - pile.n_seen)
    if most < 1:
        return ClassNumber(0, 0, 0)
    accuracy: dict[int, float] = {}

    def loss(number: float) -> float:
        n = round(number)
        if n not in accuracy:
            clusters = pile.clusters(pile.n_seen + n, None)[is_labelled]
            accuracy[n] = float(matched(clusters, known).mean())
        return -accuracy[n]

    options = {"maxiter": N_TRIED, "xatol": 0.5}
    scipy.optimize.minimize_scalar(loss, bounds=(0, most), method="bounded", options=options)
    best = max(accuracy, key=lambda n: (accuracy[n], -n))
    error = np.sqrt(accuracy[best] * (1 - accuracy[best]) / len(known))
    as_good = [n for n, a in accuracy.items() if a >= accuracy[best] - error]  # at most a standard error worse
    return ClassNumber(best, min(as_good), max(as_good))


def by_probes(pile: Pile) -> ClassNumber:
    """Count as DTC does: some seen classes, the probes, lose their labels and are to be found again.

    The result is half-way between the number with the best accuracy on the probes and that with the best silhouette of
    the unlabelled items. Clusters smaller than 1 % of the largest one are then dropped.
    """
    C, unlabelled = pile.n_seen, np.flatnonzero(pile.labels < 0)
    probes = np.random.default_rng(pile.seed).permutation(C)[: round(PROBE_SHARE * C)]
    is_probe = np.isin(pile.labels, probes)
    _, kept = np.unique(np.where(is_probe, -1, pile.labels), return_inverse=True)
    anchors = kept - 1 if (is_probe | (pile.labels < 0)).any() else kept
    most = min(pile.most_novel, len(np.unique(anchors[anchors >= 0])) + _n_apart(pile.x, anchors) - C)
    if most < 1:
        return ClassNumber(0, 0, 0)
    clusters = cache(lambda n: pile.clusters(C + n, anchors, n_starts=1))
    by_silhouette = by_accuracy = _best(lambda n: _silhouette(pile, clusters(n), unlabelled), 0, most)
    if len(probes) > 0:
        by_accuracy = _best(lambda n: matched(clusters(n)[is_probe], pile.labels[is_probe]).mean(), 0, most)
    n = -(-(by_accuracy + by_silhouette) // 2)
    sizes = np.bincount(pile.clusters(C + n, pile.labels), minlength=C + n)
    n = int((sizes[C:] >= MIN_CLUSTER_SHARE * sizes.max()).sum())
    return ClassNumber(n, min(n, by_accuracy, by_silhouette), max(n, by_accuracy, by_silhouette))


def by_silhouette(pile: Pile) -> ClassNumber:
    """Count the clusters, at least two, with the best silhouette; the interval spans numbers nearly as good."""
    most = min(len(pile.x) // 2, MAX_WITHOUT_LABELS, _n_apart(pile.x, pile.labels))
    if most < 2:
        return ClassNumber(1, 1, 1)
    rows = np.arange(len(pile.x))
    quality = cache(lambda n: _silhouette(pile, pile.clusters(n, None), rows))
    best = _best(quality, 2, most)
    near = [n for n in range(max(2, best - 3), min(most, best + 3) + 1) if quality(n) >= quality(best) - 0.01]
    return ClassNumber(best, min(near), max(near))


COUNTERS: dict[str, Callable[[Pile], ClassNumber]] = {
    "sizes": by_sizes,
    "codes": partial(by_sizes, of_codes=True),
    "gcd": by_accuracy,
    "dtc": by_probes,
}


def _n_apart(rows: np.ndarray, labels: Ints) -> int:
    """Return how many distinct rows (N, D) differ from all labelled ones in float32."""
    return _n_different(rows) - _n_different(rows[labels >= 0])


def _n_different(rows: np.ndarray) -> int:
    return len(np.unique(as_float32(rows), axis=0))


def _best(quality: Callable[[int], float], least: int, most: int) -> int:
    """Search the number with the largest quality, on a coarse grid and then around its best; the least of equals."""
    steps = np.geomspace(1, most - least + 1, N_TRIED).round().astype(int) - 1
    numbers = np.unique(least + steps).tolist()
    place = int(np.argmax([quality(n) for n in numbers]))
    around = numbers[max(place - 1, 0)], numbers[min(place + 1, len(numbers) - 1)]
    finer = np.unique(np.linspace(*around, N_TRIED // 2).round().astype(int)).tolist()
    candidates: list[int] = sorted({numbers[place], *finer})
    return max(candidates, key=quality)


def _silhouette(pile: Pile, clusters: Ints, rows: Ints) -> float:
    """Return the silhouette of some of these items; -1 if they are in one cluster, or each in its own."""
    from sklearn.metrics import silhouette_score  # noqa: PLC0415 - takes a second

    rng = np.random.default_rng(pile.seed)
    rows = rows if len(rows) <= MAX_SILHOUETTE_ITEMS else rng.choice(rows, MAX_SILHOUETTE_ITEMS, replace=False)
    n = len(np.unique(clusters[rows]))
    return float(silhouette_score(pile.x[rows], clusters[rows])) if 1 < n < len(rows) else -1.0
