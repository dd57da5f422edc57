"""The small VGG of GPQ, whose vector consists of the means of its last two blocks."""

import torch
from torch import Tensor, nn

from combemb.backbones.base import Backbone

BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512))  # output channels of each 3x3 convolution


class VGG(Backbone):
    """Jang and Cho, "Generalized product quantization" (CVPR 2020); F = 768.

    Blocks 1 to 3 end with max pooling, as in the authors' release, so that 32 pixels become 4x4 positions. Features are
    the means over the positions of block 4 (512) and of the pooled block 3 (256).
    """

    name = "vgg"
    default_size = 32
    min_size = 8
    n_features = 512 + 256

    def __init__(self) -> None:
        super().__init__()
        inputs = 3
        for i, block in enumerate(BLOCKS):
            chain = nn.Sequential()
            for outputs in block:
                conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)  # the batch norm adds one
                chain.extend([conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)])
                inputs = outputs
            if i < len(BLOCKS) - 1:
                chain.append(nn.MaxPool2d(2))
            self.stages[f"block{i + 1}"] = chain
        self._initialise()

    def last_maps(self, x: Tensor) -> Tensor:
        """Block 3 (B, 256, h, w) -> (B, 768, h, w), or the usual if the network ends earlier."""
        maps = super().last_maps(x)
        return torch.cat([maps, x], dim=1) if "block4" in self.stages else maps
