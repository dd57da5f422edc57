"""One writer per run folder: a second one is told who holds it, and the lock of a dead one does not block."""

import json
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from combemb.system.files import writing

LOCK, WRITER = ".lock", ".writer.json"  # the system releases the lock when its process ends, however it ends


_held: ContextVar[frozenset[Path]] = ContextVar("_held", default=frozenset())  # folders that this thread writes


class BeingWritten(ValueError):
    """Another process writes into the folder."""


@contextmanager
def one_writer(folder: Path, wait: float = 0.0) -> Iterator[bool]:
    """Hold the lock of a folder; what this creates is removed at the end, and folders only if they are empty.

    Parameters
    ----------
    folder : Path
        It is made if necessary.
    wait : float
        Seconds to wait for another writer.

    Yields
    ------
    bool
        False if a caller holds the lock already.

    Raises
    ------
    BeingWritten
        If another process writes into the folder; it names the process.
    """
    if folder.resolve() in _held.get():
        yield False
        return
    created = [place for place in (folder, *folder.parents) if not place.exists()]
    lock = FileLock(folder / LOCK, poll_interval=0.02)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with writing(folder / LOCK):
            try:
                lock.acquire(timeout=wait)
            except Timeout:
                raise BeingWritten(
                    f"{folder} is being written by {_writer(folder)}; wait until that is done, or use another folder"
                ) from None
        token = _held.set(_held.get() | {folder.resolve()})
        try:
            about = {"pid": os.getpid(), "host": socket.gethostname(), "command": shlex.join(sys.argv)}
            with suppress(OSError):  # on a full disk, what is to be written says so
                since = datetime.now(UTC).isoformat(timespec="seconds")
                (folder / WRITER).write_text(json.dumps({**about, "since": since}))
            yield True
        finally:
            _held.reset(token)
            for name in (WRITER, LOCK):
                with suppress(OSError):  # a folder that cannot be written any more; a lock that nobody holds is free
                    (folder / name).unlink(missing_ok=True)
            lock.release()
    finally:
        for place in created:
            with suppress(OSError):  # not empty
                place.rmdir()


def is_unused(folder: Path) -> bool:
    """Return whether a folder holds nothing, or only what a killed writer left."""
    return folder.is_dir() and all(path.name.startswith((LOCK, WRITER)) for path in folder.iterdir())


def _writer(folder: Path) -> str:
    try:
        about = json.loads((folder / WRITER).read_text())
        return f"process {about['pid']} on {about['host']} since {about['since']} ({about['command']})"
    except (OSError, ValueError, KeyError, TypeError):  # it has just started, or is just done
        return "another process"
