"""What `encode`, `index`, `search` and `serve` do with --engine: blocks, shards and a Ray cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from combemb.cli.console import err, notes_shown, say, tell_broken

if TYPE_CHECKING:
    from combemb.collection.indexed import SearchResult

SHARDS = "sharded-index"  # folder in a run folder; --shards names another place


def encode_blocks(run: Path, data: str, out: str, **options: Any) -> None:
    """Encode in blocks and say what came of it."""
    from combemb.scale import encode_sharded

    found = encode_sharded(run, data, out, **options)
    tell_broken(found.broken, out)
    n_bytes = sum(receipt.file.n_bytes for receipt in found.receipts)
    say(f"{found.n_items:,} codes in {found.plan.n_blocks:,} blocks ({decimal(n_bytes)}) written to {out}")


def index_shards(run: Path, data: str | None, shards: str | None, **options: Any) -> None:
    """Index in shards and say what came of it."""
    from combemb.scale import index_sharded

    out = str(run / SHARDS) if shards is None else shards
    source = _fitted(run) if data is None else data
    found = index_sharded(run, source, out, training_part=data is None, **options)
    tell_broken(found.broken, "the index")
    n_bytes = sum(shard.index.n_bytes for shard in found.shards)
    say(f"{found.n_entries:,} entries with codes of {found.bits} bits in {len(found.shards)} shards")
    say(f"written to {out}: {decimal(n_bytes)}")


def search_shards(
    run: Path, query: Path, k: int, shards: str | None, address: str | None, *, progress: bool
) -> tuple[list[SearchResult], str]:
    """Search the shards of a run; return the hits and a line about what was searched."""
    from combemb.scale import ShardedCollection

    out = str(run / SHARDS) if shards is None else shards
    with ShardedCollection(run, out, address=address) as collection:
        results = collection.search(query, k, progress=progress)
        tell_broken(collection.broken, "the search")
        if collection.missing:
            names = ", ".join(collection.missing)
            err.print(f"shards that did not answer, so hits may be missing: {names}", soft_wrap=True, markup=False)
        n_shards, bits = len(collection.index.manifest.shards), collection.model.codebook.bits
        return results, f"{len(collection):,} entries in {n_shards} shards, with codes of {bits} bits."


def serve_shards(
    run: Path,
    shards: str | None,
    address: str | None,
    *,
    host: str,
    port: int,
    token_file: Path | None,
    names: tuple[str, ...],
) -> None:
    """Serve the search of the shards of a run until Ctrl-C, and say where."""
    from combemb.cli.serve import announced
    from combemb.explorer.server.access import Access
    from combemb.explorer.server.serving import serve_application
    from combemb.explorer.server.shards import shards_application
    from combemb.scale import ShardedCollection

    url = str(run / SHARDS) if shards is None else shards
    token, started = announced(url, token_file)
    access = Access(token, names)
    with ShardedCollection(run, url, address=address) as collection, notes_shown():
        serve_application(lambda: shards_application(collection, access), access, host, port, started)


def _fitted(run: Path) -> str:
    """Return the path of the data that a run was fitted on."""
    from combemb.learning.run_folder import RunFolder
    from combemb.system.errors import UnknownData

    path = RunFolder(run).config()["path"]
    if path is None or not Path(path).exists():
        raise UnknownData(f"the data that {run} was fitted on are unknown or no longer at {path}; say where they are")
    return str(path)
