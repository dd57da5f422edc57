"""The novel classes: which items are in none of the seen ones, how many classes they form, and what is uncertain."""

from dataclasses import dataclass, replace

import numpy as np

from combemb.discovery.class_number import ClassNumber
from combemb.discovery.gaussians import Mixture
from combemb.discovery.hidden import Lesson
from combemb.discovery.kmeans import TooManyClusters
from combemb.discovery.merging import OUTLIER_SHARE, Pieces
from combemb.discovery.points import class_means
from combemb.discovery.refining import refined

ERRORS, MIN_NOVEL = 1.0, 0.04  # standard errors, and at least this share: fewer novel items are taken for none
OBVIOUS = 7.0  # log-odds from which a single item is novel, whatever the share of novel items
CAUTION = 0.5  # weight of the shares of seen and novel items in the decision about an item: 0 ignores, 1 obeys them
MAX_SHARE = 0.98
MAX_THRESHOLD = 1.5  # log-odds; what is as clearly novel stays so, however many items are
DEVIATIONS = 2.0  # of the interval, in standard errors of the logarithm of the number
SIZE_NOISE = 0.06  # relative variance of the size of a cluster, even if all classes have the same size
SPLIT_COST = 1.2  # log-odds against each further class in a cluster; over five times the usual size is one large class
EVEN_OUTLIER_SHARE = 0.4  # as `OUTLIER_SHARE` of merging, if all seen classes have the same size
MAX_RESCALED = 1.5  # factor between the novel items that there should be and those that were clustered


@dataclass(frozen=True, eq=False)
class Found:
    """The mixture of seen and novel classes, and the number of novel ones."""

    mixture: Mixture
    number: ClassNumber


def find_novel(
    y: np.ndarray,
    labels: np.ndarray,
    evidence: np.ndarray,
    seen: Mixture,
    lesson: Lesson,
    *,
    z: np.ndarray | None,
    number: ClassNumber | None,
    seed: int,
) -> Found:
    """Cluster the items that belong to no seen class.

    Parameters
    ----------
    y, labels, evidence : arrays of shape (N, d), (N,) and (N, 2)
        Points, classes 0 to C-1 or -1 if unlabelled, and evidence of novelty by the seen classes.
    seen : Mixture
        The seen classes.
    lesson : Lesson
        What hidden seen classes teach.
    z : array of shape (N, D), optional
        Embeddings, if the points are made of features.
    number : ClassNumber, optional
        Number of novel classes; by default it is estimated.
    seed : int
        Seed of k-means.

    Returns
    -------
    Found
    """
    free = np.flatnonzero(labels < 0)
    seen = replace(seen, slope=lesson.slope, local_slope=lesson.local_slope, temperature=lesson.temperature)
    log_odds = evidence[free] @ np.array([lesson.slope, lesson.local_slope]) + lesson.offset
    share = min(max(lesson.seen_share, 1 - MAX_SHARE), MAX_SHARE)
    threshold = CAUTION * np.log(share / (1 - share))
    if len(free) > 0:  # never call more items novel than there should be
        threshold = max(threshold, min(float(np.quantile(log_odds, share)), MAX_THRESHOLD), lesson.threshold)
    doubt = 0.0 if lesson.has_few_labels else ERRORS * lesson.share_error  # lack of evidence is none of absence
    is_none = number is None and 1 - lesson.seen_share <= max(doubt, MIN_NOVEL)
    if is_none:
        threshold = OBVIOUS
    seen = replace(seen, offset=lesson.offset - threshold)
    n_least = number.n if number is not None else 0
    if n_least == 0 and (number is not None or not (log_odds > threshold).any()):
        high = round((1 - lesson.seen_share + ERRORS * lesson.share_error) * len(free) / _seen_size(labels, lesson))
        return Found(seen, number or ClassNumber(0, 0, max(high, 0)))
    rows = free[_called(y[free], log_odds, threshold, n_least)]
    pieces = Pieces(y[rows], seen.between, None if z is None else z[rows], max(n_least, 1), seed)
    staying = free[log_odds <= threshold]
    seen_sizes = seen.counts + np.bincount(seen.assign(y[staying])[0], minlength=seen.n_seen)
    if number is None:
        clusters = pieces.merged(lesson.grain)
        number = _number(np.bincount(clusters), seen_sizes, labels, lesson, is_none)
        n_most = len(np.unique(pieces.of_item))
        number = replace(number, n=min(number.n, n_most), low=min(number.low, n_most), high=min(number.high, len(rows)))
    varies = (seen_sizes / seen_sizes.mean()).var()
    even = 0.0 if lesson.has_few_labels else 1 / (1 + varies / SIZE_NOISE)  # 1 if all seen classes have the same size
    clusters = pieces.merged(lesson.grain, number.n, OUTLIER_SHARE + even * (EVEN_OUTLIER_SHARE - OUTLIER_SHARE))
    found = _joined(y[rows], clusters, seen)
    return Found(refined(found, y, labels) if lesson.has_few_labels else found, number)


def _called(y: np.ndarray, log_odds: np.ndarray, threshold: float, n_least: int) -> np.ndarray:
    """Return places of the items called novel, the most novel ones if fewer than n_least distinct ones would be."""
    is_called = log_odds > threshold
    if n_least > 0 and len(np.unique(y[is_called], axis=0)) < n_least:
        order = np.argsort(-log_odds, kind="stable")
        first = np.sort(np.unique(y[order], axis=0, return_index=True)[1])[:n_least]  # the most novel of equal items
        if len(first) < n_least:
            raise TooManyClusters(len(first), n_least, 0)
        is_called[order[: first[-1] + 1]] = True
    return np.flatnonzero(is_called)


def _number(
    sizes: np.ndarray, seen_sizes: np.ndarray, labels: np.ndarray, lesson: Lesson, is_none: bool
) -> ClassNumber:
    """Combine two estimates of the number of novel classes, each with the error that it should have.

    Merged clusters, of these sizes, merge or cut classes that overlap, as far as hidden classes do not agree with
    theirs. The number of novel items over the size of a seen class does not care about overlap, but means little if
    sizes differ and classes are few. Seen classes, with their unlabelled items, and clusters tell how much they differ.
    """
    if is_none:
        return ClassNumber(len(sizes), 0, len(sizes))
    size = _seen_size(labels, lesson)
    by_size = max((1 - lesson.seen_share) * int((labels < 0).sum()) / size, 0.5)
    relative = seen_sizes / seen_sizes.mean()
    within = (
        _classes_within(sizes / size, by_size, relative.var()) if not lesson.has_few_labels else np.ones_like(sizes)
    )
    by_merging = int(within.sum())
    relative = np.append(relative, np.repeat(sizes / size / within, within))
    varies = relative.var() / np.square(relative.mean())
    share_error = lesson.share_error / max(1 - lesson.seen_share, 0.01)
    doubt = 4 if lesson.has_few_labels else 1  # two items of a hidden class show little of how it should be merged
    n_labels = np.median(np.bincount(labels[labels >= 0]))
    variance = np.array(
        [
            doubt * np.square(1 - lesson.agreement * (1 - 1 / n_labels)) + 0.1 / by_merging,
            varies * (1 / by_merging + 1 / len(seen_sizes)) + np.square(share_error) + 0.02 + 0.2 / by_size,
        ]
    )
    logs, weights = np.log([by_merging, by_size]), 1 / variance
    middle, error = float(weights @ logs / weights.sum()), DEVIATIONS / np.sqrt(weights.sum())
    error = max(error, abs(logs[0] - logs[1]) / 2)  # estimates that disagree are worth less than they claim
    n, low, high = np.maximum(np.round(np.exp([middle, middle - error, middle + error])), 1).astype(int).tolist()
    may_be_none = 1 - lesson.seen_share < DEVIATIONS * lesson.share_error
    return ClassNumber(n, 0 if may_be_none else low, high)


def _classes_within(sizes: np.ndarray, total: float, varies: float) -> np.ndarray:
    """Return how many classes are within each cluster of these sizes, in units of the mean size of a seen class.

    Seen classes of equal size are evidence that a cluster twice as large holds two of them. The larger the relative
    variance of their sizes, the weaker it is. The tail of the Cauchy distribution leaves room for a single class that
    is many times larger than all others. `total` is the sum of sizes that there should be, with items that were missed.
    """
    sizes = sizes * np.clip(total / sizes.sum(), 1 / MAX_RESCALED, MAX_RESCALED)
    k = np.arange(1, int(np.ceil(sizes.max())) + 2)
    cost = np.log1p(np.square(sizes[:, None] - k) / (k * (varies + SIZE_NOISE))) + SPLIT_COST * (k - 1)
    return np.asarray(k[cost.argmin(axis=1)])


def _seen_size(labels: np.ndarray, lesson: Lesson) -> float:
    """Return the mean number of items of a seen class, labelled and unlabelled."""
    n_free, n_labelled = int((labels < 0).sum()), int((labels >= 0).sum())
    return (n_labelled + lesson.seen_share * n_free) / (int(labels.max()) + 1)


def _joined(y: np.ndarray, clusters: np.ndarray, seen: Mixture) -> Mixture:
    """Return the mixture of seen classes and of the clusters of the points y (n, d)."""
    K = int(clusters.max()) + 1
    means = np.concatenate([seen.means, class_means(y, clusters, K)])
    return replace(seen, means=means, counts=np.concatenate([seen.counts, np.bincount(clusters)]))
