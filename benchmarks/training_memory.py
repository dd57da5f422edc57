"""Anonymous memory of a fit on a memory-mapped file that is larger than the memory allowed.

    python benchmarks/training_memory.py [FOLDER for a temporary file of 1.5 GB]

1,000,000 items x 3 views x 256 features in float16, 24 bits, one epoch. Anonymous memory is what the system cannot
reclaim (RssAnon in /proc/self/status); pages of the mapped file are not counted, since they can be dropped at any time.
"""

import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch

from combemb import CombEmb

N, V, FEATURES, CLASSES, SEEN = 1_000_000, 3, 256, 20, 15


def anonymous_megabytes() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


def write_items(path: Path) -> np.ndarray:
    """Write noisy blobs in chunks and return their targets."""
    rng = np.random.default_rng(0)
    x = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=(N, V, FEATURES))
    targets = rng.integers(CLASSES, size=N)
    centres = rng.normal(size=(CLASSES, FEATURES)).astype(np.float32)
    for start in range(0, N, 10_000):
        rows = slice(start, start + 10_000)
        noise = rng.standard_normal((10_000, V, FEATURES), dtype=np.float32)
        x[rows] = (centres[targets[rows]][:, None] + 1.5 * noise).astype(np.float16)
    x.flush()
    return targets


def main(folder: Path) -> None:
    torch.set_num_threads(2)
    path = folder / "items.npy"
    targets = write_items(path)
    labels = np.where((targets < SEEN) & (np.arange(N) % 2 == 0), targets, -1)
    CombEmb(bits=24, epochs=1).fit(np.random.default_rng(0).normal(size=(600, 3, 32)), labels[:600])  # loads libraries
    before = peak = anonymous_megabytes()
    is_done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not is_done.wait(0.02):
            peak = max(peak, anonymous_megabytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    model = CombEmb(bits=24, epochs=1).fit(path, labels, progress=True)
    seconds = time.perf_counter() - began
    is_done.set()
    watcher.join()
    print(f"file {path.stat().st_size / 2**20:,.0f} MB, {len(model.log_)} epoch in {seconds:.0f} s, ", end="")
    print(f"{model.log_[-1]['items_per_second']:,.0f} items/s in the loop")
    print(f"anonymous memory: {before:.0f} MB before, {peak:.0f} MB peak, {peak - before:.0f} MB more (500 allowed)")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as temporary:
        main(Path(temporary))
