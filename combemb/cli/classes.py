"""`combemb classes`: list the classes of a run, and name, merge, split, move or reject them."""

from __future__ import annotations

import os
import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Column, Table

from combemb.cli.console import notes_shown, out, printable, running, say
from combemb.cli.options import Overwrite, Quiet, Run, check_writable

if TYPE_CHECKING:
    from combemb.collection.class_log import Change
    from combemb.collection.classes import Classes

USES = {
    "name": "CLUSTER NAME",
    "merge": "CLUSTER CLUSTER ...",
    "split": "CLUSTER [ITEM ...]",
    "move": "CLUSTER ITEM ...",
    "reject": "CLUSTER [ITEM ...]",
    "undo": "",
    "labels": "--out FILE",
}
MIN_ARGUMENTS = {"name": 2, "merge": 2, "split": 1, "move": 2, "reject": 1}
MAX_ARGUMENTS = {"name": 2, "undo": 0, "labels": 0}


def classes(
    run: Run,
    change: Annotated[str | None, typer.Argument(metavar="CHANGE", help=f"One of {', '.join(USES)}.")] = None,
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGUMENTS", help="As above.")] = None,
    into: Annotated[int, typer.Option(help="With split and no items: number of parts.")] = 2,
    file: Annotated[
        Path | None, typer.Option("--out", "-o", help="With labels: file to write, .csv or .parquet (id, label).")
    ] = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """List the classes that `discover` found, or change them; changes are kept when you discover or fit again.

    The page and the tables of `discover` show changes when you discover again.

    - `name CLUSTER NAME` names a cluster; `name ant ant` confirms the items that were put into the seen class ant.
    - `merge CLUSTER CLUSTER ...` makes one class of several, called as the first.
    - `split CLUSTER [ITEM ...]` makes a new class of these items; without items, the cluster divides by itself.
    - `move CLUSTER ITEM ...` moves items into a cluster.
    - `reject CLUSTER [ITEM ...]` takes all or some items out of a cluster; they belong to no class then.
    - `undo` takes back the last change.
    - `labels --out labels.csv` writes the labels that follow, for `combemb fit --labels`.

    Example: `combemb classes runs/photos name novel-1 "red-tailed hawk"`
    """
    from combemb.collection.changes import store
    from combemb.collection.class_log import WAIT_SECONDS
    from combemb.collection.classes import classes_of
    from combemb.collection.discovered import is_outdated
    from combemb.learning.run_folder import RunFolder

    with running(quiet):
        given = arguments or []
        if change is not None:
            _check_use(change, given)
        if (file is not None) != (change == "labels"):
            raise ValueError("labels needs --out FILE, and only labels does: combemb classes RUN labels --out FILE")
        RunFolder(run).config()  # raises an error if this is not a run folder
        is_written = change is not None and file is None
        # A change depends on what others said before it, so nobody may say anything in between.
        with RunFolder(run).written(WAIT_SECONDS) if is_written else nullcontext():
            with notes_shown():
                found = classes_of(run)
            if change is None:
                _print_classes(found)
                if is_outdated(run):
                    again = f"combemb discover {shlex.quote(str(run))}"
                    say(f"the page and the tables show an earlier state; write them again: {again}")
            elif file is not None:
                _write_labels(found, file, overwrite)
            else:
                made = _made(found, change, given, run, into, quiet)
                after = store(run, made)
                _print_change(made, found, after)


def _check_use(change: str, given: list[str]) -> None:
    """Raise a ValueError that says how to call a change."""
    if change not in USES:
        raise ValueError(f"there is no change {change!r}; choose one of {', '.join(USES)}")
    if not MIN_ARGUMENTS.get(change, 0) <= len(given) <= MAX_ARGUMENTS.get(change, len(given)):
        use = f"combemb classes RUN {change} {USES[change]}".rstrip()
        raise ValueError(f"{change} got {len(given)} arguments; use it as {use}")


def _made(found: Classes, change: str, given: list[str], run: Path, into: int, quiet: bool) -> Change:
    """Return the change that a user asked for."""
    from combemb.collection import changes
    from combemb.collection.splitting import parts_of

    if change == "undo":
        return changes.undo(found)
    if change == "name":
        return changes.name(found, *given)
    if change == "merge":
        return changes.merge(found, given)
    cluster, items = given[0], _ids(found, given[1:])
    if change == "move":
        return changes.move(found, cluster, items)
    if change == "reject":
        return changes.reject(found, cluster, items)
    groups = [items] if items else parts_of(run, found, cluster, into, progress=not quiet)
    return changes.split(found, cluster, groups)


def _ids(found: Classes, items: list[str]) -> list[str]:
    """Return the ids of items; an image may be given by any path that leads to it."""
    known = set(found.ids)
    return [item if item in known else path if (path := os.path.abspath(item)) in known else item for item in items]  # noqa: PTH100


def _print_classes(found: Classes) -> None:
    """Print all classes with their sizes, those without a name first."""
    import numpy as np

    table = Table(
        *(Column(title, overflow="fold") for title in ("class", "items", "labelled", "confidence", "named by"))
    )
    table.box, table.pad_edge = None, False
    confidence = np.asarray(found.table["confidence"])
    for name in found.order:
        rows = found.rows(name)
        unlabelled = rows[~found.is_labelled[rows]]
        mean = f"{confidence[unlabelled].mean():.2f}" if len(unlabelled) else "-"
        origin = "labels" if name in found.seen else "you" if name in found.given else "-"
        counts = f"{len(rows):,}", f"{len(rows) - len(unlabelled):,}"
        table.add_row(escape(printable(name)), *counts, mean, origin)
    out.print(table)
    n_rejected = sum(name is None for name in found.names)
    if n_rejected:
        say(f"in no class: {_counted(n_rejected, 'rejected item')}")
    if found.changes:
        say(f"{_counted(len(found.changes), 'change')}; `combemb classes RUN undo` takes back the last")


def _print_change(made: Change, before: Classes, after: Classes) -> None:
    """Print what a change did: the number of items, and the class of each group."""
    from combemb.collection.changes import effects

    if made.kind == "undo":
        last = before.changes[-1]
        say(f"undone: {last.kind} {printable(' '.join(last.clusters))}")
        return
    for effect in effects(made, after):
        say(printable(effect))


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _write_labels(found: Classes, file: Path, overwrite: bool) -> None:
    """Write id and label of every item; the label is empty if it follows from nothing."""
    from combemb.collection.exported import label_table, write_exported

    check_writable(file, ".csv", ".parquet")
    if file.exists() and not overwrite:
        raise ValueError(f"{file} exists; use --overwrite to replace it")
    table = label_table(found)
    write_exported(table, file)
    n, n_classes = len(table) - table["label"].null_count, len(table["label"].drop_null().unique())
    say(f"{n:,} of {len(table):,} items are labelled, with {n_classes} classes; written to {file}")
