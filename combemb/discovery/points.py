"""The points that discovery works on: features, whitened so that classes are round and have variance one."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from combemb.data.embeddings import as_array, check_finite
from combemb.system.arrays import Array
from combemb.system.errors import require

N_COMPONENTS, ITEMS_PER_COMPONENT = 256, 4  # principal components of the features, fewer if items are few
N_NEIGHBOURS, MAX_NEIGHBOURED_ITEMS = 3, 3_000  # whose differences stand in for classes where labels are few
RIDGE = 0.3  # added to the scatter within classes, in units of its mean variance
MIN_BETWEEN = 0.1  # least variance of class means, in units of the variance within classes
BLOCK_ROWS = 8_192  # rows mapped or compared at a time, which bounds the memory
MIN_SCALE, MAX_SCALE = 1e-15, 1e15  # of the largest value; squares and their sums stay in the range of float32
TINY = 1e-12


@dataclass(frozen=True, eq=False)
class Points:
    """Turns items (n, F) into points (x - mean) @ matrix, in which classes are round and as wide as each other.

    A class has variance one in each of the d directions; class means have the variances `between` (d,). The items are
    features at unit length, or embeddings as they are if there are no features. The lengths of the points of features
    are drawn half-way towards `length`: they vary more than Gaussians allow, and say little about classes. Where labels
    are few, embeddings stand beside the features, `z_scale` times unit length.
    """

    mean: np.ndarray
    matrix: np.ndarray
    between: np.ndarray
    has_features: bool
    length: float = 1.0
    z_scale: float = 0.0

    def of(self, z: Array, features: Array | None) -> np.ndarray:
        """Return the points (n, d) float32 of items."""
        x = read_points(z, "z")
        F = len(self.mean) - (x.shape[1] if self.z_scale > 0 else 0)
        if self.has_features:
            if features is None:
                raise ValueError(f"these clusters were found with features; give the {F} features of each item")
            given = read_points(features, "features")
            if given.shape != (len(x), F):
                raise ValueError(f"features have shape {given.shape}; give {(len(x), F)}, as for `discover`")
            x = beside(given, x, self.z_scale) if self.z_scale > 0 else given
        elif x.shape[1] != F:
            raise ValueError(f"z has shape {x.shape}; give (n, {F}), as for `discover`")
        found = np.empty((len(x), self.matrix.shape[1]), np.float32)
        for rows, block in _blocks(x, self.has_features):
            y = (block - self.mean) @ self.matrix
            found[rows] = evened(y, self.length) if self.has_features else y
        return found


@dataclass(frozen=True, eq=False)
class Components:
    """Principal components of items, from which points for any labels of these items are made.

    x (N, d) are the components, `total` (d,) their variances, and `local` (d, d) is the scatter of the differences
    between nearest neighbours: the best guess at the shape of a class before any label is seen.
    """

    x: np.ndarray
    mean: np.ndarray
    axes: np.ndarray
    total: np.ndarray
    local: np.ndarray
    has_features: bool

    @classmethod
    def fit(cls, items: np.ndarray, has_features: bool) -> Self | None:
        """Return the components of items (N, F); None if all items are equal."""
        mean, covariance = _moments(items, has_features)
        values, axes = np.linalg.eigh(covariance)
        keep = np.argsort(-values)[: min(N_COMPONENTS, max(len(items) // ITEMS_PER_COMPONENT, 2))]
        keep = keep[values[keep] > 1e-9 * max(values.max(), 0)]
        if len(keep) == 0 or values.max() <= TINY * np.square(mean).sum():
            return None
        axes = axes[:, keep]
        x = np.concatenate([(block - mean) @ axes for _, block in _blocks(items, has_features)])
        order = np.argsort(x[:, 0] * (np.sign(np.power(x[:, 0], 3).sum()) or 1), kind="stable")
        return cls(x, mean, axes, values[keep], _local_scatter(x, order), has_features)

    def points(self, labels: np.ndarray) -> tuple[Points, np.ndarray]:
        """Return what makes points, for labels (N,), -1 if unlabelled, and the points (N, d) of these items."""
        scatter = self._within(labels)
        values, vectors = np.linalg.eigh(scatter + RIDGE * np.trace(scatter) / len(scatter) * np.eye(len(scatter)))
        whiten = vectors / np.sqrt(values)
        _, turn = np.linalg.eigh(whiten.T @ (self.total[:, None] * whiten))
        matrix = whiten @ turn[:, ::-1]  # directions in which items differ most come first
        matrix = matrix / np.sqrt(np.einsum("ij,ik,kj->j", matrix, scatter, matrix))  # undoes the ridge in the scale
        y = self.x @ matrix
        length = float(np.sqrt(np.square(y).sum(axis=1).mean()))
        y = evened(y, length) if self.has_features else y
        between = np.maximum(y.var(axis=0) - 1, MIN_BETWEEN)
        return Points(self.mean, self.axes @ matrix, between, self.has_features, length), y

    def _within(self, labels: np.ndarray) -> np.ndarray:
        """Return the scatter within labelled classes, shrunk towards the local one as far as labels are few."""
        rows = np.flatnonzero(labels >= 0)
        x, classes = self.x[rows], labels[rows]
        rest = x - class_means(x, classes, int(classes.max()) + 1)[classes]
        n_free, d = len(rows) - len(np.unique(classes)), len(self.local)
        scatter = rest.T @ rest / max(n_free, 1)
        size, local_size = np.trace(scatter) / d, np.trace(self.local) / d
        if n_free < 1 or size <= TINY * self.total.mean():
            return np.asarray(self.local + TINY * np.eye(d))
        if local_size <= TINY * size:
            return np.asarray(scatter + TINY * size * np.eye(d))
        shape = (n_free * scatter / size + d * self.local / local_size) / (n_free + d)
        return np.asarray(shape * size)


def scale_beside(features: np.ndarray, z: np.ndarray) -> float:
    """Return the length at which embeddings (N, D) vary as much as unit features (N, F); 0 if either is constant."""
    spreads = [float(np.trace(_moments(part, True)[1])) for part in (features, z)]
    return float(np.sqrt(spreads[0] / spreads[1])) if min(spreads) > TINY else 0.0


def beside(features: np.ndarray, z: np.ndarray, scale: float) -> np.ndarray:
    """Return features at unit length and embeddings at the length `scale` as one array (N, F + D)."""
    return np.concatenate([_unit(features), np.float32(scale) * _unit(z)], axis=1)


def evened(y: np.ndarray, length: float) -> np.ndarray:
    """Return points whose lengths are the geometric means of their own and the given one."""
    return np.asarray(y * np.sqrt(length / np.maximum(np.linalg.norm(y, axis=1, keepdims=True), TINY)))


def class_means(x: np.ndarray, classes: np.ndarray, n_classes: int) -> np.ndarray:
    """Return the mean (C, d) of the rows of each class, 0 for a class without rows."""
    sums = np.zeros((n_classes, x.shape[1]))
    np.add.at(sums, classes, x)
    return sums / np.maximum(np.bincount(classes, minlength=n_classes), 1)[:, None]


def in_order(x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return an order of items that depends on their values alone, not on the order in which they were given."""
    centred = x - x.mean(axis=0, dtype=np.float64)
    length = np.square(centred).sum(axis=1)
    keys = [length, centred @ (length @ centred)]  # neither changes if the features are rotated
    return np.lexsort([labels, *(np.round(key / max(np.abs(key).max(), TINY), 9) for key in keys)])


def _local_scatter(x: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return half the mean product of the differences of items to their neighbours by cosine."""
    some = order[np.linspace(0, len(order) - 1, min(len(order), MAX_NEIGHBOURED_ITEMS)).astype(int)]
    n = min(N_NEIGHBOURS, len(x) - 1)
    unit = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), TINY)).astype(np.float32)
    scatter = np.zeros((x.shape[1], x.shape[1]))
    for rows in np.array_split(some, -(-len(some) // 512)):
        cosines = unit[rows] @ unit.T
        cosines[np.arange(len(rows)), rows] = -np.inf
        near = np.argpartition(-cosines, n - 1, axis=1)[:, :n]
        differences = (x[rows][:, None] - x[near]).reshape(-1, x.shape[1])
        scatter += differences.T @ differences
    return np.asarray(scatter / (2 * n * len(some)))


def _unit(x: np.ndarray) -> np.ndarray:
    """Return rows at unit length, as float32."""
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-30), np.float32)


def _moments(items: np.ndarray, has_features: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean (F,) and the covariance (F, F) of items in float64."""
    first = next(_blocks(items, has_features))[1].mean(axis=0)  # keeps the digits of items far from the origin
    total, products = np.zeros(len(first)), np.zeros((len(first), len(first)))
    for _, block in _blocks(items, has_features):
        total += (block - first).sum(axis=0)
        products += (block - first).T @ (block - first)
    mean = total / len(items)
    return first + mean, products / len(items) - np.outer(mean, mean)


def _blocks(items: np.ndarray, to_unit: bool) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield slices of rows and these rows in float64, at unit length if asked for."""
    for start in range(0, len(items), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        block = np.asarray(items[rows], np.float64)
        yield rows, block / np.maximum(np.linalg.norm(block, axis=1, keepdims=True), 1e-300) if to_unit else block


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
