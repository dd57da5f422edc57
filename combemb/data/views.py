"""Views for items that come with one only: noise and dropout. Cached views of real images are better."""

import torch
from torch import Tensor


def jitter(x: Tensor, noise: float, dropout: float, *, rows: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Gaussian noise in proportion to the size of the item's features, then features set to zero at random.

    x (b, F) holds the rows `rows` of a batch of n items; random numbers are drawn for all n, so that several processes
    that share a batch make the views that one process would.
    """
    F = x.shape[1]
    normal = torch.randn((n, F), generator=generator)[rows]
    keep = (torch.rand((n, F), generator=generator) >= dropout)[rows]
    size = x.square().mean(dim=1, keepdim=True).sqrt()
    return (x + noise * size * normal) * keep
