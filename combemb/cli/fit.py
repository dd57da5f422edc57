"""`combemb fit`: learn from data and write a run folder."""

from pathlib import Path
from typing import Annotated

import typer

from combemb.cli.console import notes_shown, running, say
from combemb.cli.options import Data, LabelFile, Overwrite, Quiet, parse_settings, read_label_file


def fit(
    data: Data,
    folder: Annotated[Path, typer.Option("--out", "-o", metavar="RUN", help="Folder to write the run to.")],
    labels: LabelFile = None,
    method: Annotated[
        str, typer.Option(help="One that `combemb settings` lists, or package.module:Class.")
    ] = "combemb",
    bits: Annotated[int | None, typer.Option(help="Length of a code; usually 12 to 72.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all random numbers.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Another setting; `combemb settings` lists them. Repeatable."),
    ] = None,
    overwrite: Overwrite = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was stopped.")] = False,
    quiet: Quiet = False,
) -> None:
    """Learn from partly labelled images or embeddings, and write a run folder.

    With `--overwrite`, the old run answers until the new one is complete, also if this is stopped or killed; `--resume`
    then continues the new one. An index and a discovery of the old run are removed with it.

    Example: `combemb fit photos/ --out runs/photos --bits 48`
    """
    from combemb import methods
    from combemb.learning.run_folder import RunFolder
    from combemb.system import processes

    quiet = quiet or not processes.is_first()
    until_then = f"; until it is done, {folder} holds the run of before" if RunFolder(folder).is_complete() else ""
    with running(quiet, f"stopped; use --resume to continue from the last checkpoint{until_then}"):
        cls = methods.get(method)
        own = [f"{name}={value}" for name, value in (("bits", bits), ("seed", seed)) if value is not None]
        model = cls(**parse_settings(cls, [*(settings or []), *own]))
        names = read_label_file(labels)
        with notes_shown():
            model.fit(data, names, folder=folder, overwrite=overwrite, resume=resume, progress=not quiet)
        if not quiet:
            for line in model.summary():
                say(line)
            say(f"written to {folder}: {', '.join(RunFolder(folder).files())}")
