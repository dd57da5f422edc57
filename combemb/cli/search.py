"""`combemb search`: find the indexed items nearest to a query."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from combemb.cli.console import out, printable, running, say, tell_broken
from combemb.cli.options import Address, Quiet, Run, Shards, check_writable

if TYPE_CHECKING:
    from rich.console import Console

    from combemb.collection.indexed import SearchResult

HEAD = ("rank", "score", "label", "path or id")
MISSING = "  (missing)"


def search(
    run: Run,
    query: Annotated[
        Path,
        typer.Argument(metavar="QUERY", help="An image; several in a folder, manifest or array file; or embeddings."),
    ],
    k: Annotated[int, typer.Option("-k", min=1, help="Number of hits for each query.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: a list of queries with their hits.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with the images of the queries and hits; an old one is replaced.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="ray", help="Search the shards of `combemb index --engine` by a Ray cluster.")
    ] = None,
    shards: Shards = None,
    address: Address = None,
    quiet: Quiet = False,
) -> None:
    """Find the entries of the index that are nearest to a query.

    The score says how similar the query is to the code of an entry; larger is nearer. It is the sum, over the sets of
    code words, of the similarity between the query's sub-vector and the entry's word. For CombEmb these are cosines,
    so the score is at most the number of sets; for binary codes it is bits - 2 x (differing bits). Entries with equal
    codes have equal scores and are listed in the order in which they were added. A hit whose file no longer exists is
    marked as missing. A hit without a label has the name that you gave to its class with `combemb classes`.

    Queries that cannot be read are left out and listed; if they are several and more than 10 %, this is an error.

    Example: `combemb search runs/photos bird.jpg -k 20 --html hits.html`
    """
    from combemb.collection.index_files import index_command
    from combemb.collection.indexed import Collection
    from combemb.system.errors import require

    with running(quiet):
        if html:
            check_writable(html, ".html", ".htm")
        require(engine in {None, "ray"}, f"--engine {engine}: a search without it is local; use ray, or leave it out")
        if engine == "ray":
            from combemb.cli.sharded import search_shards

            results, searched = search_shards(run, query, k, shards, address, progress=not quiet)
        else:
            if shards is not None or address is not None:
                raise ValueError("--shards and --address need --engine ray")
            collection = Collection.open(run)
            results = collection.search(query, k, progress=not quiet)
            tell_broken(collection.broken, "the search")
            searched = f"{len(collection):,} entries with codes of {collection.model.codebook.bits} bits."
        if html:  # before printing, because a reader such as `head` may close the pipe
            from combemb.explorer.contact_sheet import write_contact_sheet

            about = f"{searched} A larger score is nearer."
            write_contact_sheet(html, results, f"Search in {run}", about, progress=not quiet)
        if as_json:
            typer.echo(json.dumps([asdict(found) for found in results], indent=2))
        else:
            print_results(results, out)
            n_missing = len({hit.path for found in results for hit in found.hits if hit.is_missing})
            if n_missing:
                hint = f"{index_command(run)} --remove ID, or --overwrite if they moved"
                say(f"files that no longer exist: {n_missing:,}, marked as missing; {hint}")
            if html:
                say(f"written to {html}")


def print_results(results: list[SearchResult], console: Console) -> None:
    """Print a table for each query on a terminal, plain columns elsewhere; the name of a query if there are several."""
    for number, found in enumerate(results):
        if len(results) > 1:
            about = f"  ({printable(found.query.label)})" if found.query.label else ""
            gap = "\n" if number else ""
            console.print(f"{gap}{printable(found.query.id)}{about}", markup=False, soft_wrap=True, style="bold")
        rows = [
            (
                str(rank),
                f"{hit.score:.3f}",
                printable(hit.label or hit.name or "-"),
                printable(hit.id) + MISSING * hit.is_missing,
            )
            for rank, hit in enumerate(found.hits, start=1)
        ]
        if console.is_terminal:
            table = Table(box=None, pad_edge=False)
            for title in HEAD:
                table.add_column(title, justify="left" if title in HEAD[2:] else "right", overflow="fold")
            for row in rows:
                table.add_row(*map(escape, row))
            console.print(table)
            continue
        widths = [max(map(len, column)) for column in zip(HEAD, *rows, strict=True)]
        for rank, score, label, name in (HEAD, *rows):
            line = f"{rank:>{widths[0]}}  {score:>{widths[1]}}  {label:<{widths[2]}}  {name}"
            console.print(line, markup=False, soft_wrap=True)
