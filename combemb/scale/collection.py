"""ShardedCollection: a run and its sharded index, searched by images or embeddings as a `Collection` is."""

from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, Self

import numpy as np
import pyarrow as pa

from combemb import methods
from combemb.collection.indexed import Hit, SearchResult
from combemb.data.entries import ENTRY_SCHEMA, Entry, listed
from combemb.data.given import read_given
from combemb.learning.codes import CodeMethod, require_codes
from combemb.scale.holder import entries_of
from combemb.scale.models import ModelFiles
from combemb.scale.sharded_index import ShardedIndex
from combemb.system.arrays import Array
from combemb.system.errors import require


@dataclass(frozen=True)
class Answer:
    """What a search found.

    Attributes
    ----------
    results : list of SearchResult
        One per query that can be read.
    broken : dict
        Images that cannot be read, with the reasons.
    missing : tuple of str
        Names of the shards that did not answer; empty: the results are exact.
    n_missing : int
        Number of entries in these shards.
    """

    results: list[SearchResult]
    broken: dict[str, str]
    missing: tuple[str, ...]
    n_missing: int


class ShardedCollection:
    """The entries of a sharded index with the model of its run; use it in a `with` block, or call `close`.

    `broken` names the images that the last search could not read, `missing` the shards that did not answer it.

    Parameters
    ----------
    run : path
        The run folder, for the model that embeds queries.
    url : str
        Folder of the sharded index.
    **options
        As for `ShardedIndex`.
    """

    def __init__(self, run: str | Path, url: str, **options: Any):
        self.model: CodeMethod = require_codes(methods.load(run))
        self.index = ShardedIndex(url, self.model.codebook, **options)
        self._embedding = Lock()
        self.broken: dict[str, str] = {}
        self.missing: tuple[str, ...] = ()
        try:
            is_same = self.index.manifest.model == ModelFiles.of(run).digest
            require(is_same, f"{url} was made with another model than that of {run}; index again with --overwrite")
        except ValueError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the actors, see `ShardedIndex.close`."""
        self.index.close()

    def __len__(self) -> int:
        return len(self.index)

    @property
    def shards(self) -> tuple[str, ...]:
        """Names of all shards."""
        return tuple(shard.index.name for shard in self.index.manifest.shards)

    @property
    def missing_now(self) -> tuple[str, ...]:
        """Names of the shards that would be missing in an answer now; see `ShardedIndex.missing`."""
        return self.index.missing

    @cached_property
    def entries(self) -> pa.Table:
        """Id, path and label of every entry, read when first used; a search does not need it."""
        tables, is_image = [], self.index.manifest.kind == "images"
        for shard in self.index.manifest.shards:
            table = None if shard.entries is None else entries_of(self.index.store, shard)
            columns = {} if table is None else {name: table[name].combine_chunks() for name in table.column_names}
            numbers = pa.array(range(shard.first, shard.first + shard.n_entries))
            names = columns.get("id", numbers.cast(pa.large_string()))
            nothing = pa.nulls(shard.n_entries, pa.large_string())
            rows = [names, names if is_image else nothing, columns.get("label", nothing)]
            tables.append(pa.table(rows, schema=ENTRY_SCHEMA))
        return pa.concat_tables(tables)

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
            Rows of `entries`, the nearest first, and their scores; `missing` has the shards that did not answer.
        """
        found = self.index.search(z, k, among=among)
        self.missing = found.missing
        return np.asarray(found.numbers), np.asarray(found.scores)

    def search(self, queries: Any, k: int = 20, *, progress: bool | None = None) -> list[SearchResult]:
        """Return the nearest entries of each query, as `Collection.search` does.

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
        found = self.answer(queries, k, progress=progress)
        self.broken, self.missing = found.broken, found.missing
        return found.results

    def answer(self, queries: Any, k: int = 20, *, progress: bool | None = False) -> Answer:
        """Search as `search` does, and return all that is known about it; several threads may call this at a time.

        Parameters
        ----------
        queries, k, progress
            As for `search`.

        Returns
        -------
        Answer
        """
        given, asked = listed(read_given(queries))
        with self._embedding:
            data = self.model.read(given, progress=progress)
            z = self.model.embed(data, progress=progress)
        asked = asked if data.rows is None else asked.take(data.rows)
        found = self.index.search(z, k)
        ids, scores = np.asarray(found.ids), np.asarray(found.scores)
        labels = np.full(ids.shape, None) if found.labels is None else np.asarray(found.labels)
        columns = (values.ravel().tolist() for values in (ids, labels, scores))
        hits = iter(self._hit(*hit) for hit in zip(*columns, strict=True))
        results = [SearchResult(Entry(**query), list(islice(hits, ids.shape[1]))) for query in asked.to_pylist()]
        return Answer(results, data.broken, found.missing, found.n_missing)

    def _hit(self, name: object, label: str | None, score: float) -> Hit:
        path = str(name) if self.index.manifest.kind == "images" else None
        is_missing = path is not None and "://" not in path and not Path(path).exists()
        return Hit(id=str(name), path=path, label=label, score=score, is_missing=is_missing)
