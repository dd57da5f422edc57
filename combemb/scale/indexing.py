"""Index in shards: blocks of codes are joined to index files of a size that suits a search, listed in a manifest."""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from combemb.scale.blocks import Receipt, read_block
from combemb.scale.encoding import Encoded, codes_of, encode_sharded
from combemb.scale.engines import Engine, results, session
from combemb.scale.models import ModelFiles
from combemb.scale.plan import Kind
from combemb.scale.store import Store, Written
from combemb.search.codebook import Codebook
from combemb.search.index import CodeIndex
from combemb.system.errors import require
from combemb.system.progress import Display

MANIFEST = "index.json"
SHARDS = "shards"
FORMAT = 1
SHARD_ITEMS = 5_000_000  # about 100 MB at 48 bits, and 2 GB of memory while it is made


@dataclass(frozen=True)
class Shard:
    """A part of an index: entries `first` to `first + n_entries` by their numbers.

    The index file has them by these numbers; `entries` is an Arrow file with their ids, unless they are numbered, and
    their labels, if there are any.
    """

    number: int
    first: int
    n_entries: int
    index: Written
    entries: Written | None

    def holds(self, numbers: np.ndarray) -> np.ndarray:
        """Return which entries are in this shard, bool (n,), by their numbers (n,)."""
        return (numbers >= self.first) & (numbers < self.first + self.n_entries)


@dataclass(frozen=True)
class Manifest:
    """What a sharded index consists of.

    Attributes
    ----------
    model : str
        Digest of the weights of the model.
    kind : {"images", "embeddings"}
        What was encoded.
    bits : int
        Length of a code.
    broken : dict
        Images that cannot be read, with the reasons.
    shards : tuple of Shard
        In the order of their entries.
    """

    model: str
    kind: Kind
    bits: int
    broken: dict[str, str]
    shards: tuple[Shard, ...]

    @property
    def n_entries(self) -> int:
        """Number of entries of all shards."""
        return sum(shard.n_entries for shard in self.shards)


@dataclass(frozen=True)
class Join:
    """Makes the shard of a number out of its blocks; what is sent to a worker."""

    codebook: Codebook
    store: Store
    parts: Sequence[tuple[int, Sequence[Receipt]]]  # the first entry of each shard, and its blocks

    def __call__(self, number: int) -> Shard:
        """Read the blocks and write the shard, its receipt last."""
        first, receipts = self.parts[number]
        index = CodeIndex(self.codebook, n_threads=1)
        tables = [read_block(self.store, receipt) for receipt in receipts]
        codes = np.concatenate([codes_of(table) for table in tables])
        index.add(torch.from_numpy(codes), np.arange(first, first + len(codes)))
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "index"
            index.save(file)
            written = self.store.upload(f"{SHARDS}/{number:05}.safetensors", file)
            entries = _entries(tables)
            if entries is not None:
                with pa.ipc.new_file(str(file), entries.schema) as writer:  # uncompressed, to be memory-mapped
                    writer.write_table(entries.combine_chunks())
            kept = None if entries is None else self.store.upload(f"{SHARDS}/{number:05}.arrow", file)
        shard = Shard(number, first, len(codes), written, kept)
        self.store.write_json(f"{SHARDS}/{number:05}.json", asdict(shard))
        return shard


def index_sharded(
    run: str | Path,
    source: str,
    out: str,
    *,
    engine: Engine = "local",
    address: str | None = None,
    block_items: int | None = None,
    shard_items: int = SHARD_ITEMS,
    overwrite: bool = False,
    training_part: bool = False,
    progress: bool | None = None,
) -> Manifest:
    """Encode items and make them searchable by `ShardedIndex`.

    The same call continues a run that lost workers or was stopped, also one of `encode_sharded`. The files do not
    depend on the engine.

    Parameters
    ----------
    run, source, out, engine, address, block_items, overwrite, training_part, progress
        As for `encode_sharded`.
    shard_items : int
        About how many items a shard has at most. It has whole blocks, and all shards have about equally many items,
        so that none of the nodes that search them waits for another.

    Returns
    -------
    Manifest
        Also written as `index.json`, once all shards are there.
    """
    require(shard_items > 0, f"shard_items={shard_items}; give 1 or more")
    more: dict[str, Any] = {"block_items": block_items, "overwrite": overwrite, "training_part": training_part}
    with session(engine, address):
        found = encode_sharded(run, source, out, engine=engine, progress=progress, **more)
        codebook = ModelFiles.of(run).load().codebook
        return join_blocks(found, codebook, shard_items, engine=engine, progress=progress)


def join_blocks(
    found: Encoded, codebook: Codebook, shard_items: int, *, engine: Engine = "local", progress: bool | None = None
) -> Manifest:
    """Join blocks of codes to the shards of an index, and write its manifest; shards that are there are kept."""
    store, join = found.store, Join(codebook, found.store, _parts(found, shard_items))
    done = _finished(join)
    todo = [number for number in range(len(join.parts)) if number not in done]
    with Display("indexing", len(join.parts), "shards", progress, done=len(done)) as display:
        for shard in results(join, todo, engine):
            done[shard.number] = shard
            display.advance(1)
    shards = tuple(done[number] for number in range(len(join.parts)))
    manifest = Manifest(found.plan.model, found.plan.kind, codebook.bits, found.broken, shards)
    store.write_json(MANIFEST, {"format": FORMAT, **asdict(manifest)})
    return manifest


def read_manifest(store: Store) -> Manifest:
    """Return the manifest of a sharded index; raise a ValueError if there is none or it is damaged."""
    found = store.read_json(MANIFEST)
    if found is None:
        raise ValueError(f"{store.url} has no {MANIFEST}; make the index with `combemb index RUN --engine ray`")
    version = found.pop("format")
    if version != FORMAT:
        raise ValueError(f"{store.url} has an index of format {version}, this combemb reads {FORMAT}; index again")
    return Manifest(**{**found, "shards": tuple(_shard(about) for about in found["shards"])})


def _parts(found: Encoded, shard_items: int) -> list[tuple[int, list[Receipt]]]:
    """Return the first entry and the blocks of each shard, as even as whole blocks allow.

    A block belongs where its middle is. Planned sizes decide, so that broken images do not.
    """
    parts: list[tuple[int, list[Receipt]]] = []
    n_planned, last, first = found.plan.n_items, -1, 0
    n_shards = -(-n_planned // shard_items)
    for receipt in found.receipts:
        block = found.plan.block(receipt.number)
        number = (2 * block.first + block.n_rows) * n_shards // (2 * n_planned)
        if number > last:
            parts.append((first, []))
        parts[-1][1].append(receipt)
        first, last = first + receipt.n_items, number
    return parts


def _entries(tables: list[pa.Table]) -> pa.Table | None:
    """Return ids and labels of the entries of blocks; None if they are numbered and none is labelled."""
    has_names = any(pa.types.is_large_string(table["id"].type) for table in tables)
    labelled = (table["label"] for table in tables if "label" in table.column_names)
    has_labels = any(label.null_count < len(label) for label in labelled)
    if not has_names and not has_labels:
        return None
    text, columns = pa.large_string(), {}
    if has_names:
        columns["id"] = pa.chunked_array([chunk for table in tables for chunk in table["id"].cast(text).chunks], text)
    if has_labels:
        labels = [table["label"] if "label" in table.column_names else _nothing(table) for table in tables]
        columns["label"] = pa.chunked_array([chunk for label in labels for chunk in label.chunks], text)
    return pa.table(columns)


def _nothing(table: pa.Table) -> pa.ChunkedArray:
    return pa.chunked_array([pa.nulls(len(table), pa.large_string())])


def _finished(join: Join) -> dict[int, Shard]:
    """Return the shards that are there and made of the same entries."""
    sizes = join.store.sizes(SHARDS)
    found = {}
    for about in join.store.read_all_json(SHARDS).values():
        shard = _shard(about)
        files = [file for file in (shard.index, shard.entries) if file is not None]
        is_there = all(sizes.get(file.name.rpartition("/")[2]) == file.n_bytes for file in files)
        if is_there and shard.number < len(join.parts):
            first, receipts = join.parts[shard.number]
            if (shard.first, shard.n_entries) == (first, sum(receipt.n_items for receipt in receipts)):
                found[shard.number] = shard
    return found


def _shard(about: dict[str, Any]) -> Shard:
    entries = about["entries"]
    files = {"index": Written(**about["index"]), "entries": entries and Written(**entries)}
    return Shard(**{**about, **files})
