"""How many files of combemb `combemb fit photos/` passes through, and which of them call each other.

python benchmarks/files_crossed.py

A file counts if one of its functions calls a function of another file of the package.
Files that call only themselves and `system/` do not count, nor do calls during imports.
"""

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from PIL import Image

import combemb
from combemb.methods.combemb import CombEmb

PACKAGE = str(Path(combemb.__file__).parent) + os.sep
SERVICES = ("system/", "files.py", "machine.py", "processes.py", "progress.py", "console.py")


def name_of(frame: FrameType | None) -> str | None:
    """Return the file of a frame in the package, None for other files and for top-level code of a module."""
    if frame is None or frame.f_code.co_name == "<module>" or not frame.f_code.co_filename.startswith(PACKAGE):
        return None
    return frame.f_code.co_filename.removeprefix(PACKAGE)


def traced(work: Any) -> list[tuple[str, str]]:
    """Return the calls between files, in the order in which they first happened."""
    calls: dict[tuple[str, str], None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or (callee := name_of(frame)) is None or callee.startswith(SERVICES):
            return
        back = frame.f_back
        while back is not None and (caller := name_of(back)) is None:
            back = back.f_back  # skip libraries in between, such as contextlib
        if back is not None and caller and caller != callee and not caller.startswith(SERVICES):
            calls.setdefault((caller, callee))

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return list(calls)


def main() -> None:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["COMBEMB_CACHE"] = f"{folder}/cache"
        for i in range(60):
            place = Path(folder, "photos", f"class-{i % 5}" if i < 30 else "unlabelled")
            place.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 255, (1, 1, 3)) // 2 + rng.integers(0, 60, (40, 40, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(place / f"{i}.png")
        settings = {"image_size": 32, "n_views": 2, "epochs": 2, "batch_size": 32}
        work = CombEmb(bits=12, **settings)
        with contextlib.redirect_stderr(None):
            calls = traced(lambda: work.fit(f"{folder}/photos", folder=f"{folder}/run", progress=False))
    files = dict.fromkeys(caller for caller, _ in calls)
    both = sorted({tuple(sorted(pair)) for pair in calls if pair[::-1] in calls})
    print(f"{len(files)} files call into others: {', '.join(files)}")
    print(f"{len(both)} pairs call each other: {'; '.join(' <-> '.join(pair) for pair in both)}")


if __name__ == "__main__":
    main()
