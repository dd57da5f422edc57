"""Meta-class sets (Eq. 1): partitions of the seen classes, each by k-means in a random subspace of class embeddings."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

Partition = tuple[int, ...]

MAX_LLOYD_STEPS = 300
MAX_DRAWS = 20  # per set; then a new partition is made without k-means


@dataclass(frozen=True)
class MetaClasses:
    """M partitions of C classes into K meta-classes; together they give each class a code (Eq. 2)."""

    table: Tensor  # (M, C) int64: the meta-class of each class in each set
    n_redrawn: int = 0  # discarded draws: a meta-class was empty, or the partition was not new
    n_repeated: int = 0  # sets that equal an earlier one, because no new partition was found

    def __str__(self) -> str:
        M, C = self.table.shape
        n_codes = torch.unique(self.table, dim=1).shape[1]
        return (
            f"{M} sets of {int(self.table.max()) + 1} meta-classes over {C} seen classes, {n_codes} class codes"
            f"; {self.n_redrawn} draws degenerate or repeated and redrawn, {self.n_repeated} repeats kept"
        )


def class_embeddings(x: Tensor, membership: Tensor, weight_decay: float, iterations: int = 50) -> Tensor:
    """Return the weights of a softmax classifier on the labelled items, fitted by L-BFGS: one row per class.

    x (n, F); membership (n, C), rows that sum to one over the classes of an item. Returns (C, F).
    """
    weights = torch.zeros(membership.shape[1], x.shape[1], requires_grad=True)
    bias = torch.zeros(membership.shape[1], requires_grad=True)
    optimiser = torch.optim.LBFGS([weights, bias], max_iter=iterations, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = functional.cross_entropy(x @ weights.T + bias, membership) + weight_decay * weights.square().sum()
        value.backward()
        return value

    optimiser.step(loss)
    return weights.detach()


def draw_meta_classes(embeddings: Tensor, n_sets: int, n_meta_classes: int, n_dims: int, seed: int) -> MetaClasses:
    """Partition the classes n_sets times, by k-means with one random start over n_dims random dimensions.

    embeddings (C, F), one row per class. Draws with an empty meta-class are repeated, and so are those that equal an
    earlier partition if there are others; if k-means finds none, one is made by moving single classes at random.
    """
    rng = np.random.default_rng(seed)
    points = embeddings.double().cpu().numpy()
    if len(np.unique(points, axis=0)) < n_meta_classes:
        raise ValueError(f"fewer than {n_meta_classes} distinct class embeddings; use fewer meta-classes")
    n_possible = count_partitions(len(points), n_meta_classes)
    drawn: list[Partition] = []
    n_redrawn = n_repeated = 0
    for _ in range(n_sets):
        is_exhausted = len(set(drawn)) == n_possible
        for _ in range(MAX_DRAWS):
            partition = _draw_partition(points, n_meta_classes, n_dims, rng)
            if max(partition) == n_meta_classes - 1 and (is_exhausted or partition not in drawn):
                break
            n_redrawn += 1
        else:
            partition = _new_partition(drawn, n_meta_classes, len(points), rng)
        n_repeated += partition in drawn
        drawn.append(partition)
    return MetaClasses(torch.tensor(drawn), n_redrawn, n_repeated)


def _draw_partition(points: np.ndarray, n_meta_classes: int, n_dims: int, rng: np.random.Generator) -> Partition:
    points = points[:, rng.choice(points.shape[1], size=min(n_dims, points.shape[1]), replace=False)]
    if len(np.unique(points, axis=0)) < n_meta_classes:
        return (0,) * len(points)
    return canonical(lloyd(points, n_meta_classes, seed=int(rng.integers(2**31))).tolist())


def lloyd(points: np.ndarray, n_clusters: int, seed: int) -> np.ndarray:
    """Return the cluster (n,) of each of a few points (n, F), by Lloyd's steps from points drawn at random.

    It draws the same starts as scikit-learn's KMeans, whose import takes longer than drawing all sets.
    `discovery.kmeans` is made for many items and starts differently.
    """
    n = len(points)
    points = points - points.mean(axis=0)
    centres = points[np.random.RandomState(seed).choice(n, n_clusters, replace=False, p=np.full(n, 1 / n))]
    clusters = np.full(n, -1)
    for _ in range(MAX_LLOYD_STEPS):
        before, clusters = clusters, (np.square(centres).sum(axis=1) - 2 * points @ centres.T).argmin(axis=1)
        if np.array_equal(clusters, before):
            break
        for k in np.unique(clusters):
            centres[k] = points[clusters == k].mean(axis=0)
    return clusters


def _new_partition(drawn: list[Partition], n_meta_classes: int, n_classes: int, rng: np.random.Generator) -> Partition:
    """Move single classes of the last partition, or of a random one, at random until it is valid and new."""
    classes = list(drawn[-1]) if drawn else rng.permutation(np.arange(n_classes) % n_meta_classes).tolist()
    while (partition := canonical(classes)) in drawn or max(partition) < n_meta_classes - 1:
        classes[rng.integers(n_classes)] = int(rng.integers(n_meta_classes))
    return partition


def meta_classes_for(n_seen: int, bits: int) -> int:
    """Return the number K of meta-classes per set: more for more classes, as far as the bits are a multiple.

    >>> [meta_classes_for(n_seen, 48) for n_seen in (2, 7, 20, 75)], meta_classes_for(75, 10)
    ([2, 4, 8, 16], 4)
    """
    most = next((K for limit, K in ((4, 2), (16, 4), (32, 8)) if n_seen < limit), 16)
    return next(K for K in (16, 8, 4, 2) if most >= K and bits % int(math.log2(K)) == 0)


def canonical(partition: list[int]) -> Partition:
    """Number meta-classes in order of first appearance, so that equal partitions are equal tuples.

    >>> canonical([2, 0, 2, 1])
    (0, 1, 0, 2)
    """
    numbers: dict[int, int] = {}
    return tuple(numbers.setdefault(k, len(numbers)) for k in partition)


def count_partitions(n_classes: int, n_meta_classes: int) -> int:
    """Return the number of partitions into non-empty meta-classes, a Stirling number of the second kind.

    >>> count_partitions(5, 2)
    15
    """
    K = n_meta_classes
    surjections: int = sum((-1) ** j * math.comb(K, j) * (K - j) ** n_classes for j in range(K + 1))
    return surjections // math.factorial(K)


def meta_labels(table: Tensor, labels: Tensor, n_meta_classes: int) -> Tensor:
    """Return the labels of Eq. 4 for class labels.

    table (M, C), its values below K = n_meta_classes. labels (B,) class positions -> (B, M) meta-classes; labels (B, C)
    of 0/1 -> (B, K, M), the share of an item's classes that falls into each meta-class.
    """
    if labels.dim() == 1:
        return table.T[labels]
    shares = labels / labels.sum(dim=1, keepdim=True)
    return torch.einsum("bc,mck->bkm", shares, functional.one_hot(table, n_meta_classes).to(labels.dtype))
