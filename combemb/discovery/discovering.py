"""Discover which items belong to no seen class, how many novel classes they form, and which item is in which."""

import warnings
from itertools import islice
from numbers import Integral
from typing import Any

import numpy as np

from combemb.data.labels import Labels, read_labels
from combemb.discovery.class_number import ClassNumber, Pile, check_count_by, count_novel
from combemb.discovery.kmeans import Clustering, TooManyClusters, kmeans
from combemb.discovery.points import Points, as_float32, read_points
from combemb.discovery.result import Discovery, free_names, in_blocks
from combemb.search.codebook import Codebook
from combemb.system.arrays import Array
from combemb.system.errors import Note, require

NOVEL = "novel"
REACH_QUANTILE = 0.99  # this share of the clustered items is within reach of a cluster
MIN_REACH = 1.0  # in spreads of a cluster
LEAST_DISTANCE = 1e-30  # avoids a division by zero where distances are 0


class NothingToDiscover(Note):
    """Warns that all items are labelled, or none of them is."""


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
    """Assign every item to a seen or a novel class, and estimate how many novel classes there are.

    Parameters
    ----------
    embeddings : array of shape (N, D)
        A numpy array or a torch tensor; `Method.embed` returns one.
    labels : sequence of length N or Labels, optional
        Ints with -1, or strings with None, for unlabelled items. Labelled items keep their class.
    n_novel : int, optional
        Number of novel classes. By default it is estimated.
    count_by : {"sizes", "codes", "gcd", "dtc"}
        How to estimate it: by the sizes of clusters of embeddings or of codes, or as GCD or DTC do.
    codebook : Codebook, optional
        Encodes embeddings; required by ``count_by="codes"``.
    features : array of shape (N, F), optional
        Features of the same items that were not trained on these labels, such as those of a frozen backbone. They are
        clustered together with the embeddings and improve the estimate where classes overlap.
    n_starts, seed : int
        Number of starts of k-means, of which the best counts, and the seed of everything random.
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
    Discovery(60 items: 2 seen classes, 1 novel)
    >>> found.predict([[0.0, 8.0], [1.0, 0.0]]).tolist()
    ['novel-1', 'cat']
    """
    check_count_by(count_by, codebook)
    z = as_float32(read_points(embeddings, "embeddings"))
    labels = np.full(len(z), -1) if labels is None else labels
    read = labels if isinstance(labels, Labels) else read_labels(labels, len(z))
    require(len(read) == len(z), f"there are {len(read)} labels for {len(z)} items; give one per item")
    require(not read.is_multi, "discovery takes one label per item; of several, give the one that matters")
    n_seen, n_unlabelled = len(read.classes), int((~read.is_labelled).sum())
    if n_seen == 0:
        warnings.warn("no item is labelled: this is plain clustering, all of it novel", NothingToDiscover, stacklevel=2)
    if n_unlabelled == 0:
        warnings.warn("all items are labelled: nothing is left to discover", NothingToDiscover, stacklevel=2)
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
        reason = f"n_novel={number.n}, but only {error.n_distinct} of the unlabelled items are distinct"
        raise ValueError(f"{reason}; use fewer novel classes") from error
    return _described(x, found, read, number, points)


def _described(x: np.ndarray, found: Clustering, labels: Labels, number: ClassNumber, points: Points) -> Discovery:
    """Return the clusters in order, with their names, the distances of their items, and how far they reach."""
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
    novel = islice(free_names(NOVEL, set(labels.classes.tolist())), number.n)
    return Discovery(
        names=np.array([*labels.classes.tolist(), *novel, None], dtype=object)[:-1],
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


def _given_number(n_novel: int, n_seen: int, n_unlabelled: int) -> ClassNumber:
    is_count = isinstance(n_novel, Integral) and not isinstance(n_novel, bool) and n_novel >= 0
    require(is_count, f"n_novel={n_novel!r}; give a whole number, 0 or more, or None to estimate it")
    found = f"n_novel={n_novel} novel classes need as many unlabelled items, but there are {n_unlabelled}"
    require(n_novel <= n_unlabelled, f"{found}; use fewer")
    require(n_seen + n_novel > 0, "n_novel=0 and no labels leave no cluster at all; label some items, or give n_novel")
    return ClassNumber(int(n_novel), int(n_novel), int(n_novel))
