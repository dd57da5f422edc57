"""What a fit may see of a data set and what is hidden: novel classes, and a part of the labels of the others."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from combemb.bench.cells import Cell
from combemb.data import open_set_split
from combemb.data.datasets import Dataset
from combemb.data.images import Images


@dataclass(frozen=True, eq=False)
class Pile:
    """Training items with the labels that a method may see, queries, and the hidden truth.

    Attributes
    ----------
    x, test_x : Images or arrays
        Embeddings of training items are (N, V, F), with the clean view first.
    labels : array
        -1 where hidden.
    targets, test_targets : arrays (N,) or (N, C)
        -1, or rows of it, where nobody knows the truth; such items are learned from and never counted.
    is_novel, is_novel_test : arrays of bool
    n_seen, n_novel : int
    novel : array
        The novel classes, or the columns of targets with several classes.
    """

    x: Any
    labels: np.ndarray
    targets: np.ndarray
    is_novel: np.ndarray
    test_x: Any
    test_targets: np.ndarray
    is_novel_test: np.ndarray
    n_seen: int
    n_novel: int
    novel: np.ndarray

    @property
    def n_classes(self) -> int:
        """Number of all classes."""
        return self.n_seen + self.n_novel

    @property
    def is_multi(self) -> bool:
        """Whether items have several classes."""
        return self.targets.ndim == 2

    @property
    def is_known(self) -> np.ndarray:
        """Which training items have a known truth."""
        return np.asarray((self.targets if not self.is_multi else self.targets[:, 0]) >= 0)


def limited(dataset: Dataset, per_class: int | None, per_class_test: int | None) -> Dataset:
    """Return the first so many training and test items of each class.

    If items have several classes, the first of all items, so many times the number of classes.
    """
    train = first_of_each(dataset.train_targets, per_class)
    test = first_of_each(dataset.test_targets, per_class_test)
    return Dataset(
        dataset.name,
        *(rows_of(dataset.train_x, train), dataset.train_targets[train]),
        *(rows_of(dataset.test_x, test), dataset.test_targets[test]),
        class_names=dataset.class_names,
    )


def first_of_each(targets: np.ndarray, n: int | None) -> np.ndarray:
    """Return the rows of the first n items of every class; all for None."""
    if n is None:
        return np.arange(len(targets))
    if targets.ndim == 2:
        return np.arange(min(len(targets), n * targets.shape[1]))
    return np.sort(np.concatenate([np.flatnonzero(targets == c)[:n] for c in np.unique(targets)]))


def rows_of(x: Any, rows: np.ndarray) -> Any:
    """Return some items of images or of an array."""
    return x.take(rows) if isinstance(x, Images) else x[rows]


def hidden(dataset: Dataset, cell: Cell) -> Pile:
    """Return the pile of a cell, which decides the split, the seed and the shares."""
    targets = dataset.train_targets
    rows = np.flatnonzero((targets if targets.ndim == 1 else targets[:, 0]) >= 0)  # whose truth is known
    split = open_set_split(
        targets[rows],
        cell.split,
        seen_share=cell.seen_share,
        labelled_share=cell.labelled_share,
        seed=cell.seed,
    )
    labels = np.full((len(targets), *split.labels.shape[1:]), -1, dtype=split.labels.dtype)
    labels[rows] = split.labels
    is_novel = np.zeros(len(targets), dtype=bool)
    is_novel[rows] = split.is_novel(targets[rows])
    return Pile(
        *(dataset.train_x, labels, targets, is_novel),
        *(dataset.test_x, dataset.test_targets, split.is_novel(dataset.test_targets)),
        *(len(split.seen), len(split.novel), split.novel),
    )


def fingerprint(dataset: Dataset) -> str:
    """Return a digest of the data: pixels or embeddings and targets; of files their names and sizes."""
    digest = hashlib.sha256()
    for x, targets in ((dataset.train_x, dataset.train_targets), (dataset.test_x, dataset.test_targets)):
        if not isinstance(x, Images):
            digest.update(np.ascontiguousarray(x).tobytes())
        elif x.files is None:
            digest.update(x.key.encode())
        else:
            digest.update(repr([(Path(file).name, Path(file).stat().st_size) for file in x.files]).encode())
        digest.update(np.ascontiguousarray(targets).tobytes())
    return digest.hexdigest()[:16]
