"""Time of scoring and ranking codes against plain numpy, with two threads, and memory for a million codes.

    python benchmarks/retrieval_speed.py

1,000 queries on 60,000 codes. The plain version does the obvious: for each query look up its words in a table, add
them, sort stably, add up the precision at each relevant rank. It breaks ties by storage order, so both mean average
precisions are printed, and ours is compared with a plain loop over tie groups. Runs
alternate, so that a busy machine slows both, and the ratio of each round is printed.
"""

import resource
import time
from statistics import median

import numpy as np
import torch
from torch import Tensor

from combemb import CombEmb
from combemb.data import datasets, open_set_split
from combemb.search.codebook import ProductCodebook
from combemb.search.metrics import code_retrieval

N, QUERIES, CLASSES = 60_000, 1_000, 10
LARGE, FEW = 1_000_000, 20  # codes and queries; memory does not depend on the latter, which come in chunks
NOISE = 0.1  # in standard deviations of a feature
ROUNDS, CHECKED = 3, 50

Case = tuple[ProductCodebook, Tensor, Tensor, np.ndarray, np.ndarray]  # codebook, queries, codes, targets of both


def plain_scores(table: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Eq. 9 for one query: table (M, K), codes (N, M)."""
    scores = np.zeros(len(codes))
    for m, words in enumerate(table):
        scores += words[codes[:, m]]
    return scores


def plain_map(
    codebook: ProductCodebook, queries: Tensor, codes: Tensor, targets: np.ndarray, database: np.ndarray
) -> float:
    found = []
    for table, target in zip(codebook.table(queries).numpy(), targets, strict=True):
        order = np.argsort(-plain_scores(table, codes.numpy()), kind="stable")
        places = np.flatnonzero(database[order] == target) + 1
        found.append(np.mean(np.arange(1, len(places) + 1) / places))
    return float(np.mean(found))


def tied_map(
    codebook: ProductCodebook, queries: Tensor, codes: Tensor, targets: np.ndarray, database: np.ndarray
) -> float:
    """Return the mean over all orders of items with equal score, rank by rank."""
    found = []
    for table, target in zip(codebook.table(queries).numpy(), targets, strict=True):
        levels, group = np.unique(-plain_scores(table, codes.numpy()), return_inverse=True)
        sizes, hits = np.bincount(group), np.bincount(group[database == target], minlength=len(levels))
        total, t, s = 0.0, 0, 0
        for n, r in zip(sizes.tolist(), hits.tolist(), strict=True):
            i = np.arange(n)  # positions before this one in the group
            total += r / n * np.sum((s + 1 + i * (r - 1) / max(n - 1, 1)) / (t + 1 + i)) if r else 0.0
            t, s = t + n, s + r
        found.append(total / hits.sum())
    return float(np.mean(found))


def trained(bits: int) -> Case:
    """Return codes of the handwritten digits, each many times with a little noise."""
    rng = np.random.default_rng(0)
    digits = datasets.load("digits")
    train_x, split = digits.train_x[:, 0], open_set_split(digits.train_targets, seed=0)
    model = CombEmb(bits=bits, epochs=40).fit(train_x, split.labels)

    def noisy(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return (x[rows] + NOISE * train_x.std(axis=0) * rng.normal(size=(len(rows), x.shape[1]))).astype(np.float32)

    rows, query_rows = rng.integers(len(train_x), size=N), rng.integers(len(digits.test_x), size=QUERIES)
    codes, queries = model.encode(noisy(train_x, rows)), model.embed(noisy(digits.test_x, query_rows))
    return model.codebook, queries, codes, digits.test_targets[query_rows], digits.train_targets[rows]


def random(bits: int, n: int = N, n_queries: int = QUERIES) -> Case:
    """Return uniform codes, almost all distinct: the worst case, as no work can be shared."""
    generator, rng = torch.Generator().manual_seed(0), np.random.default_rng(0)
    M = bits // 2
    codebook = ProductCodebook(torch.nn.functional.normalize(torch.randn(M, 4, 8, generator=generator), dim=2))
    codes = torch.randint(4, (n, M), generator=generator, dtype=torch.uint8)
    queries = torch.randn(n_queries, 8 * M, generator=generator)
    return codebook, queries, codes, rng.integers(CLASSES, size=n_queries), rng.integers(CLASSES, size=n)


def print_memory() -> None:
    """Print how much a large database raises the peak memory, with one class per item and with several."""
    codebook, queries, codes, *classes = random(48, LARGE, FEW)
    rng = np.random.default_rng(1)
    several = [np.eye(CLASSES, dtype=bool)[t] | (rng.random((len(t), CLASSES)) < 0.1) for t in classes]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, targets in (("one class", classes), ("several classes", several)):
        began = time.perf_counter()
        code_retrieval(codebook, queries, codes, *targets)
        seconds = (time.perf_counter() - began) / FEW
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print(f"{LARGE} codes, {name} per item: {grown:.0f} MB more, {seconds:.2f} s per query")


def main() -> None:
    torch.set_num_threads(2)
    print_memory()
    for make, bits, wanted in ((trained, 24, 5), (trained, 48, 5), (random, 24, 1.5), (random, 48, 1.5)):
        codebook, queries, codes, targets, database = case = make(bits)
        n_distinct = len(torch.unique(codes, dim=0))
        print(f"{make.__name__} codes, {bits} bits: {QUERIES} queries, {N} codes, {n_distinct} of them distinct")
        ratios = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            plain = plain_map(*case)
            between = time.perf_counter()
            ours = code_retrieval(*case).map
            ended = time.perf_counter()
            ratios.append((between - began) / (ended - between))
            print(f"  plain {between - began:6.2f} s   ours {ended - between:6.2f} s   {ratios[-1]:5.1f} x", flush=True)
        few = codebook, queries[:CHECKED], codes, targets[:CHECKED], database
        error = abs(code_retrieval(*few).map - tied_map(*few))
        print(f"  median {median(ratios):.1f} x faster (target: {wanted} x); mAP {ours:.6f}, plain {plain:.6f}")
        print(f"  {error:.1e} from the plain loop over ties, {CHECKED} queries (target: 1e-9)")


if __name__ == "__main__":
    main()
