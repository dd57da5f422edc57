"""Serve a run until the process is asked to stop."""

import asyncio
import socket
from collections.abc import Callable

import torch
import uvicorn
from fastapi import FastAPI

from combemb.explorer.server.access import Access, is_loopback
from combemb.explorer.server.app import Options, application
from combemb.system.errors import require

BACKLOG, GRACE_SECONDS = 256, 5


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens; raise a ValueError if the address is not free."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # asyncio sends at once if the socket says that it is TCP; else the second part of an answer waits for 40 ms
        found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
            found.listen(BACKLOG)
        except OSError:
            found.close()
            raise
    except OSError as error:
        what_to_do = "choose another with --port, or any free one with --port 0"
        raise ValueError(f"cannot listen on {host} port {port}: {error.strerror or error}; {what_to_do}") from error
    return found


def serve(options: Options, host: str, port: int, started: Callable[[str], object]) -> None:
    """Serve a run; see `serve_application`."""
    serve_application(lambda: application(options), options.access, host, port, started)


def serve_application(
    make: Callable[[], FastAPI], access: Access, host: str, port: int, started: Callable[[str], object]
) -> None:
    """Serve an application; `started` gets the address as soon as requests are answered.

    Parameters
    ----------
    make : callable
        Returns the application, whose guard has the rules of `access`.
    access : Access
        Any address that others can reach needs a token.
    host : str
    port : int
        0 takes a free one.
    started : callable
    """
    has_token = access.token is not None
    what_to_do = "give --token-file FILE, which is written with a new token if it does not exist"
    require(has_token or is_loopback(host), f"{host} can be reached by others; {what_to_do}")
    require(has_token or not access.hosts, f"a server with a name can be reached by others; {what_to_do}")
    app = make()
    with listening(host, port) as found:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # requests share the cores among each other
        try:
            asyncio.run(_served(app, found, started))
        finally:
            torch.set_num_threads(threads)


async def _served(app: FastAPI, found: socket.socket, started: Callable[[str], object]) -> None:
    config = uvicorn.Config(app, log_level="error", access_log=False, ws="none", server_header=False)
    config.timeout_graceful_shutdown = GRACE_SECONDS
    server = uvicorn.Server(config)
    name, port = found.getsockname()[:2]
    address = f"http://{f'[{name}]' if ':' in name else name}:{port}/"

    async def tell() -> None:
        while not server.started:
            await asyncio.sleep(0.02)
        started(address)

    telling = asyncio.create_task(tell())
    try:
        await server.serve(sockets=[found])
    finally:
        telling.cancel()
