"""The command line: one file per verb. Verbs import what they need when they are called, so that help comes at once."""

import sys

import typer

from combemb.cli import classes, demo, discover, embed, fit, index, predict, search, settings

app = typer.Typer(
    help="Learn from partly labelled images or embeddings; then embed, encode, search and discover novel classes.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)
data_verbs = (
    fit.fit,
    embed.embed,
    embed.encode,
    index.index,
    search.search,
    discover.discover,
    classes.classes,
    predict.predict,
)
for verb in (*data_verbs, settings.settings, demo.demo):
    app.command()(verb)


@app.callback()
def start() -> None:
    """Make modules in the current folder importable, after all others, so that a user's own method is found."""
    if "" not in sys.path:
        sys.path.append("")
