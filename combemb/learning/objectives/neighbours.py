"""Neighbours in the features of all items: smoothed features, lists of mutual neighbours, sizes of classes."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from combemb.system.arrays import unit

MAX_PAIRED_ITEMS = 1_000  # labelled items whose pairs show how cosine and class go together
DENSITY_WEIGHT = 0.75  # of the density around an item in the size of its class, at most
FULL_SPREAD = 0.5  # standard deviation of the logarithms of class sizes from which on it has this weight


@dataclass(eq=False)
class Neighbourhood:
    """What is known of all items before training: where their neighbours are, and how many belong to their class."""

    features: Tensor  # (N, d) in which neighbours are searched, float16
    shares: Tensor  # (N,) of each item's class among all items
    lists: Tensor | None = None  # (N, k) mutual neighbours in the whole data set, -1 for none

    @classmethod
    def of(cls, features: Tensor, labelled: Tensor, membership: Tensor, shares: Tensor) -> Self:
        """Return it without lists, for features (N, d) of unit length; the rest as in `uneven_shares_of_items`."""
        found = uneven_shares_of_items(features, labelled, membership, shares)
        if len(shares) == 1:  # no other class tells how small it is
            found *= len(labelled) / len(features)
        return cls(features.half(), found)

    def to(self, device: torch.device) -> Self:
        """Return it on a device."""
        lists = None if self.lists is None else self.lists.to(device)
        return type(self)(self.features.to(device), self.shares.to(device), lists)

    def features_of(self, items: Tensor) -> Tensor:
        """Return the features (n, d) of some items, of unit length."""
        return unit(self.features[items].float())  # float16 is rough

    def ranks(self, share: float, n: int, items: Tensor | slice = slice(None)) -> Tensor:
        """Return how many neighbours items have among n: this share of their class, at least one."""
        return (share * (self.shares[items] * n)).round().long().clamp(min=1)


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


def uneven_shares_of_items(x: Tensor, labelled: Tensor, membership: Tensor, shares: Tensor) -> Tensor:
    """Return `shares_of_items`, in which density counts for unlabelled items as far as the labelled classes are uneven.

    If all labelled classes have the same size, novel ones are expected to have it, too. If they differ, the nearest
    seen class tells little about a novel one: a large class without labels lies beside small ones with labels.
    """
    by_class = shares_of_items(x, labelled, membership, shares)
    spread = float(shares.log().std()) if len(shares) > 1 else 0.0
    weight = DENSITY_WEIGHT * min(spread / FULL_SPREAD, 1.0)
    if weight == 0:
        return by_class
    dense = sizes_by_density(x, labelled, membership).log()
    means = membership / membership.sum(dim=0)
    dense -= (means.T @ (dense[labelled] - by_class[labelled].log())).mean()  # right for the mean class
    found = torch.exp(weight * dense + (1 - weight) * by_class.log()).clamp(1 / len(x), 0.5)
    found[labelled] = by_class[labelled]
    return found


def sizes_by_density(x: Tensor, labelled: Tensor, membership: Tensor, n_rows: int = 2_048) -> Tensor:
    """Return how many items of its own class each item is expected to have, (N,), from the cosines with all others.

    x (N, d) of unit length; labelled (n,) rows with their membership (n, C), whose rows sum to one. How likely two
    items share a class follows from their cosine by a logistic regression on labelled pairs, in which classes count
    equally. The sum of these probabilities is the size of the class, also if none of its items is labelled.
    """
    every = -(-len(labelled) // MAX_PAIRED_ITEMS)
    some, known = labelled[::every], membership[::every]
    weights = (known / known.sum(dim=0).clamp(min=1)).sum(dim=1)[:, None].expand(-1, len(some))
    pairs = ~torch.eye(len(some), dtype=torch.bool)
    slope, offset = logistic_line((x[some] @ x[some].T)[pairs], (known @ known.T)[pairs], weights[pairs])
    parts = torch.arange(len(x)).split(n_rows)
    return torch.cat([torch.sigmoid(slope * (x[rows] @ x.T) + offset).sum(dim=1) for rows in parts])


def logistic_line(x: Tensor, y: Tensor, weights: Tensor, n_steps: int = 30) -> tuple[float, float]:
    """Return slope and offset of the logistic regression of y, between 0 and 1, on x (n,), by Newton's method."""
    design, y, weights = torch.stack([x, torch.ones_like(x)]).double(), y.double(), weights.double()
    line, ridge = torch.zeros(2, dtype=torch.float64), 1e-3 * torch.eye(2, dtype=torch.float64)
    for _ in range(n_steps):
        p = torch.sigmoid(line @ design)
        hessian = (design * weights * (p * (1 - p) + 1e-6)) @ design.T + ridge
        step = torch.linalg.solve(hessian, (design * weights) @ (y - p) - ridge @ line)
        line = line + step.clamp(-5, 5)  # far from the solution, whole steps may run away
    return float(line[0]), float(line[1])
