"""ResNet-18 for small images: the first convolution keeps the size, and no max pooling follows it."""

from torch import Tensor, nn
from torch.nn import functional

from combemb.backbones.base import Backbone
from combemb.system.errors import require


class ResNet18(Backbone):
    """He et al., "Deep residual learning" (CVPR 2016), with the 3x3 stem that CIFAR images need; F = 8 width.

    Four layers of two blocks with width, 2, 4 and 8 width channels; each but the first halves the sides.
    """

    name = "resnet18"
    default_size = 32
    min_size = 8

    def __init__(self, width: int = 64):
        require(width > 0, f"width={width}; a network needs at least one channel")
        super().__init__()
        self.n_features = 8 * width
        self.stages["stem"] = nn.Sequential(_conv(3, width), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        inputs = width
        for i in range(4):
            outputs = width * 2**i
            blocks = (Block(inputs, outputs, 1 if i == 0 else 2), Block(outputs, outputs))
            self.stages[f"layer{i + 1}"] = nn.Sequential(*blocks)
            inputs = outputs
        self._initialise()


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shape changes.

    The shortcut is subsampled before the convolution: torch's backward pass of a strided 1x1 convolution with few
    channels writes outside its memory on CPUs (oneDNN's issue 6035).
    """

    def __init__(self, inputs: int, outputs: int, stride: int = 1):
        super().__init__()
        self.residual = nn.Sequential(
            _conv(inputs, outputs, stride),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            _conv(outputs, outputs),
            nn.BatchNorm2d(outputs),
        )
        self.stride = stride
        self.shortcut = nn.Sequential()
        if stride > 1 or inputs != outputs:
            self.shortcut.extend([nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs)])

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, ceil(H / stride), ceil(W / stride))."""
        return functional.relu(self.residual(x) + self.shortcut(x[..., :: self.stride, :: self.stride]))


def _conv(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
