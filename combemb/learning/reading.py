"""From what a user gives to the items that a method learns from or embeds."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from combemb.data.embeddings import check_finite
from combemb.data.given import Given, Loaded
from combemb.data.items import ArrayItems, chunks
from combemb.learning.pretraining import weights_after
from combemb.system.errors import require

if TYPE_CHECKING:
    from combemb.learning.method import Method


def training_data(method: "Method", given: Given, progress: bool | None) -> Loaded:
    """Return the items to learn from; what can be checked is checked before images are read."""
    images = method.images_ = None if given.images is None else method.image_input()
    n_features = images.backbone.n_features if images else int(np.shape(given.x)[-1])  # type: ignore[arg-type]
    method.check_data(given.labels, n_features)
    if not method.uses_unlabelled and not given.labels.is_labelled.all():
        given = given.take(np.flatnonzero(given.labels.is_labelled))
    if images and (stage := method.first_stage()):
        images.start_from(weights_after(stage, images, given, progress))
    data = load(method, given, method.n_views, progress)
    if data.broken:
        method.check_data(data.labels, n_features)
    if images:
        images.known_digest = images.digest
    if isinstance(data.items, ArrayItems):
        check_finite(data.items.x, progress=progress)
    return data


def load(method: "Method", given: Given, n_views: int, progress: bool | None) -> Loaded:
    """Return the items of what a user gave: embeddings, or images as the method takes them, without broken ones."""
    images = getattr(method, "images_", None)
    if given.images is None:
        assert given.x is not None
        return Loaded(ArrayItems(given.x), given.labels, given.ids)
    is_fitted = hasattr(method, "classes_")
    require(not is_fitted or images is not None, "this model was fitted on embeddings; give it embeddings, not images")
    return (images or method.image_input()).load(given, n_views, progress)


def whole(method: "Method", x: Any, progress: bool | None) -> Loaded:
    """Return items that were read already, or that can all be read: an image without a row is refused."""
    data = method.read(x, progress=progress)
    if data.broken and data is not x:
        name, reason = next(iter(data.broken.items()))
        raise ValueError(
            f"{len(data.broken)} images cannot be read, such as {name}: {reason}; remove them, or embed what "
            "`read` returns: the rows are then those of its ids"
        )
    return data


def embeddable(method: "Method", x: Any, progress: bool | None) -> Iterator[Tensor]:
    """Return items that a fitted method can embed, some rows at a time."""
    method._require_fitted()
    items = whole(method, x, progress).items
    takes_pixels = method.images_ is not None and method.images_.trained == "all"
    require(
        isinstance(items, ArrayItems) != takes_pixels,
        "this model was fitted on images with finetune='all'; give it images",
    )
    if isinstance(items, ArrayItems):
        if items.n_features != method.n_inputs:
            raise ValueError(f"x has {items.n_features} features; this model was fitted on {method.n_inputs}")
        check_finite(items.x[:, 0], allow_constant=True, progress=progress)
    return chunks(items, "embedding", progress)
