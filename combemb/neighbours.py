"""Features in which neighbours are sought: weighed by what the labels say matters, then averaged among near items."""

import torch
from torch import Tensor

from combemb.embedding import unit

RIDGE = 1.0  # added to the scatter within classes, in units of its mean variance


def discriminant_map(labelled: Tensor, membership: Tensor, some: Tensor, n_features: int) -> Tensor:
    """Directions in which classes differ more than their items: whiten within classes, then principal components.

    labelled (n, F) with membership (n, C), rows summing to one; some (s, F) of all items, labelled or not, since
    classes without labels have directions of their own. Returns (F, d), d <= n_features.
    """
    weights = membership / membership.sum(dim=0).clamp(min=1e-12)  # (n, C), columns sum to one
    residual = labelled - membership @ (weights.T @ labelled)
    scatter = residual.T @ residual / len(residual)
    mean_variance = scatter.diagonal().mean().clamp(min=1e-12)
    values, vectors = torch.linalg.eigh(scatter + RIDGE * mean_variance * torch.eye(len(scatter)).to(scatter))
    whitening = vectors / values.sqrt()  # (F, F)
    spread = (some - some.mean(dim=0)) @ whitening
    _, _, directions = torch.linalg.svd(spread.T @ spread)
    found: Tensor = whitening @ directions[:n_features].T
    return found


def smoothed(x: Tensor, landmarks: Tensor, n_neighbours: int, n_rows: int = 2_048) -> Tensor:
    """Each row replaced by the mean of the landmarks nearest to it by cosine; all of unit length, (N, d) -> (N, d).

    The mean of near items is a better witness of a kind than one item, as query expansion knows.
    """
    landmarks = unit(landmarks)
    k = min(n_neighbours, len(landmarks))
    means = []
    for rows in unit(x).split(n_rows):
        nearest = (rows @ landmarks.T).topk(k, dim=1, sorted=False).indices  # (n, k)
        means.append(unit(landmarks[nearest].mean(dim=1)))
    return torch.cat(means)
