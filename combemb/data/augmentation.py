"""Augmented views of images as in SimCLR: random crop, flip and colour. View 0 is the clean image."""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from PIL import Image

from combemb.data.images import Images
from combemb.system.errors import require

REDUCING_GAP = 1.5  # Pillow may first average blocks of pixels while the image stays this many times larger
BLUR = (0.1, 2.0)  # range of the width (σ) of a blur in pixels, as in SimCLR

# Columns of an array of colour steps, and the row that changes nothing. Hue is in turns of the colour circle, blur is σ
# in pixels (0: none), grey is 0 or 1; the others are factors.
STEPS = ("brightness", "contrast", "saturation", "hue", "grey", "blur")
NO_STEPS = np.array([1, 1, 1, 0, 0, 0], np.float32)


@dataclass(frozen=True)
class Augmentation:
    """Strength of the augmentation; the defaults are SimCLR's for small images, with milder crops.

    Parameters
    ----------
    crop_area : float
        Smallest share of the image's area in a crop.
    crop_ratio : float
        Smallest width / height of a crop; the largest is its inverse.
    colour : float
        Brightness, contrast and saturation change by factors in 1 ± colour, the hue by up to colour / 4 of a turn.
    flip, colour_probability, grey, blur : float
        Probability of each step.
    """

    crop_area: float = 0.3
    crop_ratio: float = 3 / 4
    flip: float = 0.5
    colour: float = 0.4
    colour_probability: float = 0.8
    grey: float = 0.2
    blur: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            may_be_zero = not field.name.startswith("crop")
            if not isinstance(value, int | float) or not 0 <= value <= 1 or (value == 0 and not may_be_zero):
                raise ValueError(f"{field.name}={value!r} is not in {'[' if may_be_zero else '('}0, 1]")


def clean_window(image: Image.Image, size: int) -> np.ndarray:
    """Return the square in the middle, (size, size, 3) uint8."""
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return _resized(image, (left, top, left + side, top + side), size)


def random_window(image: Image.Image, size: int, augmentation: Augmentation, rng: np.random.Generator) -> np.ndarray:
    """Return a random crop, possibly mirrored, (size, size, 3) uint8.

    Area and ratio are drawn first; a crop wider or higher than the image then shrinks to fit.
    """
    across, down, area, ratio, flip = rng.random(5)
    width, height = image.size
    area = augmentation.crop_area + (1 - augmentation.crop_area) * area
    ratio = augmentation.crop_ratio ** (2 * ratio - 1)
    wide, high = math.sqrt(width * height * area * ratio), math.sqrt(width * height * area / ratio)
    shrink = min(1, width / wide, height / high)
    wide, high = min(wide * shrink, width), min(high * shrink, height)  # rounding must not leave the image
    left, top = across * (width - wide), down * (height - high)
    window = _resized(image, (left, top, min(left + wide, width), min(top + high, height)), size)
    return window[:, ::-1] if flip < augmentation.flip else window


def random_steps(augmentation: Augmentation, rng: np.random.Generator) -> np.ndarray:
    """Draw one row of STEPS."""
    jitter, grey, blur, width = rng.random(4)
    shift = augmentation.colour * rng.uniform(-1, 1, 4)
    steps = NO_STEPS.copy()
    if jitter < augmentation.colour_probability:
        steps[:3] += shift[:3]
        steps[3] = shift[3] / 4
    steps[4] = grey < augmentation.grey
    if blur < augmentation.blur:
        steps[5] = BLUR[0] + (BLUR[1] - BLUR[0]) * width
    return steps


@dataclass(frozen=True, eq=False)
class Views:
    """The views of images, numbered from 0.

    View v of an image depends on its pixels, the seed and v alone: it stays the same where images are added, removed or
    in another order.
    """

    images: Images
    size: int  # side of a view in pixels
    augmentation: Augmentation
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.size > 0, f"size={self.size}; give the side of a view in pixels, at least 1")
        require(self.seed >= 0, f"seed={self.seed}; give 0 or more")

    def read(self, i: int, numbers: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Decode image i once and return some of its views: windows (n, size, size, 3) uint8 and STEPS (n, 6).

        The clean view is cut from twice the size too, so that it does not depend on which others are read.
        """
        image = self.images.read(i, at_least=2 * self.size)
        content = zlib.crc32(image.tobytes()) if any(numbers) else 0
        windows = np.empty((len(numbers), self.size, self.size, 3), np.uint8)
        steps = np.tile(NO_STEPS, (len(numbers), 1))
        for at, number in enumerate(numbers):
            if number == 0:
                windows[at] = clean_window(image, self.size)
            else:
                rng = np.random.default_rng((self.seed, content, number))
                windows[at] = random_window(image, self.size, self.augmentation, rng)
                steps[at] = random_steps(self.augmentation, rng)
        return windows, steps


def _resized(image: Image.Image, box: tuple[float, float, float, float], size: int) -> np.ndarray:
    return np.asarray(image.resize((size, size), Image.Resampling.BICUBIC, box, REDUCING_GAP))
