"""Rotations before quantisation: principal components, balanced variances, orthogonal Procrustes."""

from collections.abc import Iterable

import torch
from torch import Tensor

from combemb.backbones.feature_map import moments

SMALLEST_VARIANCE = 1e-9  # of the largest one; what is below counts as zero


def principal_components(chunks: Iterable[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean (F,), components (F, F) as columns and their variances (F,), falling, of rows in chunks (n, F)."""
    mean, covariance = moments(chunks)
    variances, vectors = torch.linalg.eigh(covariance)
    return mean, vectors.flip(1), variances.flip(0)


def balanced_components(chunks: Iterable[Tensor], n_sets: int, at_most: int) -> tuple[Tensor, Tensor]:
    """Return the mean (F,) and leading components (F, D) in balanced order; D <= at_most is a multiple of n_sets."""
    mean, components, variances = principal_components(chunks)
    D = min(at_most, len(mean)) // n_sets * n_sets
    return mean, components[:, balanced_order(variances[:D], n_sets)]


def balanced_order(variances: Tensor, n_sets: int) -> Tensor:
    """Return an order (D,) of components in which sets of D / n_sets have nearly equal products of variances.

    Eigenvalue allocation of OPQ (Ge et al. 2013): each component, by falling variance, joins the set with the smallest
    product so far that has room. Variances are divided by the smallest one that is not zero, as in LOPQ's release:
    factors below one would make a product smaller the more components it has.
    """
    floor = SMALLEST_VARIANCE * variances.max()
    smallest = variances[variances > floor].min() if (variances > floor).any() else torch.ones(())
    weights = (variances.clamp(min=float(smallest)) / smallest).log().tolist()
    capacity = len(weights) // n_sets
    sets: list[list[int]] = [[] for _ in range(n_sets)]
    logs = [0.0] * n_sets
    for component in sorted(range(len(weights)), key=lambda i: -weights[i]):
        chosen = min((m for m in range(n_sets) if len(sets[m]) < capacity), key=lambda m: logs[m])
        sets[chosen].append(component)
        logs[chosen] += weights[component]
    return torch.tensor([component for members in sets for component in members])


def nearest_rotation(x: Tensor, y: Tensor) -> Tensor:
    """Return the orthogonal R (D, D) with the smallest ||x R - y||^2, for rows x (N, D) and y (N, D).

    R = W U^T from the singular value decomposition y^T x = U S W^T.
    """
    U, _, Wt = torch.linalg.svd(y.T @ x)
    rotation: Tensor = Wt.T @ U.T
    return rotation
