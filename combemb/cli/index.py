"""`combemb index`: make the items of a run searchable."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.filesize import decimal

from combemb.cli.console import notes_shown, running, say, tell_broken
from combemb.cli.options import (
    EMBEDDINGS,
    IMAGES,
    Address,
    BlockItems,
    Engine,
    LabelFile,
    Overwrite,
    Quiet,
    Run,
    Shards,
    chosen_data,
    read_label_file,
)

if TYPE_CHECKING:
    from combemb.collection.indexed import Collection


def index(
    run: Run,
    images: Annotated[str | None, IMAGES] = None,
    embeddings: Annotated[str | None, EMBEDDINGS] = None,
    labels: LabelFile = None,
    add: Annotated[
        bool, typer.Option("--add", help="Add to the existing index; items that are in it already are skipped.")
    ] = False,
    remove: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID", help="Remove an entry by its id, or those in a text file, an id per line. Repeatable."
        ),
    ] = None,
    engine: Engine = None,
    shards: Shards = None,
    address: Address = None,
    block_items: BlockItems = None,
    shard_items: Annotated[
        int | None, typer.Option(min=1, help="Items in a shard at most, about; with --engine; by default 5,000,000.")
    ] = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Make the data that the run was fitted on searchable, or other data; the index is stored in the run folder.

    Test items of the fitted data are not indexed; all items of `--images` are. Images that cannot be read are left out
    and listed; if they are several and more than 10 % of those given, nothing is indexed.

    The id of an image is its path. An image that has changed keeps its old code until it is removed and added again.

    With `--engine`, items are encoded in blocks and indexed in shards, for `combemb search --engine ray`. Every block
    is kept, and the same command continues a run that was stopped. Files do not depend on the engine.

    Example: `combemb index runs/photos`, and later `combemb index runs/photos --images new-photos/ --add`
    """
    if engine is not None:
        from combemb.cli.sharded import index_shards

        with running(quiet, "stopped; the same command continues"), notes_shown():
            if images is not None and embeddings is not None:
                raise ValueError("--images and --embeddings are mutually exclusive; choose one")
            if labels is not None or add or remove:
                raise ValueError("--engine makes a new index with the labels in the data; leave the other options out")
            options: dict[str, Any] = {} if shard_items is None else {"shard_items": shard_items}
            options |= {"engine": engine, "address": address, "block_items": block_items, "overwrite": overwrite}
            index_shards(run, images or embeddings, shards, **options, progress=not quiet)
        return
    from combemb.collection.indexed import Collection
    from combemb.learning.run_folder import ENTRIES, INDEX, RunFolder

    with running(quiet, "stopped; the index is unchanged"), notes_shown():
        if any(option is not None for option in (shards, address, block_items, shard_items)):
            raise ValueError("--shards, --address, --block-items and --shard-items need --engine")
        data = chosen_data(*(None if path is None else Path(path) for path in (images, embeddings)))
        if (add + overwrite + bool(remove)) > 1:
            raise ValueError("--add, --remove and --overwrite are mutually exclusive; choose one")
        if add and data is None:
            raise ValueError("--add needs data to add; use --images or --embeddings")
        if remove and (data is not None or labels is not None):
            raise ValueError("--remove takes ids; leave --images, --embeddings and --labels out")
        names = read_label_file(labels)
        n_before = 0
        if add or remove:
            RunFolder(run).config()  # raises an error if this is not a run folder
            with RunFolder(run).written():
                collection = Collection.open(run)
                n_before = len(collection)
                if remove:
                    collection.remove(_chosen_ids(remove, collection))
                    say(f"entries removed: {n_before - len(collection):,}")
                else:
                    n_skipped = collection.add(data, labels=names, skip_known=True, progress=not quiet)
                    say(f"entries added: {len(collection) - n_before:,}; skipped, in the index already: {n_skipped:,}")
                if len(collection) != n_before:
                    collection.save()
        else:
            collection = Collection.build(run, data, labels=names, overwrite=overwrite, progress=not quiet)
        tell_broken(collection.broken, "the index")
        n_codes, bits = collection.n_codes, collection.model.codebook.bits
        labelled = f"{len(collection):,} entries, {collection.n_labelled:,} of them labelled"
        say(f"{labelled}, with {n_codes:,} distinct codes of {bits} bits")
        sizes = [f"{name} ({decimal((run / name).stat().st_size)})" for name in (INDEX, ENTRIES)]
        is_written = len(collection) != n_before
        say(f"{'written to' if is_written else 'unchanged in'} {run}: {', '.join(sizes)}")


def _chosen_ids(texts: list[str], collection: Collection) -> list[str]:
    """Return the ids that --remove names. A path that is in the index, also from here, is an id, not a file of ids."""
    known = set(collection.entries["id"].to_pylist())

    def as_id(text: str) -> str:
        path = os.path.abspath(text)  # noqa: PTH100 - links stay, as in the ids
        return path if text not in known and path in known else text

    ids = []
    for text in texts:
        if as_id(text) in known or not Path(text).is_file():
            ids.append(as_id(text))
            continue
        try:
            ids += [as_id(line) for line in Path(text).read_text().splitlines() if line.strip()]
        except UnicodeDecodeError:
            raise ValueError(f"--remove {text}: neither an id of the index nor a text file of ids") from None
    return ids
