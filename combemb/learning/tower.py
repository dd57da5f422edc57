"""The module that a deep method trains: the backbone or its last stage if fine-tuned, the feature map, the network."""

from copy import deepcopy
from typing import Self

import torch
from torch import Tensor, nn

from combemb.backbones.base import Backbone
from combemb.learning.input import ImageInput


class LastStage(nn.Module):
    """The last stage of a backbone on flattened inputs; its batch norms keep their statistics."""

    def __init__(self, backbone: Backbone, size: int):
        super().__init__()
        self.stage = backbone.stages[backbone.stage_names[-1]]  # the only part that is trained
        self.last = backbone.last
        with torch.no_grad():
            blank = torch.zeros(1, 3, size, size, device=backbone.mean.device)
            self.shape = tuple(backbone.eval().before_last(blank).shape[1:])

    def train(self, mode: bool = True) -> Self:
        """Set the training mode of everything but the batch norms, whose statistics come from far more images."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Map flattened inputs of the stage (n, C*h*w) to features (n, F)."""
        features: Tensor = self.last(x.unflatten(1, self.shape))
        return features


def trained_part(images: ImageInput | None, device: torch.device) -> LastStage | Backbone | None:
    """Return a copy of the part of a backbone that is trained; None for embeddings and a frozen backbone."""
    if images is None or images.trained == "none":
        return None
    backbone = deepcopy(images.backbone).to(device).eval()
    return LastStage(backbone, images.size) if images.trained == "last" else backbone


class Tower(nn.Module):
    """Items -> features of the backbone -> mapped features -> output of the method's network."""

    def __init__(self, backbone: nn.Module | None, feature_map: nn.Module, network: nn.Module):
        super().__init__()
        self.backbone, self.feature_map, self.network = backbone, feature_map, network

    def features(self, x: Tensor) -> Tensor:
        """Map a batch of items to mapped features (n, F')."""
        x = x if self.backbone is None else self.backbone(x).float()
        with torch.autocast(x.device.type, enabled=False):  # the network runs in float32
            mapped: Tensor = self.feature_map(x)
        return mapped

    def forward(self, x: Tensor) -> Tensor:
        """Map a batch of items to the output of the network."""
        out: Tensor = self.network(self.features(x))
        return out
