"""The indexed items of a run folder, each with its path and label, and their search."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from combemb import methods
from combemb.collection.index_files import (
    digest_of_weights,
    has_index,
    index_command,
    read_index_files,
    write_index_files,
    written_at,
)
from combemb.data.entries import ENTRY_SCHEMA, Entry, listed
from combemb.data.first_look import require_distinct
from combemb.data.given import Given, Loaded, read_given
from combemb.data.images import ManyBroken, refuse_many_broken
from combemb.learning.codes import CodeMethod, require_codes
from combemb.learning.method import Method
from combemb.learning.run_folder import CLASSES, ENTRIES, TABLE, RunFolder
from combemb.search.index import CodeIndex
from combemb.system.arrays import Array
from combemb.system.errors import UnknownData, require


@dataclass(frozen=True, kw_only=True)
class Hit(Entry):
    """An entry that a query found; a larger score is nearer.

    `is_missing`: its file did not exist at the search. `name`: what a person called its class, if it has no label.
    """

    score: float
    is_missing: bool = False
    name: str | None = None


@dataclass(frozen=True)
class SearchResult:
    """A query and the entries that it found, the nearest first."""

    query: Entry
    hits: list[Hit]


class Collection:
    """The entries of a run folder, searched by images or embeddings.

    `entries` is a table of id, path and label, which `add` and `remove` change together with the codes. `broken` names
    the images that the last `add` or `search` could not read, with the reasons. Use `build` and `open`; the constructor
    makes an empty collection for the model of a run, and nothing is written before `save`.

    Parameters
    ----------
    run : path
        The run folder.
    """

    def __init__(self, run: str | Path):
        self.folder = Path(run)
        self.model: CodeMethod = require_codes(methods.load(run))
        self._weights = digest_of_weights(self.folder)
        self._index = CodeIndex(self.model.codebook)  # its id i is row i of the entries, so it is not public
        self._entries: pa.Table = ENTRY_SCHEMA.empty_table()
        self._opened: tuple[int, int] | None = None  # `written_at` of the index that this was read from
        self.broken: dict[str, str] = {}

    @classmethod
    def build(
        cls,
        run: str | Path,
        x: Any = None,
        *,
        labels: Any = None,
        overwrite: bool = False,
        progress: bool | None = None,
    ) -> Self:
        """Index items and write the index into the run folder.

        Parameters
        ----------
        run : path
            The run folder.
        x : optional
            As for `Method.fit`; by default the data of the fit without a test split.
        labels : array-like, optional
            One per item; by default the labels stored with the items.
        overwrite : bool
            Replace an existing index.
        progress : bool, optional
            None shows it on a terminal only.

        Returns
        -------
        Collection
        """
        RunFolder(run).config()  # raises an error if this is not a run folder
        with RunFolder(run).written():
            if has_index(run) and not overwrite:
                raise ValueError(f"{run} has an index already; use overwrite to replace it, or add to it")
            collection = cls(run)
            collection._add(given_or_fitted(x, labels, collection.model, run), progress)
            collection.save()
        return collection

    @classmethod
    def open(cls, run: str | Path) -> Self:
        """Return the collection in a run folder; raise a ValueError if it is missing, damaged or of another model."""
        RunFolder(run).config()  # raises an error if this is not a run folder
        return RunFolder(run).read_unchanged(lambda: cls._open(run))

    @classmethod
    def _open(cls, run: str | Path) -> Self:
        if not has_index(run):
            require_codes(methods.load(run))
            raise ValueError(f"{run} has no index yet; make one: {index_command(run)}")
        collection = cls(run)
        collection._opened = written_at(collection.folder)
        read = read_index_files(collection.folder, collection.model.codebook, collection._weights)
        collection._index, collection._entries = read
        return collection

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def entries(self) -> pa.Table:
        """Id, path and label of every entry."""
        return self._entries

    @property
    def n_codes(self) -> int:
        """Number of stored codes, see `CodeIndex.n_codes`."""
        return self._index.n_codes

    @property
    def n_labelled(self) -> int:
        """Number of entries with a label."""
        return len(self) - int(self.entries["label"].null_count)

    def add(self, x: Any, *, labels: Any = None, skip_known: bool = False, progress: bool | None = None) -> int:
        """Add items; call `save` to write the result.

        Parameters
        ----------
        x, labels
            As for `build`. Items without ids are numbered on, so they are always new.
        skip_known : bool
            Skip items whose ids are in the collection already; their codes and labels stay as they are. By default
            such items raise a ValueError, and nothing is added.
        progress : bool, optional
            None shows it on a terminal only.

        Returns
        -------
        int
            The number of items that were skipped.
        """
        return self._add(read_given(x, labels), progress, skip_known)

    def remove(self, ids: Iterable[str]) -> None:
        """Remove the entries with these ids; call `save` to write the result.

        Parameters
        ----------
        ids : iterable of str
            Ids as in `entries`. If one is unknown, a ValueError is raised and nothing is removed.
        """
        require(not isinstance(ids, str), f"ids is the one string {ids!r}; give a list of ids")
        wanted = pa.array(list(ids), pa.large_string())
        is_unknown = pc.invert(pc.is_in(wanted, value_set=self.entries["id"]))
        unknown = wanted.filter(is_unknown).to_pylist()
        if unknown:
            raise ValueError(
                f"{len(unknown)} of {len(wanted)} ids are not in the index, such as {unknown[0]!r}; give ids as in the "
                f"column `id` of {self.folder / ENTRIES}"
            )
        is_kept = pc.invert(pc.is_in(self.entries["id"], value_set=wanted))
        index = CodeIndex(self.model.codebook)
        index.add(self._index.codes(np.flatnonzero(is_kept)))
        self._index, self._entries = index, self.entries.filter(is_kept)

    def search(self, queries: Any, k: int = 20, *, progress: bool | None = None) -> list[SearchResult]:
        """Return the nearest entries of each query, with the exact scores of the codebook (Eq. 9).

        Parameters
        ----------
        queries
            An image, or as for `Method.fit`.
        k : int
            Number of entries per query; all if there are fewer.
        progress : bool, optional
            None shows it on a terminal only.

        Returns
        -------
        list of SearchResult
            One per query that can be read.
        """
        data, asked = self._load(*listed(read_given(queries)), progress)
        rows, scores = self.nearest(self.model.embed(data, progress=progress), k)
        nearest = self.entries.take(rows.ravel()).to_pylist()
        missing = {
            path for path in {entry["path"] for entry in nearest} if path is not None and not Path(path).exists()
        }
        names = self._names()
        hits = iter(
            Hit(**entry, score=score, is_missing=entry["path"] in missing, name=names.get(entry["id"]))
            for entry, score in zip(nearest, scores.ravel().tolist(), strict=True)
        )
        return [SearchResult(Entry(**query), list(islice(hits, rows.shape[1]))) for query in asked.to_pylist()]

    def nearest(self, z: Array, k: int = 20, *, among: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the nearest entries of embeddings, as `search` does of items.

        Parameters
        ----------
        z : array of shape (Q, D)
            Embeddings of the model.
        k : int
            Number of entries per query; all if there are fewer.
        among : bool array of shape (N,), optional
            Search these entries only.

        Returns
        -------
        rows, scores : arrays of shape (Q, k)
            Rows of `entries`, the nearest first, and their scores.
        """
        found = self._index.search(z, k, among=among)
        return np.asarray(found.ids), np.asarray(found.scores)

    def to_index(self, *, numbered: bool = False) -> CodeIndex:
        """Return an index of its own with the codes of all entries, by their ids or numbered by their rows."""
        index = CodeIndex(self.model.codebook)
        index.add(self._index.codes(), None if numbered else self.entries["id"])
        return index

    def save(self) -> None:
        """Write index and entries into the run folder; the old files stay until the new ones are complete.

        Raises a ValueError if another process has changed the index since this collection was opened.
        """
        with RunFolder(self.folder).written():
            if digest_of_weights(self.folder) != self._weights:
                raise ValueError(f"{self.folder} was fitted again since this collection was opened; index again")
            if self._opened not in (None, written_at(self.folder)):
                raise ValueError(
                    f"the index in {self.folder} was changed since this collection was opened; open it and add again"
                )
            write_index_files(self.folder, self._index, self.entries, self._weights)
            self._opened = written_at(self.folder)

    def _add(self, given: Given, progress: bool | None, skip_known: bool = False) -> int:
        given, entries = listed(given, self._next_number())
        require_distinct(entries["id"].to_pylist())
        is_new = ~np.asarray(pc.is_in(entries["id"], value_set=self.entries["id"]))
        n_known = int((~is_new).sum())
        if n_known and not skip_known:
            raise ValueError(
                f"{n_known} of {len(entries)} items are in the index already, such as "
                f"{entries['id'][int(np.argmin(is_new))]}; add the others only, or index all of them again with "
                "overwrite"
            )
        self.broken = {}
        if n_known == len(entries):
            return n_known
        if n_known:
            given, entries = given.take(np.flatnonzero(is_new)), entries.filter(is_new)
        try:
            self._append(given, entries, progress)
        except ManyBroken:
            if n_known == 0:
                raise
            self._append_readable(given, entries, n_known, progress)  # they may be few among all that were given
        return n_known

    def _append(self, given: Given, entries: pa.Table, progress: bool | None) -> None:
        data, entries = self._load(given, entries, progress)
        self._index.add(self.model.encode(data, progress=progress))
        self._entries = pa.concat_tables([self.entries, entries])

    def _append_readable(self, given: Given, entries: pa.Table, n_known: int, progress: bool | None) -> None:
        """Append the images that can be read, unless the others are many even among all that were given."""
        assert given.images is not None, "only images can be broken"
        reasons = [given.images.reason(row) for row in range(len(entries))]
        broken = {row: reason for row, reason in enumerate(reasons) if reason is not None}
        refuse_many_broken(broken, given.images, n_known + len(entries))
        rows = np.delete(np.arange(len(entries)), list(broken))
        if len(rows):
            self._append(given.take(rows), entries.take(rows), progress)
        self.broken = {given.images.name(row): reason for row, reason in broken.items()}

    def _names(self) -> dict[str, str]:
        """Return the names that people gave to the classes of unlabelled entries, by id."""
        if not (self.folder / CLASSES).exists() or not (self.folder / TABLE).exists():
            return {}
        from combemb.collection.classes import NotApplied, classes_of  # noqa: PLC0415 - slow, and rarely needed

        with warnings.catch_warnings(action="ignore", category=NotApplied):
            classes = classes_of(self.folder)
        is_named = classes.is_said & ~classes.is_labelled
        return dict(zip(classes.ids[is_named].tolist(), classes.names[is_named].tolist(), strict=True))

    def _next_number(self) -> int:
        """Return the number of the next item without an id: entries may have been removed, so it is not their count."""
        ids = self.entries["id"]
        numbers = ids.filter(pc.match_substring_regex(ids, "^[0-9]{1,18}$")).cast(pa.int64())
        return max(len(self), 1 + (pc.max(numbers).as_py() if len(numbers) else -1))

    def _load(self, given: Given, entries: pa.Table, progress: bool | None) -> tuple[Loaded, pa.Table]:
        """Return the items that can be read, as the model embeds them, and their entries."""
        data = self.model.read(given, progress=progress)
        self.broken = data.broken
        return data, entries if data.rows is None else entries.take(data.rows)


def given_or_fitted(x: Any, labels: Any, model: Method, run: str | Path) -> Given:
    """Return x, or the data of the fit without a test split; raise UnknownData if nobody knows where these are."""
    if x is not None:
        return read_given(x, labels)
    if model.path_ is None:
        raise UnknownData(f"the data that {run} was fitted on were not read from a path; say where they are")
    if not Path(model.path_).exists():
        raise UnknownData(f"the data that {run} was fitted on are no longer at {model.path_}; say where they are now")
    return read_given(Path(model.path_), labels).training_part()
