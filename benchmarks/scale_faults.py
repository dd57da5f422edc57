"""Faults on a cluster of two nodes: a node and a driver die while items are encoded, an actor while queries run.

python benchmarks/scale_faults.py                  # ten times each

After each fault the files are compared with those of an undisturbed run of one process, byte by byte; each answer of a
search is compared with that of a single index, over the shards that it says it has.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
from two_nodes import two_nodes, worker_node

from combemb import CodeIndex, CombEmb, methods
from combemb.scale import MissingShards, ShardedIndex, encode_sharded, index_sharded

N, F, BLOCK_ITEMS, SHARD_ITEMS, K = 100_000, 256, 500, 20_000, 50


def make(folder: Path) -> np.ndarray:
    """Write features, a run, the blocks of an undisturbed process and a sharded index; return the features."""
    rng = np.random.default_rng(0)
    targets = np.arange(N) % 20
    x = rng.normal(size=(20, F))[targets] + rng.normal(size=(N, F))
    x = x.astype(np.float32)
    np.save(folder / "x.npy", x)
    labels = np.where((targets < 15) & (np.arange(N) < 2_000), targets, -1)[:4_000]
    model = CombEmb(bits=48, epochs=2, check=False)
    model.fit(x[:4_000], labels, folder=folder / "run", progress=False)
    source = str(folder / "x.npy")
    encode_sharded(folder / "run", source, str(folder / "whole"), block_items=BLOCK_ITEMS, progress=False)
    index_sharded(folder / "run", source, str(folder / "index"), shard_items=SHARD_ITEMS, progress=False)
    return x


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def driver(folder: Path, address: str) -> subprocess.Popen:
    """Start an encoding process."""
    code = (
        "from combemb.scale import encode_sharded\n"
        f"encode_sharded({str(folder / 'run')!r}, {str(folder / 'x.npy')!r}, {str(folder / 'out')!r}, engine='ray', "
        f"address={address!r}, block_items={BLOCK_ITEMS}, progress=False)"
    )
    return subprocess.Popen([sys.executable, "-c", code])


def n_done(folder: Path) -> int:
    return len([*folder.glob("out/codes/receipts/*.json")])


def begun(folder: Path, address: str, rng: random.Random) -> tuple[subprocess.Popen, int]:
    """Start a driver and wait until a random share of the blocks is done; return it and their number."""
    shutil.rmtree(folder / "out", ignore_errors=True)
    process, wanted = driver(folder, address), rng.randrange(5, N // BLOCK_ITEMS // 2)
    while n_done(folder) < wanted and process.poll() is None:
        time.sleep(0.002)
    return process, n_done(folder)


def node_dies(folder: Path, cluster, rng: random.Random) -> str:
    node = worker_node(cluster)
    process, n_before = begun(folder, cluster.address, rng)
    cluster.remove_node(node, allow_graceful=False)
    code = process.wait()
    worker_node(cluster)
    is_same = contents(folder / "out") == contents(folder / "whole")
    assert code == 0
    assert is_same
    return f"after {n_before} of {N // BLOCK_ITEMS} blocks; same bytes"


def driver_dies(folder: Path, cluster, rng: random.Random) -> str:
    process, n_before = begun(folder, cluster.address, rng)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / "out/codes.json").exists()
    assert driver(folder, cluster.address).wait() == 0
    assert contents(folder / "out") == contents(folder / "whole")
    return f"after {n_before} of {N // BLOCK_ITEMS} blocks; same bytes"


def ask(sharded: ShardedIndex, single: CodeIndex, some: np.ndarray) -> bool:
    """Search, and compare the hits with those of a single index; return whether all shards answered."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hits = sharded.search(some, K)
    gone = [shard for shard in sharded.manifest.shards if shard.index.name in hits.missing]
    is_there = np.ones(N, bool)
    for shard in gone:
        is_there[shard.first : shard.first + shard.n_entries] = False
    expected = single.search(some, K, among=is_there if gone else None)
    np.testing.assert_array_equal(hits.ids, expected.ids)
    np.testing.assert_array_equal(hits.scores, expected.scores)
    assert [warning.category for warning in caught] == [MissingShards] * bool(gone)
    return not gone


def actor_dies(sharded: ShardedIndex, single: CodeIndex, queries: np.ndarray, rng: random.Random) -> str:
    """Kill an actor while queries run, until it is back."""
    victim = rng.choice(sharded._actors)
    pid = sharded._ray.get(victim.handle.__ray_call__.remote(lambda _: os.getpid()))
    answers = [ask(sharded, single, queries[rng.sample(range(len(queries)), 4)]) for _ in range(rng.randrange(1, 20))]
    assert all(answers)
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    while all(answers) or not answers[-1]:
        answers.append(ask(sharded, single, queries[rng.sample(range(len(queries)), 4)]))
    seconds, n = time.monotonic() - began, sum(answers)
    return f"{n} exact answers, {len(answers) - n} that named the missing shards; back after {seconds:.1f} s"


def actors_die(folder: Path, x: np.ndarray, times: int, rng: random.Random) -> None:
    model = methods.load(folder / "run")
    single = CodeIndex(model.codebook)
    single.add(model.encode(x))
    queries = model.embed(x[:500]).numpy()
    with ShardedIndex(str(folder / "index"), n_actors=2) as sharded:
        for number in range(times):
            told = actor_dies(sharded, single, queries, rng)
            print(f"  actor {number}: {told}, load {os.getloadavg()[0]:.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--only", nargs="+", choices=["actor", "node", "driver"], default=["actor", "node", "driver"])
    given = parser.parse_args()
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as temporary, two_nodes() as cluster:
        folder = Path(temporary)
        x = make(folder)
        if "actor" in given.only:
            actors_die(folder, x, given.times, rng)
        for name, fault in (("node", node_dies), ("driver", driver_dies)):
            for number in range(given.times if name in given.only else 0):
                print(f"  {name} {number}: {fault(folder, cluster, rng)}, load {os.getloadavg()[0]:.1f}", flush=True)
    kinds = ", ".join(given.only)
    print(
        f"{given.times} faults of each kind ({kinds}): every file has the same bytes, every answer was exact or said so"
    )


if __name__ == "__main__":
    main()
