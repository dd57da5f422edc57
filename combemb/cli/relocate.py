"""`combemb relocate`: tell a run that its data were moved."""

from pathlib import Path
from typing import Annotated

import typer

from combemb.cli.console import running, say
from combemb.cli.options import Quiet, Run


def relocate(
    run: Run,
    to: Annotated[Path, typer.Option("--to", metavar="PATH", help="Where the data are now.")],
    old: Annotated[
        Path | None,
        typer.Option("--from", metavar="PATH", help="Where they were; by default the path that was fitted."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Change the paths in a run folder after its data were moved or renamed; no data are read or moved.

    Images are known by their absolute paths: in the index, in the discovery, and in what you said about classes. A run
    folder itself can be moved without this. If images listed in a manifest were moved, give their old folder as
    `--from`.

    Example: `combemb relocate runs/photos --from /home/me/photos --to /archive/photos`
    """
    from combemb.collection.relocated import relocate as change

    with running(quiet):
        found = change(run, to, old)
        say(f"paths changed in {run}: {found.n_paths:,}")
        if found.missing:
            say(f"paths that lead nowhere: {len(found.missing):,}, such as {found.missing[0]}")
