"""Whitening within classes, estimated from labels and from near neighbours; how much of it, hidden classes decide."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from combemb.data.labels import Labels

N_NEIGHBOURS = 3  # per item; their differences show the variation within classes without any label
MAX_ANCHORS = 3_000  # items whose neighbours are looked up
MAX_DIRECTIONS = 256  # leading directions in which ridges are compared, and to whose mean variance they refer
N_COMPARED_DIRECTIONS = 64
RIDGES = (1.0, 0.3, 3.0, 0.1, 10.0)  # the first is taken unless another one is better by more than TOLERANCE
TOLERANCE = 0.01
FOLDS = 4
MAX_COMPARED_ITEMS, MAX_QUERIES = 3_000, 200
MIN_CLASSES = 4  # with fewer, none can be hidden
TINY = 1e-12


@dataclass(frozen=True)
class Scatter:
    """A scatter matrix (F, F) within classes, and the number of independent differences that it was estimated from."""

    matrix: Tensor
    n: int

    def shrunk_to(self, prior: "Scatter") -> Tensor:
        """Return the weighted mean with a prior that counts as much as there are leading directions, at equal size."""
        weight = min(len(self.matrix), MAX_DIRECTIONS)
        own, other = _of_trace(self.matrix, weight), _of_trace(prior.matrix, weight)
        if own is None or other is None:
            found = other if own is None else own
            return torch.zeros_like(self.matrix) if found is None else found
        return (self.n * own + weight * other) / (self.n + weight)


def _of_trace(matrix: Tensor, trace: float) -> Tensor | None:
    """Return the matrix scaled to this trace; None if it is zero."""
    size = float(matrix.trace())
    return matrix * (trace / size) if size > TINY else None


def scatter_within(x: Tensor, membership: Tensor) -> Scatter:
    """Return the scatter of labelled items x (n, F) around the means of their classes.

    membership (n, C) has rows that sum to one; an item with several classes is compared with the mean of their means.
    """
    weights = membership / membership.sum(dim=0).clamp(min=TINY)
    residual = x - membership @ (weights.T @ x)
    return Scatter(residual.T @ residual, max(len(x) - int((membership.sum(dim=0) > 0).sum()), 0))


def scatter_of_neighbours(x: Tensor, seed: int) -> Scatter:
    """Return the scatter of the differences between items x (n, F) and their nearest neighbours by cosine.

    The directions of x are in order of falling variance; neighbours are found in the leading ones.
    """
    generator = torch.Generator().manual_seed(seed)
    anchors = torch.randperm(len(x), generator=generator)[:MAX_ANCHORS]
    length = torch.nn.functional.normalize(x[:, :MAX_DIRECTIONS].float(), dim=1)
    k = min(N_NEIGHBOURS, len(x) - 1)
    differences = []
    for rows in anchors.split(1_024):
        cosines = length[rows] @ length.T
        cosines[torch.arange(len(rows)), rows] = -torch.inf
        nearest = cosines.topk(k, dim=1).indices
        differences.append((x[rows][:, None] - x[nearest]).flatten(0, 1))
    found = torch.cat(differences)
    return Scatter(found.T @ found, len(found))


def whitening(scatter: Tensor, ridge: float) -> Tensor:
    """Return the map (F, F) that whitens within classes; the ridge keeps directions in which they hardly vary."""
    values, vectors = eigh(scatter)
    return vectors / (values.clamp(min=0) + ridge).sqrt()


def choose_ridge(x: Tensor, labels: Labels, prior: Scatter, seed: int) -> float:
    """Return the ridge with which hidden seen classes are best retrieved.

    x (n, F) are labelled items in order of falling variance of the directions, `labels` their labels. Some classes are
    left out of the scatter; each of their items then searches all others. The first of `RIDGES` is used if there are
    too few classes, or if it is nearly as good as the best.
    """
    x, prior = x[:, :MAX_DIRECTIONS], Scatter(prior.matrix[:MAX_DIRECTIONS, :MAX_DIRECTIONS], prior.n)
    if labels.is_multi or labels.n_seen < MIN_CLASSES:
        return RIDGES[0]
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.permutation(len(x))[:MAX_COMPARED_ITEMS])
    x, labels = x[torch.from_numpy(rows)], labels.take(rows)
    classes = torch.from_numpy(labels.values)
    fold_of = torch.from_numpy(rng.permutation(len(labels.classes)) % FOLDS)[classes]
    covariance = (x - x.mean(dim=0)).T @ (x - x.mean(dim=0))
    found = torch.zeros(len(RIDGES))
    for fold in range(FOLDS):
        is_hidden = fold_of == fold
        queries = torch.from_numpy(rng.permutation(np.flatnonzero(is_hidden.numpy()))[:MAX_QUERIES])
        known = labels.membership(np.flatnonzero(~is_hidden.numpy()))
        scatter = scatter_within(x[~is_hidden], torch.from_numpy(known).to(x)).shrunk_to(prior)
        values, vectors = eigh(scatter)
        for i, ridge in enumerate(RIDGES):
            white = vectors / (values.clamp(min=0) + ridge).sqrt()
            found[i] += _mean_precision(x @ _leading(white, covariance), classes, queries)
    best = float(found.max())
    return next(r for r, score in zip(RIDGES, found.tolist(), strict=True) if score >= (1 - TOLERANCE) * best)


def _leading(white: Tensor, covariance: Tensor) -> Tensor:
    """Return a whitening (F, F), followed by the leading principal components, in which classes are compared best."""
    _, vectors = eigh(white.T @ covariance @ white)
    return white @ vectors[:, -N_COMPARED_DIRECTIONS:]


def _mean_precision(x: Tensor, classes: Tensor, queries: Tensor) -> Tensor:
    """Return the mean average precision of some items as queries among all others, by cosine."""
    length = torch.nn.functional.normalize(x, dim=1)
    scores = length[queries] @ length.T
    scores[torch.arange(len(queries)), queries] = -torch.inf  # sorted last
    order = torch.from_numpy(np.argsort(-scores.numpy(), axis=1)[:, :-1])  # several times faster than torch's
    relevant = (classes[order] == classes[queries][:, None]).double()
    precision = relevant.cumsum(dim=1) / torch.arange(1, order.shape[1] + 1)
    n = relevant.sum(dim=1)
    scored = (precision * relevant).sum(dim=1)[n > 0] / n[n > 0]
    return scored.mean().float() if len(scored) else torch.tensor(0.0)


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues, rising, and eigenvectors of a symmetric matrix."""
    try:
        values, vectors = torch.linalg.eigh(matrix)
    except RuntimeError:  # divide and conquer may fail on many equal eigenvalues, QR iteration does not
        import scipy.linalg  # noqa: PLC0415 - rarely needed

        values, vectors = map(torch.from_numpy, scipy.linalg.eigh(matrix.numpy(), driver="ev"))
    return values, vectors
