"""Pair rules: which pairs of items in a batch are treated as one class.

A rule uses the whole batch and returns a bool mask (A, B) of the chosen rows against all items. An item is always a
pair with itself.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

ALL = slice(None)
MIN_SORTED = 6  # fewer values are found faster without sorting


def similar(pi: Tensor, threshold: float | Tensor, rows: slice = ALL) -> Tensor:
    """Pair items whose combinatorial embeddings have a cosine of at least gamma (Eq. 5). pi (B, D) of unit length."""
    return _with_self(pi[rows] @ pi.T >= threshold, rows)


def rank_statistics(features: Tensor, k: int, rows: slice = ALL) -> Tensor:
    """Pair items whose k largest features are the same ones, in any order (RankStats). features (B, F).

    Of equal features, the first ones count as larger, so that a run can be repeated.
    """
    rest, found = features.clone(), []
    for _ in range(min(k, features.shape[1])):  # much faster than a sort of all features
        found.append(rest.argmax(dim=1, keepdim=True))
        rest.scatter_(1, found[-1], -torch.inf)
    largest = torch.cat(found, dim=1).sort(dim=1).values
    return (largest[rows, None] == largest).all(dim=2)


def same_cluster(clusters: Tensor, rows: slice = ALL) -> Tensor:
    """Pair items of one cluster, such as one of k-means. clusters (B,)."""
    return clusters[rows, None] == clusters


def partners(features: Tensor, labels: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Return one partner (B,) for each item (ORCA): a rule that gives one pair each and is not symmetric.

    A labelled item gets a random other item of its class in the batch, itself if there is none; an unlabelled one its
    nearest neighbour by cosine, labelled or not. features (B, F) of unit length; labels (B,), -1 = unlabelled.
    """
    other = ~torch.eye(len(features), dtype=torch.bool, device=features.device)
    nearest = (features @ features.T).masked_fill(~other, -torch.inf).argmax(dim=1)
    same = (labels[:, None] == labels) & (labels[:, None] >= 0) & other
    luck = torch.rand(same.shape, generator=generator).to(same.device).masked_fill(~same, -1.0)
    alone = torch.arange(len(labels), device=labels.device)
    by_label = torch.where(same.any(dim=1), luck.argmax(dim=1), alone)
    return torch.where(labels >= 0, by_label, nearest)


def mutual_neighbours(
    features: Tensor, n_neighbours: Tensor, rows: slice = ALL, gather: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Pair items that are among each other's nearest in the batch, by cosine.

    features (B, F) of unit length; n_neighbours (B,), at least 1: how many are near to each item. If the rows are the
    share of one of several processes, each compares its own, and `gather` returns what all have found (A,) as (B,).
    """
    compared = ALL if gather is None else rows
    cosines = features[compared] @ features.T
    cosines[:, compared].fill_diagonal_(-torch.inf)
    most = min(int(n_neighbours.max()), len(features) - 1)
    nearest = _largest(cosines, most)  # falling
    least = nearest.gather(1, n_neighbours[compared].clamp(max=most)[:, None] - 1)
    near = cosines >= least
    if gather is None:
        return _with_self(near[rows] & near.T[rows], rows)
    return _with_self(near & (cosines >= gather(least[:, 0])), rows)


def _largest(x: Tensor, n: int) -> Tensor:
    """Return the n largest values of each row, falling; on a CPU, NumPy sorts rows several times faster than topk."""
    if x.device.type != "cpu" or n < MIN_SORTED:
        return torch.topk(x, n, dim=1).values
    return torch.from_numpy(np.sort(x.numpy(), axis=1)[:, : -n - 1 : -1].copy())


def listed(neighbours: Tensor, items: Tensor, rows: slice = ALL) -> Tensor:
    """Pair items of which one is in the list of the other.

    items (B,) are distinct positions in the data; neighbours (B, k) those of each item's neighbours, -1 for none.
    """
    rising, order = items.sort()
    place = torch.searchsorted(rising, neighbours).clamp_(max=len(items) - 1)
    row, column = (rising[place] == neighbours).nonzero(as_tuple=True)
    near = torch.zeros(len(items), len(items), dtype=torch.bool, device=items.device)
    near[row, order[place[row, column]]] = True
    return _with_self(near[rows] | near.T[rows], rows)


def _with_self(mask: Tensor, rows: slice) -> Tensor:
    mask[:, rows].fill_diagonal_(True)
    return mask


def threshold_for_precision(cosines: Tensor, same: Tensor, precision: float, n_bins: int = 2000) -> Tensor:
    """Return the smallest gamma, to 1/1000, at which Eq. 5 has this precision on labelled pairs; 1 if there is none.

    cosines (B, B) of labelled items; same (B, B) bool, the pairs of one class. An item's pair with itself does not
    count. Two histograms instead of a sort make it cheap enough for every step.
    """
    bins = ((cosines + 1) * (n_bins / 2)).long().clamp_(0, n_bins - 1)
    counts = torch.bincount((bins + n_bins * same).flatten(), minlength=2 * n_bins).view(2, n_bins)
    own = torch.bincount(bins.diagonal(), minlength=n_bins)
    wrong, right = counts[0], counts[1] - own
    right, wrong = (part.flip(0).cumsum(0).flip(0) for part in (right, wrong))  # pairs at or above each bin
    reached = (right > 0) & (right >= precision * (right + wrong))
    first = torch.where(reached, torch.arange(n_bins, device=bins.device), n_bins).min()
    return first * (2 / n_bins) - 1
