"""The ids of the entries of an index: integers or strings, each used once."""

import mmap
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from combemb.system.errors import require

Values = Any  # int64 (N,), or a LargeStringArray of Arrow, which has no types


class Ids:
    """Ids of N entries in their order. Immutable: `extended` and `take` return others."""

    def __init__(self, values: Values):
        """Take over int64 (N,), or strings of Arrow; the caller makes sure that each is used once."""
        self.values = values
        self._is_ascending: bool | None = None  # None until the first look-up of an integer
        self._order: npt.NDArray[np.uint32] | None = None  # of integers that do not ascend

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """Return the ids of rows of any shape: int64, or objects for strings."""
        if isinstance(self.values, np.ndarray):
            return np.asarray(self.values[rows])
        found = self.values.take(pa.array(rows.ravel())).to_pylist()
        return np.array([*found, None], dtype=object)[:-1].reshape(rows.shape)

    def extended(self, ids: Any, n: int) -> "Ids":
        """Return ids with those of n more entries, numbered on for None; raise a ValueError unless they are new."""
        if ids is None:
            if isinstance(self.values, pa.LargeStringArray):
                raise ValueError("the ids of this index are strings; give ids for the new entries too")
            first = int(self.values.max()) + 1 if len(self) else 0
            require(first + n <= 2**63, f"the largest id is {first - 1}, none is left above it; give ids")
            return Ids(np.concatenate([self.values, np.arange(first, first + n)]))
        new = read_ids(ids)
        require(len(new) == n, f"there are {len(new)} ids for {n} entries; give one per entry")
        old = self if len(self) else Ids(new[:0])
        there, more = ("ints" if isinstance(values, np.ndarray) else "strings" for values in (old.values, new))
        require(there == more, f"the ids of this index are {there}, the new ones {more}; give one kind")
        return _checked(new, old)

    def take(self, rows: np.ndarray) -> "Ids":
        """Return the ids of some entries."""
        return Ids(self.values[rows] if isinstance(self.values, np.ndarray) else self.values.take(pa.array(rows)))

    def rows(self, ids: Any) -> np.ndarray:
        """Return the entries with these ids, in the order given; -1 for unknown ids."""
        wanted = read_ids(ids)
        if len(wanted) == 0 or len(self) == 0 or type(wanted) is not type(self.values):
            return np.full(len(wanted), -1)
        if isinstance(self.values, pa.LargeStringArray):
            return np.asarray(pc.fill_null(pc.index_in(wanted, value_set=self.values), -1), dtype=np.int64)
        if self._is_ascending is None:
            self._is_ascending = bool((self.values[1:] > self.values[:-1]).all())
            self._order = None if self._is_ascending else np.argsort(self.values).astype(np.uint32)
            _let_go(self.values)
        if self._order is None:
            rows = np.minimum(np.searchsorted(self.values, wanted), len(self) - 1)
            return np.where(self.values[rows] == wanted, rows, -1)
        low, high = np.zeros(len(wanted), np.int64), np.full(len(wanted), len(self))
        while (low < high).any():  # np.searchsorted would copy the order at twice the size
            middle = (low + high) // 2
            is_below = (self.values[self._order[np.minimum(middle, len(self) - 1)]] < wanted) & (low < high)
            low, high = np.where(is_below, middle + 1, low), np.where(is_below, high, np.minimum(high, middle))
        rows = self._order[np.minimum(low, len(self) - 1)].astype(np.int64)
        return np.where(self.values[rows] == wanted, rows, -1)


def _let_go(values: np.ndarray) -> None:
    """Release the pages of a memory map that have been read; the system reads them again when needed."""
    base: Any = values
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)


def read_ids(ids: Any) -> Values:
    """Return integers as int64, or strings of Arrow; raise a ValueError for anything else."""
    if isinstance(ids, str | bytes) or not isinstance(ids, Sequence | np.ndarray | pa.Array | pa.ChunkedArray):
        ids = ids.numpy() if hasattr(ids, "numpy") else ids
        if not isinstance(ids, np.ndarray):
            raise ValueError(f"ids are of type {type(ids).__name__}; give a list or an array of ints or strings")
    if isinstance(ids, pa.ChunkedArray):
        ids = ids.combine_chunks()
    if isinstance(ids, pa.Array):
        ids = ids.to_numpy(zero_copy_only=False) if not pa.types.is_large_string(ids.type) else ids
        if isinstance(ids, pa.LargeStringArray) and ids.null_count == 0:
            return ids
    if isinstance(ids, np.ndarray) and ids.ndim != 1:
        raise ValueError(f"ids have shape {ids.shape}; give one per entry, (N,)")
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "iu" and ids.dtype != np.uint64:
        return ids.astype(np.int64, copy=False)
    names = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
    if all(isinstance(name, str) for name in names) and names:
        return pa.array(names, pa.large_string())
    if not all(isinstance(name, Integral) and not isinstance(name, bool | np.bool_) for name in names):
        kinds = sorted({type(name).__name__ for name in names})
        raise ValueError(f"ids are of type {', '.join(kinds)}; give all ints or all strings")
    try:
        return np.array(names, dtype=np.int64)
    except OverflowError:
        raise ValueError("ids hold numbers beyond 64 signed bits; give smaller ones or strings") from None


def _checked(new: Values, old: Ids) -> Ids:
    """Return old ids and new ones together, once the new ones are known to be unique."""
    again: list[Any] = []
    if not isinstance(new, np.ndarray):
        counts = pc.value_counts(new)
        again = counts.filter(pc.greater(counts.field("counts"), 1)).field("values").to_pylist()
        again = again or new.filter(pa.array(old.rows(new) >= 0)).to_pylist()
    elif not (new[1:] > new[:-1]).all() or (len(old) and len(new) and new[0] <= old.values.max()):
        ranked = np.sort(new)
        again = ranked[1:][ranked[1:] == ranked[:-1]].tolist() or new[old.rows(new) >= 0].tolist()
    if again:
        raise ValueError(f"{len(again)} ids would be there twice, such as {again[0]!r}; every entry needs its own")
    return Ids((np.concatenate if isinstance(new, np.ndarray) else pa.concat_arrays)([old.values, new]))
