"""Neighbours in the features of all items: smoothed features, lists of mutual neighbours, sizes of classes."""

import torch
from torch import Tensor

from combemb.system.arrays import unit


def smoothed(x: Tensor, landmarks: Tensor, n_neighbours: int, n_rows: int = 2_048) -> Tensor:
    """Replace each row by the mean of its nearest landmarks by cosine, scaled to unit length: (N, d) -> (N, d).

    The mean of near items represents a class better than one item, as in query expansion.
    """
    landmarks = unit(landmarks)
    k = min(n_neighbours, len(landmarks))
    means = []
    for rows in unit(x).split(n_rows):
        nearest = (rows @ landmarks.T).topk(k, dim=1, sorted=False).indices  # (n, k)
        means.append(unit(landmarks[nearest].mean(dim=1)))
    return torch.cat(means)


def mutual_lists(x: Tensor, n_neighbours: Tensor, n_rows: int = 2_048) -> Tensor:
    """Return the items that are among each other's nearest in the whole data set, by cosine.

    x (N, d) of unit length; n_neighbours (N,), at least 1: how many are near to each item. Returns (N, k), k the
    largest of these: positions of the neighbours, -1 in place of those that are not mutual.
    """
    N, k = len(x), min(int(n_neighbours.max()), len(x) - 1)
    near = torch.empty(N, k, dtype=torch.int64)
    for rows in torch.arange(N).split(n_rows):
        cosines = x[rows] @ x.T
        cosines[torch.arange(len(rows)), rows] = -torch.inf
        near[rows] = cosines.topk(k, dim=1).indices
    near = torch.where(torch.arange(k) < n_neighbours[:, None], near, -1)
    is_mutual = (near[near] == torch.arange(N)[:, None, None]).any(dim=2)
    return torch.where(is_mutual & (near >= 0), near, -1)


def shares_of_items(x: Tensor, labelled: Tensor, membership: Tensor, shares: Tensor) -> Tensor:
    """Return how large the class of each item is, as a share of all items, (N,).

    x (N, d) of unit length; labelled (n,) rows with their membership (n, C), whose rows sum to one; shares (C,) of the
    classes, each of which has labelled items. The class of another item is the one with the nearest mean: even if its
    own is novel, it tells how dense items are there.
    """
    means = unit(membership.T @ x[labelled])
    found = shares[(x @ means.T).argmax(dim=1)]
    found[labelled] = membership @ shares
    return found
