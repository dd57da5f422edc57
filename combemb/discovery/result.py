"""Discovery: the clusters that `discover` found, and the clusters of new items."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch

from combemb.discovery.clusters import Clusters, distances, free_names
from combemb.discovery.gaussians import Mixture
from combemb.discovery.points import BLOCK_ROWS, Points
from combemb.discovery.regions import Regions
from combemb.system.arrays import Array
from combemb.system.errors import require
from combemb.system.files import read_tensors, write_tensors

__all__ = ["Discovery", "free_names", "in_blocks"]

FORMAT = 3


@dataclass(frozen=True, eq=False)
class Discovery(Clusters):
    """N items in K clusters, first the C seen classes, then the novel ones, the largest first.

    Attributes
    ----------
    names : object array of shape (K,)
        Seen classes as they were given, then "novel-1", "novel-2", ...
    n_seen, n_novel_interval : int, tuple of int
        Number of seen classes C, and the smallest and the largest plausible number of novel classes.
    assignment, nearest : int64 arrays of shape (N,)
        Cluster of each item, and the one it would be in without its label.
    distance : float32 array of shape (N,)
        Distance of each item to the centre of its cluster.
    confidence : float32 array of shape (N,)
        1 for labelled items, otherwise the probability of the cluster, as calibrated on hidden labels.
    is_labelled : bool array of shape (N,)
        Items that had a label.
    centres, spreads : float32 arrays of shape (K, d) and (K,)
        Centre of each cluster in the space of `points`, and the root mean square distance of its items.
    reach : float
        An item that is more than this number of spreads away from every centre belongs to no cluster.
    points : Points
        Turns embeddings and features into the points that were clustered.
    mixture : Mixture
        The classes as Gaussians, which place new items.
    """

    spreads: np.ndarray
    reach: float
    points: Points
    mixture: Mixture

    def __repr__(self) -> str:
        low, high = self.n_novel_interval
        between = f" ({low} to {high})" if low < high else ""
        return f"Discovery({len(self):,} items: {self.n_seen} seen classes, {self.n_novel}{between} novel)"

    def predict(self, z: Array, features: Array | None = None) -> np.ndarray:
        """Assign new items to clusters.

        Parameters
        ----------
        z : array of shape (n, D)
            Embeddings.
        features : array of shape (n, F), optional
            Features of these items, required if `discover` was given features.

        Returns
        -------
        object array of shape (n,)
            Names as in `clusters`, or `neither` for an item that is far from all clusters.
        """
        return self.placed(z, features)[0]

    def placed(self, z: Array, features: Array | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Assign new items to clusters as `predict` does, with the confidence in each.

        z and features are those of `predict`.

        Returns
        -------
        object array of shape (n,)
            What `predict` returns.
        float32 array of shape (n,)
            Probability of the cluster, as calibrated on hidden labels; NaN for `neither`.
        """
        x = self.points.of(z, features)
        found, confidence = self.mixture.assign(x)
        for rows, away in in_blocks(x, self.centres):
            found[rows][(away > self.reach * self.spreads).all(axis=1)] = len(self.names)
        confidence[found == len(self.names)] = np.nan
        return np.asarray(np.append(self.names, np.array([self.neither], dtype=object))[found]), confidence

    def probabilities(self, z: Array, features: Array | None = None) -> np.ndarray:
        """Return the probability of each cluster for new items, (n, K) float32, as calibrated on hidden labels.

        z and features are those of `predict`.
        """
        x = self.points.of(z, features)
        found = np.empty((len(x), len(self.names)), np.float32)
        for start in range(0, len(x), BLOCK_ROWS):
            found[start : start + BLOCK_ROWS] = self.mixture.posterior(x[start : start + BLOCK_ROWS])
        return found

    def novelty(self, z: Array, features: Array | None = None) -> np.ndarray:
        """Score how much more likely new items belong to no seen class than to one; 0 without seen classes.

        z and features are those of `predict`.

        Returns
        -------
        float32 array of shape (n,)
            Log-odds that the item is novel; above 0 it is put into a novel class, if there is one.
        """
        x = self.points.of(z, features)
        blocks = [self.mixture.novelty(x[i : i + BLOCK_ROWS]) for i in range(0, len(x), BLOCK_ROWS)]
        return np.concatenate([np.zeros(0), *blocks]).astype(np.float32)

    def save(self, path: str | Path) -> None:
        """Write a safetensors file, whole or not at all."""
        path = Path(path)
        require(path.parent.is_dir(), f"there is no folder {path.parent}; create it first")
        about = {"names": self.names.tolist(), "n_seen": self.n_seen, "n_novel_interval": self.n_novel_interval}
        about |= {
            "reach": self.reach,
            "has_features": self.points.has_features,
            "length": self.points.length,
            "z_scale": self.points.z_scale,
            "format": FORMAT,
        }
        about |= {name: getattr(self.mixture, name) for name in CALIBRATION}
        arrays = {name: getattr(self, name) for name in ARRAYS}
        arrays |= {"mean": self.points.mean, "matrix": self.points.matrix, "between": self.points.between}
        arrays |= {"means": self.mixture.means, "counts": self.mixture.counts}
        regions = self.mixture.regions or Regions.none(len(self.points.between))
        arrays |= {name: getattr(regions, field) for name, field in REGION_ARRAYS.items()}
        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
        write_tensors(path, tensors, {"discovery": json.dumps(about)})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file that `save` wrote."""
        try:
            tensors, metadata = read_tensors(path)
            about, stored = json.loads(metadata["discovery"]), {name: x.numpy() for name, x in tensors.items()}
            if about["format"] != FORMAT:
                raise ValueError(f"it has format {about['format']}, this combemb reads {FORMAT}")
            arrays = {name: stored[name] for name in ARRAYS}
            regions = Regions(*(stored[name] for name in REGION_ARRAYS))
            mean, matrix, between, means, counts = (stored[name] for name in MODEL_ARRAYS)
            points = Points(mean, matrix, between, about["has_features"], about["length"], about.get("z_scale", 0.0))
            calibration = {name: about[name] for name in CALIBRATION}
            mixture = Mixture(means, counts, between, about["n_seen"], **calibration, regions=regions)
            names = np.array([*about["names"], None], dtype=object)[:-1]
            low, high = about["n_novel_interval"]
            found = cls(
                names, about["n_seen"], (low, high), reach=about["reach"], points=points, mixture=mixture, **arrays
            )
            found._check()
            return found
        except (KeyError, ValueError, TypeError) as error:
            raise ValueError(f"cannot read a discovery from {path}: {error}; discover again") from error

    def _check(self) -> None:
        """Raise a ValueError if the parts do not belong together."""
        K, N = len(self.names), len(self)
        parts = self.centres, self.spreads, self.mixture.means, self.mixture.counts
        is_fit = {len(part) for part in parts} == {K} and 0 <= self.n_seen <= K
        is_fit &= all(len(getattr(self, name)) == N for name in ("nearest", "distance", "confidence", "is_labelled"))
        if not is_fit or not all(((x >= 0) & (x < K)).all() for x in (self.assignment, self.nearest)):
            raise ValueError("its parts do not fit together")


ARRAYS = ("assignment", "nearest", "distance", "confidence", "is_labelled", "centres", "spreads")
MODEL_ARRAYS = ("mean", "matrix", "between", "means", "counts")
REGION_ARRAYS = {"region_centres": "centres", "region_labelled": "labelled", "region_free": "free"}
CALIBRATION = ("slope", "local_slope", "offset", "temperature")


def in_blocks(x: np.ndarray, centres: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield a slice of rows and their distances to all centres, a block at a time."""
    for start in range(0, len(x), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        yield rows, distances(x[rows], centres)
