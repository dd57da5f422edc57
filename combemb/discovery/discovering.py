"""Discover which items belong to no seen class, how many novel classes they form, and which item is in which."""

import warnings
from dataclasses import dataclass, replace
from itertools import islice
from numbers import Integral
from typing import Any

import numpy as np

from combemb.data.labels import Labels, read_labels
from combemb.discovery.class_number import ClassNumber, Pile, check_count_by, count_novel, counted_rows
from combemb.discovery.gaussians import Mixture
from combemb.discovery.hidden import Lesson, learn, seen_mixture
from combemb.discovery.kmeans import TooManyClusters, kmeans
from combemb.discovery.novel import find_novel
from combemb.discovery.points import (
    MIN_BETWEEN,
    Components,
    Points,
    as_float32,
    beside,
    class_means,
    in_order,
    read_points,
    scale_beside,
)
from combemb.discovery.regions import Regions
from combemb.discovery.result import Discovery, free_names, in_blocks
from combemb.search.codebook import Codebook
from combemb.system.arrays import Array
from combemb.system.errors import Note, require

NOVEL = "novel"
REACH_QUANTILE = 0.99  # this share of the clustered items is within reach of a cluster
MIN_REACH = 1.0  # in spreads of a cluster
LEAST_DISTANCE = 1e-30  # avoids a division by zero where distances are 0
MIN_LABELS = 3  # per class; fewer say little about how its items differ


class NothingToDiscover(Note):
    """Warns that all items are labelled, or none of them is, or that none of them is novel."""


class Unsure(Note):
    """Warns that there are too few labels for what is asked, or that the result contradicts them."""


def discover(
    embeddings: Array,
    labels: Any = None,
    n_novel: int | None = None,
    *,
    count_by: str = "merging",
    codebook: Codebook | None = None,
    features: Array | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Discovery:
    """Assign every item to a seen or a novel class, and estimate how many novel classes there are.

    Parameters
    ----------
    embeddings : array of shape (N, D)
        A numpy array or a torch tensor; `Method.embed` returns one.
    labels : sequence of length N or Labels, optional
        Ints with -1, or strings with None, for unlabelled items. Labelled items keep their class.
    n_novel : int, optional
        Number of novel classes. By default it is estimated.
    count_by : {"merging", "sizes", "codes", "gcd", "dtc"}
        How to estimate it: by merging small clusters as hidden seen classes teach, by the sizes of clusters of
        embeddings or of codes, or as GCD or DTC do.
    codebook : Codebook, optional
        Encodes embeddings; required by ``count_by="codes"``.
    features : array of shape (N, F), optional
        Features of the same items that were not trained on these labels, such as those of a frozen backbone. They
        replace the embeddings, in which labelled items are closer to their class than unlabelled ones, so that what is
        learned from labels would not hold for the others. Where the median class has two labels or fewer, the
        embeddings stay beside them, unless they know these labels by heart.
    seed : int
        Seed of everything random.
    progress : bool, optional
        Whether to show progress; by default on a terminal only.

    Returns
    -------
    Discovery
        The clusters. Its `predict` and `novelty` apply them to new items.

    Examples
    --------
    >>> z = np.repeat([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]], 20, axis=0) + np.random.default_rng(0).normal(size=(60, 2))
    >>> found = discover(z, ["cat"] * 10 + [None] * 10 + ["dog"] * 10 + [None] * 30)
    >>> found
    Discovery(60 items: 2 seen classes, 1 (1 to 2) novel)
    >>> found.predict([[0.0, 8.0], [1.0, 0.0]]).tolist()
    ['novel-1', 'cat']
    """
    check_count_by(count_by, codebook)
    z = as_float32(read_points(embeddings, "embeddings"))
    labels = np.full(len(z), -1) if labels is None else labels
    read = labels if isinstance(labels, Labels) else read_labels(labels, len(z))
    require(len(read) == len(z), f"there are {len(read)} labels for {len(z)} items; give one per item")
    require(not read.is_multi, "discovery takes one label per item; of several, give the one that matters")
    given = None if features is None else read_points(features, "features")
    if given is not None and len(given) != len(z):
        raise ValueError(f"there are {len(given)} features for {len(z)} embeddings; give one row per item")
    _warn_of_labels(read)
    number = None if n_novel is None else _given_number(n_novel, len(read.classes), int((~read.is_labelled).sum()))
    if number is None and (count_by != "merging" or len(read.classes) == 0):
        number = count_novel(Pile(z, read.values, codebook, seed, progress), count_by)
    try:
        points, mixture, number = _found(z, given, read, number, seed=seed, progress=progress)
    except TooManyClusters as error:
        reason = (
            f"n_novel={number.n if number else 1}, but only {error.n_distinct} of the unlabelled items are distinct"
        )
        raise ValueError(f"{reason}; use fewer novel classes") from error
    found = _described(points.of(z, given), points, mixture, read, number)
    if n_novel is None:
        _warn_of_result(found)
    return found


def _found(
    z: np.ndarray, features: np.ndarray | None, labels: Labels, number: ClassNumber | None, *, seed: int, progress: Any
) -> tuple[Points, Mixture, ClassNumber]:
    """Return the points, the mixture of all classes and the number of novel ones, learned from a sample if large."""
    for items in (features, z):
        if items is None or len(labels.classes) == 0:
            continue
        rows = counted_rows(labels.values, seed)
        rows = rows[in_order(items[rows], labels.values[rows])]  # so that the given order decides nothing
        classes = labels.values[rows]
        components = Components.fit(items[rows], items is features)
        if components is not None:
            z_rows = z[rows] if items is features else None
            view = _learned(components, classes, z_rows, seed, progress)
            if items is features and view.lesson.has_few_labels:
                view = _with_z(view, items[rows], z[rows], classes, seed=seed, progress=progress)
            found = find_novel(
                view.y, classes, view.evidence, view.seen, view.lesson, z=z_rows, number=number, seed=seed
            )
            return view.points, found.mixture, found.number
    return _plain(z, labels, number or ClassNumber(0, 0, 0), seed, progress)


@dataclass(frozen=True, eq=False)
class _View:
    """Points y (N, d) and what makes them, the seen classes, evidence of novelty, and what hidden classes teach."""

    points: Points
    y: np.ndarray
    seen: Mixture
    evidence: np.ndarray
    lesson: Lesson


def _learned(components: Components, classes: np.ndarray, z: np.ndarray | None, seed: int, progress: Any) -> _View:
    """Return all that labels teach about the items of these components."""
    points, y, seen = seen_mixture(components, classes, seed)
    evidence = seen.evidence(y, seen.log_joint(y))
    lesson = learn(components, classes, evidence, z, seed=seed, progress=progress)
    return _View(points, y, seen, evidence, lesson)


def _with_z(
    view: _View, features: np.ndarray, z: np.ndarray, classes: np.ndarray, *, seed: int, progress: Any
) -> _View:
    """Return the view of features and embeddings together, unless these know their labels by heart.

    The neighbours that embeddings were trained on say more about a class than two labels do. If labelled items are
    much closer to their class than unlabelled ones, too few of the latter seem to belong to seen classes.
    """
    scale = scale_beside(features, z)
    components = Components.fit(beside(features, z, scale), True) if scale > 0 else None
    if components is None:
        return view
    found = _learned(components, classes, z, seed, progress)
    if found.lesson.seen_share < view.lesson.seen_share - view.lesson.share_error:
        return view
    return replace(found, points=replace(found.points, z_scale=scale))


def _plain(
    z: np.ndarray, labels: Labels, number: ClassNumber, seed: int, progress: Any
) -> tuple[Points, Mixture, ClassNumber]:
    """Return clusters by k-means: without labels there is nothing to learn from, and nothing in equal items either."""
    C = len(labels.classes)
    found = kmeans(z, C + number.n, labels.values, seed=seed, n_starts=10, progress=progress)
    rest = z - found.centres[found.assignment]
    spread = float(np.sqrt(np.square(rest, dtype=np.float64).mean())) or 1.0
    mean, D = z.mean(axis=0, dtype=np.float64), z.shape[1]
    between = np.maximum(z.var(axis=0, dtype=np.float64) / spread**2, MIN_BETWEEN)
    points = Points(mean, np.eye(D) / spread, between, has_features=False)
    counts = np.bincount(found.assignment, minlength=C + number.n)
    means = (found.centres - mean) / spread
    return points, Mixture(means, counts, between, C, regions=Regions.none(D)), number


def _described(x: np.ndarray, points: Points, mixture: Mixture, labels: Labels, number: ClassNumber) -> Discovery:
    """Return the clusters in order, with their names, the distances of their items, and how far they reach."""
    C, K = mixture.n_seen, len(mixture.means)
    assignment, confidence = mixture.assign(x)
    nearest = assignment.copy()
    assignment[labels.is_labelled] = labels.values[labels.is_labelled]
    _fill_empty(assignment, labels.is_labelled, K)
    order = np.append(np.arange(C), C + np.argsort(-np.bincount(assignment, minlength=K)[C:], kind="stable"))
    assignment, nearest, mixture = np.argsort(order)[assignment], np.argsort(order)[nearest], mixture.take(order)
    sizes = np.bincount(assignment, minlength=K)
    centres = class_means(x, assignment, K).astype(np.float32)
    distance = np.linalg.norm(x - centres[assignment], axis=1).astype(np.float32)
    # An item pulls its own centre towards itself: without it, it would be n / (n - 1) times as far away.
    outside = (sizes / np.maximum(sizes - 1, 1))[assignment] * distance
    spreads = np.sqrt(np.bincount(assignment, np.square(outside), K) / np.maximum(sizes, 1))
    spreads = np.maximum(spreads, np.sqrt(np.mean(np.square(outside))) / 4 + LEAST_DISTANCE).astype(np.float32)
    far = np.empty(len(x))
    for rows, distances in in_blocks(x, centres):
        distances[np.arange(len(distances)), assignment[rows]] = outside[rows]
        far[rows] = (distances / spreads).min(axis=1)
    novel = islice(free_names(NOVEL, set(labels.classes.tolist())), K - C)
    return Discovery(
        names=np.array([*labels.classes.tolist(), *novel, None], dtype=object)[:-1],
        n_seen=C,
        n_novel_interval=(number.low, number.high),
        assignment=assignment,
        nearest=nearest,
        distance=distance,
        confidence=np.where(labels.is_labelled, np.float32(1), confidence),
        is_labelled=labels.is_labelled,
        centres=centres,
        spreads=spreads,
        reach=max(float(np.quantile(far, REACH_QUANTILE)), MIN_REACH),
        points=points,
        mixture=mixture,
    )


def _fill_empty(assignment: np.ndarray, is_labelled: np.ndarray, K: int) -> None:
    """Give each empty cluster an item that may leave its own; in place."""
    sizes = np.bincount(assignment, minlength=K)
    for k in np.flatnonzero(sizes == 0):
        may_leave = np.flatnonzero(~is_labelled & (sizes[assignment] > 1))
        if len(may_leave) > 0:
            row = may_leave[-1]
            sizes[[assignment[row], k]] += [-1, 1]
            assignment[row] = k


def _warn_of_labels(labels: Labels) -> None:
    """Say what these labels cannot support."""
    n_seen, counts = len(labels.classes), np.bincount(labels.values[labels.is_labelled], minlength=1)
    if n_seen == 0:
        warnings.warn("no item is labelled: this is plain clustering, all of it novel", NothingToDiscover, stacklevel=3)
    elif labels.is_labelled.all():
        warnings.warn("all items are labelled: nothing is left to discover", NothingToDiscover, stacklevel=3)
    elif n_seen == 1:
        warnings.warn(
            f"only {labels.classes.tolist()[0]!r} is labelled: items are novel if they are unlike it, but nothing "
            "shows how classes differ; label a second class",
            Unsure,
            stacklevel=3,
        )
    elif (few := int((counts < MIN_LABELS).sum())) > 0:
        warnings.warn(
            f"{few} of {n_seen} seen classes have fewer than {MIN_LABELS} labelled items: what is novel and how many "
            f"classes there are is a guess; label at least {MIN_LABELS} items of each",
            Unsure,
            stacklevel=3,
        )


def _warn_of_result(found: Discovery) -> None:
    """Say which parts of the result are doubtful."""
    low, high = found.n_novel_interval
    if found.n_seen > 0 and found.n_novel == 0 and not found.is_labelled.all():
        warnings.warn("no item is unlike the seen classes: all were put into them", NothingToDiscover, stacklevel=3)
    elif found.n_seen > 0 and (n := int(found.is_novel.sum())) == 1:
        warnings.warn(f"{n} item is unlike the seen classes: a class of its own, or an outlier", Unsure, stacklevel=3)
    elif high - low > max(3, found.n_novel):
        warnings.warn(
            f"the number of novel classes is uncertain: {found.n_novel}, but anything from {low} to {high} is "
            "plausible; give n_novel if you know it",
            Unsure,
            stacklevel=3,
        )
    own = found.assignment[found.is_labelled]
    counts = np.maximum(np.bincount(own, minlength=found.n_seen), 1)
    lost = np.bincount(own, found.nearest[found.is_labelled] >= found.n_seen, found.n_seen)[: found.n_seen] / counts
    if (lost > 0.5).any():
        names = ", ".join(repr(name) for name in found.names[: found.n_seen][lost > 0.5][:5])
        warnings.warn(
            f"more than half of the labelled items look novel in {names}: are the labels right, and is it one class?",
            Unsure,
            stacklevel=3,
        )


def _given_number(n_novel: int, n_seen: int, n_unlabelled: int) -> ClassNumber:
    is_count = isinstance(n_novel, Integral) and not isinstance(n_novel, bool) and n_novel >= 0
    require(is_count, f"n_novel={n_novel!r}; give a whole number, 0 or more, or None to estimate it")
    found = f"n_novel={n_novel} novel classes need as many unlabelled items, but there are {n_unlabelled}"
    require(n_novel <= n_unlabelled, f"{found}; use fewer")
    require(n_seen + n_novel > 0, "n_novel=0 and no labels leave no cluster at all; label some items, or give n_novel")
    return ClassNumber(int(n_novel), int(n_novel), int(n_novel))
