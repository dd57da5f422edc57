"""What a user reads on the terminal: results, notes and errors."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import typer
from rich.console import Console
from rich.markup import escape

out, err = Console(highlight=False), Console(stderr=True, highlight=False)
INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it
wants_traceback: ContextVar[bool] = ContextVar("wants_traceback", default=False)  # --debug


def say(line: str) -> None:
    """Print a line as it is: file names may look like markup, and the terminal wraps long lines itself."""
    out.print(line, soft_wrap=True, markup=False)


def printable(name: object) -> str:
    """Return a name as one line; characters that would move the cursor or change colours are escaped.

    >>> printable("a\\nb")
    'a\\\\nb'
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(name))


def tell_broken(broken: dict[str, str], target: str) -> None:
    """List the images that could not be read."""
    if broken:
        listed = "\n  ".join(f"{name}: {reason}" for name, reason in broken.items())
        err.print(f"unreadable images left out of {escape(target)}: {len(broken)}\n  {escape(listed)}", soft_wrap=True)


@contextmanager
def notes_shown() -> Iterator[None]:
    """Print the package's own warnings as notes at once, unless the verb is quiet, and drop those of its libraries."""
    from combemb.system.errors import Note

    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        if issubclass(category, Note) and not out.quiet:
            err.print(f"[bold yellow]note:[/] {escape(str(message))}", soft_wrap=True)

    with warnings.catch_warnings(action="always", category=UserWarning):
        warnings.showwarning = show  # catch_warnings restores it
        yield


def tell_error(text: str) -> None:
    """Print an error as one line."""
    err.print(f"[bold red]error:[/] {escape(printable(text))}", soft_wrap=True)


@contextmanager
def running(quiet: bool = False, stopped: str = "stopped") -> Iterator[None]:
    """Run a verb; if it is quiet, results are not printed.

    Errors that a user can fix become one line and exit code 1. `guarded` handles all others.
    """
    from combemb.learning.loop import Diverged
    from combemb.system import machine
    from combemb.system.errors import UnknownData
    from combemb.system.processes import LostProcess

    machine.own_process()  # malloc may be tuned: this process is ours, unlike one that imports a library
    out.quiet = quiet
    try:
        yield
    except (ValueError, OSError, Diverged, LostProcess) as error:
        if wants_traceback.get() or isinstance(
            error, BrokenPipeError
        ):  # click ends quietly when `head` closes the pipe
            raise
        tell_error(str(error) + (", with --images or --embeddings" if isinstance(error, UnknownData) else ""))
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        if wants_traceback.get():
            raise
        err.print(escape(stopped), soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
