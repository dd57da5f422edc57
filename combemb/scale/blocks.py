"""Blocks whose results are kept: each is a Parquet file, and a receipt with its checksum that is written after it."""

import io
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from combemb.scale.engines import Engine, results
from combemb.scale.plan import Plan
from combemb.scale.store import Store, Written
from combemb.system.progress import Display

RECEIPTS = "receipts"


@dataclass(frozen=True)
class Receipt:
    """Says that a block is done: its number, its file, how many items are in it, and images that cannot be read."""

    number: int
    file: Written
    n_items: int
    broken: dict[str, str] = field(default_factory=dict)


def keep_block(
    store: Store, folder: str, number: int, table: pa.Table, broken: dict[str, str] | None = None
) -> Receipt:
    """Write the result of a block, then its receipt. A worker that dies in between leaves a block to be done again."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    written = store.write(f"{folder}/{number:08}.parquet", buffer.getvalue())
    receipt = Receipt(number, written, len(table), broken or {})
    store.write_json(f"{folder}/{RECEIPTS}/{number:08}.json", asdict(receipt))
    return receipt


def read_block(store: Store, receipt: Receipt) -> pa.Table:
    """Return the result of a block; raise a ValueError if it is damaged."""
    return pq.read_table(io.BytesIO(store.read(receipt.file)))


def finished(store: Store, folder: str) -> dict[int, Receipt]:
    """Return the receipts of a store by the number of their block, if the file is there with its size."""
    sizes = store.sizes(folder)
    found = {}
    for about in store.read_all_json(f"{folder}/{RECEIPTS}").values():
        receipt = _receipt(about)
        if sizes.get(receipt.file.name.rpartition("/")[2]) == receipt.file.n_bytes:
            found[receipt.number] = receipt
    return found


def finish(
    work: Callable[[int], Receipt],
    plan: Plan,
    store: Store,
    folder: str,
    *,
    engine: Engine = "local",
    title: str = "",
    progress: bool | None = None,
) -> list[Receipt]:
    """Do all blocks that are not done, and return the receipts of all in their order.

    Parameters
    ----------
    work : callable
        Does the block of a number and returns what `keep_block` returned.
    plan, store, folder
        The blocks, and where the results are.
    engine
        Where to work, see `combemb.scale.engines.results`.
    title, progress
        What to show, and whether; None shows it on a terminal only.

    Returns
    -------
    list of Receipt
    """
    done = finished(store, folder)
    n_done = sum(receipt.n_items + len(receipt.broken) for receipt in done.values())
    todo = [number for number in range(plan.n_blocks) if number not in done]
    with Display(title, plan.n_items, "items", progress, done=n_done) as display:
        for receipt in results(work, todo, engine):
            done[receipt.number] = receipt
            display.advance(receipt.n_items + len(receipt.broken))
    return [done[number] for number in range(plan.n_blocks)]


def _receipt(about: dict[str, Any]) -> Receipt:
    return Receipt(**{**about, "file": Written(**about["file"])})
