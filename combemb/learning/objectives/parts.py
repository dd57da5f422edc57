"""Parts of items: features at several places, and how far a dictionary of words describes them."""

import torch
from torch import Tensor, nn

from combemb.learning.objectives.two_heads import start_at_axes

LEAST_WITH_RING = 4  # a map of at most this side keeps its outermost ring


class FeatureBlocks(nn.Module):
    """On frozen features, "places" of an item: blocks of its features, each mapped by a layer of its own with a ReLU.

    The features are shuffled once, so that no block has all the leading ones. x (B, F') -> maps (B, D, P, 1).
    """

    shuffled: Tensor

    def __init__(self, n_features: int, n_places: int, width: int):
        super().__init__()
        n_places = min(n_places, n_features)
        self.register_buffer("shuffled", torch.randperm(n_features)[: n_features // n_places * n_places])
        blocks = [torch.empty(width, n_features // n_places) for _ in range(n_places)]
        self.weight = nn.Parameter(torch.stack([nn.init.orthogonal_(block) for block in blocks]))  # (P, D, F' / P)
        self.bias = nn.Parameter(torch.zeros(n_places, width))

    def forward(self, x: Tensor) -> Tensor:
        """x (B, F') -> (B, D, P, 1)."""
        blocks = x[:, self.shuffled].unflatten(1, (len(self.weight), -1))  # (B, P, F' / P)
        places = torch.einsum("bpf,pdf->bpd", blocks, self.weight) + self.bias
        return places.relu().transpose(1, 2)[..., None]


class PlaceLayer(nn.Module):
    """On maps of a frozen backbone: a layer with a ReLU, the same at every place, that starts at the axes."""

    def __init__(self, n_features: int, width: int):
        super().__init__()
        self.layer = nn.Linear(n_features, width)
        nn.init.zeros_(self.layer.bias)
        start_at_axes(self.layer)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, F', h, w), or features (B, F') of items as one place -> (B, D, h, w)."""
        maps = x[..., None, None] if x.ndim == 2 else x
        places: Tensor = self.layer(maps.movedim(1, -1)).relu()
        return places.movedim(-1, 1)


def inner_places(maps: Tensor) -> Tensor:
    """Return the features (B, P, D) at each place of maps (B, D, h, w), without the outermost ring of large maps."""
    if min(maps.shape[2:]) > LEAST_WITH_RING:
        maps = maps[:, :, 1:-1, 1:-1]
    return maps.flatten(2).transpose(1, 2)


def word_distances(places: Tensor, words: Tensor) -> Tensor:
    """Return ||z_ip - e_w||^2 (B, P, W) of places z (B, P, D) and words e (W, D)."""
    squares = places.square().sum(dim=2, keepdim=True) + words.square().sum(dim=1)
    return squares.sub_(places @ words.T, alpha=2).clamp_(min=0)


def bag_of_parts(squared_distances: Tensor, sharpness: float, delta: Tensor) -> Tensor:
    """Return the mean over the places of softmax_w(-(sharpness / delta) d_ipw), (B, W) of d (B, P, W)."""
    return (-(sharpness / delta) * squared_distances).softmax(dim=2).mean(dim=1)
