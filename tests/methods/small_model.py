"""A CombEmb small enough for loops, fitted to blobs, and what the loops make of the same items."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from combemb.data.labels import read_labels
from combemb.learning.batches import Batch, Batches, MappedItems
from combemb.learning.objectives.positives import PAIR_RULES
from combemb.methods.combemb import CombEmb
from tests.reference import naive

SMALL: dict[str, Any] = {"bits": 12, "sub_vector": 3, "batch_size": 24, "epochs": 1, "device": "cpu", "check": False}
GAMMA = 0.75  # some anchors then have positives beside themselves and some have none
SIMILAR: dict[str, Any] = {"pair_rules": ("similar",)}
FIXED: dict[str, Any] = {"positive_threshold": GAMMA, **SIMILAR}
ABLATED: dict[str, Any] = {"n_clusters": 30, "n_ranked": 1, "cosine_threshold": 0.5}  # the same for the other rules
ALL_RULES: dict[str, Any] = {"pair_rules": PAIR_RULES, "positive_threshold": GAMMA, **ABLATED}


def problem(multi: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """200 items in 7 blobs: half of the first five are labelled; the other two are novel."""
    rng = np.random.default_rng(0)
    kinds = rng.integers(7, size=200)
    x = (3 * rng.normal(size=(7, 20))[kinds] + rng.normal(size=(200, 20))).astype(np.float32)
    is_labelled = (kinds < 5) & (rng.random(200) < 0.5)
    if not multi:
        return x, np.where(is_labelled, kinds, -1)
    members = np.eye(7)[kinds][:, :5]
    members[np.arange(200), rng.integers(5, size=200)] = 1  # a second class, now and then the same one
    return x, np.where(is_labelled[:, None], members, -1)


def fitted(multi: bool = False, **fields: Any) -> tuple[CombEmb, Batches]:
    """A model after one epoch, ready to go on, and the data that it was trained on."""
    x, labels = problem(multi)
    method = CombEmb(**{**SMALL, **fields}).fit(x, labels, progress=False)
    data = Batches(
        MappedItems(x, method.feature_map_),
        read_labels(labels, len(x)),
        method.batch_size,
        method.labelled_share,
        method.seed,
        method.view_noise,
        method.view_dropout,
        with_clean=True,
        balanced=method.balanced_labels,
    )
    threshold = method.network_.threshold.clone()
    method.prepare(data)  # again, since a fitted model has let go of what only training needs
    method.network_.threshold.copy_(threshold)
    method.on_epoch(data, 0)
    return method, data


def training(progress: float = 1.0, multi: bool = False, **fields: Any) -> tuple[CombEmb, Batch]:
    """A model amid training with a batch that it has not seen."""
    method, data = fitted(multi, **fields)
    method.network_.train()
    return method, replace(next(data.epoch(9)), fraction_done=progress)


def doubled(method: CombEmb, batch: Batch) -> Batch:
    """The batch in double precision, like the module from now on."""
    method.network_.double()
    return replace(batch, x=batch.x.double(), other=batch.other.double(), clean=batch.clean.double())


# The same in loops


def classes_of(labels: Tensor) -> list[list[int]]:
    """The classes of labelled items."""
    return [[int(c)] if labels.dim() == 1 else torch.nonzero(c)[:, 0].tolist() for c in labels]


@cache
def labelled_classes(multi: bool) -> dict[int, list[int]]:
    """The classes of all labelled items of the problem, by position."""
    labels = torch.from_numpy(problem(multi)[1])
    rows = torch.nonzero(labels.reshape(200, -1)[:, 0] >= 0)[:, 0]
    return dict(zip(rows.tolist(), classes_of(labels[rows]), strict=True))


def naive_z(method: CombEmb, x: Tensor) -> list[list[list[float]]]:
    layer = method.network_.project
    weight, bias = layer.weight.tolist(), layer.bias.tolist()
    return [naive.sub_vectors(row, weight, bias, method.n_sets) for row in x.tolist()]


def flat(z: list[list[float]]) -> list[float]:
    """The sub-vectors of z in one."""
    return [value for part in z for value in part]


def naive_pi(method: CombEmb, x: Tensor) -> list[list[float]]:
    theta = method.network_.prototypes.tolist()
    return [naive.combinatorial_embedding(z, theta, method.sharpness) for z in naive_z(method, x)]


def mapped_items(method: CombEmb, multi: bool = False) -> Tensor:
    """The clean view of all items of the problem as the head sees it, (200, F')."""
    return method.feature_map_(torch.from_numpy(problem(multi)[0]))


_SOUGHT_IN: dict[tuple[Any, ...], list[list[float]]] = {}
_SHARES: dict[tuple[Any, ...], list[float]] = {}
_LISTS: dict[tuple[Any, ...], list[set[int]]] = {}


def _key(method: CombEmb, multi: bool) -> tuple[Any, ...]:
    return multi, method.seed, method.neighbour_features, method.smoothing


def naive_features(method: CombEmb, multi: bool) -> list[list[float]]:
    """All items of the problem in the features in which neighbours are sought; they do not depend on the training."""
    key = _key(method, multi)
    if key not in _SOUGHT_IN:
        x = mapped_items(method, multi)[:, : method.neighbour_features].tolist()
        classes = list(labelled_classes(multi).values())
        _SOUGHT_IN[key] = naive.smoothed(x, x, method.smoothing or naive.n_averaged(classes, 200))
    return _SOUGHT_IN[key]


def naive_shares(method: CombEmb, multi: bool) -> list[float]:
    """How large the class of each item of the problem is, or that which it is nearest to."""
    key = _key(method, multi)
    if key not in _SHARES:
        _SHARES[key] = naive.uneven_item_shares(naive_features(method, multi), labelled_classes(multi))
    return _SHARES[key]


def naive_lists(method: CombEmb, multi: bool) -> list[set[int]]:
    """The mutual neighbours of each item among all items of the problem."""
    key = (*_key(method, multi), method.nearest_share, method.n_listed)
    if key not in _LISTS:
        ranks = [naive.rank(method.nearest_share, 200 * share) for share in naive_shares(method, multi)]
        ranks = [min(rank, method.n_listed) for rank in ranks]
        _LISTS[key] = naive.mutual_neighbours(naive_features(method, multi), ranks)
    return _LISTS[key]


def steady_pi(method: CombEmb, batch: Batch, multi: bool) -> list[list[float]]:
    """pi of the items as they are, or, where batches lack the clean view, the mean direction of both views' pi."""
    if batch.clean is not None:
        return naive_pi(method, mapped_items(method, multi)[batch.rows])
    views = [[naive.unit(pi) for pi in naive_pi(method, view)] for view in (batch.x, batch.other)]
    return [[naive.mean(both) for both in zip(*pair, strict=True)] for pair in zip(*views, strict=True)]


def naive_pairs(method: CombEmb, batch: Batch, threshold: float = GAMMA) -> list[set[int]]:
    """By the union of the model's rules; of a batch with a clean view only x and the rows count."""
    multi, rows = batch.labels.dim() == 2, batch.rows.tolist()
    shares = naive_shares(method, multi)
    return naive.pairs_of_rules(
        naive_pi(method, batch.x),
        steady_pi(method, batch, multi),
        batch_features(method, batch),
        [{rows.index(j) for j in naive_lists(method, multi)[row] if j in rows} for row in rows],
        z=[flat(z) for z in naive_z(method, batch.x)],
        clusters=[int(method.kept["clusters"][row]) if "kmeans" in method.pair_rules else row for row in rows],
        rules=method.pair_rules,
        threshold=threshold,
        ranks=[naive.rank(method.nearest_share, shares[row] * len(rows)) for row in rows],
        n_neighbours=method.n_neighbours,
        n_ranked=method.n_ranked,
        cosine_threshold=method.cosine_threshold,
    )


def batch_features(method: CombEmb, batch: Batch) -> list[list[float]]:
    """The features in which neighbours are sought, as roughly as they are kept."""
    features = naive_features(method, batch.labels.dim() == 2)
    return [[naive.half(value) for value in features[row]] for row in batch.rows]


def naive_positives(method: CombEmb, batch: Batch, threshold: float = GAMMA) -> list[dict[int, float]]:
    """The weights of the positives of each item."""
    trusted = naive.trust(list(labelled_classes(batch.labels.dim() == 2).values()), method.label_trust)
    names = ("include_self", "feature_temperature")
    return naive.positive_weights(
        naive_pairs(method, batch, threshold),
        classes_of(batch.labels[: batch.n_labelled]),
        batch_features(method, batch),
        feature_pull=naive.pull(method.feature_pull, trusted),
        **{name: getattr(method, name) for name in names},
    )


def predictor(method: CombEmb) -> Callable[[naive.Matrix], naive.Matrix]:
    like = method.network_.prototypes
    return lambda pi: method.network_.predictor(torch.tensor(pi, dtype=like.dtype)).tolist()


def naive_losses(
    method: CombEmb, batch: Batch, positive: list[dict[int, float]] | None = None, **given: Any
) -> dict[str, float]:
    """Eq. 8 of the batch; given: the ramp, and pi that stands still for derivatives."""
    names = ("labelled_anchors", "temperature", "sharpness", "similarity_weight", "consistency_weight")
    return naive.total_loss(
        naive_z(method, batch.x),
        naive_z(method, batch.other),
        method.network_.prototypes.tolist(),
        method.network_.meta_classes.tolist(),
        classes_of(batch.labels[: batch.n_labelled]),
        h=predictor(method),
        positive=naive_positives(method, batch) if positive is None else positive,
        trust=naive.trust(list(labelled_classes(batch.labels.dim() == 2).values()), method.label_trust),
        similarity_temperature=method.similarity_temperature or naive.default_similarity_temperature(5),
        **{name: getattr(method, name) for name in names},
        **given,
    )
