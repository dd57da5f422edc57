"""The map from embeddings to the features that the heads of deep methods work on."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from combemb.system.arrays import unit_rows
from combemb.system.errors import require

RIDGE = 1.0  # added to the diagonal of the scatter within classes, in units of its mean variance


class FeatureMap(nn.Module):
    """Scale to unit length, standardise, rotate to principal components, of which the first gets variance one.

    A head on raw features would have to learn their scales first. The map is fitted once, without labels, and saved
    with the model.
    """

    mean: Tensor
    components: Tensor

    def __init__(self, n_inputs: int, n_features: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(n_inputs))
        self.register_buffer("components", torch.zeros(n_inputs, n_features))  # standardisation and scale included

    @property
    def n_features(self) -> int:
        """Number of features F' after the map."""
        return self.components.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        """Map x (n, F) to (n, F') with F' <= F."""
        return (unit_rows(x) - self.mean) @ self.components


def moments(chunks: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Return mean (F,) and covariance (F, F) in float64 of rows given in chunks (n, F)."""
    n, total, products = 0, torch.tensor(0.0), torch.tensor(0.0)
    for chunk in chunks:
        rows = chunk.double()
        n += len(rows)
        total = total + rows.sum(dim=0)
        products = products + rows.T @ rows
    mean = total / n
    return mean, products / n - torch.outer(mean, mean)


def fit_feature_map(chunks: Iterable[Tensor], max_features: int) -> FeatureMap:
    """Fit on the clean views of all items, given in chunks (n, F); needs memory for F x F numbers only."""
    mean, covariance = moments(unit_rows(chunk) for chunk in chunks)
    variance = covariance.diagonal().clamp(min=0)
    require(
        not variance.max() < 1e-10,
        "scaled to unit length, all items have the same features (one feature only, or lengths that overflow?); "
        "give features that differ in direction, for example centred ones",
    )
    spread = torch.where(variance > 1e-10 * variance.max(), variance, torch.inf).sqrt()  # constant features drop out
    values, vectors = torch.linalg.eigh(covariance / torch.outer(spread, spread))
    keep = values.argsort(descending=True)[:max_features]
    keep = keep[values[keep] > 1e-7 * values.max()]
    feature_map = FeatureMap(len(mean), len(keep))
    feature_map.mean.copy_(mean)
    feature_map.components.copy_(vectors[:, keep] / (spread[:, None] * values.max().sqrt()))
    return feature_map


def unit_feature_map(n_features: int) -> FeatureMap:
    """Return the map that scales features to unit length and leaves their directions."""
    feature_map = FeatureMap(n_features, n_features)
    feature_map.components.copy_(torch.eye(n_features))
    return feature_map


def discriminant_map(labelled: Tensor, membership: Tensor, some: Tensor, n_features: int) -> Tensor:
    """Return directions (F, d), d <= n_features, in which classes differ more than their items.

    Whitens within the classes of labelled (n, F), whose membership (n, C) has rows that sum to one, and takes the
    principal components of some (s, F) of all items, because classes without labels have their own directions.
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
