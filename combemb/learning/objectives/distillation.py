"""Mutual distillation: two branches exchange how similar items are to others."""

import torch
from torch import Tensor


def similarities(f: Tensor, other: Tensor, memory: Tensor, temperature: float) -> Tensor:
    """Return the logits (n, 1 + m) of items f (n, D) against their own second view and a memory (m, D).

    All rows have unit length.
    """
    own = (f * other).sum(dim=1, keepdim=True)
    return torch.cat([own, f @ memory.T], dim=1) / temperature


def mutual_divergence(logits: Tensor, others: Tensor) -> Tensor:
    """Return (KL(a || b) + KL(b || a)) / 2 = sum_j (a_j - b_j) (log a_j - log b_j) / 2, the mean over the rows.

    a and b are the softmaxes of logits (n, m) and of others (n, m).
    """
    log_a, log_b = logits.log_softmax(dim=1), others.log_softmax(dim=1)
    return 0.5 * ((log_a.exp() - log_b.exp()) * (log_a - log_b)).sum(dim=1).mean()
