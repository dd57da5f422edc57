"""Ray against two plain processes: encoding cached features in the same blocks, into the same files.

python benchmarks/scale_encoding.py                      # 200,000 features of 1,280 numbers, 48 bits
python benchmarks/scale_encoding.py --items 1000000 --rounds 3

Both sides have two workers of one thread. Each side's time runs from the call to the last file, including the start of
its workers, which import torch; the cluster of two nodes is there before. Sides alternate, and the median of the
ratios of the rounds is printed, with the load of the machine beside it.
"""

import argparse
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from two_nodes import two_nodes

from combemb import CombEmb
from combemb.scale import encode_sharded
from combemb.scale.encoding import Encode, planned
from combemb.scale.engines import results
from combemb.scale.models import ModelFiles
from combemb.scale.store import Store

F, BITS, SEEN = 1_280, 48, 20


def make(folder: Path, n: int) -> None:
    """Write features as a backbone makes them, and a run that was fitted on some of them."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(2 * SEEN, F)).astype(np.float32)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float16, (n, F))
    for start in range(0, n, 20_000):
        targets = np.arange(start, min(start + 20_000, n)) % len(centres)
        x[start : start + len(targets)] = centres[targets] + rng.standard_normal((len(targets), F), np.float32)
    targets = np.arange(4_000) % len(centres)
    labels = np.where((targets < SEEN) & (np.arange(4_000) < 2_000), targets, -1)
    model = CombEmb(bits=BITS, epochs=2, check=False)
    model.fit(np.asarray(x[:4_000], np.float32), labels, folder=folder / "run", progress=False)


def share(run: str, source: str, out: str, part: int, n_parts: int) -> None:
    """Encode every n-th block: what one of the plain processes does."""
    model, store = ModelFiles.of(run), Store(out)
    plan = planned(store, source, model.digest)
    for _ in results(Encode(model, plan, store), range(plan.n_blocks)[part::n_parts], "local"):
        pass


def by_processes(run: str, source: str, out: str) -> None:
    planned(Store(out), source, ModelFiles.of(run).digest)
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=share, args=(run, source, out, part, 2)) for part in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0


def by_ray(run: str, source: str, out: str) -> None:
    encode_sharded(run, source, out, engine="ray", progress=False)


def timed(work, run: Path, source: Path, out: Path) -> float:
    began = time.perf_counter()
    work(str(run), str(source), str(out))
    return time.perf_counter() - began


def codes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "codes").rglob("*")) if path.is_file()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as temporary, two_nodes():
        folder, ratios = Path(temporary), []
        make(folder, given.items)
        for number in range(given.rounds):
            times = {}
            for name, work in (("processes", by_processes), ("ray", by_ray)):
                out = folder / name
                shutil.rmtree(out, ignore_errors=True)
                times[name] = timed(work, folder / "run", folder / "x.npy", out)
            assert codes(folder / "ray") == codes(folder / "processes")
            ratios.append(times["ray"] / times["processes"])
            rates = ", ".join(f"{name} {t:6.2f} s ({given.items / t:8,.0f} items/s)" for name, t in times.items())
            load = os.getloadavg()[0]
            print(f"  round {number}: {rates}, ratio {ratios[-1]:.3f}, load {load:.1f}", flush=True)
        print(f"{given.items:,} items: overhead of Ray {100 * (statistics.median(ratios) - 1):+.1f} % (median)")


if __name__ == "__main__":
    main()
