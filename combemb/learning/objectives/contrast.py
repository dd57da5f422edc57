"""Contrast of views with all others of a batch: InfoNCE of SimCLR and SupCon are two choices of the positives."""

import torch
from torch import Tensor
from torch.nn import functional

from combemb.data.labels import same_class

NEVER = -1e9  # logit of a view with itself, which the sum leaves out


def contrastive_loss(views: Tensor, positives: Tensor, temperature: float) -> Tensor:
    """Contrast the positives of each view with all other views.

    L = -1/|P_i| sum_{j in P_i} log(exp(v_i . v_j / T) / sum_{k != i} exp(v_i . v_k / T)), mean over the views that have
    positives; 0 if none has. views (n, D) of unit length; positives (n, n) bool, whose diagonal does not count.
    """
    own = torch.eye(len(views), dtype=torch.bool, device=views.device)
    logits = (views @ views.T / temperature).masked_fill(own, NEVER)
    share = (positives & ~own).to(views.dtype)
    n_positives = share.sum(dim=1, keepdim=True)
    total = functional.cross_entropy(logits, share / n_positives.clamp(min=1), reduction="sum")
    return total / (n_positives > 0).sum().clamp(min=1)


def other_views(n: int) -> Tensor:
    """Return the positives of InfoNCE, (2n, 2n): views i and n + i are those of one item."""
    return torch.eye(n, dtype=torch.bool).repeat(2, 2) & ~torch.eye(2 * n, dtype=torch.bool)


def views_of_class(labels: Tensor) -> Tensor:
    """Return the positives of SupCon, (2n, 2n): views of items of one class. labels (n,) of labelled items."""
    same = same_class(labels, labels)
    return same.repeat(2, 2)
