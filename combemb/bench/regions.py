"""Decision regions of combinatorial classification on a plane (the paper's first figure), by our own method."""

from typing import Any

import numpy as np

from combemb.learning.codes import CodeMethod

CENTRES = np.array([[-1.0, -0.6], [1.0, -0.6], [0.0, 1.1]])  # of three seen classes
N_EACH, SPREAD = 60, 0.22
HEIGHT = 1.0  # of the plane above the origin
SIDE, HALF = 160, 2.0  # grid points per axis, and the end of both axes
FIT: dict[str, Any] = {"epochs": 60, "batch_size": 128, "max_features": 64, "view_noise": 0.05}


def points() -> tuple[np.ndarray, np.ndarray]:
    """Return items (N, 2) of three classes, and their classes (N,)."""
    targets = np.repeat(np.arange(len(CENTRES)), N_EACH)
    return CENTRES[targets] + SPREAD * np.random.default_rng(0).normal(size=(len(targets), 2)), targets


def with_one(places: np.ndarray) -> np.ndarray:
    """Return places (N, 2) as embeddings (N, 3) on a plane above the origin, since methods see unit vectors."""
    return np.concatenate([places, np.full((len(places), 1), HEIGHT)], axis=1).astype(np.float32)


def regions(model: CodeMethod) -> dict[str, Any]:
    """Return what a fitted method says about a grid: `n_regions`, and the region of every point, row by row.

    Regions are numbered by their codes; equal codes are one region. `classes` has the region of the centre of each
    seen class.
    """
    axis = np.linspace(-HALF, HALF, SIDE)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    codes = model.encode(with_one(np.concatenate([grid, CENTRES]))).numpy()
    distinct, region = np.unique(codes, axis=0, return_inverse=True)
    region = region.reshape(-1)
    on_grid = region[: len(grid)]
    return {
        "n_regions": len(np.unique(on_grid)),
        "grid": "".join(chr(ord("a") + r) for r in on_grid),
        "codes": distinct.tolist(),
        "classes": region[len(grid) :].tolist(),
    }
