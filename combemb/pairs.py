"""Pair rules: which items of a batch are taken to be of one kind. Each gives a (B, B) bool mask, its diagonal true."""

import torch
from torch import Tensor


def similar(pi: Tensor, threshold: float | Tensor) -> Tensor:
    """Eq. 5: combinatorial embeddings whose cosine reaches gamma. pi (B, D) of unit length."""
    return _with_self(pi @ pi.T >= threshold)


def mutual_neighbours(features: Tensor, n_neighbours: int) -> Tensor:
    """Items that are among each other's nearest in the batch, by cosine. features (B, F) of unit length."""
    n_neighbours = min(n_neighbours, len(features) - 1)
    cosines = (features @ features.T).fill_diagonal_(-torch.inf)
    nearest = torch.topk(cosines, n_neighbours, dim=1, sorted=False).indices  # (B, k)
    mask = torch.zeros_like(cosines, dtype=torch.bool).scatter_(1, nearest, True)
    return _with_self(mask & mask.T)


def _with_self(mask: Tensor) -> Tensor:
    return mask.fill_diagonal_(True)


def threshold_for_precision(pi: Tensor, same: Tensor, precision: float) -> float:
    """Smallest gamma at which Eq. 5 has at least this precision on labelled pairs.

    pi (B, D) of unit length; same (B, B) bool, the pairs of one class. The diagonal does not count.
    """
    upper = torch.ones_like(same).triu_(diagonal=1)
    cosines, order = torch.sort((pi @ pi.T)[upper], descending=True)
    hits = same[upper][order].cumsum(0)
    reached = hits >= precision * torch.arange(1, len(hits) + 1, device=hits.device)
    good = torch.nonzero(reached)
    return float(cosines[good[-1]]) if len(good) else 1.0
