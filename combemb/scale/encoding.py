"""Encode in blocks: plan the blocks, let an engine do those that are not done, and write what came of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from combemb.data.embeddings import dense
from combemb.data.images import MAX_BROKEN_SHARE, ManyBroken
from combemb.scale.blocks import Receipt, finish, keep_block
from combemb.scale.engines import Engine, session
from combemb.scale.items import encoded, read_items
from combemb.scale.models import ModelFiles
from combemb.scale.plan import BLOCK_ITEMS, PLAN, Plan, require_same, stored_plan
from combemb.scale.sources import read_source
from combemb.scale.store import Store, absolute
from combemb.system.errors import require

CODES = "codes"  # folder of the blocks
MANIFEST = "codes.json"
FORMAT = 1


@dataclass(frozen=True)
class Encoded:
    """Codes in a store: the plan of the blocks, and a receipt for each."""

    store: Store
    plan: Plan
    receipts: list[Receipt]

    @property
    def n_items(self) -> int:
        """Number of items with a code."""
        return sum(receipt.n_items for receipt in self.receipts)

    @property
    def broken(self) -> dict[str, str]:
        """Images that cannot be read, with the reasons."""
        return {name: reason for receipt in self.receipts for name, reason in receipt.broken.items()}


@dataclass(frozen=True)
class Encode:
    """Encodes the block of a number and keeps the codes; what is sent to a worker."""

    model: ModelFiles
    plan: Plan
    store: Store

    def __call__(self, number: int) -> Receipt:
        """Read, encode and write a block."""
        block = self.plan.block(number)
        items = read_items(block, self.plan.kind, self.store)
        codes, rows, broken = encoded(self.model.load(), items)
        numbers = pa.array(block.first + rows)
        ids = numbers if items.ids is None else pa.array(items.ids, pa.large_string()).take(pa.array(rows))
        columns = {"id": ids, "code": pa.FixedSizeListArray.from_arrays(pa.array(codes.reshape(-1)), codes.shape[1])}
        if items.labels is not None:
            columns["label"] = pa.array(items.labels, pa.large_string()).take(pa.array(rows))
        return keep_block(self.store, CODES, number, pa.table(columns), broken)


def encode_sharded(
    run: str | Path,
    source: str,
    out: str,
    *,
    engine: Engine = "local",
    address: str | None = None,
    block_items: int | None = None,
    overwrite: bool = False,
    training_part: bool = False,
    progress: bool | None = None,
) -> Encoded:
    """Encode items in blocks, each of which is kept as soon as it is done.

    The same call continues a run that lost workers or was stopped. The codes do not depend on the engine.

    Parameters
    ----------
    run : path
        The run folder. Workers do not need access to it.
    source : str
        A path or a URL of fsspec: an image folder, a manifest, a Parquet file or `.npy` with embeddings, a folder of
        such files, or a pattern. All workers must be able to read it.
    out : str
        Folder to write, a path or a URL; all workers must be able to write there.
    engine : {"local", "ray"}
        This process, or a Ray cluster.
    address : str, optional
        Of the cluster, see `combemb.system.cluster.connected`.
    block_items : int, optional
        Maximum number of items in a block; by default 2,048 images or 32,768 embeddings.
    overwrite : bool
        Remove what an earlier call wrote, instead of continuing it.
    training_part : bool
        Leave out a test split of local images.
    progress : bool, optional
        None shows it on a terminal only.

    Returns
    -------
    Encoded
        In `out`, the file `codes.json` names the blocks with their checksums once all are done.
    """
    with session(engine, address):
        model, store = ModelFiles.of(run), Store(str(out))
        plan = planned(store, source, model.digest, block_items, overwrite=overwrite, training_part=training_part)
        work = Encode(model, plan, store)
        receipts = finish(work, plan, store, CODES, engine=engine, title="encoding", progress=progress)
    found = Encoded(store, plan, receipts)
    _refuse_many_broken(found)
    store.write_json(MANIFEST, _manifest(found))
    return found


def planned(
    store: Store,
    source: str,
    model: str,
    block_items: int | None = None,
    *,
    overwrite: bool = False,
    training_part: bool = False,
) -> Plan:
    """Return the plan in a store; make one if there is none. It stays as it is when files are added to the source."""
    source = absolute(str(source))
    if overwrite:
        _remove(store)
    before = stored_plan(store)
    if before is not None:
        wanted: dict[str, Any] = {"source": source, "model": model, "training_part": training_part}
        require_same(store, before, wanted if block_items is None else {**wanted, "block_items": block_items})
        return before
    there = set(store.sizes("")) - {"listing"}
    require(not there, f"{store.url} exists and has no {PLAN}; give a new folder for the results")
    require(block_items is None or block_items > 0, f"block_items={block_items}; give 1 or more")
    kind, tables = read_source(source, store, training_part=training_part)
    plan = Plan(source, kind, model, block_items or BLOCK_ITEMS[kind], tables, training_part)
    plan.store(store)
    return plan


def _remove(store: Store) -> None:
    """Remove earlier results; anything else is left alone."""
    is_own = store.fs.exists(store.path(PLAN)) or not store.sizes("")
    require(is_own, f"{store.url} exists and has no {PLAN}, so it is not removed; give a new folder for the results")
    store.remove()


def _refuse_many_broken(found: Encoded) -> None:
    broken, n = found.broken, found.plan.n_items
    if len(broken) > max(1, MAX_BROKEN_SHARE * n) or len(broken) == n:
        name, reason = next(iter(broken.items()))
        raise ManyBroken(
            f"{len(broken)} of {n} images cannot be read, more than {MAX_BROKEN_SHARE:.0%}, such as {name}: {reason}; "
            "fix them and use overwrite"
        )


def _manifest(found: Encoded) -> dict[str, Any]:
    blocks = [[r.file.name, r.n_items, r.file.n_bytes, r.file.crc32] for r in found.receipts]
    about = {"format": FORMAT, "source": found.plan.source, "kind": found.plan.kind, "model": found.plan.model}
    columns = ["name", "n_items", "n_bytes", "crc32"]
    return {**about, "n_items": found.n_items, "broken": found.broken, "columns": columns, "blocks": blocks}


def codes_of(table: pa.Table) -> np.ndarray:
    """Return the codes (n, M) of the items of a block."""
    return dense(table["code"].combine_chunks())
