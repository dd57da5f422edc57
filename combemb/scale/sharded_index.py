"""ShardedIndex: exact search of an index that is spread over the machines of a Ray cluster."""

import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from numbers import Integral
from threading import Lock
from typing import Any, Self

import numpy as np

from combemb.scale.holder import Found, Holder, entries_of, merged
from combemb.scale.indexing import Manifest, Shard, read_manifest
from combemb.scale.store import Store
from combemb.search.codebook import Codebook
from combemb.search.index import Hits
from combemb.system.arrays import Array, to_numpy
from combemb.system.cluster import connected
from combemb.system.errors import Note, require

SECONDS_BETWEEN_TRIES = 0.1
SECONDS_BETWEEN_RESTARTS = 5.0  # of an actor that could not load its shards
SENT_ONCE = 2**16  # bytes of queries from which they are stored for all actors, instead of sent to each


class MissingShards(Note):
    """Warns that some shards did not answer."""


@dataclass(frozen=True, eq=False)
class ShardedHits(Hits):
    """Hits of all shards, or of those that answered.

    Attributes
    ----------
    ids, scores : array (Q, k), or list of Q arrays
        As in `Hits`.
    numbers : as ids, int64
        Places of the entries in the order of adding.
    labels : as ids, or None
        Labels of the entries, None for each that has none; None if no entry has one.
    missing : tuple of str
        Names of the shards that did not answer. Empty: the hits are exact.
    n_missing : int
        Number of entries in these shards.
    """

    numbers: np.ndarray | list[np.ndarray]
    labels: np.ndarray | list[np.ndarray] | None = None
    missing: tuple[str, ...] = ()
    n_missing: int = 0


@dataclass(eq=False)
class _Actor:
    """An actor, what it holds, and when it was started."""

    shards: list[Shard]
    handle: Any = None
    since: float = field(default_factory=time.monotonic)


class ShardedIndex:
    """Searches the shards that `index_sharded` wrote: the ids and scores of one `CodeIndex` with all entries.

    Actors of Ray hold the shards, one actor per node by default. Each query goes to all of them. Ray restarts an actor
    that died, on another node if necessary, and it reads its shards again; until it has, hits name the missing shards.
    It has what reads in `CodeIndex`; to change an index, write another one.
    Use it in a `with` block, or call `close`.

    Parameters
    ----------
    url : str
        Folder of the index, a path or a URL that all nodes can read.
    codebook : Codebook, optional
        Needed if the shards do not store theirs, as those of a `LocalCodebook`.
    address : str, optional
        Of the cluster, see `combemb.system.cluster.connected`.
    n_actors : int, optional
        By default one per node, at most one per shard.
    n_threads : int, optional
        Threads of each actor; by default the cores of its share of a node.
    patience : float
        Seconds to wait for an actor that is being restarted, before an answer goes without it.
    timeout : float
        Seconds after which an actor that works counts as missing.
    """

    def __init__(
        self,
        url: str,
        codebook: Codebook | None = None,
        *,
        address: str | None = None,
        n_actors: int | None = None,
        n_threads: int | None = None,
        patience: float = 0.0,
        timeout: float = 60.0,
    ):
        require(n_actors is None or n_actors > 0, f"n_actors={n_actors}; give 1 or more")
        self.patience, self.timeout, self._starting = patience, timeout, Lock()
        self.store = Store(str(url))
        self.manifest: Manifest = read_manifest(self.store)
        require(len(self.manifest.shards) > 0, f"{url} has no entries")
        with ExitStack() as stack:
            self._ray = stack.enter_context(connected(address))
            nodes = [node["Resources"].get("CPU", 1) for node in self._ray.nodes() if node["Alive"]]
            n = min(n_actors or len(nodes), len(self.manifest.shards))
            n_threads = n_threads or max(1, int(min(nodes) * len(nodes) // max(n, len(nodes))))
            self._given = codebook, n_threads
            parts = np.array_split(np.arange(len(self.manifest.shards)), n)  # neighbours, so that ties are cheap
            self._actors = [_Actor([self.manifest.shards[i] for i in part]) for part in parts]
            stack.callback(self._stop)
            for actor in self._actors:
                self._start(actor)
            self.codebook: Codebook = self._ask_all(lambda handle: handle.codebook.remote())[0]
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the actors, and the connection to Ray if this made it."""
        self._stack.close()

    def __len__(self) -> int:
        return self.manifest.n_entries

    def __repr__(self) -> str:
        return f"ShardedIndex({len(self):,} entries, {len(self.manifest.shards)} shards, {len(self._actors)} actors)"

    @property
    def n_codes(self) -> int:
        """The number of stored codes: the distinct ones of each shard."""
        return sum(self._ask_all(lambda handle: handle.n_codes.remote()))

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the shards that would be missing in an answer now."""
        _, lost = self._asked(lambda handle: handle.n_codes.remote(), patience=0.0)
        return _names(lost)

    @property
    def ids(self) -> np.ndarray:
        """The ids in the order of adding: int64, or objects for strings; read from the store, not from the actors."""
        tables = [None if shard.entries is None else entries_of(self.store, shard) for shard in self.manifest.shards]
        if not any(table is not None and "id" in table.column_names for table in tables):
            return np.arange(len(self))
        names = [
            np.arange(shard.first, shard.first + shard.n_entries) if table is None else table["id"].to_numpy()
            for shard, table in zip(self.manifest.shards, tables, strict=True)
        ]
        return np.concatenate([own.astype(object) for own in names])

    def codes(self, rows: np.ndarray | None = None) -> np.ndarray:
        """Return the codes (n, M) uint8 of entries by their places (n,) in the order of adding, or of all entries.

        Raises
        ------
        ValueError
            If shards are missing that hold some of them.
        """
        rows = np.arange(len(self)) if rows is None else np.asarray(rows, dtype=np.int64)
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"rows span {rows.min()}..{rows.max()}, but there are {len(self)} entries")
        sent = self._sent(rows)
        answers, lost = self._asked(lambda handle: handle.codes.remote(sent))
        lost = [shard for shard in lost if shard.holds(rows).any()]
        require(not lost, f"{', '.join(_names(lost))} did not answer; ask again when they are loaded")
        found = np.empty((len(rows), len(self.codebook.sizes)), np.uint8)
        for places, codes in answers:
            found[places] = codes
        return found

    def search(self, queries: Array, k: int = 10, *, among: Any = None) -> ShardedHits:
        """Return the k nearest entries of each query, as `CodeIndex.search` does.

        Parameters
        ----------
        queries : embeddings (Q, D)
        k : int
            If there are fewer entries, all are returned.
        among : sequence of ids, or (N,) bool in the order of adding, optional
            Search these entries only.

        Returns
        -------
        ShardedHits
            If shards are missing, it names them, and there is a warning `MissingShards`.
        """
        if isinstance(k, bool) or not isinstance(k, Integral) or k < 1:
            raise ValueError(f"k={k!r}; give a whole number, 1 or more")
        sent, some = self._sent(to_numpy(queries)), self._sent(self._checked(among))
        found, lost = self._asked(lambda handle: handle.search.remote(sent, int(k), some))
        n = len(to_numpy(queries))
        best = merged(found, int(k)) if found else Found(np.empty((n, 0), np.int64), np.empty((n, 0)))
        ids = best.numbers if best.ids is None else best.ids
        return ShardedHits(ids, best.scores, best.numbers, best.labels, *self._told(lost))

    def range_search(self, queries: Array, least: float, *, among: Any = None) -> ShardedHits:
        """Return all entries whose score is at least `least`, as `CodeIndex.range_search` does.

        Parameters
        ----------
        queries, among : as for `search`
        least : smallest score to return

        Returns
        -------
        ShardedHits
            If shards are missing, it names them, and there is a warning `MissingShards`.
        """
        sent, some = self._sent(to_numpy(queries)), self._sent(self._checked(among))
        found, lost = self._asked(lambda handle: handle.range_search.remote(sent, float(least), some))
        none = [[Found(np.empty(0, np.int64), np.empty(0))]] * len(to_numpy(queries))
        best = [merged(list(of_query)) for of_query in (zip(*found, strict=True) if found else none)]
        ids = [one.numbers if one.ids is None else one.ids for one in best]
        has_labels = any(one.labels is not None for one in best)
        labels = [np.full(one.numbers.shape, None) if one.labels is None else one.labels for one in best]
        scores, numbers = [one.scores for one in best], [one.numbers for one in best]
        return ShardedHits(ids, scores, numbers, labels if has_labels else None, *self._told(lost))

    def _start(self, actor: _Actor) -> None:
        """Start an actor on the node with the fewest; it takes memory of a node, not its cores."""
        remote = self._ray.remote(Holder).options(num_cpus=0, max_restarts=-1, scheduling_strategy="SPREAD")
        actor.handle, actor.since = remote.remote(self.store, actor.shards, *self._given), time.monotonic()

    def _stop(self) -> None:
        for actor in self._actors:
            if actor.handle is not None:
                self._ray.kill(actor.handle)

    def _ask_all(self, ask: Callable[[Any], Any]) -> list[Any]:
        """Return the answers of all actors, once all have read their shards; raise the first error of one of them."""
        try:
            return list(self._ray.get([ask(actor.handle) for actor in self._actors]))
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause or error from error
        except self._ray.exceptions.ActorDiedError as error:
            reason = str(error).strip().splitlines()[-1].strip()  # the error of the actor, without its traceback
            raise ValueError(f"cannot load the shards of {self.store.url}: {reason}") from error

    def _asked(self, ask: Callable[[Any], Any], patience: float | None = None) -> tuple[list[Any], list[Shard]]:
        """Return the answers of the actors that answer, and the shards of the others."""
        patience = self.patience if patience is None else patience
        began, waiting, answers = time.monotonic(), list(range(len(self._actors))), {}
        while True:
            references = {number: ask(self._actors[number].handle) for number in waiting}
            self._ray.wait(list(references.values()), num_returns=len(references), timeout=self.timeout)
            for number, reference in references.items():
                try:
                    answers[number] = self._ray.get(reference, timeout=0)
                    waiting.remove(number)
                except self._ray.exceptions.RayTaskError as error:
                    raise error.cause or error from error
                except self._ray.exceptions.ActorDiedError:
                    self._start_again(self._actors[number])
                except (self._ray.exceptions.RayError, TimeoutError):
                    pass  # it is being restarted, or too slow
            if not waiting or time.monotonic() - began >= patience:
                break
            time.sleep(SECONDS_BETWEEN_TRIES)
        lost = [shard for number in waiting for shard in self._actors[number].shards]
        return [answers[number] for number in sorted(answers)], lost

    def _start_again(self, actor: _Actor) -> None:
        """Start an actor that Ray has given up, because it could not load its shards."""
        with self._starting:
            if time.monotonic() - actor.since > SECONDS_BETWEEN_RESTARTS:
                self._start(actor)

    def _told(self, lost: list[Shard]) -> tuple[tuple[str, ...], int]:
        """Warn of missing shards; return their names and the number of their entries."""
        n = sum(shard.n_entries for shard in lost)
        if lost:
            warnings.warn(
                f"{len(lost)} of {len(self.manifest.shards)} shards did not answer, with {n:,} of {len(self):,} "
                f"entries: {', '.join(_names(lost)[:3])}; their actors are being restarted, search again later",
                MissingShards,
                stacklevel=3,
            )
        return _names(lost), n

    def _sent(self, value: Any) -> Any:
        """Return what to pass to the actors; something large is stored once, not sent to each."""
        is_large = isinstance(value, np.ndarray) and value.nbytes > SENT_ONCE and len(self._actors) > 1
        return self._ray.put(value) if is_large else value

    def _checked(self, among: Any) -> Any:
        """Return `among` once it is known to fit, as far as all shards can be asked."""
        if among is None:
            return None
        mask = np.asarray(among)
        if mask.dtype == bool:
            if mask.shape != (len(self),):
                raise ValueError(f"the mask has shape {mask.shape}; give one bool per entry, ({len(self)},)")
            return mask
        wanted = mask.tolist()
        counts, lost = self._asked(lambda handle: handle.n_known.remote(wanted))
        n_unknown = len(set(wanted)) - sum(counts)
        require(bool(lost) or n_unknown == 0, f"{n_unknown} of {len(set(wanted))} ids are not in the index")
        return wanted


def _names(shards: list[Shard]) -> tuple[str, ...]:
    return tuple(shard.index.name for shard in shards)
