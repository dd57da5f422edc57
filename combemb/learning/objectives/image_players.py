"""Convolutional players of adversarial methods, which act on pixels (B, 3, H, W) in 0..255."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

HALF = 127.5  # pixels are scaled to [-1, 1], so that 0 is grey
BLOCKS = 6  # residual blocks of the generator
KERNEL, LEAK = 4, 0.2  # of strided convolutions, of leaky ReLUs


def scaled(pixels: Tensor) -> Tensor:
    """Return pixels in [-1, 1]."""
    return pixels.float() / HALF - 1


def unscaled(x: Tensor) -> Tensor:
    """Return values in [-1, 1] as pixels in 0..255."""
    return (x + 1) * HALF


def random_noise(x: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return n normal numbers for each item x (B, ...), twice."""
    return torch.randn(len(x), n, device=x.device), torch.randn(len(x), n, device=x.device)


@contextmanager
def steady_statistics(module: nn.Module) -> Iterator[None]:
    """Keep running means and variances of batch norms, which should describe real images only."""
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


class ImageGenerator(nn.Module):
    """An encoder and two decoders with a noise vector each: an image -> one of its kind and one of another."""

    def __init__(self, width: int, n_noise: int):
        super().__init__()
        self.n_noise = n_noise
        self.encoder = nn.Sequential(
            *_convolved(nn.Conv2d(3, width, 7, padding=3)),
            *_convolved(nn.Conv2d(width, 2 * width, KERNEL, 2, padding=1)),
            *_convolved(nn.Conv2d(2 * width, 4 * width, KERNEL, 2, padding=1)),
            *(Residual(4 * width) for _ in range(BLOCKS)),
        )
        self.positive, self.negative = (_decoder(width, n_noise) for _ in range(2))

    def forward(self, pixels: Tensor, noise: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Return a synthetic positive and a synthetic negative of each image; noise (B, n_noise) of each decoder."""
        encoded = self.encoder(scaled(pixels))
        first, second = noise or random_noise(pixels, self.n_noise)
        return (
            self._decoded(self.positive, encoded, first, pixels),
            self._decoded(self.negative, encoded, second, pixels),
        )

    def _decoded(self, decoder: nn.Module, encoded: Tensor, noise: Tensor, pixels: Tensor) -> Tensor:
        noise = noise[..., None, None].expand(-1, -1, *encoded.shape[2:])
        decoded = decoder(torch.cat([encoded, noise], dim=1))
        sides = pixels.shape[2:]
        if decoded.shape[2:] != sides:  # sides that are no multiple of 4
            decoded = functional.interpolate(decoded, sides, mode="bilinear")
        return unscaled(decoded)


class ImageDiscriminator(nn.Module):
    """Three images stacked along channels -> one logit, large for real triplets.

    The norms are group norms, since a batch may have any number of real triplets; ours.
    """

    def __init__(self, width: int):
        super().__init__()
        channels = [9, width, 2 * width, 4 * width, 8 * width]
        layers: list[nn.Module] = []
        for i, (inputs, outputs) in enumerate(pairwise(channels)):
            layers.append(nn.Conv2d(inputs, outputs, 3, 2, padding=1))
            layers += [nn.GroupNorm(1, outputs)] if i else []
            layers.append(nn.LeakyReLU(LEAK))
        self.judge = nn.Sequential(*layers)
        self.logit = nn.Linear(channels[-1], 1)

    def forward(self, x: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Judge triplets of images, (T,)."""
        maps = self.judge(torch.cat([scaled(part) for part in (x, positive, negative)], dim=1))
        logits: Tensor = self.logit(maps.mean(dim=(2, 3)))[:, 0]
        return logits


class ImageDistorter(nn.Module):
    """Logits of the cells to occlude at each scale, and a turn of the image that goes with each scale."""

    def __init__(self, scales: Sequence[int], width: int):
        super().__init__()
        self.scales = tuple(scales)
        self.trunk = nn.Sequential(
            *_convolved(nn.Conv2d(3, width, KERNEL, 2, padding=1)),
            *_convolved(nn.Conv2d(width, 2 * width, 3, padding=1)),
        )
        self.cells = nn.ModuleList(nn.Conv2d(2 * width, 1, 1) for _ in self.scales)
        self.turns = nn.Linear(2 * width, len(self.scales))

    def forward(self, pixels: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the logits of the cells, (B, g^2) for each scale g, and the turns (B, scales)."""
        maps = self.trunk(scaled(pixels))
        pairs = zip(self.scales, self.cells, strict=True)
        logits = [cells(functional.adaptive_avg_pool2d(maps, g)).flatten(1) for g, cells in pairs]
        return logits, self.turns(maps.mean(dim=(2, 3)))

    def distorted(self, pixels: Tensor, keep: list[Tensor], angles: Tensor, scale: Tensor) -> Tensor:
        """Occlude cells, then turn each image about its centre.

        keep (B, g^2) for each scale is 0 where a cell becomes grey; angles (B, scales) in radians; scale (B,) is the
        one that is used for each image.
        """
        sides, rows = pixels.shape[2:], torch.arange(len(pixels), device=pixels.device)
        masks = [
            functional.interpolate(cells.unflatten(1, (1, g, g)), sides, mode="nearest")
            for g, cells in zip(self.scales, keep, strict=True)
        ]
        occluded = scaled(pixels) * torch.stack(masks, dim=1)[rows, scale]
        angle = angles[rows, scale]
        cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
        matrices = torch.stack([cos, -sin, zero, sin, cos, zero], dim=1).unflatten(1, (2, 3))
        grid = functional.affine_grid(matrices, list(pixels.shape), align_corners=False)
        return unscaled(functional.grid_sample(occluded, grid, mode="bilinear", align_corners=False))


class Residual(nn.Module):
    """Two 3x3 convolutions beside the identity."""

    def __init__(self, channels: int):
        super().__init__()
        first, second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.residual = nn.Sequential(*_convolved(first), second, nn.GroupNorm(1, channels))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) -> the same shape."""
        out: Tensor = x + self.residual(x)
        return out


def _convolved(convolution: nn.Conv2d | nn.ConvTranspose2d) -> tuple[nn.Module, ...]:
    return convolution, nn.GroupNorm(1, convolution.out_channels), nn.ReLU()


def _decoder(width: int, n_noise: int) -> nn.Sequential:
    return nn.Sequential(
        *_convolved(nn.ConvTranspose2d(4 * width + n_noise, 2 * width, KERNEL, 2, padding=1)),
        *_convolved(nn.ConvTranspose2d(2 * width, width, KERNEL, 2, padding=1)),
        nn.Conv2d(width, 3, 7, padding=3),
        nn.Tanh(),
    )
