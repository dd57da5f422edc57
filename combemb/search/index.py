"""CodeIndex: exact search of short codes."""

from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from combemb.search.codebook import Codebook, checked_codes, same_codebook
from combemb.search.ids import Ids
from combemb.search.index_file import read_index, write_index
from combemb.search.parts import Part, empty_scan
from combemb.system.arrays import Array
from combemb.system.errors import require
from combemb.system.machine import n_cores

QUERIES_AT_ONCE = 1_024
JOIN_BELOW = 4  # a part joins the one before it unless that is this many times as large


@dataclass(frozen=True, eq=False)
class Hits:
    """Entries that queries found, best first. Iteration yields a list of pairs (id, score) for each query.

    Attributes
    ----------
    ids, scores : array (Q, k), or list of Q arrays
        Arrays of `search`; lists of `range_search`, whose arrays differ in length.
    """

    ids: np.ndarray | list[np.ndarray]
    scores: np.ndarray | list[np.ndarray]

    def __len__(self) -> int:
        return len(self.scores)

    def __iter__(self) -> Iterator[list[tuple[Any, float]]]:
        for ids, scores in zip(self.ids, self.scores, strict=True):
            yield list(zip(ids.tolist(), scores.tolist(), strict=True))

    def to_list(self) -> list[list[tuple[Any, float]]]:
        """Return the pairs (id, score) of all queries."""
        return list(self)


class CodeIndex:
    """Exact search of codes by embeddings (Eq. 9).

    Ids and scores are those of scoring every entry by `codebook.scores`, equal scores in the order of adding. Distinct
    codes are scored once; those of a `ProductCodebook` are scanned by FAISS. In a forked process use `n_threads=1`:
    threads do not survive a fork.

    Parameters
    ----------
    codebook : Codebook
        Encodes embeddings and scores codes.
    n_threads : int, optional
        Threads that scan at a time; one per core by default.

    Examples
    --------
    >>> from combemb.search import binary_codebook
    >>> index = CodeIndex(binary_codebook(bits=3))
    >>> index.add(np.array([[0.3, -2.0, 1.0], [-1.0, -1.0, 1.0], [0.1, -0.1, 0.1]]), ids=["a", "b", "c"])
    >>> index.search(np.array([[1.0, -1.0, 1.0]]), k=2).to_list()
    [[('a', 3.0), ('c', 3.0)]]
    """

    def __init__(self, codebook: Codebook, n_threads: int | None = None):
        self.codebook = codebook
        self.n_threads = n_threads or n_cores()
        self._scan = empty_scan(codebook, self.n_threads)
        self._ids = Ids(np.empty(0, np.int64))
        self._parts: list[Part] = []  # one after the other, each much smaller than the one before it

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def n_codes(self) -> int:
        """The number of stored codes: the distinct ones of each part (`save` joins the parts)."""
        return sum(part.groups.n_groups for part in self._parts)

    def __repr__(self) -> str:
        return f"CodeIndex({len(self):,} entries, {self.n_codes:,} codes stored, {self.codebook!r})"

    @property
    def ids(self) -> np.ndarray:
        """The ids in the order of adding: int64, or objects for strings."""
        return self._ids[np.arange(len(self))]

    def codes(self, rows: np.ndarray | None = None) -> np.ndarray:
        """Return the codes (n, M) uint8 of entries by their places (n,) in the order of adding, or of all entries."""
        return self._scan.split(self._joined_codes(np.arange(len(self)) if rows is None else np.asarray(rows)))

    def add(self, x: Array, ids: Any = None) -> None:
        """Add entries. If anything is wrong, nothing is added.

        Parameters
        ----------
        x : (n, D) floating or (n, M) integer
            Embeddings, or codes.
        ids : sequence of int or of str, optional
            New ids, one per entry. By default entries are numbered from 0, or on from the largest id.
        """
        codes = checked_codes(x if _is_codes(x) else self.codebook.encode(_finite(x)), self.codebook.sizes)
        extended = self._ids.extended(ids, len(codes))
        parts = self._appended(self._scan.join(codes)) if len(codes) else self._parts
        self._parts, self._ids = parts, extended

    def search(self, queries: Array, k: int = 10, *, among: Any = None) -> Hits:
        """Return the k nearest entries of each query.

        Parameters
        ----------
        queries : embeddings (Q, D)
        k : int
            If there are fewer entries, all are returned.
        among : sequence of ids, or (N,) bool in the order of adding, optional
            Search these entries only.

        Returns
        -------
        Hits
        """
        if isinstance(k, bool) or not isinstance(k, Integral) or k < 1:
            raise ValueError(f"k={k!r}; give a whole number, 1 or more")
        prepared = self._scan.prepare(queries)
        rows, parts = self._among(among)
        n = len(self) if rows is None else len(rows)
        found = [_nearest(parts, some, min(k, n)) for some in _chunks(prepared)]
        entries, scores = found[0] if len(found) == 1 else map(np.concatenate, zip(*found, strict=True))
        return Hits(self._ids[entries if rows is None else rows[entries]], scores)

    def range_search(self, queries: Array, least: float, *, among: Any = None) -> Hits:
        """Return all entries whose score is at least `least`.

        Parameters
        ----------
        queries, among : as for `search`
        least : smallest score to return

        Returns
        -------
        Hits
        """
        require(not np.isnan(least), "the least score is NaN; give a number")
        prepared = self._scan.prepare(queries)
        rows, parts = self._among(among)
        ids, scores = [], []
        for some in _chunks(prepared):
            for found in zip(*_within(parts, some, least), strict=True):
                entries, score = (np.concatenate(column) for column in zip(*found, strict=True))
                order = np.lexsort((entries, -score))
                ids.append(self._ids[entries[order] if rows is None else rows[entries[order]]])
                scores.append(score[order])
        return Hits(ids, scores)

    def remove(self, ids: Any) -> None:
        """Remove the entries with these ids, in one pass over the index; raise a ValueError if an id is unknown."""
        is_kept = np.ones(len(self), bool)
        is_kept[self._known_rows(ids)] = False
        rows = np.flatnonzero(is_kept)
        parts = [Part.of(self._scan, self._joined_codes(rows))] if len(rows) else []
        self._parts, self._ids = parts, self._ids.take(rows)

    def merge(self, other: "CodeIndex") -> None:
        """Add all entries of another index of the same codebook, with their ids."""
        if not same_codebook(other.codebook, self.codebook):
            raise ValueError(f"the other index has another codebook: {other.codebook}, this one {self.codebook}")
        if len(other):
            self.add(torch.from_numpy(other.codes()), other._ids.values)

    def save(self, path: str | Path) -> None:
        """Write the index to a file, atomically: an old file stays until the new one is complete."""
        if len(self._parts) > 1:
            self._parts = [Part.of(self._scan, self._joined_codes(np.arange(len(self))))]
        path = Path(path).resolve()
        require(path.parent.is_dir(), f"there is no folder {path.parent}; make it first")
        write_index(path, self.codebook, self._parts[0] if self._parts else None, self._ids)

    @classmethod
    def load(cls, path: str | Path, codebook: Codebook | None = None, n_threads: int | None = None) -> Self:
        """Read a file of `save`, memory-mapped where possible.

        Parameters
        ----------
        path : str or Path
        codebook : Codebook, optional
            The codebook that the file must have been made with. Only a `ProductCodebook` is stored in the file itself.
        n_threads : as for `CodeIndex`

        Returns
        -------
        CodeIndex
        """
        found, part, loaded = read_index(Path(path), codebook, n_threads or n_cores())
        index = cls(found, n_threads)
        index._ids, index._parts = loaded, [part] if part is not None else []
        return index

    def _appended(self, codes: np.ndarray) -> list[Part]:
        """Return the parts and one of these joined codes, which joins those before it that are not much larger."""
        parts = list(self._parts)
        while parts and len(parts[-1]) < JOIN_BELOW * len(codes):
            last = parts.pop()
            codes = np.concatenate([last.codes(np.arange(len(last))), codes])
        return [*parts, Part.of(self._scan, codes)]

    def _joined_codes(self, rows: np.ndarray) -> np.ndarray:
        """Return the joined codes (n, M') of entries."""
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"rows span {rows.min()}..{rows.max()}, but there are {len(self)} entries")
        found = np.empty((len(rows), self._scan.n_columns), np.uint8)
        first = 0
        for part in self._parts:
            mine = (rows >= first) & (rows < first + len(part))
            found[mine] = part.codes(rows[mine] - first)
            first += len(part)
        return found

    def _among(self, among: Any) -> tuple[np.ndarray | None, list[Part]]:
        """Return the entries to search, None for all, and the parts that hold them."""
        if among is None:
            return None, self._parts
        mask = np.asarray(among)
        if mask.dtype == bool:
            if mask.shape != (len(self),):
                raise ValueError(f"the mask has shape {mask.shape}; give one bool per entry, ({len(self)},)")
            rows = np.flatnonzero(mask)
        else:
            rows = np.unique(self._known_rows(among))
        return rows, [Part.of(self._scan, self._joined_codes(rows))] if len(rows) else []

    def _known_rows(self, ids: Any) -> np.ndarray:
        rows = self._ids.rows(ids)
        if (rows < 0).any():
            unknown = list(ids)[int(np.argmax(rows < 0))]
            raise ValueError(f"{int((rows < 0).sum())} of {len(rows)} ids are not in the index, such as {unknown!r}")
        return rows


def _nearest(parts: list[Part], queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k best entries of all parts, numbered consecutively: entries and scores (Q, k)."""
    if len(parts) == 1:
        return parts[0].nearest(queries, k)
    found, first = [(np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0)))], 0
    for part in parts:
        entries, scores = part.nearest(queries, min(k, len(part)))
        found.append((entries + first, scores))
        first += len(part)
    entries, scores = (np.concatenate(columns, axis=1) for columns in zip(*found, strict=True))
    order = np.lexsort((entries, -scores), axis=1)[:, :k]
    return np.take_along_axis(entries, order, axis=1), np.take_along_axis(scores, order, axis=1)


def _within(parts: list[Part], queries: np.ndarray, least: float) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """Return the entries of each part with at least this score, numbered consecutively."""
    found, first = [[(np.empty(0, np.int64), np.empty(0))] * len(queries)], 0
    for part in parts:
        found.append([(entries + first, scores) for entries, scores in part.within(queries, least)])
        first += len(part)
    return found


def _chunks(queries: np.ndarray) -> list[np.ndarray]:
    if len(queries) <= QUERIES_AT_ONCE:
        return [queries]
    return np.array_split(queries, -(-len(queries) // QUERIES_AT_ONCE))


def _is_codes(x: Array) -> bool:
    """Integers of any type are codes; so is bool, which `checked_codes` refuses."""
    if isinstance(x, torch.Tensor):
        return not x.is_floating_point()
    return np.asarray(x).dtype.kind in "iub"


def _finite(x: Array) -> Array:
    """Return the embeddings, once they are known to hold neither NaN nor infinity."""
    vectors = x if isinstance(x, torch.Tensor) else torch.as_tensor(np.asarray(x))
    if vectors.is_floating_point() and not vectors.isfinite().all():
        row = int((~vectors.isfinite()).any(dim=-1).nonzero()[0, 0]) if vectors.ndim == 2 else 0
        raise ValueError(f"row {row} of x holds NaN or infinity; remove or fix such rows")
    return vectors
