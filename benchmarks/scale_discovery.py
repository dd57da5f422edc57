"""Discovery of 10,000,000 items with 288 features each on one machine: memory, time and accuracy.

python benchmarks/scale_discovery.py                               # float16, a file of 5.8 GB
python benchmarks/scale_discovery.py --items 1000000 --dtype float32

20 classes of Gaussian clouds, 15 of them seen; 1 % of their items are labelled. The file is written by another process,
so the peak of resident memory is that of the discovery alone.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from combemb.discovery.metrics import matched
from combemb.scale import discover_sharded

F, CLASSES, SEEN, LABELLED_SHARE, WRITE_ROWS = 288, 20, 15, 0.01, 50_000


def targets_of(n: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, CLASSES, n)


def write(path: Path, n: int, dtype: str) -> None:
    """Write the items: a class is a cloud in 40 of the dimensions around its centre."""
    rng, targets = np.random.default_rng(0), targets_of(n)
    centres = rng.normal(size=(CLASSES, F)).astype(np.float32)
    x = np.lib.format.open_memmap(path, "w+", dtype, (n, F))
    for start in range(0, n, WRITE_ROWS):
        own = targets[start : start + WRITE_ROWS]
        x[start : start + len(own)] = centres[own] + 1.5 * rng.standard_normal((len(own), F), np.float32)


def discover(path: Path, out: Path, n: int, engine: str) -> None:
    """Discover, and print what it took and how good it is."""
    targets = targets_of(n)
    is_labelled = (targets < SEEN) & (np.random.default_rng(2).random(n) < LABELLED_SHARE)
    began = time.perf_counter()
    found = discover_sharded(
        str(path), str(out), np.where(is_labelled, targets, -1), engine=engine, progress=True, overwrite=True
    )
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    names, assigned, first = {}, np.empty(n, np.int64), 0
    for number in range(len(found.receipts)):
        column = pc.dictionary_encode(found.block(number)["class"].combine_chunks())
        place = np.array([names.setdefault(name, len(names)) for name in column.dictionary.to_pylist()])
        assigned[first : first + len(column)] = place[np.asarray(column.indices)]
        first += len(column)
    some = np.flatnonzero(~is_labelled)
    accuracy = matched(assigned[some], targets[some]).mean()
    print(f"{n:,} items in {len(names)} classes; {found.sample!r}, a sample")
    print(f"  {seconds:,.0f} s, peak of resident memory {peak:.2f} GB, accuracy of unlabelled items {accuracy:.3f}")
    print(f"  load {os.getloadavg()[0]:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=10_000_000)
    parser.add_argument("--dtype", choices=["float16", "float32"], default="float16")
    parser.add_argument("--engine", choices=["local", "ray"], default="local")
    parser.add_argument("--only", choices=["write", "discover"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only == "write":
        write(given.folder / "x.npy", given.items, given.dtype)
    elif given.only == "discover":
        discover(given.folder / "x.npy", given.folder / "out", given.items, given.engine)
    else:
        with tempfile.TemporaryDirectory() as folder:
            for step in ("write", "discover"):
                subprocess.run([sys.executable, *sys.argv, "--only", step, "--folder", folder], check=True)


if __name__ == "__main__":
    main()
