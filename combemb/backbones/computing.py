"""Views of images through a frozen network: decoding, colours and the network at the same time."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from combemb.backbones.base import Backbone
from combemb.backbones.decoding import Decoded, Decoder
from combemb.backbones.openvino_network import converted, is_wanted
from combemb.data.augmentation import Views
from combemb.system.ahead import ahead
from combemb.system.team import Team

MANY_PIXELS = 20_000_000  # torch computes views with fewer before OpenVINO would be ready: 400 views of 224 px


class Network(NamedTuple):
    """A frozen network, pixels (B, 3, size, size) -> features (B, F)."""

    compute: Callable[[Tensor], Tensor]
    n_features: int
    name: str


class LastInput(nn.Module):
    """The input of a backbone's last stage, flattened."""

    def __init__(self, backbone: Backbone):
        super().__init__()
        self.backbone = backbone

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, 3, size, size) -> (B, C*h*w)."""
        return self.backbone.before_last(pixels).flatten(1)


class Computed(NamedTuple):
    """Features of some views of the images of a batch that can be read, and why the others cannot."""

    rows: np.ndarray  # (B,) positions of the images
    numbers: list[int]  # of the views
    x: np.ndarray  # (B, V, F)
    broken: dict[int, str]  # position -> reason


class Work:
    """The views that a process computes. Decoding starts at once, so that it runs while the network is built.

    Parameters
    ----------
    views : Views
    is_missing : array (N, V) of bool
        The views that the team computes, in batches as one process would make them; process r takes every batch whose
        number leaves the remainder r when it is divided by the size of the team.
    batch_size, n_workers, device
        As for `extract`.
    team : Team
    """

    def __init__(
        self,
        views: Views,
        is_missing: np.ndarray,
        *,
        batch_size: int,
        n_workers: int | None,
        device: torch.device,
        team: Team,
    ):
        self.device, self.n_views = device, int(is_missing.sum())
        decoders = _decoders(views, is_missing, batch_size, team)
        self.parts = [(decoder.numbers, decoder.decoded(n_workers)) for decoder in decoders]

    def network(self, backbone: Backbone, size: int, last_stage: bool) -> Network:
        """Return the frozen network, by OpenVINO if that is faster."""
        frozen = backbone.for_inference().to(self.device)
        network = LastInput(frozen) if last_stage else frozen
        n_features = backbone.n_outputs(size, network, self.device)
        is_fast = self.device.type == "cpu" and self.n_views * size**2 >= MANY_PIXELS and is_wanted()
        fast = converted(network, size) if is_fast else None
        name = fast.name if fast else f"torch {torch.__version__}"
        return Network(fast or network, n_features, name)

    def computed(self, network: Network) -> Iterator[Computed]:
        """Yield the features of each batch.

        While the network runs on one view, a thread makes the pixels of the next one.
        """
        for numbers, batches in self.parts:
            views: list[np.ndarray] = []
            for decoded, pixels in ahead(self._pixels(batches)):
                if pixels is not None:
                    views.append(network.compute(pixels).half().cpu().numpy())
                if pixels is None or len(views) == len(numbers):
                    x = np.stack(views, axis=1) if views else np.empty((0, len(numbers), network.n_features))
                    yield Computed(decoded.rows, numbers, x, decoded.broken)
                    views = []

    def _pixels(self, batches: Iterator[Decoded]) -> Iterator[tuple[Decoded, Tensor | None]]:
        """Yield each view of each batch, None for a batch without images that can be read."""
        for decoded in batches:
            if len(decoded.rows) == 0:
                yield decoded, None
            for pixels in decoded.pixels(self.device):
                yield decoded, pixels


def _decoders(views: Views, is_missing: np.ndarray, batch_size: int, team: Team) -> list[Decoder]:
    """Return what decodes this process's batches: a decoder for all images that lack the same views."""
    decoders, n_before = [], 0
    for pattern in np.unique(is_missing[is_missing.any(axis=1)], axis=0):
        rows = np.flatnonzero((is_missing == pattern).all(axis=1))
        first = (team.rank - n_before) % team.size  # batches take turns across patterns too
        own = np.flatnonzero(np.arange(len(rows)) // batch_size % team.size == first)
        if len(own) > 0:
            decoders.append(Decoder(views, np.flatnonzero(pattern).tolist(), rows[own], batch_size))
        n_before += math.ceil(len(rows) / batch_size)
    return decoders
