"""`combemb settings`: list the methods and their settings."""

import dataclasses
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from combemb.cli.console import out, running
from combemb.cli.methods import show


def settings(
    method: Annotated[
        str | None, typer.Argument(help="A method or first stage; without it, all methods are listed.")
    ] = None,
) -> None:
    """List the methods, or the settings of one method with their defaults."""
    from combemb import methods

    with running():
        if method is None:
            show()
            return
        from combemb.learning.head import STAGES

        table = Table("setting", "default", "description", box=None, pad_edge=False)
        for field in dataclasses.fields(STAGES.get(method) or methods.get(method)):
            allowed = f" ({field.metadata['allowed']})" if field.metadata.get("allowed") else ""
            table.add_row(field.name, escape(str(field.default)), escape(field.metadata.get("about", "") + allowed))
        out.print(table)
