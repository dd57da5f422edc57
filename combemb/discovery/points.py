"""The points that discovery clusters: embeddings, and beside them features weighed by what the labels say matters."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from combemb.backbones.feature_map import discriminant_map, fit_feature_map
from combemb.data.labels import Labels
from combemb.discovery.kmeans import Array, read_points
from combemb.system.arrays import unit_rows

FEATURES = 256
MOST_ITEMS = 20_000  # that the weights of features are computed from
ROWS = 8_192


@dataclass(frozen=True, eq=False)
class Points:
    """How embeddings z (n, D) and features (n, F) become points: z / scale, and (f - mean) @ matrix at unit length.

    Without features, the embeddings themselves. matrix (F, d) whitens within the labelled classes.
    """

    scale: float
    mean: np.ndarray
    matrix: np.ndarray

    @classmethod
    def fit(cls, z: np.ndarray, features: np.ndarray | None, labels: Labels, seed: int) -> Self:
        """Give both the same weight: the embeddings get a mean square length of one.

        Features that are the same for all items, or items without labels, leave the embeddings alone.
        """
        alone = cls(1.0, np.zeros(0, np.float32), np.zeros((0, 0), np.float32))
        if features is None or not labels.is_labelled.any():
            return alone
        try:
            first = fit_feature_map(_chunks(features), FEATURES)
        except ValueError:
            return alone
        rng = np.random.default_rng(seed)
        labelled = np.sort(labels.labelled_rows(MOST_ITEMS, rng))
        some = np.sort(rng.choice(len(features), min(MOST_ITEMS, len(features)), replace=False))
        with torch.no_grad():
            known, all_kinds = (torch.cat([first(x) for x in _chunks(features[rows])]) for rows in (labelled, some))
            weigh = discriminant_map(known, torch.from_numpy(labels.membership(labelled)), all_kinds, FEATURES)
            matrix = first.components @ weigh
        length = float(np.sqrt(np.square(z[some], dtype=np.float64).sum(axis=1).mean()))
        return cls(length or 1.0, first.mean.numpy(), matrix.numpy())

    @property
    def has_features(self) -> bool:
        """Whether features are wanted beside the embeddings."""
        return len(self.mean) > 0

    def of(self, z: Array, features: Array | None) -> np.ndarray:
        """The points of items, (n, D) or (n, D + d) float32."""
        x = read_points(z, "z")
        if not self.has_features:
            return x
        if features is None:
            raise ValueError(
                f"the clusters were found with features beside the embeddings; give {len(self.mean)} of each item"
            )
        given = read_points(features, "features")
        if given.shape != (len(x), len(self.mean)):
            raise ValueError(
                f"features have shape {given.shape}; give {(len(x), len(self.mean))}, as when it was found"
            )
        found = np.empty((len(x), x.shape[1] + self.matrix.shape[1]), np.float32)
        found[:, : x.shape[1]] = x / self.scale
        mean, matrix = torch.from_numpy(self.mean), torch.from_numpy(self.matrix)
        start = 0
        for rows in _chunks(given):
            found[start : start + len(rows), x.shape[1] :] = unit_rows((unit_rows(rows) - mean) @ matrix).numpy()
            start += len(rows)
        return found


def _chunks(features: np.ndarray) -> Iterator[Tensor]:
    for start in range(0, len(features), ROWS):
        yield torch.from_numpy(np.array(features[start : start + ROWS], np.float32))  # a copy: it may be read-only
