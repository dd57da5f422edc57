"""Memory and first answer of an index of 50,000,000 random codes of 48 bits with integer ids.

python benchmarks/index_memory.py

Resident memory is that of the whole process, including the interpreter and the libraries. The saved index is then
opened by a separate process, with the file in the page cache.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from combemb import CodeIndex
from combemb.search.codebook import ProductCodebook

SETS, WORDS, D = 24, 4, 12


def resident() -> float:
    """Return the resident memory of this process in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1e3


def build(path: Path, n: int) -> None:
    """Add n codes in chunks and save the index."""
    rng = np.random.default_rng(0)
    index = CodeIndex(ProductCodebook(rng.normal(size=(SETS, WORDS, D))), n_threads=2)
    before = resident()
    step = 10_000_000
    for start in range(0, n, step):
        m = min(step, n - start)
        ids = 3 * 10**9 + 7 * np.arange(start, start + m)  # more than 32 bits
        index.add(torch.from_numpy(rng.integers(0, WORDS, (m, SETS), dtype=np.uint8)), ids)
        print(f"  {len(index):,} entries: {resident():,.0f} MB resident, {before:,.0f} MB before", flush=True)
    index.save(path)
    print(f"  {index}; file of {path.stat().st_size / 1e6:,.0f} MB", flush=True)


def answer(path: Path) -> None:
    """Open the index, answer one query, look up ids."""
    before, began = resident(), time.perf_counter()
    index = CodeIndex.load(path, n_threads=2)
    query = np.random.default_rng(1).normal(size=(1, SETS * D))
    index.search(query, 100)
    seconds = time.perf_counter() - began
    print(f"  first answer after {seconds:.2f} s (target: at most 2)")
    print(f"  {before:,.0f} MB resident before, {resident():,.0f} MB after")
    began = time.perf_counter()
    index.search(query, 100)
    print(f"  second answer after {1e3 * (time.perf_counter() - began):.1f} ms")
    began = time.perf_counter()
    index.search(query, 10, among=3 * 10**9 + 7 * np.arange(0, 1000, 10))
    print(f"  look-up of ids, with their sorted order made: {time.perf_counter() - began:.1f} s")
    index.search(query, 100)
    print(f"  {resident():,.0f} MB resident after all this (target: below 1,000)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=50_000_000)
    parser.add_argument("--do", choices=["build", "answer"], help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.do == "build":
        build(given.path, given.entries)
    elif given.do == "answer":
        answer(given.path)
    else:
        with tempfile.TemporaryDirectory() as folder:
            for what in ("build", "answer"):
                print(what, flush=True)
                command = [sys.executable, __file__, "--do", what, "--path", f"{folder}/index.safetensors"]
                subprocess.run([*command, "--entries", str(given.entries)], check=True)


if __name__ == "__main__":
    main()
