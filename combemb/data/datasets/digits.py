"""The handwritten digits of scikit-learn."""

import numpy as np

from combemb.data.datasets.dataset import Dataset
from combemb.system.errors import require

DIGIT_SIDE = 8  # in pixels
VIEW_NOISE = 0.1  # standard deviation; pixels are in [0, 1]


def digits(n_views: int = 1, seed: int = 0) -> Dataset:
    """Return the 8x8 handwritten digits of scikit-learn; every fifth image is a test image.

    Views after the first are shifted by up to one pixel, with noise. A linear map of pixels cannot follow a shift, so
    methods do better on the clean view alone.
    """
    require(n_views > 0, f"n_views={n_views}; use at least 1, the clean view")
    from sklearn.datasets import load_digits  # noqa: PLC0415 - takes a second

    pixels, targets = load_digits(return_X_y=True)
    x = (pixels / 16).astype(np.float32)  # (N, 64) in [0, 1]
    is_test = np.arange(len(x)) % 5 == 0
    clean = x[~is_test]
    rng = np.random.default_rng(seed)
    views = np.stack([clean, *(_moved_and_noisy(clean, rng) for _ in range(n_views - 1))], axis=1)
    class_names = np.array([str(digit) for digit in range(10)])
    return Dataset("digits", views, targets[~is_test], x[is_test], targets[is_test], class_names)


def _moved_and_noisy(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Shift each image (N, 64) by up to a pixel in both directions, fill with zeros, add noise, clip to [0, 1]."""
    n = len(x)
    framed = np.pad(x.reshape(n, DIGIT_SIDE, DIGIT_SIDE), ((0, 0), (1, 1), (1, 1)))
    corners = rng.integers(0, 3, size=(2, n, 1))  # of the window in the padded image; 1 is the middle
    rows, columns = corners + np.arange(DIGIT_SIDE)  # (N, 8) each
    moved = framed[np.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]].reshape(n, -1)
    noise = rng.normal(0, VIEW_NOISE, size=moved.shape)
    return np.asarray(np.clip(moved + noise, 0, 1), dtype=np.float32)
