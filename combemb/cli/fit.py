"""`combemb fit`: learn from data and write a run folder."""

from typing import Annotated

import typer

from combemb.cli.console import notes_shown, running, say
from combemb.cli.options import (
    Bits,
    Data,
    LabelFile,
    MethodName,
    Overwrite,
    Published,
    Quiet,
    RunToWrite,
    Seed,
    Settings,
    chosen_method,
    read_label_file,
)
from combemb.cli.outcome import command, lines_of_fit


def fit(
    data: Data,
    folder: RunToWrite,
    labels: LabelFile = None,
    method: MethodName = "combemb",
    bits: Bits = None,
    seed: Seed = None,
    settings: Settings = None,
    published: Published = False,
    overwrite: Overwrite = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was stopped.")] = False,
    quiet: Quiet = False,
) -> None:
    """Learn from partly labelled images or embeddings, and write a run folder.

    Says at its end whether new classes will be found well, from a second fit that hides some of your classes. The
    numbers are in diagnosis.json, the curves of the training in training.png.

    With `--overwrite`, the old run answers until the new one is complete, also if this is stopped or killed; `--resume`
    then continues the new one. An index and a discovery of the old run are removed with it.

    Example: `combemb fit photos/ --out runs/photos --bits 48`
    """
    from combemb.learning.run_folder import RunFolder
    from combemb.system import processes

    quiet = quiet or not processes.is_first()
    until_then = f"; until it is done, {folder} holds the run of before" if RunFolder(folder).is_complete() else ""
    with running(quiet, f"stopped; use --resume to continue from the last checkpoint{until_then}"):
        model = chosen_method(method, bits, seed, settings, published)
        names = read_label_file(labels)
        with notes_shown():
            model.fit(data, names, folder=folder, overwrite=overwrite, resume=resume, progress=not quiet)
        if not quiet:
            for line in lines_of_fit(folder):
                say(line)
            say(f"written to {folder}: {', '.join(RunFolder(folder).files())}")
            verbs = ("discover",) if model.codebook is None else ("index", "discover")
            several = RunFolder(folder).diagnosis().get("several_labels", False)
            to_do = [command(v, folder, labels=None if several and v == "discover" else labels) for v in verbs]
            say(f"next: {', '.join(to_do)}{' --labels with one label per item' if several else ''}")
