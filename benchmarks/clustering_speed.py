"""K-means with and without labels against unconstrained faiss.Kmeans: seconds per iteration, inertia, memory.

    python benchmarks/clustering_speed.py [--threads 2]

60,000 items of 288 features, 100 clusters. With labels, half of the items of 75 classes are labelled. Both
start from the same centres and run the same number of iterations on all items; what each does before and after them is
included. Rounds alternate, so that a busy machine slows both. The inertia is compared with that of a loop over the
centres in float64, from the same start. Memory is the peak of a separate process with 1,000,000 items.
"""

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

import faiss
import numpy as np
import torch

from combemb.discovery.kmeans import kmeans

N, LARGE, D, K, SEEN = 60_000, 1_000_000, 288, 100, 75
THREADS, ROUNDS, ITERATIONS, NOISE = 2, 7, 20, 8.0


def some_items(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return items (n, D) of unit length from overlapping classes, and labels (n,) of half of those of seen classes."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((K, D), np.float32)
    targets = rng.integers(0, K, n)
    x = np.empty((n, D), np.float32)
    for first in range(0, n, 10_000):
        chunk = targets[first : first + 10_000]
        noisy = centres[chunk] + NOISE * rng.standard_normal((len(chunk), D), np.float32)
        x[first : first + 10_000] = noisy / np.linalg.norm(noisy, axis=1, keepdims=True)
    return x, np.where((targets < SEEN) & (rng.random(n) < 0.5), targets, -1)


def start_of(x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the means of the labelled classes, and random unlabelled items for the other clusters."""
    n_seen = labels.max() + 1
    rows = np.random.default_rng(1).choice(np.flatnonzero(labels < 0), K - n_seen, replace=False)
    return np.concatenate([*(x[labels == c].mean(axis=0, keepdims=True) for c in range(n_seen)), x[rows]])


def naive_inertia(x: np.ndarray, labels: np.ndarray, centres: np.ndarray) -> float:
    x, centres = x.astype(np.float64), centres.astype(np.float64)
    for _ in range(ITERATIONS):
        distances = np.empty((len(x), K))
        for first in range(0, len(x), 500):  # a chunk that fits into the cache
            rows = slice(first, first + 500)
            for k, centre in enumerate(centres):
                distances[rows, k] = np.square(x[rows] - centre).sum(axis=1)
        assignment = np.where(labels < 0, distances.argmin(axis=1), labels)
        centres = np.stack([x[assignment == k].mean(axis=0) for k in range(K)])
    return float(np.square(x - centres[assignment]).sum())


def seconds_of(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def compare(x: np.ndarray, labels: np.ndarray, name: str) -> None:
    start = start_of(x, labels)
    faiss_start = start_of(x, np.full(len(x), -1))
    inertia = []

    def ours() -> None:
        found = kmeans(x, K, labels, start=start, n_iterations=ITERATIONS, tolerance=0, progress=False)
        assert found.n_iterations == ITERATIONS
        inertia.append(found.inertia)

    def theirs() -> None:
        faiss.Kmeans(D, K, niter=ITERATIONS, nredo=1, max_points_per_centroid=len(x)).train(
            x, init_centroids=faiss_start
        )

    ours(), theirs()
    rounds = [(seconds_of(theirs) / ITERATIONS, seconds_of(ours) / ITERATIONS) for _ in range(ROUNDS)]
    a, b = (1e3 * median(column) for column in zip(*rounds, strict=True))
    ratios = sorted(a / b for a, b in rounds)
    print(f"{name}: {(labels >= 0).mean():.0%} of {len(x):,} items labelled, {labels.max() + 1} of {K} classes")
    print(f"  per iteration: FAISS {a:.1f} ms, ours {b:.1f} ms; FAISS / ours {median(ratios):.2f}", end="")
    print(f" ({ratios[0]:.2f} to {ratios[-1]:.2f} in {ROUNDS} rounds; target: at least 1)", flush=True)
    naive = naive_inertia(x, labels, start)
    off = abs(inertia[-1] / naive - 1)
    print(f"  inertia {inertia[-1]:.4f}, of the naive loop {naive:.4f}: off by {off:.1e} (target: at most 1e-4)")


def whole_runs(x: np.ndarray, labels: np.ndarray) -> None:
    """Time `kmeans` as a user calls it, including starts by k-means++."""
    for name, given in (("without labels", None), ("with labels", labels)):
        began = time.perf_counter()
        found = kmeans(x, K, given, progress=False)
        seconds = time.perf_counter() - began
        print(f"whole run {name}: {seconds:.1f} s, the best start took {found.n_iterations} iterations", flush=True)


def memory(n: int) -> None:
    x, labels = some_items(n)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    for name, given in (("with labels", labels), ("without labels", None)):
        began = time.perf_counter()
        found = kmeans(x, K, given, n_starts=1, n_iterations=ITERATIONS, progress=False)
        seconds = time.perf_counter() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(f"{n:,} items {name}: {seconds:.0f} s for a start by k-means++ and {found.n_iterations} iterations")
        print(
            f"  peak {peak:.2f} GB, of which x {x.nbytes / 1e9:.2f}; {before:.2f} before clustering (target: below 8)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=LARGE, help="number of items when memory is measured")
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    faiss.omp_set_num_threads(given.threads)
    if given.memory:
        memory(given.items)
        return
    x, labels = some_items(N)
    compare(x, labels, "with labels")
    compare(x, np.full(len(x), -1), "without labels")
    whole_runs(x, labels)
    command = [sys.executable, __file__, "--memory", "--items", str(given.items), "--threads", str(given.threads)]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
