"""What a user reads on the terminal: results, notes and errors."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.markup import escape

out, err = Console(highlight=False), Console(stderr=True, highlight=False)


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
    """Print the package's own warnings as notes, unless the verb is quiet, and drop those of its libraries."""
    from combemb.system.errors import Note

    with warnings.catch_warnings(record=True, action="always", category=UserWarning) as caught:
        yield
    for warning in caught:
        if issubclass(warning.category, Note) and not out.quiet:
            err.print(f"[bold yellow]note:[/] {escape(str(warning.message))}", soft_wrap=True)


@contextmanager
def running(quiet: bool = False, stopped: str = "stopped") -> Iterator[None]:
    """Run a verb; if it is quiet, results are not printed.

    Errors that a user can fix become one line and exit code 1; bugs, and imports before it, keep a traceback.
    """
    from combemb.learning.loop import Diverged
    from combemb.system import machine
    from combemb.system.errors import UnknownData

    machine.own_process()  # malloc may be tuned: this process is ours, unlike one that imports a library
    out.quiet = quiet
    try:
        yield
    except (ValueError, OSError, Diverged) as error:
        hint = ", with --images or --embeddings" if isinstance(error, UnknownData) else ""
        err.print(f"[bold red]error:[/] {escape(str(error))}{hint}", soft_wrap=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        err.print(escape(stopped), soft_wrap=True)
        raise typer.Exit(130) from None
