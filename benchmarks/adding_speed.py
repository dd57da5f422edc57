"""Seconds of `combemb index RUN --images FOLDER --add` with one new photo, for an index of 5,000.

    python benchmarks/adding_speed.py [number of photos in the index]

Photos of 300 px are generated, a fit and the index are made by the command line with its defaults for the size of
images. Then photos are added one at a time, each by a process of its own: imports, loading of the model and the index,
extraction of the photo, atomic writing. The median counts; the processor's seconds say what a busy machine added to
them. `fit` is then timed on the folder with one photo more, whose features are the only ones that it extracts.
Target: 5 s for adding.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

ROUNDS, TARGET, SIDE = 5, 5.0, 300


def photo(path: Path, rng: np.random.Generator) -> None:
    """Write smooth noise."""
    coarse = Image.fromarray(rng.integers(0, 256, (SIDE // 20, SIDE // 20, 3), dtype=np.uint8))
    coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(path)


def timed(*arguments: object) -> tuple[float, float]:
    """Run a command of combemb; return its seconds, and those that its processes computed."""
    began, before = time.perf_counter(), os.times()
    command = [sys.executable, "-m", "combemb", *map(str, arguments), "--quiet"]
    subprocess.run(command, check=True)
    after = os.times()
    computed = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - began, computed


def main(n: int) -> int:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        os.environ["COMBEMB_CACHE"] = str(root / "cache")
        for i in range(n):
            path = root / "photos" / f"class-{i % 10}" / f"{i:05}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            photo(path, rng)
        run = root / "run"
        fit = ("fit", root / "photos", "--out", run, "--method", "itq", "--overwrite")
        seconds, computed = timed(*fit)
        print(f"fit of ITQ on {n:,} photos: {seconds:.1f} s ({computed:.1f} s of the processor)", flush=True)
        timed("index", run)
        added = []
        for i in range(ROUNDS):
            new = root / f"new-{i}"
            new.mkdir()
            photo(new / "photo.jpg", rng)
            added.append(timed("index", run, "--images", new, "--add"))
        each = " ".join(f"{seconds:.1f}" for seconds, _ in added)
        median, of_processor = (sorted(values)[ROUNDS // 2] for values in zip(*added, strict=True))
        print(f"adding one photo: {median:.1f} s ({each}; {of_processor:.1f} s of the processor; target: {TARGET})")
        photo(root / "photos" / "class-0" / "00000a.jpg", rng)
        seconds, computed = timed(*fit)
        print(f"fit with one photo more: {seconds:.1f} s ({computed:.1f} s of the processor)")
    return int(median > TARGET)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5_000))
