"""The points that discovery clusters: embeddings, joined by features whose weights are learned from the labels."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Self

import numpy as np
import torch
from torch import Tensor

from combemb.backbones.feature_map import discriminant_map, fit_feature_map
from combemb.data.embeddings import as_array, check_finite
from combemb.data.labels import Labels
from combemb.system.arrays import Array, unit_rows
from combemb.system.errors import require

N_COMPONENTS = 256  # principal components of the features
MAX_FITTED_ITEMS = 20_000  # more are sampled before features are weighed
BLOCK_ROWS = 8_192  # rows mapped or compared at a time, which bounds the memory
MIN_SCALE, MAX_SCALE = 1e-15, 1e15  # of the largest value; squares and their sums stay in the range of float32


@dataclass(frozen=True, eq=False)
class Points:
    """Turns embeddings z (n, D) and features f (n, F) into points: z / scale, and (f - mean) @ matrix at unit length.

    Without features, the points are the embeddings. matrix (F, d) whitens within the labelled classes.
    """

    scale: float
    mean: np.ndarray
    matrix: np.ndarray

    @classmethod
    def fit(cls, z: np.ndarray, features: np.ndarray | None, labels: Labels, seed: int) -> Self:
        """Give z and features the same weight; features are ignored if they are constant, or if no item is labelled."""
        alone = cls(1.0, np.zeros(0, np.float32), np.zeros((0, 0), np.float32))
        if features is None or not labels.is_labelled.any():
            return alone
        try:
            first = fit_feature_map(_chunks(features), N_COMPONENTS)
        except ValueError:
            return alone
        rng = np.random.default_rng(seed)
        labelled = np.sort(labels.labelled_rows(MAX_FITTED_ITEMS, rng))
        some = np.sort(rng.choice(len(features), min(MAX_FITTED_ITEMS, len(features)), replace=False))
        with torch.no_grad():
            known, all_kinds = (torch.cat([first(x) for x in _chunks(features[rows])]) for rows in (labelled, some))
            weigh = discriminant_map(known, torch.from_numpy(labels.membership(labelled)), all_kinds, N_COMPONENTS)
            matrix = first.components @ weigh
        length = float(np.sqrt(np.square(z[some], dtype=np.float64).sum(axis=1).mean()))
        return cls(length or 1.0, first.mean.numpy(), matrix.numpy())

    @property
    def has_features(self) -> bool:
        """Whether points need features too."""
        return len(self.mean) > 0

    def of(self, z: Array, features: Array | None) -> np.ndarray:
        """Return the points of items: z as it is, or (n, D + d) float32."""
        x = read_points(z, "z")
        if not self.has_features:
            return x
        if features is None:
            raise ValueError(
                f"these clusters were found with features; give the {len(self.mean)} features of each item"
            )
        given = read_points(features, "features")
        if given.shape != (len(x), len(self.mean)):
            raise ValueError(f"features have shape {given.shape}; give {(len(x), len(self.mean))}, as for `discover`")
        found = np.empty((len(x), x.shape[1] + self.matrix.shape[1]), np.float32)
        found[:, : x.shape[1]] = x / self.scale
        mean, matrix = torch.from_numpy(self.mean), torch.from_numpy(self.matrix)
        for start, rows in zip(count(0, BLOCK_ROWS), _chunks(given), strict=False):
            found[start : start + len(rows), x.shape[1] :] = unit_rows((unit_rows(rows) - mean) @ matrix).numpy()
        return found


def _chunks(features: np.ndarray) -> Iterator[Tensor]:
    for start in range(0, len(features), BLOCK_ROWS):
        yield torch.from_numpy(
            np.array(features[start : start + BLOCK_ROWS], np.float32)
        )  # a copy: it may be read-only


def read_points(x: Array, name: str = "x") -> np.ndarray:
    """Return x (N, D) as an array; raise a ValueError unless it is finite and float32 can hold its squares."""
    points = as_array(x)
    require(points.ndim == 2, f"{name} has shape {points.shape}; clustering takes (N, D), such as one view x[:, 0]")
    check_finite(points, allow_constant=True)
    largest = max(abs(float(points.min())), abs(float(points.max())))
    message = f"{name} reaches {largest:g}, whose square leaves the range of float32; scale it"
    require(largest == 0 or MIN_SCALE <= largest <= MAX_SCALE, message)
    return points


def as_float32(x: np.ndarray) -> np.ndarray:
    """Return float64 as the float32 that k-means works in, so that items which it cannot tell apart count as equal."""
    return x.astype(np.float32) if x.dtype == np.float64 else x
