"""Losses of pairs: two items of one class shall get the same output of a head."""

import torch
from torch import Tensor

SMALLEST = 1e-7  # probabilities stay this far from 0 and 1


def pairwise_bce(p: Tensor, other: Tensor, similar: Tensor) -> Tensor:
    """Return the binary cross-entropy of "i and j are of one class", whose probability is p_i . p'_j.

    L = -mean_ij [s_ij log(p_i . p'_j) + (1 - s_ij) log(1 - p_i . p'_j)] over all ordered pairs, i = j included.
    p (n, C) and other (m, C) are probabilities of one view and of another; similar (n, m) bool.
    """
    c = (p @ other.T).clamp(SMALLEST, 1 - SMALLEST)
    return -torch.where(similar, c.log(), (1 - c).log()).mean()


def partner_bce(p: Tensor, partner: Tensor) -> Tensor:
    """Return -mean_i log(p_i . p'_i): item and partner, (n, C) each, are of one class."""
    return -(p * partner).sum(dim=1).clamp(min=SMALLEST).log().mean()


def consistency(p: Tensor, other: Tensor) -> Tensor:
    """Return the mean of (p_ic - p'_ic)^2 over items and classes, of the probabilities (n, C) of two views."""
    return (p - other).square().mean()
