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
from combemb.methods.combemb import CombEmb
from tests.reference import naive

SMALL: dict[str, Any] = {"bits": 12, "sub_vector": 3, "batch_size": 24, "epochs": 1, "device": "cpu"}
GAMMA = 0.8  # some anchors then have positives beside themselves and some have none
SIMILAR: dict[str, Any] = {"pair_rules": ("similar",)}
FIXED: dict[str, Any] = {"positive_threshold": GAMMA, **SIMILAR}


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
    )
    threshold = method.network_.threshold.clone()
    method.prepare(data)  # again, since a fitted model has let go of what only training needs
    method.network_.threshold.copy_(threshold)
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
def labelled_classes(multi: bool) -> list[list[int]]:
    """The classes of all labelled items of the problem."""
    labels = torch.from_numpy(problem(multi)[1])
    return classes_of(labels[labels.reshape(200, -1)[:, 0] >= 0])


def naive_z(method: CombEmb, x: Tensor) -> list[list[list[float]]]:
    layer = method.network_.project
    weight, bias = layer.weight.tolist(), layer.bias.tolist()
    return [naive.sub_vectors(row, weight, bias, method.n_sets) for row in x.tolist()]


def naive_pi(method: CombEmb, x: Tensor) -> list[list[float]]:
    theta = method.network_.prototypes.tolist()
    return [naive.combinatorial_embedding(z, theta, method.sharpness) for z in naive_z(method, x)]


def mapped_items(method: CombEmb, multi: bool = False) -> Tensor:
    """The clean view of all items of the problem as the head sees it, (200, F')."""
    return method.feature_map_(torch.from_numpy(problem(multi)[0]))


_SOUGHT_IN: dict[tuple[bool, int, int], list[list[float]]] = {}


def naive_features(method: CombEmb, multi: bool) -> list[list[float]]:
    """All items of the problem in the features in which neighbours are sought; they do not depend on the training."""
    key = (multi, method.neighbour_features, method.smoothing)
    if key not in _SOUGHT_IN:
        x, labels = mapped_items(method, multi), torch.from_numpy(problem(multi)[1])
        labelled = x[labels.reshape(200, -1)[:, 0] >= 0].tolist()
        directions = naive.discriminant_directions(labelled, labelled_classes(multi), x.tolist(), key[1])
        turned = [[naive.dot(w, row) for w in directions] for row in x.tolist()]
        _SOUGHT_IN[key] = naive.smoothed(turned, turned, method.smoothing)
    return _SOUGHT_IN[key]


def steady_pi(method: CombEmb, batch: Batch, multi: bool) -> list[list[float]]:
    """pi of the items as they are, or, where batches lack the clean view, the mean direction of both views' pi."""
    if batch.clean is not None:
        return naive_pi(method, mapped_items(method, multi)[batch.rows])
    views = [[naive.unit(pi) for pi in naive_pi(method, view)] for view in (batch.x, batch.other)]
    return [[naive.mean(both) for both in zip(*pair, strict=True)] for pair in zip(*views, strict=True)]


def naive_positives(method: CombEmb, batch: Batch, threshold: float = GAMMA) -> list[set[int]]:
    """By the union of the model's rules; of a batch with a clean view only x and the rows count."""
    multi = batch.labels.dim() == 2
    uses_neighbours = "neighbours" in method.pair_rules
    return naive.batch_positives(
        naive_pi(method, batch.x),
        steady_pi(method, batch, multi),
        [naive_features(method, multi)[row] for row in batch.rows] if uses_neighbours else [],
        rules=method.pair_rules,
        threshold=threshold,
        rank=naive.nearest_rank(method.nearest_share, labelled_classes(multi), len(batch.x)),
        n_neighbours=method.n_neighbours,
        include_self=method.include_self,
    )


def predictor(method: CombEmb) -> Callable[[naive.Matrix], naive.Matrix]:
    like = method.network_.prototypes
    return lambda pi: method.network_.predictor(torch.tensor(pi, dtype=like.dtype)).tolist()


def naive_losses(
    method: CombEmb, batch: Batch, positive: list[set[int]] | None = None, **given: Any
) -> dict[str, float]:
    """Eq. 8 of the batch; given: the ramp, and pi that stands still for derivatives."""
    names = ("anchors", "temperature", "sharpness", "similarity_weight", "consistency_weight")
    return naive.total_loss(
        naive_z(method, batch.x),
        naive_z(method, batch.other),
        method.network_.prototypes.tolist(),
        method.network_.meta_classes.tolist(),
        classes_of(batch.labels[: batch.n_labelled]),
        h=predictor(method),
        positive=naive_positives(method, batch) if positive is None else positive,
        similarity_temperature=method.similarity_temperature or naive.default_similarity_temperature(5),
        **{name: getattr(method, name) for name in names},
        **given,
    )
