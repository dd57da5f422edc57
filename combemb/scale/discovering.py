"""Discovery of more items than memory holds: classes are found in a sample, then every item is put into one."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from combemb.data.given import MAX_DISCOVERY_FEATURES
from combemb.data.labels import Labels, read_labels
from combemb.discovery.class_number import counted_rows
from combemb.discovery.discovering import discover
from combemb.discovery.result import Discovery
from combemb.scale.blocks import Receipt, finish, keep_block, read_block
from combemb.scale.encoding import planned
from combemb.scale.engines import Engine, one_thread, session
from combemb.scale.items import read_items
from combemb.scale.models import ModelFiles
from combemb.scale.plan import Plan
from combemb.scale.sources import stored_labels
from combemb.scale.store import Store
from combemb.system.errors import require
from combemb.system.progress import Display

ASSIGNMENTS = "classes"  # folder of the blocks
FOUND, ASKED = "discovery.safetensors", "discovery.json"
SAMPLE_ITEMS = 200_000  # 230 MB at 288 features; `discover` learns from 20,000 of them and describes all


@dataclass(frozen=True, eq=False)
class DiscoveredShards:
    """Classes that were found in a sample, and where the class of every item is stored.

    Attributes
    ----------
    sample : Discovery
        The clusters of the sample; its `predict` places new items.
    rows : int64 array
        Numbers of the items of the sample.
    store, receipts
        Blocks with the columns id, class and confidence.
    """

    sample: Discovery
    rows: np.ndarray
    store: Store
    receipts: list[Receipt]

    def block(self, number: int) -> pa.Table:
        """Return id, class and confidence of the items of a block."""
        return read_block(self.store, self.receipts[number])

    def sizes(self) -> dict[str, int]:
        """Return the number of items of each class, "neither" included if it has any."""
        found: dict[str, int] = {}
        for receipt in self.receipts:
            for count in pc.value_counts(read_block(self.store, receipt)["class"].cast(pa.string())).to_pylist():
                found[count["values"]] = found.get(count["values"], 0) + count["counts"]
        return found


@dataclass(frozen=True, eq=False)
class Place:
    """Puts the items of a block into classes; what is sent to a worker.

    labelled, names: numbers of the labelled items, ascending, and their classes, which they keep.
    """

    found: Discovery
    model: ModelFiles | None
    plan: Plan
    store: Store
    labelled: np.ndarray
    names: np.ndarray

    def __call__(self, number: int) -> Receipt:
        """Read the block, find the class of each item and write them."""
        block = self.plan.block(number)
        items = read_items(block, self.plan.kind, self.store)
        classes, confidence = self.found.placed(*_points(items.x, self.model))
        first, end = np.searchsorted(self.labelled, [block.first, block.first + block.n_rows])
        rows = self.labelled[first:end] - block.first
        classes[rows], confidence[rows] = self.names[first:end], 1
        numbers = np.arange(block.first, block.first + block.n_rows)
        ids = pa.array(numbers) if items.ids is None else pa.array(items.ids, pa.large_string())
        texts = pa.array(map(str, classes.tolist()), pa.string()).dictionary_encode()
        return keep_block(
            self.store, ASSIGNMENTS, number, pa.table({"id": ids, "class": texts, "confidence": confidence})
        )


def discover_sharded(
    source: str,
    out: str,
    labels: Any = None,
    n_novel: int | None = None,
    *,
    run: str | Path | None = None,
    sample_items: int = SAMPLE_ITEMS,
    seed: int = 0,
    engine: Engine = "local",
    address: str | None = None,
    block_items: int | None = None,
    overwrite: bool = False,
    progress: bool | None = None,
) -> DiscoveredShards:
    """Find the classes of more items than memory holds.

    A sample is drawn at random: `sample_items` of all items, and five labelled ones of each class where there are as
    many. `discover` finds in it which items are novel and how many novel classes they form. Then each item is put into
    one of these classes, or into none, by `Discovery.placed`, a block at a time. Labelled items keep their class. A
    class that has hardly any item in the sample cannot be found; its items go to the nearest class or to "neither".

    Parameters
    ----------
    source : str
        Embeddings or features: `.npy`, a Parquet file with `embedding`, a folder of them or a pattern; a path or a URL.
    out : str
        Folder to write; the same call continues a run that was stopped.
    labels : sequence of length N or Labels, optional
        As for `discover`; by default the labels in the Parquet files.
    n_novel : int, optional
        Number of novel classes. By default it is estimated.
    run : path, optional
        A run folder: the source has features, which its model embeds, as in `Method.discover`.
    sample_items : int
        Number of items in the sample.
    seed : int
        Seed of everything random.
    engine, address, block_items, overwrite, progress
        As for `encode_sharded`.

    Returns
    -------
    DiscoveredShards
    """
    with session(engine, address):
        model, store = None if run is None else ModelFiles.of(run), Store(str(out))
        digest = "" if model is None else model.digest
        plan = planned(store, source, digest, block_items, overwrite=overwrite)
        require(plan.kind == "embeddings", f"{source} has images; extract features first, with `combemb embed`")
        read = labels if isinstance(labels, Labels) else read_labels(_labels_or_stored(labels, plan), plan.n_items)
        require(not read.is_multi, "discovery takes one label per item; of several, give the one that matters")
        _require_same(store, {"labels": read.digest, "n_novel": n_novel, "sample_items": sample_items, "seed": seed})
        rows = counted_rows(read.values, seed, sample_items)
        with one_thread():
            z, features = _points(_sample(plan, store, rows, progress), model)
        found = discover(z, read.take(rows), n_novel, features=features, seed=seed, progress=progress)
        with tempfile.TemporaryDirectory() as folder:
            found.save(Path(folder) / FOUND)
            store.upload(FOUND, Path(folder) / FOUND)
        labelled = np.flatnonzero(read.is_labelled)
        work = Place(found, model, plan, store, labelled, read.classes[read.values[labelled]].astype(object))
        receipts = finish(work, plan, store, ASSIGNMENTS, engine=engine, title="assigning", progress=progress)
    return DiscoveredShards(found, rows, store, receipts)


def _require_same(store: Store, asked: dict[str, Any]) -> None:
    """Raise a ValueError if a store has the classes of another question; write down this one if there is none."""
    before = store.read_json(ASKED)
    changed = [] if before is None else [name for name in asked if before[name] != asked[name]]
    require(not changed, f"cannot continue {store.url}: {', '.join(changed)} changed; undo this, or use overwrite")
    store.write_json(ASKED, asked)


def _labels_or_stored(labels: Any, plan: Plan) -> Any:
    """Return the labels as given, those of the tables, or -1 for all items."""
    stored = stored_labels(plan.tables) if labels is None else labels
    return np.full(plan.n_items, -1) if stored is None else stored


def _sample(plan: Plan, store: Store, rows: np.ndarray, progress: bool | None) -> np.ndarray:
    """Return some items, read a block at a time."""
    parts = []
    with Display("sampling", plan.n_items, "items", progress) as display:
        for number in range(plan.n_blocks):
            block = plan.block(number)
            first, end = np.searchsorted(rows, [block.first, block.first + block.n_rows])
            if first < end:
                x = read_items(block, plan.kind, store).x
                assert x is not None, "these are embeddings"
                parts.append(x[rows[first:end] - block.first])
            display.advance(block.n_rows)
    return np.concatenate(parts)


def _points(x: np.ndarray | None, model: ModelFiles | None) -> tuple[Any, np.ndarray | None]:
    """Return the embeddings and the features of items, as `Method.discover` passes them to `discover`."""
    assert x is not None, "these are embeddings"
    clean = x if x.ndim == 2 else x[:, 0]
    if model is None:
        return clean, None
    is_narrow = clean.shape[1] <= MAX_DISCOVERY_FEATURES
    return model.load().embed(clean, progress=False), clean if is_narrow else None
