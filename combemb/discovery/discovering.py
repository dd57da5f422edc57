"""Discovery: which items are of no seen class, how many novel classes there are, and which item is in which."""

import warnings
from numbers import Integral
from typing import Any

import numpy as np

from combemb.data.labels import Labels, read_labels
from combemb.discovery.class_number import ClassNumber, Pile, check_count_by, count_novel
from combemb.discovery.kmeans import Clustering, TooManyClusters, kmeans, read_points
from combemb.discovery.points import Points
from combemb.discovery.result import Discovery, free_names, in_blocks
from combemb.search.codebook import Codebook
from combemb.system.arrays import Array
from combemb.system.errors import Note, require

NOVEL = "novel"
REACH_QUANTILE = 0.99  # this share of the clustered items is within reach of a cluster
MIN_REACH = 1.0  # in spreads of a cluster
LEAST_DISTANCE = 1e-30  # avoids a division by zero where distances are 0


class NothingToDiscover(Note):
    """The labels answer everything, or nothing: all items are labelled, or not one of them is."""


def discover(
    embeddings: Array,
    labels: Any = None,
    n_novel: int | None = None,
    *,
    count_by: str = "sizes",
    codebook: Codebook | None = None,
    features: Array | None = None,
    n_starts: int = 10,
    seed: int = 0,
    progress: bool | None = None,
) -> Discovery:
    """Put every item into a seen class or a novel one, and say how many novel ones there are.

    embeddings (N, D). labels (N,): ints with -1, or strings with None, where unlabelled; labelled items keep their
    class. n_novel: the number of novel classes; estimated if left out, by `count_by`: "sizes", our own; "codes", the
    same on codes, which needs the `codebook`; "gcd" or "dtc". features (N, F): of the same items before any training on
    these labels, such as those of a frozen backbone. Weighed by what the labels say matters they stand beside the
    embeddings, and they make the estimate better where classes overlap.

    >>> z = np.repeat([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]], 20, axis=0) + np.random.default_rng(0).normal(size=(60, 2))
    >>> found = discover(z, ["cat"] * 10 + [None] * 10 + ["dog"] * 10 + [None] * 30)
    >>> found
    Discovery(60 items: 2 seen classes, 1 novel)
    >>> found.predict([[0.0, 8.0], [1.0, 0.0]]).tolist()
    ['novel-1', 'cat']
    """
    check_count_by(count_by, codebook)
    z = _as_float32(read_points(embeddings, "embeddings"))
    read = (
        labels if isinstance(labels, Labels) else read_labels(np.full(len(z), -1) if labels is None else labels, len(z))
    )
    require(len(read) == len(z), f"there are {len(read)} labels for {len(z)} items; give one per item")
    require(not read.is_multi, "discovery takes one label per item; of several, give the one that matters")
    n_seen, n_unlabelled = len(read.classes), int((~read.is_labelled).sum())
    _tell(n_seen, n_unlabelled)
    given = None if features is None else read_points(features, "features")
    if given is not None and len(given) != len(z):
        raise ValueError(f"there are {len(given)} features for {len(z)} embeddings; give one row per item")
    if n_novel is None:
        number = count_novel(Pile(z, read.values, codebook, given, seed, progress), count_by)
    else:
        number = _given_number(n_novel, n_seen, n_unlabelled)
    points = Points.fit(z, given, read, seed)
    x = points.of(z, given)
    try:
        found = kmeans(x, n_seen + number.n, read.values, seed=seed, n_starts=n_starts, progress=progress)
    except TooManyClusters as error:
        n = error.n_distinct
        raise ValueError(
            f"n_novel={number.n}, but the unlabelled items are only {n} different ones; give less"
        ) from error
    return _described(x, found, read, number, points)


def _described(x: np.ndarray, found: Clustering, labels: Labels, number: ClassNumber, points: Points) -> Discovery:
    """What there is to say of clusters: their order and names, how near items are to them, and how far they reach."""
    n_seen = len(labels.classes)
    sizes = np.bincount(found.assignment, minlength=len(found.centres))
    order = np.append(np.arange(n_seen), n_seen + np.argsort(-sizes[n_seen:], kind="stable"))
    assignment, centres, sizes = np.argsort(order)[found.assignment], found.centres[order], sizes[order]
    nearest = np.empty(len(x), np.int64)
    distance, confidence = np.empty((2, len(x)), np.float32)
    for rows, distances in in_blocks(x, centres):
        nearest[rows] = distances.argmin(axis=1)
        own = np.arange(len(distances)), assignment[rows]
        distance[rows] = distances[own]
        distances[own] = np.inf
        confidence[rows] = 1 - np.square(distance[rows] / np.maximum(distances.min(axis=1), LEAST_DISTANCE))
    # An item pulls its own centre towards itself: without it, it would be n / (n - 1) times as far away.
    outside = (sizes / np.maximum(sizes - 1, 1))[assignment] * distance
    spreads = np.sqrt(np.bincount(assignment, np.square(outside)) / sizes)
    spreads = np.maximum(spreads, np.sqrt(np.mean(np.square(outside))) / 4 + LEAST_DISTANCE).astype(np.float32)
    far = np.empty(len(x))
    for rows, distances in in_blocks(x, centres):
        distances[np.arange(len(distances)), assignment[rows]] = outside[rows]
        far[rows] = (distances / spreads).min(axis=1)
    return Discovery(
        names=_names(labels.classes, number.n),
        n_seen=n_seen,
        n_novel_interval=(number.low, number.high),
        assignment=assignment,
        nearest=nearest,
        distance=distance.copy(),
        confidence=np.where(labels.is_labelled, np.float32(1), confidence.clip(0, 1)),
        is_labelled=labels.is_labelled,
        centres=centres,
        spreads=spreads,
        reach=max(float(np.quantile(far, REACH_QUANTILE)), MIN_REACH),
        points=points,
    )


def _tell(n_seen: int, n_unlabelled: int) -> None:
    if n_seen == 0:
        text = "no item is labelled, so that all clusters are novel: this is plain clustering"
        warnings.warn(text, NothingToDiscover, stacklevel=3)
    if n_unlabelled == 0:
        text = "all items are labelled, so that nothing is left to discover"
        warnings.warn(text, NothingToDiscover, stacklevel=3)


def _given_number(n_novel: int, n_seen: int, n_unlabelled: int) -> ClassNumber:
    if isinstance(n_novel, bool) or not isinstance(n_novel, Integral) or n_novel < 0:
        raise ValueError(f"n_novel={n_novel!r}; give a whole number, 0 or more, or None to have it estimated")
    if n_novel > n_unlabelled:
        raise ValueError(
            f"n_novel={n_novel} novel classes need as many unlabelled items, but there are {n_unlabelled}; give less"
        )
    if n_seen + n_novel == 0:
        raise ValueError("n_novel=0 and no labels leave no cluster at all; label some items, or give n_novel")
    return ClassNumber(int(n_novel), int(n_novel), int(n_novel))


def _names(classes: np.ndarray, n_novel: int) -> np.ndarray:
    """The seen classes and names for the novel ones that no seen class has, as objects."""
    seen = classes.tolist()
    free = free_names(NOVEL, set(seen))
    return np.array([*seen, *(next(free) for _ in range(n_novel)), None], dtype=object)[:-1]


def _as_float32(x: np.ndarray) -> np.ndarray:
    """What k-means sees of float64, so that nobody counts items that are equal to it."""
    return x.astype(np.float32) if x.dtype == np.float64 else x
