"""The map from embeddings to the features that the heads of deep methods work on."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from combemb.backbones.whitening import choose_ridge, eigh, scatter_of_neighbours, scatter_within, whitening
from combemb.data.labels import Labels
from combemb.system.arrays import unit_rows
from combemb.system.errors import require

MAX_COMPONENTS = 768  # principal components that are whitened
TRAINED_SHARE = 0.2  # of the ridge that suits plain cosines; a trained map gains from more whitening (tuning splits)
MAX_FITTED_ITEMS = 20_000  # the scatter within classes is estimated from at most so many items, labelled ones first


class FeatureMap(nn.Module):
    """Scale to unit length, centre, whiten within classes, rotate to principal components with leading variance one.

    A head on raw features would have to learn their scales first. The map is fitted once and saved with the model. It
    does not depend on the axes of the features: rotated features give the same output up to signs.
    """

    mean: Tensor
    components: Tensor

    def __init__(self, n_inputs: int, n_features: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(n_inputs))
        self.register_buffer("components", torch.zeros(n_inputs, n_features))  # whitening and scale included

    @property
    def n_features(self) -> int:
        """Number of features F' after the map."""
        return self.components.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        """Map x (n, F) to (n, F') with F' <= F."""
        return (unit_rows(x) - self.mean) @ self.components

    def of_places(self, maps: Tensor) -> Tensor:
        """Map features at places (n, F, h, w) to (n, F', h, w), whose mean over the places is `forward` of theirs."""
        length = maps.mean(dim=(2, 3)).norm(dim=1).clamp(min=1e-12)  # of the item: strong places stay strong
        places = maps.movedim(1, -1) / length[:, None, None, None]  # (n, h, w, F)
        mapped: Tensor = (places - self.mean) @ self.components
        return mapped.movedim(-1, 1)


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


def fit_feature_map(
    chunks: Iterable[Tensor],
    max_features: int,
    labels: Labels | None = None,
    ridge: float | None = None,
    seed: int = 0,
) -> FeatureMap:
    """Fit the map on the clean views of all items.

    Parameters
    ----------
    chunks : iterable of Tensor (n, F)
        All items, in order. They are read once and need not fit into memory.
    max_features : int
        Largest number of features after the map.
    labels : Labels, optional
        Labels of the items. Without them, the map only centres and rotates.
    ridge : float, optional
        Larger values whiten less; chosen on hidden seen classes by default.
    seed : int
        Draws the items that are looked at if there are very many, and the hidden classes.

    Returns
    -------
    FeatureMap
    """
    wanted = np.zeros(0, np.int64) if labels is None else _looked_at(labels, seed)
    kept: list[Tensor] = []
    mean, covariance = moments(_keeping(chunks, wanted, kept))
    values, vectors = (part.flip(-1) for part in eigh(covariance))  # falling
    require(
        not covariance.diagonal().max() < 1e-10,
        "scaled to unit length, all items have the same features (one feature only, or lengths that overflow?); "
        "give features that differ in direction, for example centred ones",
    )
    n = int((values[:MAX_COMPONENTS] > 1e-7 * values[0]).sum())
    values, vectors = values[:n], vectors[:, :n]
    if labels is not None and len(wanted) > 1:
        x = (torch.cat(kept) - mean.float()) @ vectors.float()
        white = _whitened(x.double(), labels.take(wanted), ridge, seed)
        values, turn = (part.flip(-1) for part in eigh((white.T * values) @ white))
        vectors = vectors @ white @ turn
    n = int((values[:max_features] > 1e-7 * values[0]).sum())
    feature_map = FeatureMap(len(mean), n)
    feature_map.mean.copy_(mean)
    feature_map.components.copy_(vectors[:, :n] / values[0].sqrt())
    return feature_map


def _looked_at(labels: Labels, seed: int) -> np.ndarray:
    """Return the rows from which the scatter is estimated, sorted: labelled items, then others, if there are many."""
    rng = np.random.default_rng(seed)
    labelled = labels.labelled_rows(MAX_FITTED_ITEMS // 2, rng)
    others = rng.permutation(np.setdiff1d(np.arange(len(labels)), labelled))[: MAX_FITTED_ITEMS - len(labelled)]
    return np.sort(np.concatenate([labelled, others]))


def _keeping(chunks: Iterable[Tensor], wanted: np.ndarray, kept: list[Tensor]) -> Iterable[Tensor]:
    """Yield the rows at unit length, and append those that are wanted to a list."""
    start = 0
    for chunk in chunks:
        rows = unit_rows(chunk)
        here = wanted[(wanted >= start) & (wanted < start + len(rows))] - start
        kept.append(rows[torch.from_numpy(here)])
        start += len(rows)
        yield rows


def _whitened(x: Tensor, labels: Labels, ridge: float | None, seed: int) -> Tensor:
    """Return the whitening (F, F) of items x (n, F), partly labelled, in order of falling variance."""
    prior = scatter_of_neighbours(x, seed)
    known = np.flatnonzero(labels.is_labelled)
    labelled = x[torch.from_numpy(known)]
    if ridge is None:
        ridge = TRAINED_SHARE * choose_ridge(labelled, labels.take(known), prior, seed)
    membership = torch.from_numpy(labels.membership(known)).double()
    return whitening(scatter_within(labelled, membership).shrunk_to(prior), ridge)


def unit_feature_map(n_features: int) -> FeatureMap:
    """Return the map that scales features to unit length and leaves their directions."""
    feature_map = FeatureMap(n_features, n_features)
    feature_map.components.copy_(torch.eye(n_features))
    return feature_map
