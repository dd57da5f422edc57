"""Search of CodeIndex against FAISS's IndexPQFastScan on the same codes: 100 nearest, two threads, ratios in one run.

python benchmarks/search_speed.py random           # 48 random bits, 5,000,000 codes, 1, 16 and 1,000 queries
python benchmarks/search_speed.py small            # 48 random bits: 1,000 and 100,000 codes, 1 query, which is what
                                                   # a search costs besides its scan; one and two million, 16
python benchmarks/search_speed.py trained          # 24 bits of a model of digits, 5,000,000 entries
python benchmarks/search_speed.py curve            # the same, 100,000 to 50,000,000 entries

FAISS gets the sets joined in pairs, as fast scan requires. Its results are approximate; the share of the exact top 100
that it finds is printed. Ours are compared with exhaustive scoring for some of the queries. Runs alternate.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator

import faiss
import numpy as np
import torch

from combemb import CodeIndex, CombEmb, open_set_split
from combemb.data import datasets
from combemb.search.codebook import ProductCodebook

K, THREADS, ROUNDS = 100, 2, 5
SMALL = ((1_000, 1, 1_001), (100_000, 1, 1_001), (1_000_000, 16, 41), (2_000_000, 16, 41))  # codes, queries, rounds


def joined_fast_scan(codebook: ProductCodebook) -> faiss.IndexPQFastScan:
    """Return FAISS's index, with pairs of sets of four words joined to sets of sixteen."""
    M, _, d = codebook.words.shape
    words = codebook.words.numpy()
    pairs = [
        np.concatenate([np.tile(words[m], (4, 1)), np.repeat(words[m + 1], 4, axis=0)], axis=1) for m in range(0, M, 2)
    ]
    plain = faiss.IndexPQ(M * d, M // 2, 4, faiss.METRIC_INNER_PRODUCT)
    faiss.copy_array_to_vector(np.concatenate(pairs).astype(np.float32).ravel(), plain.pq.centroids)
    plain.is_trained = True
    return plain


def faiss_index(codebook: ProductCodebook, codes: Iterator[np.ndarray]) -> faiss.IndexPQFastScan:
    plain = joined_fast_scan(codebook)
    for some in codes:
        joined = some[:, 0::2] | some[:, 1::2] << 2
        joined = np.pad(joined, ((0, 0), (0, joined.shape[1] % 2)))
        plain.add_sa_codes(np.ascontiguousarray(joined[:, 0::2] | joined[:, 1::2] << 4))
    return faiss.IndexPQFastScan(plain)


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def compare(
    index: CodeIndex, reference: faiss.IndexPQFastScan, queries: np.ndarray, name: str, rounds: int = ROUNDS
) -> float:
    """Print and return the median over rounds of FAISS's time over ours."""
    scaled = queries.astype(np.float32)
    n = max(1, 32 // len(queries)) if rounds == ROUNDS else 1  # searches per round; more of them if rounds are few

    def repeat(call: Callable[[], object]) -> Callable[[], object]:
        return lambda: [call() for _ in range(n)]

    ours, theirs = repeat(lambda: index.search(queries, K)), repeat(lambda: reference.search(scaled, K))
    ours(), theirs()
    pairs = [(timed(theirs) / n, timed(ours) / n) for _ in range(rounds)]
    ratio = statistics.median(a / b for a, b in pairs)
    a, b = (statistics.median(column) for column in zip(*pairs, strict=True))
    rate = len(index) * len(queries) / 1e6
    speeds = f"FAISS {1e3 * a:8.3f} ms ({rate / a:6,.0f} M codes/s)   ours {1e3 * b:8.3f} ms ({rate / b:6,.0f} M)"
    print(f"  {name}: {speeds}   ratio {ratio:.2f}", flush=True)
    return ratio


def check(index: CodeIndex, codes: Callable[[], Iterator[np.ndarray]], reference, queries: np.ndarray) -> None:
    """Print whether ours equal exhaustive scoring, and how much of it FAISS finds."""
    some = queries[:4]
    table = index.codebook.table(some).double().numpy()
    best = [(np.empty((len(some), 0)), np.empty((len(some), 0), np.int64))]
    first = 0
    for part in codes():
        scores = np.zeros((len(some), len(part)))
        for m in range(table.shape[1]):
            scores += table[:, m][:, part[:, m]]
        numbers = np.broadcast_to(np.arange(first, first + len(part)), scores.shape)
        scores, numbers = (np.concatenate(both, axis=1) for both in zip(best[0], (scores, numbers), strict=True))
        order = np.lexsort((numbers, -scores), axis=1)[:, :K]
        best[0] = np.take_along_axis(scores, order, axis=1), np.take_along_axis(numbers, order, axis=1)
        first += len(part)
    scores, numbers = best[0]
    hits = index.search(some, K)
    is_equal = np.array_equal(hits.ids, numbers) and np.array_equal(hits.scores, scores)
    _, found = reference.search(some.astype(np.float32), K)
    kth = scores[:, -1:]
    theirs = np.zeros(found.shape)
    for m in range(table.shape[1]):
        theirs += table[:, m][
            np.arange(len(some))[:, None], index.codes(found.ravel()).reshape(*found.shape, -1)[..., m]
        ]
    print(
        f"  ours equal to exhaustive scoring: {is_equal}; FAISS has {np.mean(theirs >= kth):.1%} of the exact top {K}"
    )
    assert is_equal


def random_codes(n: int, batches: tuple[int, ...] = (1, 16, 1_000), rounds: int = ROUNDS) -> None:
    rng = np.random.default_rng(0)
    words = rng.normal(size=(24, 4, 12))
    codebook = ProductCodebook(words / np.linalg.norm(words, axis=2, keepdims=True))

    def codes() -> Iterator[np.ndarray]:
        own = np.random.default_rng(1)
        for start in range(0, n, 1_000_000):
            yield own.integers(0, 4, (min(1_000_000, n - start), 24), dtype=np.uint8)

    index = CodeIndex(codebook, THREADS)
    index.add(torch.from_numpy(np.concatenate(list(codes()))))
    reference = faiss_index(codebook, codes())
    queries = rng.normal(size=(1_000, 24, 12))
    queries = (queries / np.linalg.norm(queries, axis=2, keepdims=True) / np.sqrt(24)).reshape(1_000, -1)
    print(f"random codes: {index}")
    check(index, codes, reference, queries)
    for Q in batches:
        compare(index, reference, queries[:Q], f"{Q:5,} queries", rounds)


class Noisy:
    """Any number of digits with noise of a tenth of a standard deviation, and a model of 24 bits."""

    def __init__(self) -> None:
        digits = datasets.load("digits")
        split = open_set_split(digits.train_targets)
        self.model = CombEmb(bits=24).fit(digits.train_x, split.labels, progress=False)
        self.x = torch.from_numpy(digits.train_x[:, 0])
        self.noise = 0.1 * self.x.std(dim=0)
        self.queries = self.model.embed(digits.test_x)[:16].numpy()

    def codes(self, start: int, n: int) -> np.ndarray:
        """Return the codes of a chunk that begins at item `start`."""
        generator = torch.Generator().manual_seed(start)
        rows = torch.randint(len(self.x), (n,), generator=generator)
        x = self.x[rows] + self.noise * torch.randn(n, self.x.shape[1], generator=generator)
        return self.model.encode(x).numpy()

    def chunks(self, start: int, end: int) -> Iterator[np.ndarray]:
        """Yield the codes of all chunks from item `start` to `end`."""
        for first in range(start, end, 250_000):
            yield self.codes(first, min(250_000, end - first))


def trained_codes(sizes: list[int]) -> None:
    noisy = Noisy()
    index = CodeIndex(noisy.model.codebook, THREADS)
    plain = joined_fast_scan(noisy.model.codebook)
    done = 0
    for size in sizes:
        for codes in noisy.chunks(done, size):
            index.add(torch.from_numpy(codes))
            joined = codes[:, 0::2] | codes[:, 1::2] << 2
            plain.add_sa_codes(np.ascontiguousarray(joined[:, 0::2] | joined[:, 1::2] << 4))
        done = size
        reference = faiss.IndexPQFastScan(plain)
        if size == sizes[0]:
            check(index, lambda size=size: noisy.chunks(0, size), reference, noisy.queries)
        compare(index, reference, noisy.queries, f"{index!r}, 16 queries")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["random", "small", "trained", "curve"])
    parser.add_argument("--entries", type=int, default=5_000_000)
    given = parser.parse_args()
    torch.set_num_threads(THREADS)
    faiss.omp_set_num_threads(THREADS)
    if given.what == "random":
        random_codes(given.entries)
    elif given.what == "small":
        for n, Q, rounds in SMALL:
            random_codes(n, (Q,), rounds)
    else:
        trained_codes([given.entries] if given.what == "trained" else [10**5, 10**6, 5 * 10**6, 2 * 10**7, 5 * 10**7])


if __name__ == "__main__":
    main()
