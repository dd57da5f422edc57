"""The base class of backbones: named stages from pixels to one vector per image."""

from collections.abc import Callable, Collection
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Self

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils import fuse_conv_bn_eval

from combemb.system.errors import reading, require


class Backbone(nn.Module):
    """A network from pixels (B, 3, H, W), RGB in 0..255, to features (B, F), in named stages.

    A method may freeze all of it, train only the last stage, or read the maps after any stage. `end_at` drops the last
    stages.

    Attributes
    ----------
    stages : nn.ModuleDict
        The stages in order; `pool` turns the output of the last one into a vector.
    n_features, default_size, min_size : int
        F, the side of the images that it was made for, and the smallest side that works.
    has_weights : bool
        Whether it has pretrained weights.
    settings : str
        Whatever decides the features besides the weights and the scale of the pixels.
    """

    mean: Tensor
    std: Tensor
    name: str
    default_size: int
    min_size: int = 32
    has_weights: bool = False
    n_features: int
    settings: str = ""

    def __init__(self, mean: tuple[float, ...] = (127.5,) * 3, std: tuple[float, ...] = (127.5,) * 3):
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean)[:, None, None], persistent=False)  # in units of a pixel
        self.register_buffer("std", torch.tensor(std)[:, None, None], persistent=False)
        self.stages = nn.ModuleDict()
        self._dropped: tuple[str, ...] = ()  # how the names of weights start that belong to dropped stages

    @property
    def stage_names(self) -> list[str]:
        """Names of the stages in order."""
        return list(self.stages)

    def normalised(self, pixels: Tensor) -> Tensor:
        """Return pixels in the scale of the first stage."""
        shape, smallest = tuple(pixels.shape), self.min_size
        fits = len(shape) == 4 and shape[1] == 3 and min(shape[2:]) >= smallest
        require(fits, f"{self.name} got pixels of shape {shape}; give (B, 3, H, W) with sides of at least {smallest}")
        return (pixels.to(self.mean.dtype) - self.mean) / self.std

    def maps(self, pixels: Tensor, stage: str) -> Tensor:
        """Return the output of a stage, such as spatial features (B, C, h, w)."""
        return self._after(pixels, self._place(stage) + 1)

    def end_at(self, stage: str) -> None:
        """Drop the stages after this one, whose pooled output becomes the features."""
        later = self.stage_names[self._place(stage) + 1 :]
        for name in later:
            del self.stages[name]
        self._dropped += tuple(f"stages.{name}." for name in later)
        self.name, self.settings = f"{self.name}:{stage}", f"{self.settings}:{stage}"
        mode = self.training
        self.n_features = self.eval().n_outputs(self.min_size, self, self.mean.device)
        self.train(mode)

    def _place(self, stage: str) -> int:
        choices = ", ".join(self.stage_names)
        require(stage in self.stages, f"{self.name} has no stage {stage!r}; choose one of {choices}")
        return self.stage_names.index(stage)

    def before_last(self, pixels: Tensor) -> Tensor:
        """Return the input of the last stage; `last(before_last(pixels))` is `forward(pixels)`."""
        return self._after(pixels, len(self.stages) - 1)

    def _after(self, pixels: Tensor, n_stages: int) -> Tensor:
        x = self.normalised(pixels)
        for stage in islice(self.stages.values(), n_stages):
            x = stage(x)
        return x

    def last(self, x: Tensor) -> Tensor:
        """Run the last stage and the pooling on what `before_last` returns -> (B, F)."""
        return self.pool(self.last_maps(x))

    def last_maps(self, x: Tensor) -> Tensor:
        """Run the last stage on what `before_last` returns -> (B, F, h, w), or (B, F) if that stage makes vectors."""
        maps: Tensor = self.stages[self.stage_names[-1]](x)
        return maps

    def pool(self, x: Tensor) -> Tensor:
        """Average over the positions, (B, C, h, w) -> (B, C); vectors (B, F) stay as they are."""
        return x.mean(dim=(2, 3)) if x.ndim == 4 else x

    def forward(self, pixels: Tensor) -> Tensor:
        """Compute features (B, F) of pixels (B, 3, H, W) in 0..255, uint8 or float."""
        return self.last(self.before_last(pixels))

    def for_inference(self) -> Self:
        """Return a frozen copy for fast features: channels last, batch norms folded into convolutions.

        Folded are neighbours in an `nn.Sequential`. Outputs stay the same up to rounding; the copy can be neither
        trained nor saved.
        """
        frozen = deepcopy(self).eval().requires_grad_(False)
        for module in frozen.modules():
            if type(module) is nn.Sequential:  # a subclass may run its children differently
                _fold(module)
        for parameter in frozen.parameters():
            if parameter.ndim == 4:
                parameter.data = parameter.contiguous(memory_format=torch.channels_last)
        return frozen.eval()

    @torch.inference_mode()
    def n_outputs(self, size: int, network: Callable[[Tensor], Tensor], device: torch.device) -> int:
        """Return how many numbers a frozen part of it computes for images of this side."""
        try:
            return int(network(torch.zeros(1, 3, size, size, device=device)).shape[1])
        except RuntimeError as error:  # some networks accept one size only
            found = f"{self.name} does not accept images of {size} px ({str(error).splitlines()[0]})"
            raise ValueError(f"{found}; set image_size={self.default_size}, its own") from error

    def load_pretrained(self) -> None:
        """Load the pretrained weights, if it has any."""

    def load_weights(self, path: str | Path) -> None:
        """Load a .safetensors file of a state dict, which must fit exactly, but may also have the dropped stages."""
        hint = "give a .safetensors file of a state dict"
        with reading(path, Exception, hint=hint):  # safetensors has its own error for a damaged file
            found = self.renamed(load_file(path))
        found = {key: tensor for key, tensor in found.items() if not key.startswith(self._dropped)}
        wanted = self.state_dict()
        shared = wanted.keys() & found.keys()
        shapes = {key: (tuple(found[key].shape), tuple(wanted[key].shape)) for key in shared}
        other = {f"{key} {given} instead of {needed}" for key, (given, needed) in shapes.items() if given != needed}
        problems = {"missing": wanted.keys() - shared, "unknown": found.keys() - shared, "of another shape": other}
        texts = [f"{len(keys)} {kind} ({first_of(keys)})" for kind, keys in problems.items() if keys]
        found_problems = f"{path} does not fit {self.name} (F={self.n_features}): {'; '.join(texts)}"
        to_do = "give the file of a backbone with the same name and width, or its last stage, as in alexnet:conv5"
        require(not texts, f"{found_problems}; {to_do}")
        self.load_state_dict(found)

    def renamed(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return weights from a file by the names that they have here."""
        return weights

    def _initialise(self) -> None:
        """Initialise weights so that ReLUs keep the variance (He et al., ICCV 2015), and biases with zero."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


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


class MapStage(nn.Module):
    """The last stage of a frozen backbone on flattened inputs, for its maps.

    It has no parameters, so it is neither trained nor stored, and is not affected by `train`.

    Parameters
    ----------
    frozen : Backbone
        What `for_inference` returned.
    size : int
        Side of the images in pixels.
    """

    def __init__(self, frozen: Backbone, size: int):
        super().__init__()
        self.pool, self.last_maps = frozen.pool, frozen.last_maps
        with torch.no_grad():
            before = frozen.before_last(torch.zeros(1, 3, size, size, device=frozen.mean.device))
            self.shape, self.map_shape = tuple(before.shape[1:]), tuple(self.last_maps(before).shape[1:])

    @property
    def has_maps(self) -> bool:
        """Whether the stage makes maps (F, h, w) and not vectors."""
        return len(self.map_shape) == 3

    def maps(self, x: Tensor) -> Tensor:
        """Map flattened inputs of the stage (n, C*h*w) to maps (n, F, h', w')."""
        return self.last_maps(x.unflatten(1, self.shape))

    def forward(self, x: Tensor) -> Tensor:
        """Map flattened inputs of the stage (n, C*h*w) to features (n, F)."""
        return self.pool(self.maps(x))


def first_of(keys: Collection[str], n: int = 3) -> str:
    """Return the first few of many names, for a message."""
    return ", ".join([*sorted(keys)[:n], *["..."] * (len(keys) > n)])


def _fold(chain: nn.Sequential) -> None:
    """Fold batch norms: gamma (w * x - mu) / sigma + beta = (gamma / sigma) w * x + (beta - gamma mu / sigma)."""
    for i in range(1, len(chain)):
        conv, norm = chain[i - 1], chain[i]
        if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            chain[i - 1], chain[i] = fuse_conv_bn_eval(conv, norm), nn.Identity()
