"""Discovery: the clusters that were found, and where new items belong."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from combemb.discovery.points import BLOCK_ROWS, Points
from combemb.system.arrays import Array
from combemb.system.files import write_tensors

FORMAT = 1
NEITHER = "neither"


@dataclass(frozen=True, eq=False)
class Discovery:
    """What `discover` found: N items in K clusters, first the C seen classes, then the novel ones, the largest first.

    names (K,): the seen classes as they were given, and "novel-1", ... `assignment` (N,): the cluster of each item, a
    place in `names`. `nearest` (N,): the cluster whose centre is nearest, which for a labelled item may be another.
    `distance` (N,): to the centre of its cluster. `confidence` (N,): 1 for labelled items, else
    1 - (distance / distance to the next centre)^2, which is 0 half-way between two. `spreads` (K,): the root mean
    square distance in a cluster. `reach`: the spreads beyond which an item is of no cluster. `points`: how embeddings
    and features became the points that were clustered.
    """

    names: np.ndarray
    n_seen: int
    n_novel_interval: tuple[int, int]
    assignment: np.ndarray
    nearest: np.ndarray
    distance: np.ndarray
    confidence: np.ndarray
    is_labelled: np.ndarray
    centres: np.ndarray
    spreads: np.ndarray
    reach: float
    points: Points

    def __len__(self) -> int:
        return len(self.assignment)

    def __repr__(self) -> str:
        low, high = self.n_novel_interval
        between = f" ({low} to {high})" if low < high else ""
        return f"Discovery({len(self):,} items: {self.n_seen} seen classes, {self.n_novel}{between} novel)"

    @property
    def n_novel(self) -> int:
        """How many novel classes there are: estimated, unless it was given."""
        return len(self.names) - self.n_seen

    @property
    def clusters(self) -> np.ndarray:
        """(N,) objects: the seen class of each item as it was given, or the name of a novel one."""
        return np.asarray(self.names[self.assignment])

    @property
    def is_novel(self) -> np.ndarray:
        """(N,) bool: items of novel classes."""
        return np.asarray(self.assignment >= self.n_seen)

    @property
    def sizes(self) -> dict[Any, int]:
        """The items of each cluster, labelled ones too."""
        return dict(zip(self.names, np.bincount(self.assignment, minlength=len(self.names)).tolist(), strict=True))

    @cached_property
    def neighbours(self) -> dict[Any, Any]:
        """The seen class whose centre is nearest to that of each novel one; empty without seen classes."""
        if self.n_seen == 0:
            return {}
        nearest = _distances(self.centres[self.n_seen :], self.centres[: self.n_seen]).argmin(axis=1)
        return dict(zip(self.names[self.n_seen :], self.names[nearest], strict=True))

    @property
    def neither(self) -> str:
        """What `predict` says of an item that is far from all clusters."""
        return next(free_names(NEITHER, set(self.names), bare=True))

    def exemplars(self, cluster: Any, n: int = 10) -> np.ndarray:
        """Rows of the n items nearest to the centre of a cluster, the nearest first."""
        rows = self._rows(cluster)
        return np.asarray(rows[np.argsort(self.distance[rows], kind="stable")][:n])

    def borderline(self, cluster: Any, n: int = 10) -> np.ndarray:
        """Rows of the n items of a cluster that are the most nearly in another one; labelled ones come last."""
        rows = self._rows(cluster)
        return np.asarray(rows[np.argsort(self.confidence[rows], kind="stable")][:n])

    def predict(self, z: Array, features: Array | None = None) -> np.ndarray:
        """The cluster of each new item z (n, D), objects as in `clusters`, or `neither` if it is far from all.

        features (n, F): if such were given to `discover`.
        """
        names = np.append(self.names, np.array([self.neither], dtype=object))
        found = np.empty(len(z), np.int64)
        for rows, distances in self._distances_of(z, features):
            nearest = distances.argmin(axis=1)
            is_far = (distances > self.reach * self.spreads).all(axis=1)
            found[rows] = np.where(is_far, len(self.names), nearest)
        return np.asarray(names[found])

    def novelty(self, z: Array, features: Array | None = None) -> np.ndarray:
        """How much farther each item z (n, D) is from every seen class than from a novel one, (n,): larger, more novel.

        The squared distance to the nearest seen centre, less that to the nearest novel one if there are any; without
        seen classes all items are equally novel. features (n, F): if such were given to `discover`.
        """
        found = np.zeros(len(z), np.float32)
        for rows, distances in self._distances_of(z, features):
            squares = np.square(distances)
            if self.n_seen > 0:
                found[rows] = squares[:, : self.n_seen].min(axis=1)
                if self.n_novel > 0:
                    found[rows] -= squares[:, self.n_seen :].min(axis=1)
        return found

    def save(self, path: str | Path) -> None:
        """Write a safetensors file, which is never half-written."""
        path = Path(path)
        if not path.parent.is_dir():
            raise ValueError(f"there is no folder {path.parent}; make it first")
        about = {"names": self.names.tolist(), "n_seen": self.n_seen, "n_novel_interval": self.n_novel_interval}
        about |= {"reach": self.reach, "scale": self.points.scale, "format": FORMAT}
        arrays = {name: getattr(self, name) for name in ARRAYS}
        arrays |= {"mean": self.points.mean, "matrix": self.points.matrix}
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        write_tensors(path, tensors, {"discovery": json.dumps(about)})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file of `save`."""
        try:
            with safe_open(path, "np") as file:
                about = json.loads((file.metadata() or {})["discovery"])
                if about["format"] != FORMAT:
                    raise ValueError(f"it has format {about['format']}, this combemb reads {FORMAT}")
                arrays = {name: file.get_tensor(name) for name in ARRAYS}
                points = Points(about["scale"], file.get_tensor("mean"), file.get_tensor("matrix"))
            names = np.array([*about["names"], None], dtype=object)[:-1]
            low, high = about["n_novel_interval"]
            found = cls(names, about["n_seen"], (low, high), reach=about["reach"], points=points, **arrays)
            found._check()
            return found
        except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
            raise ValueError(f"cannot read a discovery from {path}: {error}; discover again") from error

    def _check(self) -> None:
        """ValueError if the parts do not belong together."""
        K, N = len(self.names), len(self)
        is_fit = {len(self.centres), len(self.spreads)} == {K} and 0 <= self.n_seen <= K
        is_fit &= all(len(getattr(self, name)) == N for name in ("nearest", "distance", "confidence", "is_labelled"))
        if not is_fit or not all(((x >= 0) & (x < K)).all() for x in (self.assignment, self.nearest)):
            raise ValueError("its parts do not fit together")

    def _rows(self, cluster: Any) -> np.ndarray:
        place = [i for i, name in enumerate(self.names) if name == cluster]
        if not place:
            raise ValueError(
                f"there is no cluster {cluster!r}; the clusters are {', '.join(map(repr, self.names[:9]))}"
            )
        return np.flatnonzero(self.assignment == place[0])

    def _distances_of(self, z: Array, features: Array | None) -> Iterator[tuple[slice, np.ndarray]]:
        """Distances of items to all centres, some rows at a time."""
        x = self.points.of(z, features)
        if x.shape[1] != self.centres.shape[1]:
            n_features = self.centres.shape[1] - self.points.matrix.shape[1]
            raise ValueError(
                f"z has shape {tuple(np.shape(z))}; give (n, {n_features}), as when these clusters were found"
            )
        return in_blocks(x, self.centres)


ARRAYS = ("assignment", "nearest", "distance", "confidence", "is_labelled", "centres", "spreads")


def free_names(word: str, taken: set[Any], bare: bool = False) -> Iterator[str]:
    """word-1, word-2, ..., where `bare` the word itself before them; without those that are taken."""
    if bare and word not in taken:
        yield word
    yield from (name for name in (f"{word}-{i}" for i in count(1)) if name not in taken)


def in_blocks(x: np.ndarray, centres: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Distances to all centres, some rows at a time."""
    for start in range(0, len(x), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        yield rows, _distances(x[rows], centres)


def _distances(x: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Distances (n, K) float64; measured from the mean of the centres, so that hardly a digit is lost."""
    middle = centres.mean(axis=0, dtype=np.float64)
    a, b = x - middle, centres - middle
    squares = np.square(a).sum(axis=1)[:, None] - 2 * a @ b.T + np.square(b).sum(axis=1)
    found: np.ndarray = np.sqrt(np.maximum(squares, 0))
    return found
