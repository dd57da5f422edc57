"""Data that a user gives to `fit`, `embed`, `discover`, `index` or `search`: images or embeddings, labels, ids."""

import dataclasses
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch import Tensor

from combemb.data.embeddings import Embeddings, as_array, read_embeddings
from combemb.data.folders import are_pixels, is_images, listed_images, read_images, readable_name
from combemb.data.images import Images
from combemb.data.items import ArrayItems, Items, chunks
from combemb.data.label_files import LabelTable, written_path
from combemb.data.labels import Labels, read_labels
from combemb.system.arrays import to_numpy
from combemb.system.errors import require

MAX_DISCOVERY_FEATURES = 4_096  # wider features, such as inputs of a last stage, are ignored
ROW_SEPARATOR = "#"  # between the path of an array file and the row of an image


@dataclass(frozen=True, eq=False)
class Given:
    """Either images, or embeddings x (N, F) or (N, V, F), as a user gave them; the other one is None.

    raw_labels: those of the call, or those stored with the items, with the names of the columns of a table; they are
    interpreted when `labels` is first used. ids (N,): names of the items for the user. path: where they were read from.
    """

    images: Images | None
    x: np.ndarray | None
    raw_labels: Any = None
    column_names: np.ndarray | None = None
    ids: np.ndarray | None = None
    path: Path | None = None

    def __len__(self) -> int:
        return len(self.images if self.x is None else self.x)  # type: ignore[arg-type]

    @cached_property
    def labels(self) -> Labels:
        """The labels; without any, all items are unlabelled."""
        found = read_labels(np.full(len(self), -1) if self.raw_labels is None else self.raw_labels, len(self))
        if self.column_names is None or not found.is_multi:
            return found
        return replace(found, classes=self.column_names)

    def take(self, rows: np.ndarray) -> Self:
        """Return the items of these rows (ints)."""
        return replace(
            self,
            images=None if self.images is None else self.images.take(rows),
            x=None if self.x is None else self.x[rows],
            raw_labels=self.labels.take(rows),
            ids=None if self.ids is None else self.ids[rows],
        )

    def training_part(self) -> Self:
        """Return the items without those of a test split, if the data have one.

        If items have several labels, named classes that occur only in the test split are dropped.
        """
        if self.images is None or self.images.is_test is None:
            return self
        part = self.take(np.flatnonzero(~self.images.is_test))
        if self.column_names is None or not part.labels.is_multi:
            return part
        return replace(part, raw_labels=part.labels.without_empty_classes(), column_names=None)

    @property
    def is_numbered(self) -> bool:
        """Whether the items have neither ids nor files, so that `item_names` numbers them."""
        if self.images is None:
            return self.ids is None
        return self.images.files is None and self.images.ids is None and self.path is None

    @property
    def visible_labels(self) -> Labels:
        """The labels that a method may see: those of a test split are hidden."""
        if self.images is None or self.images.is_test is None:
            return self.labels
        return self.labels.hidden(self.images.is_test)


@dataclass(frozen=True, eq=False)
class Loaded:
    """Items that a method can learn from or embed: those of `Given` that could be read.

    rows: their positions in `Given`, None for all. key: identifies the images. broken: id -> reason for leaving it out.
    """

    items: Items
    given: Given
    ids: np.ndarray | None = None
    rows: np.ndarray | None = None
    key: str | None = None
    broken: dict[str, str] = dataclasses.field(default_factory=dict)
    are_features: bool = True  # rather than inputs of a last stage
    pooled: Callable[[Tensor], Tensor] | None = None  # makes features of inputs of a last stage that stays frozen

    @cached_property
    def labels(self) -> Labels:
        """The labels that a method may see."""
        visible = self.given.visible_labels
        return visible.take(self.rows) if self.broken and self.rows is not None else visible

    def relabelled(self, labels: Labels) -> Self:
        """Return the same items with other labels, one for each item that could be read."""
        found = replace(self)
        found.__dict__["labels"] = labels  # where the cached property keeps them
        return found

    @cached_property
    def discovery_features(self) -> np.ndarray | None:
        """The clean features of a backbone that is not trained, if they are not too wide for discovery."""
        if self.pooled is not None:
            x = np.concatenate([self.pooled(chunk).numpy() for chunk in chunks(self.items)])
        elif isinstance(self.items, ArrayItems) and self.are_features:
            x = self.items.x[:, 0]
        else:
            return None
        return x if x.shape[1] <= MAX_DISCOVERY_FEATURES else None


def read_given(x: Any, labels: Any = None) -> Given:
    """Read images or embeddings with their labels.

    Parameters
    ----------
    x : path, array, tensor, list of paths, Images or Given
        An image folder, a manifest, image files, pixels (N, H, W, 3) of uint8; or embeddings (N, F) or (N, V, F), or a
        file of them.
    labels : array-like or LabelTable, optional
        One label per item, see `read_labels`, or a table of labels; by default the labels stored with the items.

    Returns
    -------
    Given
    """
    if isinstance(x, Given):
        labels = _joined(x, labels) if isinstance(labels, LabelTable) else labels
        return x if labels is None else replace(x, raw_labels=read_labels(labels, len(x)), column_names=None)
    path = Path(x).absolute() if isinstance(x, str | Path) else None
    images = as_images(x)
    if images is not None:
        ids = np.arange(len(images)) if images.ids is None else images.ids
        given = Given(images, None, images.labels, images.class_names, ids, path)
    else:
        stored = read_embeddings(x) if isinstance(x, str | Path) else Embeddings(as_array(x))
        given = Given(None, stored.x, stored.labels, None, stored.ids, path)
    return given if labels is None else read_given(given, labels)


def item_names(given: Given, n_before: int = 0) -> tuple[list[str], list[str | None]]:
    """Return the id of each item as tables have it, and its path if it is an image in a file.

    The id of an image is its absolute path, followed by `#` and the row if it is in an array file. Items without ids
    are numbered, starting from `n_before`.
    """
    images, n = given.images, len(given)
    ids: Iterable[Any] = np.arange(n_before, n_before + n) if given.ids is None else given.ids
    paths: list[str | None] = [None] * n
    if images is not None and images.files is not None:
        ids = paths = [readable_name(os.path.abspath(file)) for file in images.files]  # noqa: PTH100 - links stay
    elif images is not None and given.path is not None:
        paths = [readable_name(os.path.abspath(given.path))] * n  # noqa: PTH100
        ids = [f"{paths[0]}{ROW_SEPARATOR}{row}" for row in ids]
    elif images is not None and images.ids is None:
        ids = np.arange(n_before, n_before + n)
    return [str(name) for name in ids], paths


def _joined(given: Given, table: LabelTable) -> np.ndarray:
    """Return the labels of a table, one per item."""
    names, paths = item_names(given)
    own = names if given.ids is None else [str(name) for name in given.ids]
    if table.column == "id":
        return table.of_items(own, names)
    return table.of_items(own, names, [written_path(path, table.file.parent) for path in paths])


def as_images(x: Any) -> Images | None:
    """Return x as images if it holds images, otherwise None."""
    if isinstance(x, Images):
        return x
    if isinstance(x, str | Path):
        require(Path(x).exists(), f"cannot read {x}: there is no such file or folder")
        return read_images(x) if is_images(x) else None
    if isinstance(x, list | tuple) and x and all(isinstance(path, str | Path) for path in x):
        return listed_images(x)
    pixels = to_numpy(x) if hasattr(x, "__array__") else None
    return Images(pixels=pixels) if pixels is not None and are_pixels(pixels) else None
