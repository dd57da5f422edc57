"""What all verbs have in common: `--debug`, and one line instead of a traceback without it."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from combemb.cli.console import INTERRUPTED, err, tell_error, wants_traceback

Debug = Annotated[bool, typer.Option("--debug", help="Show the whole traceback of an error.")]


def guarded(verb: Callable[..., None]) -> Callable[..., None]:
    """Return the verb with the option `--debug`; without it, any error is one line.

    `running` knows what to say about errors that a user can fix. Others are bugs of this package, of a library or of a
    user's own method, or the installation is damaged.
    """

    @functools.wraps(verb)
    def run(*args: Any, debug: bool, **options: Any) -> None:
        token = wants_traceback.set(debug)
        try:
            verb(*args, **options)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except (Exception, KeyboardInterrupt) as error:
            if debug:
                raise
            if isinstance(error, KeyboardInterrupt):  # before the verb has begun
                err.print("stopped")
                raise typer.Exit(INTERRUPTED) from None
            tell_error(_described(error))
            raise typer.Exit(1) from None
        finally:
            wants_traceback.reset(token)

    signature = inspect.signature(verb, eval_str=True)
    option = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])  # type: ignore[attr-defined]
    return run


def _described(error: Exception) -> str:
    """Return an unexpected error as one line."""
    if isinstance(error, MemoryError):
        return "there is not enough memory; close other programs, or use a smaller batch_size or fewer items"
    text = " ".join(str(error).split())[:400]
    return f"unexpected {type(error).__name__}: {text}; the same command with --debug shows where it came from"
