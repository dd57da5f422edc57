"""Errors that say what was found, what is needed and what to do; and warnings about results."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def require(condition: bool, message: str) -> None:
    """Raise a ValueError with this message unless the condition holds."""
    if not condition:
        raise ValueError(message)


@contextmanager
def reading(path: str | Path, *kinds: type[Exception], hint: str = "") -> Iterator[None]:
    """Turn errors of these kinds into a ValueError that names the file and ends with the hint."""
    try:
        yield
    except kinds as error:
        raise ValueError(f"cannot read {path}: {error}{hint and f'; {hint}'}") from error


class Note(UserWarning):
    """A warning that a result may not be what the user wanted."""


class UnknownData(ValueError):
    """The data that a run was fitted on are unknown or no longer exist."""
