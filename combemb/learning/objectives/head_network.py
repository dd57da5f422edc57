"""A trunk with several linear heads, the network of methods that discover classes by an output for each."""

import torch
from torch import Tensor, nn

from combemb.system.arrays import unit


@torch.no_grad()
def start_at_axes(layer: nn.Linear, *, repeated: bool = False) -> None:
    """Set the weights (D, F') of a layer to e_1, -e_1, e_2, -e_2, ...; rows after the first 2 F' stay, or repeat them.

    Random directions of features have almost no ranks in common.
    """
    D, F = layer.weight.shape
    rows = torch.arange(D if repeated else min(D, 2 * F))
    layer.weight[rows] = 0.0
    layer.weight[rows, rows // 2 % F] = 1.0 - 2.0 * (rows % 2)


class HeadNetwork(nn.Module):
    """Features -> trunk -> heads; the output of the network is that of the trunk, at unit length.

    If the backbone is trained, its last stage is the trunk. On frozen features, a layer with a ReLU takes the place of
    that stage: f(x) = max(0, W x + b), W orthogonal at the start, so that features of near items are near.

    Parameters
    ----------
    n_features, width : int
        F' of the mapped features, and the outputs of the layer; None: no layer.
    heads : dict of str to int
        Number of outputs of each head.
    bias : bool
        Whether the heads have one.
    """

    order: Tensor  # (C,): the output of the head over all classes that stands for each class, seen ones first

    def __init__(self, n_features: int, width: int | None, heads: dict[str, int], *, bias: bool = True):
        super().__init__()
        self.trunk: nn.Module = nn.Identity()
        if width is not None:
            layer = nn.Linear(n_features, width)
            nn.init.orthogonal_(layer.weight)
            nn.init.zeros_(layer.bias)
            self.trunk = nn.Sequential(layer, nn.ReLU())
        self.n_outputs = width or n_features
        self.heads = nn.ModuleDict({name: nn.Linear(self.n_outputs, n, bias=bias) for name, n in heads.items()})
        self.register_buffer("order", torch.arange(max(heads.values(), default=0)))

    def forward(self, x: Tensor) -> Tensor:
        """x (B, F') -> (B, D) of unit length."""
        return unit(self.trunk(x))
