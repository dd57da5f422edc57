"""How `combemb index` and `combemb search` take their sources and show what they did."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from combemb.collection.indexed import ENTRIES, INDEX, Collection, Found, Hit
from combemb.data import is_images

PAGE_SUFFIXES = (".html", ".htm")
HEAD = ("rank", "score", "label", "path or id")


def chosen_source(images: Path | None, embeddings: Path | None) -> Path | None:
    """What the two options say together; ValueError if one of them names what the other is for."""
    if images is not None and embeddings is not None:
        raise ValueError("--images and --embeddings exclude each other; choose one")
    source = images if embeddings is None else embeddings
    if source is None:
        return None
    if not source.exists():
        raise ValueError(f"cannot read {source}: there is no such file or folder")
    if images is not None and not is_images(source):
        raise ValueError(f"--images {source}: these are no images; if they are embeddings, use --embeddings")
    if embeddings is not None and is_images(source):
        raise ValueError(f"--embeddings {source}: these are images; use --images")
    return source


def check_page(path: Path) -> None:
    """ValueError if no page can be written there, before anything is computed."""
    if path.suffix.lower() not in PAGE_SUFFIXES:
        raise ValueError(f"cannot write {path}: unknown ending {path.suffix!r}; use .html")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent}; make it first")


def add_to_index(
    run: Path, source: Path | None, *, labels: np.ndarray | None, overwrite: bool, progress: bool
) -> Collection:
    """Add a source to the index of a run, and write it."""
    if overwrite:
        raise ValueError("--add and --overwrite exclude each other; choose one")
    if source is None:
        raise ValueError("--add needs to know what to add; give --images or --embeddings")
    collection = Collection.open(run)
    collection.add(source, labels=labels, progress=progress)
    collection.save()
    return collection


def summary(collection: Collection) -> list[str]:
    """What an index holds, and where, in a few lines for a reader."""
    n_bytes = {name: (collection.folder / name).stat().st_size for name in (INDEX, ENTRIES)}
    sizes = ", ".join(f"{name} ({decimal(size)})" for name, size in n_bytes.items())
    return [
        f"{len(collection):,} entries, {collection.n_labelled:,} of them labelled, "
        f"with {collection.index.n_codes:,} distinct codes of {collection.model.codebook.bits} bits",
        f"written to {collection.folder}: {sizes}",
    ]


def as_json(results: list[Found]) -> str:
    """The queries with their hits as JSON: a list of {query, hits}, the best hit first."""
    return json.dumps([asdict(found) for found in results], indent=2)


def print_results(results: list[Found], console: Console) -> None:
    """A table for each query on a terminal, columns of plain text elsewhere; several queries get their names above."""
    for number, found in enumerate(results):
        if len(results) > 1:
            label = f"  ({printable(found.query.label)})" if found.query.label else ""
            gap = "\n" if number else ""
            console.print(f"{gap}{printable(found.query.id)}{label}", markup=False, soft_wrap=True, style="bold")
        rows = [_cells(rank, hit) for rank, hit in enumerate(found.hits, start=1)]
        if console.is_terminal:
            console.print(_table(rows))
        else:
            for line in _lines([HEAD, *rows]):
                console.print(line, markup=False, soft_wrap=True)


def _cells(rank: int, hit: Hit) -> tuple[str, str, str, str]:
    return str(rank), f"{hit.score:.3f}", printable(hit.label or "-"), printable(hit.id)


def _table(rows: list[tuple[str, str, str, str]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name, justify in zip(HEAD, ("right", "right", "left", "left"), strict=True):
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]  # one of four words
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def _lines(rows: list[tuple[str, str, str, str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        f"{rank:>{widths[0]}}  {score:>{widths[1]}}  {label:<{widths[2]}}  {name}" for rank, score, label, name in rows
    ]


def printable(name: str) -> str:
    """A name on one line: whatever would move the cursor or change colours is spelled out.

    >>> printable("a\\nb")
    'a\\\\nb'
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in name)
