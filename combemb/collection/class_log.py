"""The log of what a person said about discovered classes: one change per line, by the ids of items."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, get_args

from combemb.learning.run_folder import CLASSES, RunFolder

Kind = Literal["name", "merge", "split", "move", "reject", "undo"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Change:
    """One thing that a person said: the items of each group belong to one class.

    Items are listed by their ids, because another discovery gives its clusters new numbers.

    Attributes
    ----------
    kind : str
        name, merge, split, move, reject or undo.
    clusters : list of str
        The clusters as they were called, for people who read the log.
    groups : list of lists of str
        Ids of the items; several groups only in a split, which makes a new class of each.
    to : str, optional
        Name of the class that the items belong to.
    beside : list of str
        Items of the class that they belong to, if it has no name yet.
    """

    kind: Kind
    clusters: list[str] = field(default_factory=list)
    groups: list[list[str]] = field(default_factory=list)
    to: str | None = None
    beside: list[str] = field(default_factory=list)


def standing(log: Iterable[Change]) -> list[Change]:
    """Return the changes that were not undone; each undo takes back the last change before it that stands."""
    stack: list[Change] = []
    for change in log:
        if change.kind != "undo":
            stack.append(change)
        elif stack:
            stack.pop()
    return stack


def read_log(run: str | Path) -> list[Change]:
    """Return all changes of a run folder; a last line that was cut off by a crash is ignored."""
    path = Path(run) / CLASSES
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    log = []
    for number, line in enumerate(lines, start=1):
        try:
            change = Change(**json.loads(line))
            if change.kind not in KINDS:
                raise ValueError(f"unknown change {change.kind!r}")
        except (ValueError, TypeError) as error:
            raise ValueError(f"line {number} of {path} is damaged ({error}); remove this line") from error
        log.append(change)
    return log


def append(run: str | Path, change: Change) -> None:
    """Append a change to the log of a run folder; it is on the disk when this returns."""
    RunFolder(run).config()  # raises an error if this is not a run folder
    path = Path(run) / CLASSES
    is_new = not path.exists()
    line = json.dumps(asdict(change), ensure_ascii=False).encode() + b"\n"
    with path.open("ab+") as file:
        file.seek(0)
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)  # without a line that a crash cut off
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
    if is_new and hasattr(os, "O_DIRECTORY"):  # the name of a new file is durable when its folder is
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
