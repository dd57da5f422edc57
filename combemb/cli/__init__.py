"""The command line: one file per verb. Verbs import what they need when they are called, so that help comes at once."""

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from combemb.cli import (
    bench,
    cache,
    classes,
    compare,
    demo,
    discover,
    doctor,
    embed,
    export,
    fit,
    index,
    methods,
    predict,
    pretrain,
    relocate,
    run,
    search,
    serve,
    settings,
)
from combemb.cli.guarded import guarded
from combemb.cli.several import Several
from combemb.system.version import __version__


class Verbs(TyperGroup):
    """The verbs; an unknown one gets a list of them."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the verb."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}; choose one of {', '.join(self.commands)}")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Verbs,
    help="Learn from partly labelled images or embeddings; then embed, encode, search and discover novel classes.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,  # those of --debug are to be sent to somebody
)
data_verbs = (
    *(run.run, pretrain.pretrain, fit.fit, embed.embed, embed.encode, index.index, search.search),
    *(discover.discover, classes.classes, serve.serve, predict.predict, export.export, relocate.relocate),
)
for verb in (*data_verbs, methods.methods, settings.settings, demo.demo, cache.cache, doctor.doctor):
    app.command()(guarded(verb))
app.command(cls=Several)(guarded(compare.compare))
app.add_typer(bench.bench, name="bench")


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
