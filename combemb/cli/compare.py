"""`combemb compare`: methods on your own data, with classes and labels hidden as in the paper."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from combemb.cli.bench import Jobs, Retry, say_aligned, tell, told
from combemb.cli.console import notes_shown, running, say
from combemb.cli.options import Data, LabelFile, Quiet, parse_settings

if TYPE_CHECKING:
    from combemb.bench.tables import Fields

METHODS, BITS, SPLITS = ("combemb", "gpq", "itq"), (24, 48), ("0", "1", "2", "3")


def compare(
    data: Data,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--methods",
            help=f"Methods, by default {' '.join(METHODS)}; with settings as in combemb,n_neighbours=10.",
        ),
    ] = None,
    bits: Annotated[list[int] | None, typer.Option("--bits", help="Lengths of codes, by default 24 48.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds; each draws other labels and queries.")] = 3,
    splits: Annotated[
        list[str] | None, typer.Option("--splits", help="Which classes are hidden, by default 0 1 2 3.")
    ] = None,
    labels: LabelFile = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting for all methods that have it. Repeatable."),
    ] = None,
    jobs: Jobs = 1,
    folder: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder to write to.")] = Path("compared"),
    retry: Retry = False,
    quiet: Quiet = False,
) -> None:
    """Compare methods on your own labelled data: which finds classes best that it has no labels of?

    A quarter of the classes and half of the labels of the others are hidden, in several ways (splits) and draws
    (seeds). Test items of the hidden classes then search all other items. Without a test split in the data, a fifth of
    each class is drawn. Writes a table with mean and deviation, a plot, and sentences that say which differences exceed
    the noise. The same command continues a stopped comparison.

    Example: `combemb compare photos/ --methods combemb itq --bits 24 48 --seeds 3`
    """
    from combemb.bench.compare import compare as compare_methods

    with running(quiet, "stopped; the same command continues"):
        rows = [chosen(text) for text in methods or METHODS]
        with notes_shown():
            found = compare_methods(
                data,
                rows,
                folder,
                bits=tuple(bits or BITS),
                seeds=seeds,
                splits=tuple(splits or SPLITS),
                labels=labels,
                settings=of_all(settings or [], [name for name, _ in rows]),
                jobs=jobs,
                retry=retry,
                tell=tell,
            )
        told(found.outcome)
        show(found)
        if found.too_small:
            say(f"classes with too few items, used without their labels: {', '.join(found.too_small)}")
        for sentence in found.sentences:
            say(sentence)
        say(f"written to {folder}: {', '.join(str(path.relative_to(folder)) for path in found.files)}")
        if found.outcome.n_failed:
            raise typer.Exit(1)


def chosen(text: str) -> tuple[str, Fields]:
    """Return a method and its settings, from NAME,SETTING=VALUE,...

    >>> chosen("combemb,n_neighbours=10,pair_rules=similar,nearest")
    ('combemb', (('n_neighbours', 10), ('pair_rules', ('similar', 'nearest'))))
    """
    from combemb import methods

    name, *texts = re.split(r",(?=\w+=)", text)
    return name, tuple(sorted(parse_settings(methods.get(name), texts).items()))


def of_all(texts: list[str], names: list[str]) -> dict[str, Any]:
    """Return the settings for all methods; each must be one of at least one method."""
    from combemb import methods

    found: dict[str, Any] = {}
    for text in texts:
        setting = text.partition("=")[0]
        having = [c for c in map(methods.get, names) if setting in {field.name for field in dataclasses.fields(c)}]
        found |= parse_settings((having or [methods.get(names[0])])[0], [text])
    return found


def show(found: Any) -> None:
    """Print the table; its lines may be wider than a terminal."""
    lines = found.summary.lines
    rows = [["method", *(column.title for column in found.summary.table.columns)]]
    rows += [[line.row.title, *(f"{value}{'*' if value.is_best else ' '}" for value in line.values)] for line in lines]
    say_aligned(rows, n_left=1)
