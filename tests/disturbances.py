"""What happens to a process that writes: it is killed, its disk is full, its folder cannot be written any more."""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from combemb.learning import loop
from tests.real_processes import CHANGES, command

FILLER = "filler"
CAP_DAC_OVERRIDE, CAPABILITY_VERSION = 1, 0x20080522


def kill(_: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fill(run: Path, room: int = 0) -> None:
    """Fill the disk of a run folder, except for some bytes."""
    filler = run.parent / FILLER
    with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
        for size in (2**16, 2**12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    os.truncate(filler, max(0, filler.stat().st_size - room))


def forbid(run: Path) -> None:
    run.chmod(0o555)


def calm(run: Path) -> None:
    """Undo what the others did."""
    run.chmod(0o755)
    (run.parent / FILLER).unlink(missing_ok=True)


def without_privilege() -> None:
    """Let permissions count for root too, who could write into any folder otherwise."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    sets[0] &= ~(1 << CAP_DAC_OVERRIDE)  # of the effective ones
    assert libc.capset(header, sets) == 0


def disturbed(disturb: Callable[[Path], None] | None, number: int, run: Path, output: Path, *arguments: object) -> None:
    """Run a command; before its change of a folder with this number, something happens to it."""
    without_privilege()
    loop.CHECKPOINT_SECONDS = 0.0  # a checkpoint after every epoch
    n_changes = 0

    def count(event: str, _: Any) -> None:
        nonlocal n_changes
        if event in CHANGES and disturb is not None:
            n_changes += 1
            if n_changes == number:
                disturb(run)

    sys.addaudithook(count)
    command(output, *arguments)
