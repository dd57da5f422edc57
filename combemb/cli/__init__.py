"""The command line: one file per verb. Verbs import what they need when they are called, so that help comes at once."""

import sys
from typing import Annotated

import typer

from combemb.cli import (
    cache,
    classes,
    demo,
    discover,
    doctor,
    embed,
    export,
    fit,
    index,
    methods,
    predict,
    search,
    settings,
)
from combemb.system.version import __version__

app = typer.Typer(
    help="Learn from partly labelled images or embeddings; then embed, encode, search and discover novel classes.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
data_verbs = (
    *(fit.fit, embed.embed, embed.encode, index.index, search.search),
    *(discover.discover, classes.classes, predict.predict, export.export),
)
for verb in (*data_verbs, methods.methods, settings.settings, demo.demo, cache.cache, doctor.doctor):
    app.command()(verb)


def show_version(is_asked: bool) -> None:
    """Print the version and leave."""
    if is_asked:
        typer.echo(f"combemb {__version__}")
        raise typer.Exit


@app.callback()
def start(
    _: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Make modules in the current folder importable, after all others, so that a user's own method is found."""
    if "" not in sys.path:
        sys.path.append("")
