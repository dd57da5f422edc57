"""Real processes that start at once, because they are forked from a server that has imported the package."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import combemb.cli  # these are imported by the server, once for all processes
import combemb.collection.discovered
import combemb.collection.predicted
import combemb.collection.splitting
import combemb.learning.deep
import combemb.methods.combemb
import combemb.methods.itq
from combemb.learning.one_writer import one_writer

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload([__name__, "tests.disturbances"])
SECONDS = 180  # until a process that hangs is given up
CHANGES = {"os.rename", "os.remove", "os.rmdir"}  # audit events, raised just before each change of a folder


def started(work: Callable[..., Any], *arguments: Any) -> BaseProcess:
    """Start a process that calls a function of a module."""
    process = SERVER.Process(target=work, args=arguments)
    process.start()
    return process


def ended(process: BaseProcess) -> int:
    """Wait for a process; return its exit code."""
    process.join(SECONDS)
    assert process.exitcode is not None, "it hangs"
    return process.exitcode


def command(output: Path, *arguments: object) -> None:
    """Run a command of the command line; what it prints goes to a file."""
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["combemb", *map(str, arguments)]
    combemb.cli.app()


def killed_at(number: int, work: Callable[..., Any], *arguments: Any) -> None:
    """Call a function; the process is killed just before its change of a folder with this number."""
    n_changes = 0

    def count(event: str, _: Any) -> None:
        nonlocal n_changes
        if event in CHANGES:
            n_changes += 1
            if n_changes > number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    work(*arguments)


def _hold(folder: Path, is_held: Any, end: Any) -> None:
    with one_writer(folder):
        is_held.set()
        end.wait()


@contextmanager
def held(folder: Path) -> Iterator[BaseProcess]:
    """Let another process write into a folder during this block; it is killed at the end."""
    is_held, end = SERVER.Event(), SERVER.Event()
    process = started(_hold, folder, is_held, end)
    try:
        assert is_held.wait(60)
        yield process
    finally:
        process.kill()
        ended(process)
