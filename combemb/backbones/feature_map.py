"""The map from embeddings as given to the features that every deep method's head sees."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

RIDGE = 1.0  # added to the scatter within classes, in units of its mean variance


class FeatureMap(nn.Module):
    """Unit length, standardised, rotated to principal components, scaled so that the first has variance one.

    A head on raw features has to learn their scales first; this one is fitted once, without labels, and saved with the
    model.
    """

    mean: Tensor
    components: Tensor

    def __init__(self, n_inputs: int, n_features: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(n_inputs))
        self.register_buffer("components", torch.zeros(n_inputs, n_features))  # standardisation and scale included

    @property
    def n_features(self) -> int:
        """F', what the head sees."""
        return self.components.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        """x (n, F) -> (n, F') with F' <= F."""
        return (unit_rows(x) - self.mean) @ self.components


def unit_rows(x: Tensor) -> Tensor:
    """Rows scaled to length one, also where their squares overflow; zero rows stay zero."""
    largest = x.abs().amax(dim=1, keepdim=True)
    return functional.normalize(x / largest.where(largest > 0, 1.0), dim=1)


def moments(chunks: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean (F,) and covariance (F, F) in float64 of rows given in chunks (n, F)."""
    n, total, products = 0, torch.tensor(0.0), torch.tensor(0.0)
    for chunk in chunks:
        rows = chunk.double()
        n += len(rows)
        total = total + rows.sum(dim=0)
        products = products + rows.T @ rows
    mean = total / n
    return mean, products / n - torch.outer(mean, mean)


def fit_feature_map(chunks: Iterable[Tensor], max_features: int) -> FeatureMap:
    """Fit on the clean view of all items, given in chunks (n, F), with memory for F x F numbers only."""
    mean, covariance = moments(unit_rows(chunk) for chunk in chunks)
    variance = covariance.diagonal().clamp(min=0)
    if variance.max() < 1e-10:
        raise ValueError(
            "scaled to unit length, all items have the same features (one feature only, or lengths that overflow?); "
            "give features that differ in direction, for example centred ones"
        )
    spread = torch.where(variance > 1e-10 * variance.max(), variance, torch.inf).sqrt()  # constant features drop out
    values, vectors = torch.linalg.eigh(covariance / torch.outer(spread, spread))
    keep = values.argsort(descending=True)[:max_features]
    keep = keep[values[keep] > 1e-7 * values.max()]
    feature_map = FeatureMap(len(mean), len(keep))
    feature_map.mean.copy_(mean)
    feature_map.components.copy_(vectors[:, keep] / (spread[:, None] * values.max().sqrt()))
    return feature_map


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
