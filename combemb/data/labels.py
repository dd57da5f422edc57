"""Labels as users have them (ints, strings or a 0/1 matrix, with gaps), read as arrays of class positions."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from combemb.system.arrays import to_numpy
from combemb.system.errors import require

LABEL_SEPARATOR = "|"  # between the labels of an item that has several, where labels are text
# np.array(["cat", -1]) holds the string "-1"; as a class, it would contain all unlabelled items.
MARKERS_AS_STRINGS = ("-1", "nan")


@dataclass(frozen=True, eq=False)
class Labels:
    """The classes of N items, as far as they are labelled; made by `read_labels`.

    Parameters
    ----------
    classes : array (C,)
        Sorted class names, int64 or an object array of str; column numbers if multi-label.
    values : array (N,) or (N, C)
        int64 positions in `classes`, -1 if unlabelled; or, multi-label, float32 of 0/1 with rows of -1.
    given : dtype
        The dtype in which a multi-label table was given.
    """

    classes: np.ndarray
    values: np.ndarray
    given: npt.DTypeLike = np.float32

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_multi(self) -> bool:
        """Whether items may have several classes."""
        return self.values.ndim == 2

    @property
    def is_labelled(self) -> np.ndarray:
        """Which items have a label, (N,) bool."""
        first = self.values[:, 0] if self.is_multi else self.values
        return np.asarray(first >= 0)

    @property
    def n_seen(self) -> int:
        """Number of classes that have a labelled item."""
        if self.is_multi:
            return int((self.values > 0).any(axis=0).sum())
        return len(np.unique(self.values[self.values >= 0]))

    @property
    def digest(self) -> str:
        """Start of the SHA-256 of the values, by which a resumed run recognises its labels."""
        return hashlib.sha256(np.ascontiguousarray(self.values).tobytes()).hexdigest()[:16]

    def hidden(self, rows: np.ndarray) -> "Labels":
        """Return the labels without those of some items (N,) bool; classes without an item left are dropped."""
        values = self.values.copy()
        values[rows] = -1
        return replace(self, values=values) if self.is_multi else _positions(self.names(values), values >= 0)

    def take(self, rows: np.ndarray) -> "Labels":
        """Return the labels of these items; classes without an item left are dropped, columns of a table are not."""
        values = self.values[rows]
        return replace(self, values=values) if self.is_multi else _positions(self.names(values), values >= 0)

    def without_empty_classes(self) -> "Labels":
        """Drop the columns of a multi-label table in which no item is labelled."""
        has_items = (self.values > 0).any(axis=0)
        return replace(self, classes=self.classes[has_items], values=self.values[:, has_items])

    def membership(self, rows: np.ndarray | Sequence[int]) -> np.ndarray:
        """Return the classes of these labelled items, (n, C) float32, with rows that sum to one."""
        index = np.arange(len(self))[np.asarray(rows)]  # works for a boolean mask too
        assert self.is_labelled[index].all(), "membership is asked of unlabelled items"
        values = self.values[index]
        if self.is_multi:
            return np.asarray(values / values.sum(axis=1, keepdims=True), dtype=np.float32)
        return np.asarray(values[:, None] == np.arange(len(self.classes)), dtype=np.float32)

    def shares(self) -> np.ndarray:
        """Return the share of each class among the labelled items, (C,); an item with several labels is divided."""
        if self.is_multi:
            return np.asarray(self.membership(self.is_labelled).mean(axis=0))
        counts = np.bincount(self.values[self.is_labelled], minlength=len(self.classes))
        return np.asarray(counts / counts.sum())

    def labelled_rows(self, at_most: int, rng: np.random.Generator) -> np.ndarray:
        """Return all labelled items in random order; above `at_most` of them, equally many of each class instead."""
        rows = rng.permutation(np.flatnonzero(self.is_labelled))
        if len(rows) <= at_most:
            return rows
        per_class = max(at_most // len(self.classes), 1)
        values = self.values[rows]
        members = [values[:, c] == 1 if self.is_multi else values == c for c in range(len(self.classes))]
        return np.unique(np.concatenate([rows[has][:per_class] for has in members]))

    def names(self, values: np.ndarray) -> np.ndarray:
        """Return values in the user's form: class names, with -1 (int classes) or None (strings) if unlabelled."""
        if self.is_multi:
            return values.astype(self.given)
        unlabelled = None if self.classes.dtype == object else -1
        out = np.full(len(values), unlabelled, dtype=self.classes.dtype)
        out[values >= 0] = self.classes[values[values >= 0]]
        return out

    def texts(self) -> list[str | None]:
        """Return one text per item: its class, several joined by `|`, None if unlabelled."""
        if not self.is_multi:
            names: list[str | None] = np.array([*self.classes.astype(str), None], dtype=object)[self.values].tolist()
            return names
        columns = self.classes.astype(str)
        return [LABEL_SEPARATOR.join(columns[row > 0]) or None for row in self.values]


def read_labels(labels: Any, n_items: int) -> Labels:
    """Read labels of some or all items.

    Parameters
    ----------
    labels : list, numpy array, torch tensor or Labels
        One label per item: ints, -1 if unlabelled; or strings, None or "" if unlabelled. NaN and None, the gaps of a
        data frame, mark an unlabelled item in both. Several labels per item: (N, C) of 0/1, a row of -1 if unlabelled.
        `Labels` are returned as they are.
    n_items : int
        N, how many labels there must be.

    Returns
    -------
    Labels

    Examples
    --------
    >>> read_labels(["cat", None, "ant", "cat"], 4).values.tolist()
    [1, -1, 0, 1]
    """
    raw = labels.values if isinstance(labels, Labels) else _to_array(labels)
    shape = f"labels have shape {raw.shape}; give (N,), or (N, C) of 0/1 for several labels per item"
    require(raw.ndim in (1, 2), shape)
    n = len(raw)
    require(n == n_items, f"there are {n} labels for {n_items} items; give one per item, -1 or None if unlabelled")
    if isinstance(labels, Labels):
        return labels
    if raw.ndim == 2:
        return _read_multi(raw)
    kind, use = raw.dtype.kind, "give ints or strings, with -1 or None for unlabelled items"
    require(kind in "iufUO", f"labels have dtype {raw.dtype}; {use}")
    return _read_ints(raw) if kind in "iuf" else _read_objects(raw.astype(object))


def require_labelled(labels: Labels) -> None:
    """Require that at least two classes have labelled items."""
    n = len(labels)
    require(labels.n_seen > 0, f"none of the {n} items is labelled; label some items of at least two classes")
    require(labels.n_seen > 1, "only one class has labels; label items of at least two classes")


def require_partly_labelled(labels: Labels) -> None:
    """Require that some items are labelled, of at least two classes, and some are not."""
    unlabelled = "add unlabelled items, with -1 or None as their label"
    require(not labels.is_labelled.all(), f"all {len(labels)} items are labelled; {unlabelled}")
    require_labelled(labels)


def same_class(values_a: torch.Tensor, values_b: torch.Tensor) -> torch.Tensor:
    """Return which pairs of `Labels.values` are known to share a class, (A, B) bool; unlabelled items share none."""
    if values_a.ndim == 1:
        return (values_a[:, None] == values_b) & (values_a[:, None] >= 0)
    shared: torch.Tensor = values_a.clamp(min=0) @ values_b.clamp(min=0).T  # number of shared classes, (A, B)
    return shared > 0


def _to_array(labels: Any) -> np.ndarray:
    """Make an array, of plain lists one of objects: numpy would turn [1, "a"] into two strings."""
    if hasattr(labels, "__array__"):  # tensors too
        return np.asarray(to_numpy(labels))
    if not isinstance(labels, Sequence) or isinstance(labels, str | bytes):
        raise ValueError(f"labels are of type {type(labels).__name__}; give a list, numpy array or torch tensor")
    if len(labels) > 0 and hasattr(labels[0], "__len__") and not isinstance(labels[0], str):
        try:
            return np.asarray(labels)
        except ValueError as error:
            raise ValueError("the rows of the labels differ in length; give (N, C) of 0/1") from error
    array = np.empty(len(labels), dtype=object)
    array[:] = labels
    return array


def _read_multi(raw: np.ndarray) -> Labels:
    n_classes = raw.shape[1]
    found = f"labels have shape {raw.shape} and dtype {raw.dtype}"
    require(raw.dtype.kind in "biuf" and n_classes > 0, f"{found}; several labels per item are (N, C) of 0/1")
    is_unlabelled = (raw == -1).all(axis=1)
    is_known = ((raw == 0) | (raw == 1)).all(axis=1)
    strange = np.flatnonzero(~is_unlabelled & ~is_known)
    if len(strange) > 0:
        use = "use 0/1, a whole row of -1 for an unlabelled item, or shape (N,) for one label per item"
        raise ValueError(f"row {strange[0]} of the (N, C) labels has values other than 0 and 1; {use}")
    empty = np.flatnonzero((raw == 0).all(axis=1))
    if len(empty) > 0:
        raise ValueError(f"row {empty[0]} of the (N, C) labels has no class; mark it unlabelled with a row of -1")
    return Labels(classes=np.arange(n_classes), values=raw.astype(np.float32), given=raw.dtype)


def _read_ints(raw: np.ndarray) -> Labels:
    if raw.dtype.kind == "f":
        raw = np.where(np.isnan(raw), -1, raw.astype(np.float64))
        is_whole = (raw == np.round(raw)) & (np.abs(raw) < 2**53)  # above it, floats skip whole numbers
        if not is_whole.all():
            raise ValueError(f"labels hold {raw[~is_whole][0]}; give whole numbers (below 2**53 if floats) or strings")
    elif raw.dtype == np.uint64 and raw.max(initial=0) > np.iinfo(np.int64).max:
        raise ValueError(f"labels hold {raw.max()}, more than 64 signed bits; give smaller ints or strings")
    numbers = raw.astype(np.int64)
    lowest = numbers.min(initial=0)
    require(lowest >= -1, f"labels hold {lowest}; only -1 (unlabelled) may be negative, so number classes from 0")
    return _positions(numbers, numbers >= 0)


def _read_objects(raw: np.ndarray) -> Labels:
    is_labelled = np.array([not _is_missing(value) for value in raw], dtype=bool)
    given = raw[is_labelled].tolist()
    strings = [value for value in given if isinstance(value, str)]
    odd = [value for value in given if not isinstance(value, str | Real) or isinstance(value, bool | np.bool_)]
    if odd:
        kind = type(odd[0]).__name__
        raise ValueError(f"labels hold a {kind}; give ints or strings, -1 or None for unlabelled items")
    if 0 < len(strings) < len(given):
        number = next(value for value in given if not isinstance(value, str))
        use = "give one kind, and None for unlabelled items among strings"
        raise ValueError(f"labels mix strings ({strings[0]!r}) and numbers ({number!r}); {use}")
    if given and not strings:
        numbers = np.array([-1 if _is_missing(value) else value for value in raw])
        fits = numbers.dtype.kind in "iuf"
        require(fits, "labels hold numbers that do not fit 64 bits; give smaller ints or strings")
        return _read_ints(numbers)
    markers = [value for value in strings if value in MARKERS_AS_STRINGS]
    if markers:
        raise ValueError(f"labels hold the string {markers[0]!r}; mark unlabelled items among strings with None or ''")
    return _positions(np.array([str(v) if v else None for v in raw], dtype=object), is_labelled)


def _is_missing(value: Any) -> bool:
    if isinstance(value, float | np.floating):
        return math.isnan(value)
    return value is None or (isinstance(value, str) and value == "")


def _positions(names: np.ndarray, is_labelled: np.ndarray) -> Labels:
    """Replace the names (N,) of labelled items by positions in the sorted classes."""
    classes, positions = np.unique(names[is_labelled], return_inverse=True)
    values = np.full(len(names), -1, dtype=np.int64)
    values[is_labelled] = positions
    return Labels(classes=classes, values=values)
