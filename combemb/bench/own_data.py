"""Data of a user's own for a comparison: what is in them, and a part of each class that is kept for queries."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from combemb.bench.protocol import rows_of
from combemb.data.datasets import Dataset
from combemb.data.given import Given, read_given
from combemb.data.images import Images
from combemb.data.label_files import read_label_file
from combemb.system.errors import require

MIN_CLASSES = 4
MIN_TRAINING, MIN_TEST = 4, 1  # items of a class
TEST_SHARE = 0.2
MIN_ITEMS = round(MIN_TRAINING / (1 - TEST_SHARE)) + MIN_TEST  # of a class, if there is no test split


@dataclass(frozen=True, eq=False)
class OwnData:
    """Items with classes, as far as these are known.

    Attributes
    ----------
    given : Given
    targets : array (N,) or (N, C)
        -1 where nobody knows the class, or where it has too few items to be hidden or queried.
    class_names : array (C,)
    too_small : tuple of str
        Classes that have too few items.
    """

    given: Given
    targets: np.ndarray
    class_names: np.ndarray
    too_small: tuple[str, ...]

    @classmethod
    def read(cls, path: Path, label_file: Path | None = None) -> Self:
        """Read a folder, a manifest or embeddings with labels; ValueError if a comparison needs more.

        Parameters
        ----------
        path : Path
        label_file : Path, optional
            Labels, if not those in the data.
        """
        given = read_given(path, None if label_file is None else read_label_file(label_file))
        labels = given.labels
        values = labels.values.astype(np.int64)
        is_test = None if given.images is None else given.images.is_test
        members = values[:, None] == np.arange(len(labels.classes)) if values.ndim == 1 else values > 0
        is_enough = members.sum(axis=0) >= MIN_ITEMS
        if is_test is not None:
            is_enough = (members[~is_test].sum(axis=0) >= MIN_TRAINING) & (members[is_test].sum(axis=0) >= MIN_TEST)
        names = labels.classes.astype(str)
        n, needed = int(is_enough.sum()), f"at least {MIN_ITEMS} labelled items each"
        if is_test is not None:
            needed = f"at least {MIN_TRAINING} labelled training and {MIN_TEST} labelled test items each"
        small = tuple(names[~is_enough].tolist())
        found = f"{n} of {len(names)} classes of {path} have {needed}" if len(names) else f"{path} has no labels"
        require(
            n >= MIN_CLASSES,
            f"{found}; compare needs {MIN_CLASSES} such classes, since it hides a quarter of the classes and half of "
            "the labels of the others: label more items, or give --labels FILE",
        )
        return cls(given, _without(values, is_enough), names[is_enough], small)

    def divided(self, seed: int) -> Dataset:
        """Return training and test items: the test split of the data, or a fifth of each class, drawn by the seed."""
        images = self.given.images
        is_test = None if images is None else images.is_test
        if is_test is None:
            is_test = _drawn(self.targets, np.random.default_rng(seed))
        is_known = (self.targets if self.targets.ndim == 1 else self.targets[:, 0]) >= 0
        train, test = np.flatnonzero(~is_test), np.flatnonzero(is_test & is_known)
        x: Any = self.given.x
        if images is not None:
            x = Images(pixels=images.pixels, files=images.files, ids=images.ids)
        elif x.ndim == 2:
            x = x[:, None]  # one view
        test_x = rows_of(x, test)
        test_x = test_x if images is not None else test_x[:, 0]
        return Dataset("own", rows_of(x, train), self.targets[train], test_x, self.targets[test], self.class_names)


def _without(values: np.ndarray, is_kept: np.ndarray) -> np.ndarray:
    """Return targets without some classes; items that have no other become unknown."""
    if values.ndim == 1:
        place = np.where(is_kept, np.cumsum(is_kept) - 1, -1)
        return np.where(values >= 0, place[values], -1)
    kept = values[:, is_kept]
    kept[~(kept > 0).any(axis=1)] = -1
    return kept


def _drawn(targets: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw a fifth of each class, or of all items with a known class if they may have several: (N,) bool."""
    is_drawn = np.zeros(len(targets), dtype=bool)
    if targets.ndim == 2:
        groups = [np.flatnonzero(targets[:, 0] >= 0)]
    else:
        groups = [np.flatnonzero(targets == c) for c in np.unique(targets[targets >= 0])]
    for rows in groups:
        is_drawn[rng.permutation(rows)[: max(int(TEST_SHARE * len(rows)), MIN_TEST)]] = True
    return is_drawn
