"""Average precision in a pile of which only a part is labelled, and how much of it belongs to the labelled classes."""

import numpy as np

N_NEAREST = 3  # neighbours of a labelled item that are looked at
SEEN_SHARE = 0.65  # of the unlabelled items that belong to seen classes, if nothing is known
PRIOR_PAIRS = 20.0  # weight of this guess, in pairs of labelled neighbours


def estimated_precisions(
    scores: np.ndarray, queries: np.ndarray, labels: np.ndarray, sizes: np.ndarray
) -> dict[int, float]:
    """Estimate the mean average precision of labelled queries in a whole pile, by class.

    The labelled items of a class are taken to be a random part of it, so that they come as early as the unlabelled
    ones: if a share R of them come before an item, so do R * size items of the class, labelled or not. Divided by
    the number of all items that come before, this is the precision at that item. Nothing has to be known about the
    other items, many of which may belong to novel classes. If a query has a single labelled item to find, R is
    half-way between one half and the share of all queries whose item comes earlier, with places divided by sizes.

    Parameters
    ----------
    scores : array of shape (Q, N)
        Of all items of the pile, for each query.
    queries : int array of shape (Q,)
        Positions of the queries in the pile; a query does not find itself.
    labels : int array of shape (N,)
        Class of each item, -1 if unlabelled.
    sizes : array of shape (C,)
        Number of items of each class in the pile, labelled or not.

    Returns
    -------
    dict of int to float
        For each class of which a query has another labelled item. Single values may exceed 1.
    """
    found = []  # class, and how many items come before each labelled one of the class, rising
    for row, query in zip(scores, queries, strict=True):
        own = np.flatnonzero(labels == labels[query])
        others, own = np.sort(np.delete(row, query)), row[own[own != query]]
        before = len(others) - (np.searchsorted(others, own) + np.searchsorted(others, own, side="right") + 1) / 2
        if len(own) > 0:
            found.append((int(labels[query]), np.sort(before)))
    places = np.sort(np.concatenate([before / sizes[c] for c, before in found])) if found else np.zeros(0)
    precisions: dict[int, list[float]] = {}
    for c, before in found:
        n, rest = len(before), max(sizes[c] - 2, 0)  # without the query and the item itself
        if n > 1:  # what the other items say about each: right on average, though single terms may exceed 1
            precision = (1 + np.arange(n) / (n - 1) * rest) / (1 + before)
        else:
            pooled = np.searchsorted(places, before / sizes[c]) / max(len(places) - 1, 1)
            precision = np.minimum((1 + (pooled + 0.5) / 2 * rest) / (1 + before), 1)
        precisions.setdefault(c, []).append(float(precision.mean()))
    return {c: float(np.mean(of_class)) for c, of_class in sorted(precisions.items())}


def seen_share(x: np.ndarray, labels: np.ndarray, n_rows: int = 2_048) -> float:
    """Estimate which share of a pile belongs to the labelled classes, from the neighbours of labelled items.

    If every second item of the seen classes is labelled, so is every second neighbour of the same class, however many
    items of novel classes there are elsewhere. Neighbours of another class are labelled as often as any item of the
    pile; labelled ones tell how many they are. With few labels a guess prevails.

    Parameters
    ----------
    x : array of shape (N, F)
        Features of unit length that no label has touched.
    labels : int array of shape (N,)
        Class of each item, -1 if unlabelled; at least one is labelled.
    n_rows : int
        Number of items compared with all others at a time.

    Returns
    -------
    float
        Between the share of labelled items and 1.
    """
    rows = np.flatnonzero(labels >= 0)
    base, k = len(rows) / len(labels), min(N_NEAREST, len(labels) - 1)
    if k == 0 or base == 1:
        return 1.0
    near = []
    for some in np.split(rows, range(n_rows, len(rows), n_rows)):
        cosines = x[some] @ x.T
        cosines[np.arange(len(some)), some] = -np.inf
        near.append(labels[np.argpartition(-cosines, k - 1, axis=1)[:, :k]])
    neighbours, own = np.concatenate(near), labels[rows, None]
    other_share = 1 - np.square(np.bincount(labels[rows]) / len(rows)).sum()  # of pairs of labelled items
    n_wrong = ((neighbours >= 0) & (neighbours != own)).mean() / base
    same_class = 1 - min(n_wrong / max(other_share, base), 0.95)  # share of neighbours of the same class
    guess = same_class * base / (base + SEEN_SHARE * (1 - base))  # share of neighbours that are labelled and such
    n_pairs = neighbours.size / 2  # near items are often near each other
    right = (neighbours == own).mean() * n_pairs
    labelled_share = (right + PRIOR_PAIRS) / (n_pairs + PRIOR_PAIRS / guess) / same_class
    return float(np.clip(base / labelled_share, base, 1))
