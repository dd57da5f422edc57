"""The log of what a person said about discovered classes: one change per line, by the ids of items."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, get_args

from combemb.learning.run_folder import CLASSES, RunFolder
from combemb.system.files import CHECKSUM, is_sealed, sealed, sync_folder, unsealed, writing

Kind = Literal["name", "merge", "split", "move", "reject", "undo"]
KINDS: tuple[Kind, ...] = get_args(Kind)
WAIT_SECONDS = 10.0  # for another writer: changes are made by hand, and often take less than a second


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


def read_log(run: str | Path, name: str = CLASSES) -> list[Change]:
    """Return all changes of a run folder; a last line that was cut off by a crash is ignored."""
    path = Path(run) / name
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    log = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if CHECKSUM in record and not is_sealed(record):  # earlier versions wrote no checksum
                raise ValueError("its checksum is wrong")
            change = Change(**unsealed(record))
            if change.kind not in KINDS:
                raise ValueError(f"unknown change {change.kind!r}")
        except (ValueError, TypeError) as error:
            raise ValueError(f"line {number} of {path} is damaged ({error}); remove this line") from error
        log.append(change)
    return log


def append(run: str | Path, change: Change) -> None:
    """Append a change to the log of a run folder; it is on the disk when this returns."""
    folder = RunFolder(run)
    folder.config()  # raises an error if this is not a run folder
    path = folder.folder / CLASSES
    with folder.written(WAIT_SECONDS), writing(path):
        is_new = not path.exists()
        with path.open("ab+", buffering=0) as file:
            file.seek(0)
            end = file.read().rfind(b"\n") + 1
            file.truncate(end)  # without a line that a crash cut off
            try:
                rest = memoryview(log_line(change))
                while rest:  # a disk that is nearly full takes a part of it
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)
                if is_new:
                    path.unlink()
                raise
        if is_new:
            sync_folder(path.parent)


def log_line(change: Change) -> bytes:
    """Return a change as a line of the log, with a checksum."""
    return json.dumps(sealed(asdict(change)), ensure_ascii=False).encode() + b"\n"
