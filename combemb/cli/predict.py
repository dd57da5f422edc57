"""`combemb predict`: put new items into known classes, found ones, or neither."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from combemb.cli.console import notes_shown, printable, running, say, tell_broken
from combemb.cli.options import Data, Overwrite, Quiet, Run, check_writable

if TYPE_CHECKING:
    from combemb.collection.predicted import By, Prediction

HEAD = ("class", "kind", "confidence", "path or id")
MAX_ITEMS_PRINTED = 40


def predict(
    run: Run,
    data: Data,
    by: Annotated[
        str, typer.Option(metavar="clusters|head", help="Use what discover found, or the method's own head.")
    ] = "clusters",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: a list of items with their classes.")] = False,
    file: Annotated[Path | None, typer.Option("--out", "-o", help="File to write: .csv or .json.")] = None,
    to_folders: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Create a folder for each class, with links to its images.")
    ] = None,
    copy: Annotated[bool, typer.Option("--copy", help="Copy the images into these folders instead.")] = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Put new items into the classes of a run: known ones, found ones with the names you gave them, or neither.

    Run `combemb discover` first; `combemb classes` names what it found. The confidence is the probability of the class.
    Methods with a head over all classes, such as orca, also predict by it: `--by head`, which needs no discovery.

    Example: `combemb predict runs/photos new-photos/ --to-folders sorted/`
    """
    from combemb.collection.folders import check_empty, write_folders
    from combemb.collection.predicted import predict_in

    with running(quiet):
        if by not in {"clusters", "head"}:
            raise ValueError(f"--by {by}; choose clusters or head")
        if file:
            check_writable(file, ".csv", ".json")
            if file.exists() and not overwrite:
                raise ValueError(f"{file} exists; use --overwrite to replace it")
        if to_folders:
            check_empty(to_folders)
        elif copy:
            raise ValueError("--copy only works with --to-folders; use both")
        with notes_shown():
            how: By = "head" if by == "head" else "clusters"
            found = predict_in(run, data, by=how, to_folders=to_folders, progress=not quiet)
        tell_broken(found.broken, "the predictions")
        if file:
            _write(file, found.items)
        if to_folders:
            assert found.files is not None
            write_folders(to_folders, found.files, [item.name for item in found.items], copy=copy, progress=not quiet)
        if as_json:
            typer.echo(_as_json(found.items))
            return
        _print_items(found.items)
        if file:
            say(f"written to {file}")
        if to_folders:
            say(f"{len(found.items):,} images {'copied' if copy else 'linked'} into {to_folders}")


def _as_json(items: list[Prediction]) -> str:
    return json.dumps([asdict(item) for item in items], indent=2)


def _write(file: Path, items: list[Prediction]) -> None:
    """Write id, path, name, kind and confidence of every item."""
    import pyarrow as pa
    from pyarrow import csv

    from combemb.system.files import write_atomically

    if file.suffix.lower() == ".json":
        write_atomically(file, lambda path: path.write_text(_as_json(items) + "\n"))
        return
    columns = {"id": pa.string(), "path": pa.string(), "name": pa.string(), "kind": pa.string()}
    schema = pa.schema({**columns, "confidence": pa.float32()})
    table = pa.Table.from_pylist([asdict(item) for item in items], schema=schema)
    write_atomically(file, lambda path: csv.write_csv(table, path))


def _print_items(items: list[Prediction]) -> None:
    """Print the counts, and the first items in columns."""
    kinds = Counter(item.kind for item in items)
    counts = f"{kinds['known']:,} in known classes, {kinds['found']:,} in found ones, {kinds['neither']:,} in neither"
    say(f"{len(items):,} items: {counts}")
    rows = [
        (
            printable(item.name),
            item.kind,
            "-" if item.confidence is None else f"{item.confidence:.2f}",
            printable(item.id),
        )
        for item in items[:MAX_ITEMS_PRINTED]
    ]
    widths = [max(map(len, column)) for column in zip(HEAD, *rows, strict=True)]
    for name, kind, confidence, item in (HEAD, *rows):
        say(f"{name:<{widths[0]}}  {kind:<{widths[1]}}  {confidence:>{widths[2]}}  {item}")
    if len(items) > MAX_ITEMS_PRINTED:
        say(f"... and {len(items) - MAX_ITEMS_PRINTED} more; --out FILE writes all of them")
