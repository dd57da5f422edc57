"""Count the novel classes: by the sizes of seen classes, which is our own way, or as GCD or DTC do."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import scipy

from combemb.discovery.held_out import FOLDS, held_out
from combemb.discovery.kmeans import kmeans, kmeans_of_codes
from combemb.discovery.metrics import agreement
from combemb.search.codebook import Codebook

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
Clusterer = Callable[[int], Ints]  # from a number of clusters to the cluster of each item


@dataclass(frozen=True)
class ClassNumber:
    """An estimate of the number of novel classes, and between what it may lie."""

    n: int
    low: int
    high: int


@dataclass(frozen=True, eq=False)
class Pile:
    """What an estimate may look at: x (N, D), labels (N,) of 0 to C-1 or -1, and perhaps codes and features.

    features (N, F): of the same items, not trained on these labels; x itself where there are none.
    """

    x: np.ndarray
    labels: Ints
    codebook: Codebook | None = None
    features: np.ndarray | None = None
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

    def some(self, n: int) -> "Pile":
        """n items drawn at random, and a few labelled ones of each class if there are any."""
        if len(self.x) <= n:
            return self
        rng = np.random.default_rng(self.seed)
        order = rng.permutation(len(self.x))
        labels = self.labels[order]
        by_class = np.argsort(labels, kind="stable")
        place = np.arange(len(labels)) - np.searchsorted(labels[by_class], labels[by_class])  # 0, 1, ... in each class
        rows = np.union1d(order[:n], order[by_class[(place < MIN_LABELLED_PER_CLASS) & (labels[by_class] >= 0)]])
        features = None if self.features is None else self.features[rows]
        return replace(self, x=np.asarray(self.x[rows]), labels=self.labels[rows], features=features)

    def clusters(self, n_clusters: int, labels: Ints | None, n_starts: int = 3) -> Ints:
        """The cluster of each item by k-means on x, labelled items in that of their class."""
        return kmeans(self.x, n_clusters, labels, n_starts=n_starts, **self.options).assignment

    @property
    def options(self) -> dict[str, Any]:
        """Of a clustering that is one of many."""
        return {"seed": self.seed, "n_iterations": 30, "progress": self.progress}


def check_count_by(count_by: str, codebook: Codebook | None) -> None:
    """Raise a ValueError unless count_by is one of `COUNTERS` and has what it counts."""
    if count_by not in COUNTERS:
        raise ValueError(f"count_by={count_by!r} is unknown; choose one of {', '.join(COUNTERS)}")
    if count_by == "codes" and codebook is None:
        raise ValueError("count_by='codes' counts codes, but there is no codebook; choose count_by='sizes'")


def count_novel(pile: Pile, count_by: str = "sizes") -> ClassNumber:
    """The number of novel classes by one of `COUNTERS`; without any label, by the silhouette."""
    if not (pile.labels < 0).any():
        return ClassNumber(0, 0, 0)
    if (pile.x == pile.x[0]).all():
        return ClassNumber(1, 1, 1) if pile.n_seen == 0 else ClassNumber(0, 0, 0)
    some = pile.some(MAX_COUNTED_ITEMS)
    return COUNTERS[count_by](some) if some.n_seen > 0 else by_silhouette(some)


def by_sizes(pile: Pile) -> ClassNumber:
    """Our own: as many as the items in novel clusters are worth, if a novel class is as large as a seen one on average.

    Ask k-means for k novel clusters beside the seen classes; the items in them, over the mean size of the seen
    clusters, say how many classes they are worth. Begin with too many, ask for as many as these were worth, and so on
    until k clusters are worth k. Where classes are apart, more clusters are hardly worth more. Where they are, because
    classes overlap, the share of novel items is estimated by `held_out` instead.
    """
    return _by_sizes(
        pile, lambda n: pile.clusters(n, pile.labels, n_starts=_starts(pile, n)), _n_apart(pile.x, pile.labels)
    )


def by_sizes_of_codes(pile: Pile) -> ClassNumber:
    """As `by_sizes`, with clusters of the codes instead of the embeddings."""
    assert pile.codebook is not None
    codebook, codes = pile.codebook, pile.codebook.encode(pile.x).numpy()

    def clusters(n_clusters: int) -> Ints:
        return kmeans_of_codes(
            codes, codebook, n_clusters, pile.labels, n_starts=_starts(pile, n_clusters), **pile.options
        ).assignment

    return _by_sizes(pile, clusters, _n_apart(codes, pile.labels))


def by_accuracy(pile: Pile) -> ClassNumber:
    """GCD's: the number of clusters of plain k-means that agree best with the labels, by Brent's search.

    Between: numbers that were tried and are less than a standard error worse.
    """
    is_labelled = pile.labels >= 0
    known, novel = pile.labels[is_labelled], np.zeros(int(is_labelled.sum()), bool)
    most = min(pile.most_novel, _n_different(pile.x) - pile.n_seen)
    if most < 1:
        return ClassNumber(0, 0, 0)
    accuracy: dict[int, float] = {}

    def loss(number: float) -> float:
        n = round(number)
        if n not in accuracy:
            clusters = pile.clusters(pile.n_seen + n, None)[is_labelled]
            accuracy[n] = agreement(clusters, known, novel).acc_joint.all
        return -accuracy[n]

    options = {"maxiter": N_TRIED, "xatol": 0.5}
    scipy.optimize.minimize_scalar(loss, bounds=(0, most), method="bounded", options=options)
    best = max(accuracy, key=lambda n: (accuracy[n], -n))
    error = np.sqrt(accuracy[best] * (1 - accuracy[best]) / len(known))
    as_good = [n for n, a in accuracy.items() if a >= accuracy[best] - error]
    return ClassNumber(best, min(as_good), max(as_good))


def by_probes(pile: Pile) -> ClassNumber:
    """DTC's: some seen classes, the probes, lose their labels; what number finds them again, and clusters well?

    The answer lies half-way between the number with the best accuracy on the probes and that with the best silhouette
    of the unlabelled items; clusters that are then below 1 % of the largest one do not count.
    """
    C, unlabelled = pile.n_seen, np.flatnonzero(pile.labels < 0)
    probes = np.random.default_rng(pile.seed).permutation(C)[: round(PROBE_SHARE * C)]
    is_probe = np.isin(pile.labels, probes)
    _, kept = np.unique(np.where(is_probe, -1, pile.labels), return_inverse=True)
    anchors = kept - 1 if (is_probe | (pile.labels < 0)).any() else kept
    known, novel = pile.labels[is_probe], np.ones(int(is_probe.sum()), bool)
    most = min(pile.most_novel, len(np.unique(anchors[anchors >= 0])) + _n_apart(pile.x, anchors) - C)
    if most < 1:
        return ClassNumber(0, 0, 0)
    clusters = cache(lambda n: pile.clusters(C + n, anchors, n_starts=1))
    by_silhouette = by_accuracy = _best(lambda n: _silhouette(pile, clusters(n), unlabelled), 0, most)
    if len(probes) > 0:
        by_accuracy = _best(lambda n: agreement(clusters(n)[is_probe], known, novel).acc_joint.all, 0, most)
    n = -(-(by_accuracy + by_silhouette) // 2)
    sizes = np.bincount(pile.clusters(C + n, pile.labels), minlength=C + n)
    n = int((sizes[C:] >= MIN_CLUSTER_SHARE * sizes.max()).sum())
    return ClassNumber(n, min(n, by_accuracy, by_silhouette), max(n, by_accuracy, by_silhouette))


def by_silhouette(pile: Pile) -> ClassNumber:
    """Without labels: the number of clusters, at least two, with the best silhouette; between, those nearly as good."""
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
    "codes": by_sizes_of_codes,
    "gcd": by_accuracy,
    "dtc": by_probes,
}


def _starts(pile: Pile, n_clusters: int) -> int:
    """Of k-means: one while there are far more clusters than in the end, where a rough answer will do."""
    return 5 if n_clusters <= ROUGH_CLUSTERS_PER_CLASS * pile.n_seen else 1


def _n_apart(rows: np.ndarray, labels: Ints) -> int:
    """How many different unlabelled rows (N, D) there are that no labelled item is equal to, as k-means sees them."""
    return _n_different(rows) - _n_different(rows[labels >= 0])


def _n_different(rows: np.ndarray) -> int:
    """How many different rows (N, D) there are, as k-means sees them."""
    return len(np.unique(rows.astype(np.float32) if rows.dtype == np.float64 else rows, axis=0))


def _by_sizes(pile: Pile, clusters: Clusterer, n_apart: int) -> ClassNumber:
    """See `by_sizes`; n_apart: how many novel clusters can be made, at most."""
    C, worths = pile.n_seen, {0: 0.0}

    def worth(k: int) -> float:
        """How many seen classes the items of k novel clusters would fill."""
        if k not in worths:
            sizes = np.bincount(clusters(C + k), minlength=C + k)
            worths[k] = sizes[C:].sum() / sizes[:C].mean()
        return worths[k]

    n_labelled, n_unlabelled = int((pile.labels >= 0).sum()), int((pile.labels < 0).sum())
    most = min(n_apart, max(MAX_NOVEL_PER_SEEN * C, MAX_NOVEL))
    k = first = min(most, -(-n_unlabelled * C // n_labelled))  # what all items would be worth, if none was seen
    while (n := int(worth(k) + 0.5)) < k:
        k = n
    if 0 < k == first < n_apart:  # seen clusters are little more than their labelled items, and no measure of size
        return by_probes(pile)
    more = worth(min(max(C, 2 * k + 1), most))
    if more > 2 * k + 1:
        features = pile.x if pile.features is None else pile.features
        estimates = held_out(features, pile.labels, seed=pile.seed, progress=pile.progress)
        if len(estimates) > 0:
            mean, error = float(estimates.mean()), 2 * float(estimates.std()) / np.sqrt(FOLDS)
            ends = np.clip([mean - error, mean, mean + error], 0, most).round().astype(int).tolist()
            return ClassNumber(ends[1], ends[0], ends[2])
    return ClassNumber(k, min(k, int(worth(k))), max(k, round(more)))


def _best(quality: Callable[[int], float], least: int, most: int) -> int:
    """The number with the largest quality, the least of equals: of a few all over the range, then of those around."""
    steps = np.geomspace(1, most - least + 1, N_TRIED).round().astype(int) - 1
    numbers = np.unique(least + steps).tolist()
    place = int(np.argmax([quality(n) for n in numbers]))
    around = numbers[max(place - 1, 0)], numbers[min(place + 1, len(numbers) - 1)]
    finer = np.unique(np.linspace(*around, N_TRIED // 2).round().astype(int)).tolist()
    candidates: list[int] = sorted({numbers[place], *finer})
    return max(candidates, key=quality)


def _silhouette(pile: Pile, clusters: Ints, rows: Ints) -> float:
    """Of some of these items; -1 where they are in one cluster, or each in its own."""
    from sklearn.metrics import silhouette_score  # noqa: PLC0415 - would cost every start of a fit a second

    rng = np.random.default_rng(pile.seed)
    rows = rows if len(rows) <= MAX_SILHOUETTE_ITEMS else rng.choice(rows, MAX_SILHOUETTE_ITEMS, replace=False)
    n = len(np.unique(clusters[rows]))
    return float(silhouette_score(pile.x[rows], clusters[rows])) if 1 < n < len(rows) else -1.0
