"""What a core does in a second, and the table of docs/scale.md that follows from it.

python benchmarks/scale_rates.py

Rates are per second of processor time of one thread, so that they mean the same on a busy machine. The table assumes
that every rate stays what it is here: codes of 48 bits in the page cache, work that is spread evenly, and cores that
do not wait for memory. One query reads every code once; eight queries share a pass.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.filesize import decimal

from combemb import CodeIndex, CombEmb, discover
from combemb.scale.engines import one_thread
from combemb.search.codebook import ProductCodebook

SETS, D, BITS, F, K = 24, 12, 48, 1_280, 100
CORES, RAY = 32, 0.005  # of a machine of the table; seconds that Ray may add to a batch, see scale_search.py
IMAGES = 33  # of 224 px per second and core, by torch; benchmarks/extraction_speed.py
SIZES = {10**6: 1, 10**7: 1, 10**8: 1, 10**9: 2, 10**10: 8}  # entries -> machines


def rate(work: Callable[[], object], n: int, least_seconds: float = 2.0) -> float:
    """Return n per second of processor time, the best of a few tries."""
    work()
    best, began = 0.0, time.process_time()
    while time.process_time() - began < least_seconds:
        start = time.process_time()
        work()
        best = max(best, n / (time.process_time() - start))
    return best


def encoding() -> float:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((16_384, F), np.float32)
    labels = np.where(np.arange(2_000) < 500, np.arange(2_000) % 10, -1)
    model = CombEmb(bits=BITS, epochs=1, check=False).fit(x[:2_000], labels, progress=False)
    return rate(lambda: model.encode(x, progress=False), len(x))


def searching(n: int) -> tuple[dict[int, float], float, float]:
    """Return codes per second for each number of queries, entries joined per second, and bytes per entry of a file."""
    rng = np.random.default_rng(0)
    words = rng.normal(size=(SETS, 4, D))
    codebook = ProductCodebook(words / np.linalg.norm(words, axis=2, keepdims=True))
    codes = torch.from_numpy(rng.integers(0, 4, (n, SETS), dtype=np.uint8))
    index, began = CodeIndex(codebook, n_threads=1), time.process_time()
    index.add(codes)
    joined = n / (time.process_time() - began)
    with tempfile.TemporaryDirectory() as folder:
        index.save(Path(folder) / "index")
        n_bytes = (Path(folder) / "index").stat().st_size / n
    queries = rng.standard_normal((16, SETS * D), np.float32)
    rates = {Q: rate(lambda Q=Q: index.search(queries[:Q], K), n) for Q in (1, 16)}
    return rates, joined, n_bytes


def placing() -> float:
    rng = np.random.default_rng(0)
    targets = np.arange(4_000) % 20
    x = (rng.normal(size=(20, 288))[targets] + 1.5 * rng.standard_normal((4_000, 288))).astype(np.float32)
    found = discover(x, np.where((targets < 15) & (np.arange(4_000) < 1_000), targets, -1), progress=False)
    return rate(lambda: found.placed(x), len(x))


def duration(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    if seconds >= 2:
        return f"{seconds:,.0f} s"
    return f"{1e3 * seconds:,.0f} ms" if seconds >= 0.001 else "< 1 ms"


def main() -> None:
    with one_thread():
        encode, place = encoding(), placing()
        scans, join, n_bytes = searching(5_000_000)
    print(f"per core: {encode:,.0f} features encoded, {place:,.0f} items of 288 features placed,")
    print(f"{join:,.0f} codes joined,")
    print(
        f"{scans[1] / 1e6:,.0f} M codes scanned for one query, {scans[16] / 1e6:,.1f} M for a batch of 16; per second"
    )
    print(f"{n_bytes:.1f} bytes per entry on the disk, {BITS / 8:.0f} of them read by every search\n")
    columns = ["images", "bits", "machines", "disk", "RAM for codes, each", "encode images", "encode features"]
    print(f"| {' | '.join([*columns, 'one query', '16 queries'])} |")
    print("|---:" * (len(columns) + 2) + "|")
    for n, machines in SIZES.items():
        cores, over = CORES * machines, RAY * (machines > 1)
        cells = [f"{n:,}", str(BITS), str(machines), decimal(int(n * n_bytes)), decimal(int(n * BITS / 8 / machines))]
        cells += [duration(n / per_second / cores) for per_second in (IMAGES, encode)]
        cells += [duration(n / scan / cores + over) for scan in scans.values()]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
