"""Pair rules: which items of a batch are taken to be of one kind. Each gives a (B, B) bool mask, its diagonal true."""

import torch
from torch import Tensor


def similar(cosines: Tensor, threshold: float | Tensor) -> Tensor:
    """Eq. 5: items whose combinatorial embeddings have a cosine of at least gamma. cosines (B, B)."""
    return (cosines >= threshold).fill_diagonal_(True)


def mutual_neighbours(features: Tensor, n_neighbours: int) -> Tensor:
    """Items that are among each other's nearest in the batch, by cosine. features (B, F) of unit length."""
    cosines = (features @ features.T).fill_diagonal_(-torch.inf)
    nearest = torch.topk(cosines, min(n_neighbours, len(features) - 1), dim=1, sorted=False).values  # (B, k)
    near = cosines >= nearest.amin(dim=1, keepdim=True)
    return (near & near.T).fill_diagonal_(True)


def threshold_for_precision(cosines: Tensor, same: Tensor, precision: float, n_bins: int = 2000) -> Tensor:
    """The smallest gamma, to 1/1000, at which Eq. 5 has this precision on labelled pairs; 1 if there is none.

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
