"""What every backbone is: named stages from pixels to one vector per image."""

from collections.abc import Callable, Collection
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Self

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils import fuse_conv_bn_eval


class Backbone(nn.Module):
    """Pixels (B, 3, H, W), RGB in 0..255, to features (B, F), by named stages that run one after the other.

    A method may freeze all of it, train the last stage only, or read the maps after any stage. `stages` holds the
    stages in order; `pool` turns what the last one gives into a vector.
    """

    mean: Tensor
    std: Tensor
    name: str
    default_size: int  # side of the images that it was made for
    min_size: int = 32
    has_weights: bool = False  # whether it comes pretrained
    n_features: int  # F
    settings: str = ""  # what decides the features beside the weights and the scale of the pixels

    def __init__(self, mean: tuple[float, ...] = (127.5,) * 3, std: tuple[float, ...] = (127.5,) * 3):
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean)[:, None, None], persistent=False)  # in units of a pixel
        self.register_buffer("std", torch.tensor(std)[:, None, None], persistent=False)
        self.stages = nn.ModuleDict()

    @property
    def stage_names(self) -> list[str]:
        """The stages in their order."""
        return list(self.stages)

    def normalised(self, pixels: Tensor) -> Tensor:
        """Pixels as the first stage wants them."""
        if pixels.ndim != 4 or pixels.shape[1] != 3 or min(pixels.shape[2:]) < self.min_size:
            raise ValueError(
                f"{self.name} got pixels of shape {tuple(pixels.shape)}; "
                f"give (B, 3, H, W) with sides of at least {self.min_size}"
            )
        return (pixels.to(self.mean.dtype) - self.mean) / self.std

    def maps(self, pixels: Tensor, stage: str) -> Tensor:
        """What a stage gives, such as spatial features (B, C, h, w)."""
        if stage not in self.stages:
            raise ValueError(f"{self.name} has no stage {stage!r}; choose one of {', '.join(self.stage_names)}")
        return self._after(pixels, self.stage_names.index(stage) + 1)

    def before_last(self, pixels: Tensor) -> Tensor:
        """What the last stage gets; `last(before_last(pixels))` is `forward(pixels)`."""
        return self._after(pixels, len(self.stages) - 1)

    def _after(self, pixels: Tensor, n_stages: int) -> Tensor:
        x = self.normalised(pixels)
        for stage in islice(self.stages.values(), n_stages):
            x = stage(x)
        return x

    def last(self, x: Tensor) -> Tensor:
        """The last stage and the pooling: what `before_last` gives -> (B, F)."""
        return self.pool(self.stages[self.stage_names[-1]](x))

    def pool(self, x: Tensor) -> Tensor:
        """Mean over the positions, (B, C, h, w) -> (B, C); vectors (B, F) stay as they are."""
        return x.mean(dim=(2, 3)) if x.ndim == 4 else x

    def forward(self, pixels: Tensor) -> Tensor:
        """pixels (B, 3, H, W) in 0..255, uint8 or float -> features (B, F)."""
        return self.last(self.before_last(pixels))

    def for_inference(self) -> Self:
        """A frozen copy for fast features: channels last, and each batch norm folded into the convolution before it.

        A pair is folded where the two stand next to each other in an `nn.Sequential`. Outputs stay the same up to
        rounding; the copy can be neither trained nor saved.
        """
        frozen = deepcopy(self).eval().requires_grad_(False)
        for module in frozen.modules():
            if type(module) is nn.Sequential:  # a subclass may run its children in another way
                _fold(module)
        for parameter in frozen.parameters():
            if parameter.ndim == 4:
                parameter.data = parameter.contiguous(memory_format=torch.channels_last)
        return frozen.eval()

    @torch.inference_mode()
    def n_outputs(self, size: int, network: Callable[[Tensor], Tensor], device: torch.device) -> int:
        """How many numbers a frozen part of it gives for images of this side; ValueError if it takes none such."""
        try:
            return int(network(torch.zeros(1, 3, size, size, device=device)).shape[1])
        except RuntimeError as error:  # some networks take one size only
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"{self.name} does not take images of {size} px ({reason}); set image_size={self.default_size}, its own"
            ) from error

    def load_pretrained(self) -> None:
        """Load the weights that it comes with; nothing happens where there are none."""

    def load_weights(self, path: str | Path) -> None:
        """Load the state dict in a .safetensors file, which must fit exactly."""
        try:
            found = load_file(path)
        except Exception as error:  # safetensors has its own error for a damaged file
            raise ValueError(f"cannot read {path}: {error}; give a .safetensors file of a state dict") from error
        wanted = self.state_dict()
        shared = wanted.keys() & found.keys()
        problems = {
            "missing": wanted.keys() - shared,
            "unknown": found.keys() - shared,
            "of another shape": {
                f"{key} {tuple(found[key].shape)} instead of {tuple(wanted[key].shape)}"
                for key in shared
                if found[key].shape != wanted[key].shape
            },
        }
        texts = [f"{len(keys)} {kind} ({first_of(keys)})" for kind, keys in problems.items() if keys]
        if texts:
            raise ValueError(
                f"{path} does not fit {self.name} (F={self.n_features}): {'; '.join(texts)}; "
                "give the file of a backbone with the same name and width"
            )
        self.load_state_dict(found)

    def _initialise(self) -> None:
        """Weights that keep the size of what flows through ReLUs (He et al., ICCV 2015), biases zero."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


def first_of(keys: Collection[str], n: int = 3) -> str:
    """The first few of many names, for a message."""
    return ", ".join([*sorted(keys)[:n], *["..."] * (len(keys) > n)])


def _fold(chain: nn.Sequential) -> None:
    """gamma (w * x - mu) / sigma + beta = (gamma / sigma) w * x + (beta - gamma mu / sigma): one pass, not two."""
    for i in range(1, len(chain)):
        conv, norm = chain[i - 1], chain[i]
        if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            chain[i - 1], chain[i] = fuse_conv_bn_eval(conv, norm), nn.Identity()
