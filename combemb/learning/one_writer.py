"""One writer per run folder: a second one is told who holds it, and the lock of a dead one does not block."""

import json
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from combemb.system.files import write_json, writing

LOCK, WRITER = ".lock", ".writer.json"  # the system releases the lock when its process ends, however it ends


@contextmanager
def one_writer(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; what this creates is removed at the end, and folders only if they are empty.

    Raises
    ------
    ValueError
        If another process writes into the folder; it names the process.
    """
    created = [place for place in (folder, *folder.parents) if not place.exists()]
    lock = FileLock(folder / LOCK)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with writing(folder / LOCK):
            try:
                lock.acquire(timeout=0)
            except Timeout:
                raise ValueError(
                    f"{folder} is being written by {_writer(folder)}; wait until that is done, or use another folder"
                ) from None
        try:
            about = {"pid": os.getpid(), "host": socket.gethostname(), "command": shlex.join(sys.argv)}
            write_json(folder / WRITER, {**about, "since": datetime.now(UTC).isoformat(timespec="seconds")})
            yield
        finally:
            for name in (WRITER, LOCK):
                (folder / name).unlink(missing_ok=True)
            lock.release()
    finally:
        for place in created:
            with suppress(OSError):  # not empty
                place.rmdir()


def is_unused(folder: Path) -> bool:
    """Return whether a folder holds nothing, or only what a killed writer left."""
    return folder.is_dir() and all(path.name.startswith((LOCK, WRITER, f".{WRITER}.")) for path in folder.iterdir())


def _writer(folder: Path) -> str:
    try:
        about = json.loads((folder / WRITER).read_text())
        return f"process {about['pid']} on {about['host']} since {about['since']} ({about['command']})"
    except (OSError, ValueError, KeyError, TypeError):  # it has just started, or is just done
        return "another process"
