"""The module that a deep method trains: perhaps a part of the backbone, the feature map, the method's own network."""

from typing import Self

import torch
from torch import Tensor, nn

from combemb.backbones.base import Backbone


class LastStage(nn.Module):
    """The last stage of a backbone on flattened inputs; its batch norms keep their statistics."""

    def __init__(self, backbone: Backbone, size: int):
        super().__init__()
        self.stage = backbone.stages[backbone.stage_names[-1]]  # a part of the backbone, and all that trains
        self.run = backbone.last
        with torch.no_grad():
            blank = torch.zeros(1, 3, size, size, device=backbone.mean.device)
            self.shape = tuple(backbone.eval().before_last(blank).shape[1:])

    def train(self, mode: bool = True) -> Self:
        """Training mode, but for the batch norms: the batches are small beside what they have seen."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        """x (n, C*h*w), the flattened input of the stage -> features (n, F)."""
        features: Tensor = self.run(x.unflatten(1, self.shape))
        return features


class Tower(nn.Module):
    """Items -> features of the backbone -> mapped features -> what the head makes of them."""

    def __init__(self, backbone: nn.Module | None, feature_map: nn.Module, head: nn.Module):
        super().__init__()
        self.backbone, self.feature_map, self.head = backbone, feature_map, head

    def features(self, x: Tensor) -> Tensor:
        """Items as they come -> mapped features (n, F')."""
        x = x if self.backbone is None else self.backbone(x).float()
        with torch.autocast(x.device.type, enabled=False):  # the head works in float32
            mapped: Tensor = self.feature_map(x)
        return mapped

    def forward(self, x: Tensor) -> Tensor:
        """Items as they come -> what the head makes of them."""
        out: Tensor = self.head(self.features(x))
        return out
