"""A sharded index against a single one: 10,000,000 random codes of 48 bits, 100 nearest.

python benchmarks/scale_search.py
python benchmarks/scale_search.py --entries 1000000

Two nodes of one core each hold half of the shards; the single index has two threads. All hits of all queries are
compared. Searches alternate; the overhead is the median over rounds of the difference in time of a batch, beside which
the shortest times stand, which a busy machine disturbs less.
"""

import argparse
import os
import statistics
import tempfile
import time

import numpy as np
import pyarrow as pa
import torch
from two_nodes import two_nodes

from combemb import CodeIndex
from combemb.scale import ShardedIndex
from combemb.scale.blocks import keep_block
from combemb.scale.encoding import CODES, Encoded
from combemb.scale.indexing import join_blocks
from combemb.scale.plan import Plan, Table
from combemb.scale.store import Store
from combemb.search.codebook import ProductCodebook

SETS, D, K, BLOCK, ROUNDS = 24, 12, 100, 1_000_000, 25


def make(store: Store, codebook: ProductCodebook, n: int, shard_items: int) -> CodeIndex:
    """Write the shards of random codes, and return an index of all of them."""
    plan = Plan("random", "embeddings", "", BLOCK, (Table("random", n, 0),))
    rng, receipts, index = np.random.default_rng(0), [], CodeIndex(codebook, n_threads=2)
    for number in range(plan.n_blocks):
        block = plan.block(number)
        codes = rng.integers(0, 4, (block.n_rows, SETS), dtype=np.uint8)
        index.add(torch.from_numpy(codes))
        lists = pa.FixedSizeListArray.from_arrays(pa.array(codes.reshape(-1)), SETS)
        ids = pa.array(np.arange(block.first, block.first + block.n_rows))
        receipts.append(keep_block(store, CODES, number, pa.table({"id": ids, "code": lists})))
    join_blocks(Encoded(store, plan, receipts), codebook, shard_items)
    return index


def timed(search) -> float:
    time.sleep(0.05)  # threads of the search before keep their cores busy for some time
    began = time.perf_counter()
    search()
    return 1e3 * (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=10_000_000)
    parser.add_argument("--queries", type=int, default=1_000)
    parser.add_argument("--shard-items", type=int, default=2_500_000)
    given = parser.parse_args()
    rng = np.random.default_rng(1)
    words = rng.normal(size=(SETS, 4, D))
    codebook = ProductCodebook(words / np.linalg.norm(words, axis=2, keepdims=True))
    queries = rng.normal(size=(given.queries, SETS * D)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        index = make(Store(folder), codebook, given.entries, given.shard_items)
        with two_nodes(), ShardedIndex(folder) as sharded:
            print(f"{sharded}, against {index}", flush=True)
            for start in range(0, len(queries), 100):
                some = queries[start : start + 100]
                hits, expected = sharded.search(some, K), index.search(some, K)
                assert hits.missing == ()
                np.testing.assert_array_equal(hits.ids, expected.ids)
                np.testing.assert_array_equal(hits.scores, expected.scores)
            print(f"  equal ids and scores for {len(queries):,} queries", flush=True)
            for n in (1, 16, 100):
                some = queries[:n]
                pairs = [
                    (timed(lambda some=some: index.search(some, K)), timed(lambda some=some: sharded.search(some, K)))
                    for _ in range(ROUNDS)
                ]
                one, many = (statistics.median(column) for column in zip(*pairs, strict=True))
                over, least = statistics.median(b - a for a, b in pairs), [min(x) for x in zip(*pairs, strict=True)]
                load = os.getloadavg()[0]
                times = f"single {one:7.2f} ms, sharded {many:7.2f} ms, overhead {over:+6.2f} ms"
                times += f" (shortest {least[0]:.2f} and {least[1]:.2f}, {least[1] - least[0]:+.2f})"
                print(f"  {n:3} queries: {times}, load {load:.1f}", flush=True)


if __name__ == "__main__":
    main()
