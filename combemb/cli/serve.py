"""`combemb serve`: the explorer, a page to look at what was found, to name it, export it and fit again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from combemb.cli.console import err, out, running, say
from combemb.cli.options import Address, Quiet, Run, Shards

HOST, PORT = "127.0.0.1", 8017

Port = Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 takes any free one.")]
Open = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]


def serve(
    run: Run,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Any other than this machine's own needs --token-file.")
    ] = HOST,
    port: Port = PORT,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with the token; written with a new one if it does not exist."),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(help="A name by which browsers reach this server, besides addresses. Repeatable."),
    ] = None,
    image_root: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Show images below this folder too, such as targets of links. Repeatable."),
    ] = None,
    open_page: Open = False,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="ray", help="Serve the search of the shards of `combemb index --engine` by a Ray cluster."
        ),
    ] = None,
    shards: Shards = None,
    address: Address = None,
    quiet: Quiet = False,
) -> None:
    """Serve a page of a run: look at what was found, name it, search it, export it, fit again with the new labels.

    Changes are on the disk at once, as those of `combemb classes` are, which also works beside it. The same as an HTTP
    API is described at /api of the server. Only images below the folder of the data are shown.

    With `--engine ray` there is no page, only an API to search an index of any size. While shards are being loaded
    again after a machine was lost, answers name them.

    Without --host, only programs on this machine can reach the server. A token travels unencrypted: in a network that
    you do not trust, forward a port through SSH, or put a server with TLS in front.

    Example: `combemb serve runs/photos --open`
    """
    with running(quiet, "stopped"):
        if engine is not None:
            from combemb.cli.sharded import serve_shards

            if engine != "ray":
                raise ValueError(f"--engine {engine}: a server without it is local; use ray, or leave it out")
            if image_root or open_page:
                raise ValueError("--image-root and --open are for the page, which --engine ray does not have")
            serve_shards(run, shards, address, host=host, port=port, token_file=token_file, names=tuple(name or ()))
            return
        if shards is not None or address is not None:
            raise ValueError("--shards and --address need --engine ray")
        serve_run(
            run,
            host=host,
            port=port,
            token_file=token_file,
            names=tuple(name or ()),
            image_roots=tuple(image_root or ()),
            opens=open_page,
        )


def announced(what: str, token_file: Path | None) -> tuple[str | None, Callable[[str], None]]:
    """Return the token in a file, if there is one, and a function that says where the server is."""
    from combemb.explorer.server.access import read_token

    is_new = token_file is not None and not token_file.exists()
    token = None if token_file is None else read_token(token_file)

    def started(address: str) -> None:
        say(f"{what} is served at {address}; Ctrl-C stops")
        if token_file is not None:
            say(f"the token is in {token_file}{', which is new' if is_new else ''}")
        out.file.flush()

    return token, started


def serve_run(
    run: Path,
    *,
    host: str = HOST,
    port: int = PORT,
    token_file: Path | None = None,
    names: tuple[str, ...] = (),
    image_roots: tuple[Path, ...] = (),
    opens: bool = False,
) -> None:
    """Serve a run until Ctrl-C, and say where."""
    from combemb.explorer.server.access import Access
    from combemb.explorer.server.app import Options
    from combemb.explorer.server.serving import serve as serve_until_stopped
    from combemb.learning.run_folder import RunFolder

    RunFolder(run).config()  # raises an error if this is not a run folder
    for root in image_roots:
        if not root.is_dir():
            raise ValueError(f"--image-root {root}: there is no such folder")
    token, tell = announced(str(run), token_file)

    def started(address: str) -> None:
        tell(address)
        if opens and typer.launch(address) != 0:
            err.print("no browser was found; open the address yourself")

    options = Options(run, Access(token, names), image_roots)
    serve_until_stopped(options, host, port, started)
