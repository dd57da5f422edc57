"""Views of images in the way of SimCLR: random crops, mirrored or not, in other colours. View 0 is the clean one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from PIL import Image

from combemb.data.images import Images

REDUCING_GAP = 1.5  # Pillow may first average squares of pixels, while the image stays this many times too large
BLUR = (0.1, 2.0)  # range of the width (σ) of a blur in pixels, as in SimCLR

# The columns of an array of steps, and a row of it that changes nothing. Hue is in turns of the colour circle, blur is
# the σ in pixels (0: none), grey is 0 or 1; the others are factors.
STEPS = ("brightness", "contrast", "saturation", "hue", "grey", "blur")
NO_STEPS = np.array([1, 1, 1, 0, 0, 0], np.float32)


@dataclass(frozen=True)
class Augmentation:
    """How strongly views differ from the clean image; the defaults are SimCLR's for small images, with milder crops.

    crop_area: lowest share of the image's area in a crop. crop_ratio: width / height lies between it and its inverse.
    flip, colour_probability, grey, blur: the probability of each. colour: brightness, contrast and saturation change by
    factors in 1 ± colour, the hue by up to colour / 4 of a turn.
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
    """The square in the middle, (size, size, 3) uint8."""
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return _resized(image, (left, top, left + side, top + side), size)


def random_window(image: Image.Image, size: int, augmentation: Augmentation, rng: np.random.Generator) -> np.ndarray:
    """A random part of the image, perhaps mirrored, (size, size, 3) uint8.

    Area and ratio of the sides are drawn first; a crop that is then wider or higher than the image shrinks to fit.
    """
    across, down, area, ratio, flip = rng.random(5)
    width, height = image.size
    area = augmentation.crop_area + (1 - augmentation.crop_area) * area
    ratio = augmentation.crop_ratio ** (2 * ratio - 1)
    wide, high = math.sqrt(width * height * area * ratio), math.sqrt(width * height * area / ratio)
    shrink = min(1, width / wide, height / high)
    wide, high = min(wide * shrink, width), min(high * shrink, height)  # rounding must not lead out of the image
    left, top = across * (width - wide), down * (height - high)
    window = _resized(image, (left, top, min(left + wide, width), min(top + high, height)), size)
    return window[:, ::-1] if flip < augmentation.flip else window


def random_steps(augmentation: Augmentation, rng: np.random.Generator) -> np.ndarray:
    """One row of STEPS, drawn at random."""
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
    """The views of images, numbered from 0; view v of image i is a function of the image, the seed, i and v alone."""

    images: Images
    size: int  # side of a view in pixels
    augmentation: Augmentation
    seed: int = 0

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size={self.size}; give the side of a view in pixels, at least 1")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}; give 0 or more")

    def read(self, i: int, numbers: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Some views of image i, whose file is decoded once: windows (n, size, size, 3) uint8 and STEPS to do (n, 6).

        The clean view also comes from twice the size, so that it is the same alone and beside others. BrokenImage if
        there is no image.
        """
        image = self.images.read(i, at_least=2 * self.size)
        windows = np.empty((len(numbers), self.size, self.size, 3), np.uint8)
        steps = np.tile(NO_STEPS, (len(numbers), 1))
        for at, number in enumerate(numbers):
            if number == 0:
                windows[at] = clean_window(image, self.size)
            else:
                rng = np.random.default_rng((self.seed, i, number))
                windows[at] = random_window(image, self.size, self.augmentation, rng)
                steps[at] = random_steps(self.augmentation, rng)
        return windows, steps


def _resized(image: Image.Image, box: tuple[float, float, float, float], size: int) -> np.ndarray:
    return np.asarray(image.resize((size, size), Image.Resampling.BICUBIC, box, REDUCING_GAP))
