"""Colour steps of augmented views, for many views at once, each with its own strengths."""

import math

import torch
from torch import Tensor

from combemb.data.augmentation import NO_STEPS

CHUNK_NUMBERS = 2**18  # a CPU works on this many numbers at a time, so that they stay in its cache


def coloured(windows: Tensor, steps: Tensor) -> Tensor:
    """Apply the STEPS of each window: brightness, contrast, saturation, hue, grey, blur, in this order.

    windows (B, size, size, 3) uint8, steps (B, 6) -> (B, 3, size, size) float32 in 0..255, channels last in memory.
    Windows without steps keep their values exactly.
    """
    pixels = windows.permute(0, 3, 1, 2).float()
    is_changed = (steps != torch.from_numpy(NO_STEPS).to(steps.device)).any(dim=1)
    n = max(1, CHUNK_NUMBERS // pixels[0].numel()) if pixels.device.type == "cpu" else len(pixels)
    changed = is_changed.nonzero()[:, 0]
    for rows in changed.split(n) if len(changed) else ():  # one empty part would still import kornia
        pixels[rows] = 255 * _changed(pixels[rows].contiguous() / 255, steps[rows])
    return pixels


def shifted_hue(x: Tensor, turns: Tensor) -> Tensor:
    """Rotate the hue by `turns` of the colour circle, as in HSV: value and saturation stay. x (B, 3, H, W) in 0..1.

    With hue h in sixths of the circle, value v and chroma c, a channel is v - c·clip(min(k, 4 - k), 0, 1) for
    k = (h + 5, 3, 1) mod 6, which is cheaper than a conversion to HSV and back.
    """
    red, green, blue = x.unbind(1)
    value = x.amax(dim=1)
    chroma = value - x.amin(dim=1)
    is_red, is_green = value == red, value == green
    h = torch.where(is_red, green - blue, torch.where(is_green, blue - red, red - green))
    h = h / chroma.clamp_min(1e-12) + torch.where(is_red, 0, torch.where(is_green, 2, 4))
    h = h + 6 * turns[:, None, None]
    k = (h[:, None] + torch.tensor([5.0, 3.0, 1.0], device=x.device)[:, None, None]) % 6
    return value[:, None] - chroma[:, None] * torch.minimum(k, 4 - k).clamp(0, 1)


def _changed(x: Tensor, steps: Tensor) -> Tensor:
    """Return x (b, 3, H, W) in 0..1 after its steps."""
    import kornia  # noqa: PLC0415 - slow, and not needed where features are cached

    brightness, contrast, saturation, hue, grey, sigma = steps.unbind(1)
    x = kornia.enhance.adjust_brightness_accumulative(x, brightness)
    x = kornia.enhance.adjust_contrast_with_mean_subtraction(x, contrast)
    x = kornia.enhance.adjust_saturation_with_gray_subtraction(x, saturation)
    x = shifted_hue(x, hue)
    x = torch.where(grey[:, None, None, None] > 0, kornia.color.rgb_to_grayscale(x), x)
    blurred = (sigma > 0).nonzero()[:, 0]
    if len(blurred) > 0:
        side = math.ceil(x.shape[-1] / 10) // 2 * 2 + 1
        x[blurred] = kornia.filters.gaussian_blur2d(x[blurred], side, sigma[blurred, None].expand(-1, 2))
    return x
