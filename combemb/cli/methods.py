"""`combemb methods`: the table of all methods, made from their classes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from combemb.cli.console import err, out, running, say

if TYPE_CHECKING:
    from combemb.learning.method import Method

COLUMNS = ("method", "supervision", "queries", "paper", "where it departs from the paper")
BEGIN, END = "<!-- table of `combemb methods --markdown` -->", "<!-- end of the table -->"  # lines around it in a page


def methods(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the built-in methods as Markdown.")] = False,
    update: Annotated[
        Path | None,
        typer.Option(metavar="PAGE", help="Replace that table in a Markdown page, such as docs/methods.md."),
    ] = None,
) -> None:
    """List the methods: supervision, how queries are compared with codes, paper; as Markdown also their departures.

    Example: `combemb methods`, and `combemb methods --update docs/methods.md` in the folder of the sources
    """
    from combemb.system.files import write_atomically

    with running():
        if update is not None:
            page = updated(update.read_text(encoding="utf-8"), str(update))
            write_atomically(update, lambda path: path.write_text(page, encoding="utf-8"))
        elif markdown:
            say(as_markdown())
        else:
            show()


def show() -> None:
    """Print the table of all methods, those of other packages too, on the terminal."""
    table = Table(*COLUMNS[:-1], box=None, pad_edge=False)
    for name, cls in found().items():
        table.add_row(*map(escape, row(name, cls)[:-1]))
    out.print(table)


def as_markdown() -> str:
    """Return the table of the built-in methods, whose names link to their files from a page in docs/."""
    lines = [COLUMNS, ("---",) * len(COLUMNS)]
    for name, cls in found().items():
        if cls.__module__ == f"combemb.methods.{name}":
            others = (cell.replace("|", r"\|") for cell in row(name, cls)[1:])
            lines.append((f"[{name}](../combemb/methods/{name}.py)", *others))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def updated(page: str, name: str) -> str:
    """Return a page with the table of today between the lines that surround it."""
    before, begin, rest = page.partition(f"{BEGIN}\n")
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{name} has no place for the table; add the lines {BEGIN} and {END} to it")
    return f"{before}{begin}{as_markdown()}\n{end}{after}"


def row(name: str, cls: type[Method]) -> tuple[str, ...]:
    """Return what the table says about a method."""
    return name, cls.supervision(), cls.query_side(), getattr(cls, "paper", ""), cls.departs


def found() -> dict[str, type[Method]]:
    """Return all methods; a package that cannot be imported does not hide the others."""
    from combemb.methods import get, names

    classes = {}
    for name in names():
        try:
            classes[name] = get(name)
        except ValueError as error:
            err.print(escape(str(error)), soft_wrap=True)
    return classes
