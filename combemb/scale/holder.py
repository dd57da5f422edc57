"""What an actor does: hold shards as memory maps, and answer for them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from combemb.scale.indexing import Shard
from combemb.scale.store import Store, crc_of
from combemb.search.codebook import Codebook
from combemb.search.ids import read_ids
from combemb.search.index import CodeIndex
from combemb.system.errors import require


@dataclass(frozen=True, eq=False)
class Found:
    """What one query, or all queries, found in some shards, best first.

    numbers, scores : arrays (Q, k) or (n,) of the entries. ids, labels : the same as objects; None if the entries are
    numbered, or have no labels.
    """

    numbers: np.ndarray
    scores: np.ndarray
    ids: np.ndarray | None = None
    labels: np.ndarray | None = None


class HeldShard:
    """A shard in memory."""

    def __init__(self, store: Store, shard: Shard, codebook: Codebook | None, n_threads: int | None):
        self.shard = shard
        self.index = CodeIndex.load(store.local(shard.index), codebook, n_threads)  # verifies its own checksums
        has_all = len(self.index) == shard.n_entries
        require(has_all, f"{shard.index.name} has {len(self.index)} entries, not {shard.n_entries}; index again")
        self.entries = None if shard.entries is None else entries_of(store, shard)

    def known(self, among: Any) -> np.ndarray:
        """Return the numbers of the entries that are among these ids, or in this mask over all shards."""
        first, n = self.shard.first, self.shard.n_entries
        if isinstance(among, np.ndarray) and among.dtype == bool:
            return first + np.flatnonzero(among[first : first + n])
        wanted = read_ids(among)
        if self.entries is None or "id" not in self.entries.column_names:
            numbers = wanted if isinstance(wanted, np.ndarray) else np.empty(0, np.int64)
            return np.unique(numbers[(numbers >= first) & (numbers < first + n)])
        names = wanted if not isinstance(wanted, np.ndarray) else pa.array(map(str, wanted.tolist()), pa.large_string())
        rows = pc.fill_null(pc.index_in(names, value_set=self.entries["id"].combine_chunks()), -1)
        rows = np.asarray(rows, dtype=np.int64)
        return first + np.unique(rows[rows >= 0])

    def named(self, numbers: np.ndarray, scores: np.ndarray) -> Found:
        """Return entries with their ids and labels."""
        if self.entries is None:
            return Found(numbers, scores)
        rows = self.entries.take(pa.array(numbers.ravel() - self.shard.first))
        columns = {}
        for name in rows.column_names:
            column = np.array([*rows[name].to_pylist(), None], dtype=object)[:-1]
            columns[f"{name}s"] = column.reshape(numbers.shape)
        return Found(numbers, scores, **columns)


def entries_of(store: Store, shard: Shard) -> pa.Table:
    """Return the ids and labels of a shard, memory-mapped; raise a ValueError if the file is damaged."""
    assert shard.entries is not None, "its entries are numbered and unlabelled"
    file = store.local(shard.entries)
    require(crc_of(file) == shard.entries.crc32, f"{file} is damaged: its checksum is wrong; index again")
    return pa.ipc.open_file(pa.memory_map(str(file))).read_all()


class Holder:
    """Holds some shards of an index.

    Parameters
    ----------
    store, shards
        Where they are, and which.
    codebook : Codebook, optional
        Needed if it is not stored in the shards.
    n_threads : int, optional
        Threads that scan at a time.
    """

    def __init__(self, store: Store, shards: list[Shard], codebook: Codebook | None, n_threads: int | None):
        self.held = [HeldShard(store, shard, codebook, n_threads) for shard in shards]

    def codebook(self) -> Codebook:
        """Return the codebook of the shards."""
        return self.held[0].index.codebook

    def n_codes(self) -> int:
        """Return the number of stored codes."""
        return sum(held.index.n_codes for held in self.held)

    def codes(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which of these entries are in the shards (n,), as positions in `numbers`, and their codes (n, M)."""
        places = [np.flatnonzero(held.shard.holds(numbers)) for held in self.held]
        pairs = zip(self.held, places, strict=True)
        found = [held.index.codes(numbers[own] - held.shard.first) for held, own in pairs]
        return np.concatenate(places), np.concatenate(found)

    def n_known(self, among: Any) -> int:
        """Return how many entries are among these ids."""
        return sum(len(held.known(among)) for held in self.held)

    def search(self, queries: np.ndarray, k: int, among: Any = None) -> Found:
        """Return the best k entries of the shards for each query, see `CodeIndex.search`."""
        found = []
        for held in self.held:
            some = None if among is None else held.known(among)
            hits = held.index.search(queries, k, among=some)
            found.append(held.named(np.asarray(hits.ids), np.asarray(hits.scores)))
        return merged(found, k)

    def range_search(self, queries: np.ndarray, least: float, among: Any = None) -> list[Found]:
        """Return the entries with at least this score for each query, see `CodeIndex.range_search`."""
        found = []
        for held in self.held:
            some = None if among is None else held.known(among)
            hits = held.index.range_search(queries, least, among=some)
            found.append([held.named(*pair) for pair in zip(hits.ids, hits.scores, strict=True)])
        return [merged(list(of_query)) for of_query in zip(*found, strict=True)]


def merged(found: list[Found], k: int | None = None) -> Found:
    """Return the best k of what was found in several shards, all for None: by score, then by number, as `CodeIndex`.

    Each shard's best k hold all of its entries that can be among the best k of all, so nothing is lost.
    """
    numbers, scores = (np.concatenate([getattr(x, name) for x in found], axis=-1) for name in ("numbers", "scores"))
    order = np.lexsort((numbers, -scores), axis=-1)[..., :k]

    def column(name: str) -> np.ndarray | None:
        parts = [getattr(x, name) for x in found]
        if all(part is None for part in parts):
            return None
        own = [x.numbers.astype(object) if name == "ids" else np.full(x.numbers.shape, None) for x in found]
        filled = [mine if part is None else part for part, mine in zip(parts, own, strict=True)]
        return np.take_along_axis(np.concatenate(filled, axis=-1), order, axis=-1)

    numbers, scores = (np.take_along_axis(values, order, axis=-1) for values in (numbers, scores))
    return Found(numbers, scores, column("ids"), column("labels"))
