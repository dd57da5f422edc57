"""Everything that a deep method trains or needs to embed an item."""

import torch
from torch import Tensor, nn

from combemb.backbones.base import MapStage
from combemb.backbones.feature_map import FeatureMap


class Tower(nn.Module):
    """Items -> features of the backbone -> mapped features -> output of the method's network.

    Training items have passed the parts that stay frozen: if no part of the backbone is trained, they are mapped
    features (n, F'), or those at every place (n, F'*h*w) for methods that use maps.
    """

    def __init__(self, backbone: nn.Module | None, feature_map: nn.Module, network: nn.Module):
        super().__init__()
        self.backbone, self.feature_map, self.network = backbone, feature_map, network

    def features(self, x: Tensor) -> Tensor:
        """Map a batch of items to mapped features (n, F')."""
        x = x if self.backbone is None else self.backbone(x).float()
        with torch.autocast(x.device.type, enabled=False):  # the network runs in float32
            mapped: Tensor = self.feature_map(x)
        return mapped

    def training_items(self, x: Tensor) -> Tensor:
        """Map items to training items, by the parts that stay frozen."""
        if not isinstance(self.backbone, MapStage):
            return self.features(x)
        assert isinstance(self.feature_map, FeatureMap)
        return self.feature_map.of_places(self.backbone.maps(x)).flatten(1)

    def maps_of(self, x: Tensor) -> Tensor:
        """Return training items that are features at every place as maps (n, F', h, w)."""
        assert isinstance(self.backbone, MapStage)
        maps: Tensor = x.unflatten(1, (-1, *self.backbone.map_shape[1:]))
        return maps

    def features_of(self, x: Tensor) -> Tensor:
        """Return the mapped features (n, F') of training items."""
        if isinstance(self.backbone, MapStage):
            return self.maps_of(x).mean(dim=(2, 3))
        return x if self.backbone is None else self.features(x)

    def forward(self, x: Tensor) -> Tensor:
        """Map a batch of items to the output of the network."""
        out: Tensor = self.network(self.features(x))
        return out
