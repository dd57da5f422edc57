"""The same bytes and the same hits on a cluster of two nodes, also when nodes, drivers and actors die."""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.two_nodes import MARK, marked, require_none_left, two_nodes, worker_node
from combemb import CodeIndex, methods
from combemb.collection.indexed import Collection
from combemb.scale import (
    MissingShards,
    ShardedCollection,
    ShardedIndex,
    discover_sharded,
    encode_sharded,
    index_sharded,
)
from combemb.scale.engines import results, session
from tests.commands import done, refused
from tests.scale.toy_run import N, contents, features, labels

BLOCKS, SHARDS = {"block_items": 20}, {"block_items": 128, "shard_items": 400}


@pytest.fixture(scope="module")
def cluster():
    with two_nodes() as found:
        yield found


@pytest.fixture(scope="module")
def whole(toy):
    """The bytes of an undisturbed run of the local engine: 100 blocks."""
    encode_sharded(toy / "run", str(toy / "x.npy"), str(toy / "whole"), **BLOCKS, progress=False)
    return contents(toy / "whole")


@pytest.fixture(scope="module")
def indexed(toy):
    """A sharded index of four shards."""
    index_sharded(toy / "run", str(toy / "x.npy"), str(toy / "sharded"), **SHARDS, progress=False)
    return toy / "sharded"


@pytest.fixture(scope="module")
def single(toy):
    """The same entries in one index, and some queries."""
    model = methods.load(toy / "run")
    index = CodeIndex(model.codebook)
    index.add(model.encode(features()))
    return index, model.embed(features()[:20]).numpy()


def wait_for(condition, seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.01)


def n_receipts(out: Path) -> int:
    return len([*out.glob("codes/receipts/*.json")])


@contextmanager
def started(toy, out: Path, cluster) -> Iterator[subprocess.Popen]:
    """A driver in a process of its own, once it has done a few blocks."""
    code = (
        "from combemb.scale import encode_sharded\n"
        f"encode_sharded({str(toy / 'run')!r}, {str(toy / 'x.npy')!r}, {str(out)!r}, engine='ray',"
        f"               address={cluster.address!r}, block_items=20, progress=False)"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as driver:
        try:
            wait_for(lambda: n_receipts(out) >= 5 or driver.poll() is not None)
            yield driver
        finally:
            driver.kill()


def test_both_engines_write_the_same_index(toy, tmp_path, indexed, cluster):
    index_sharded(toy / "run", str(toy / "x.npy"), str(tmp_path), engine="ray", **SHARDS, progress=False)
    assert contents(tmp_path) == contents(indexed)


def test_an_error_of_a_worker_is_that_of_the_local_engine(toy, tmp_path, cluster):
    np.save(tmp_path / "x.npy", np.zeros((4, 7), np.float32))
    with pytest.raises(ValueError, match="x has 7 features; this model was fitted on 24"):
        encode_sharded(toy / "run", str(tmp_path / "x.npy"), str(tmp_path / "out"), engine="ray", progress=False)


def test_a_node_that_dies_costs_no_block(toy, tmp_path, whole, cluster):
    node = worker_node(cluster)
    with started(toy, tmp_path, cluster) as driver:
        cluster.remove_node(node, allow_graceful=False)
        n_before = n_receipts(tmp_path)
        assert driver.wait(300) == 0
    worker_node(cluster)
    assert n_before < 100, "the node died too late to show anything"
    assert contents(tmp_path) == whole


def test_another_driver_continues_what_a_dead_one_began(toy, tmp_path, whole, cluster):
    with started(toy, tmp_path, cluster) as driver:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    assert n_receipts(tmp_path) < 100, "the driver died too late to show anything"
    encode_sharded(toy / "run", str(toy / "x.npy"), str(tmp_path), engine="ray", **BLOCKS, progress=False)
    assert contents(tmp_path) == whole


def dying_once(folder: Path, number: int) -> int:
    if number == 3 and not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_a_worker_that_dies_is_replaced(tmp_path, cluster):
    with session("ray"):
        assert sorted(results(partial(dying_once, tmp_path), range(8), "ray")) == list(range(8))
    assert (tmp_path / "died").exists()


@pytest.fixture(scope="module")
def sharded(indexed, cluster):
    """Two actors with four shards."""
    with ShardedIndex(str(indexed), n_actors=2) as found:
        yield found


@pytest.mark.parametrize("k", [1, 10, 333, N + 1])
def test_hits_are_those_of_a_single_index(sharded, single, k):
    index, queries = single
    assert len(sharded) == len(index) == N
    assert sharded.codebook == index.codebook
    hits, expected = sharded.search(queries, k), index.search(queries, k)
    assert hits.missing == ()
    assert hits.ids.dtype == np.int64
    np.testing.assert_array_equal(hits.ids, expected.ids)
    np.testing.assert_array_equal(hits.scores, expected.scores)
    assert hits.to_list() == expected.to_list()


def test_ids_and_codes_are_those_of_a_single_index(sharded, single):
    index, _ = single
    assert sharded.n_codes >= index.n_codes
    np.testing.assert_array_equal(sharded.ids, index.ids)
    np.testing.assert_array_equal(sharded.codes(), index.codes())
    rows = np.array([1_999, 0, 700, 700, 512, 511])
    np.testing.assert_array_equal(sharded.codes(rows), index.codes(rows))
    assert sharded.codes(rows[:0]).shape == (0, index.codes(rows).shape[1])
    for row in (-1, N):
        with pytest.raises(IndexError, match=f"rows span {row}..{row}, but there are {N} entries"):
            sharded.codes(np.array([row]))


def test_names_are_ids_too(toy, tmp_path, cluster):
    names = [f"item-{row}" for row in range(N)]
    pq.write_table(pa.table({"embedding": list(features()), "id": names}), tmp_path / "x.parquet")
    index_sharded(toy / "run", str(tmp_path / "x.parquet"), str(tmp_path / "index"), **SHARDS, progress=False)
    with ShardedIndex(str(tmp_path / "index"), n_actors=2) as index:
        assert index.ids.tolist() == names
        hits = index.search(index.codebook.decode(index.codes(np.array([1_234]))), 5, among=names[1_000:])
        assert hits.ids[0].tolist() == [names[number] for number in hits.numbers[0]]
        assert hits.numbers.min() >= 1_000


def test_a_search_among_some_and_by_score_is_that_of_a_single_index(sharded, single):
    index, queries = single
    mask = np.random.default_rng(0).random(N) < 0.2
    for among in (mask, np.flatnonzero(mask), [1_999, 3, 3], [], np.zeros(N, bool)):
        hits, expected = (x.search(queries, 10, among=among) for x in (sharded, index))
        np.testing.assert_array_equal(hits.ids, expected.ids)
        found, wanted = (x.range_search(queries, 4.0, among=among) for x in (sharded, index))
        assert found.to_list() == wanted.to_list()
    for wrong, message in (([5, N], "1 of 2 ids are not in the index"), (mask[1:], "the mask has shape")):
        with pytest.raises(ValueError, match=message):
            sharded.search(queries, among=wrong)
    with pytest.raises(ValueError, match="k=0; give a whole number"):
        sharded.search(queries, 0)
    with pytest.raises(ValueError, match=r"vectors of shape \(1, 5\) do not fit"):
        sharded.search(np.ones((1, 5)))


def test_every_answer_is_exact_or_says_what_is_missing(sharded, single):
    """An actor is killed while queries run; in the end it is back."""
    index, queries = single
    expected = index.search(queries, 25)
    held = [actor.shards for actor in sharded._actors]
    pid = sharded._ray.get(sharded._actors[0].handle.__ray_call__.remote(lambda _: os.getpid()))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ValueError, match=r"shards/00000.safetensors.* did not answer; ask again when they are loaded"):
        sharded.codes()
    n_partial, deadline = 0, time.monotonic() + 300
    while time.monotonic() < deadline:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            hits = sharded.search(queries, 25)
        if not hits.missing:
            np.testing.assert_array_equal(hits.ids, expected.ids)
            np.testing.assert_array_equal(hits.scores, expected.scores)
            assert caught == []
            if n_partial:
                break
            continue
        n_partial += 1
        assert hits.missing == tuple(shard.index.name for shard in held[0])
        assert hits.n_missing == sum(shard.n_entries for shard in held[0])
        assert [warning.category for warning in caught] == [MissingShards]
        rest = index.search(queries, 25, among=np.arange(held[1][0].first, N))
        np.testing.assert_array_equal(hits.ids, rest.ids)
    assert n_partial > 0
    assert hits.missing == sharded.missing == ()


def test_patience_waits_for_an_exact_answer(sharded, single, monkeypatch):
    index, queries = single
    monkeypatch.setattr(sharded, "patience", 300.0)
    sharded._ray.kill(sharded._actors[1].handle, no_restart=False)
    hits = sharded.search(queries, 25)
    assert hits.missing == ()
    np.testing.assert_array_equal(hits.ids, index.search(queries, 25).ids)


def test_damaged_shards_are_refused(toy, tmp_path, cluster):
    index_sharded(toy / "run", str(toy / "x.npy"), str(tmp_path), **SHARDS, progress=False)
    path = tmp_path / "shards/00001.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"cannot load the shards of .*checksum"):
        ShardedIndex(str(tmp_path))
    (tmp_path / "index.json").unlink()
    with pytest.raises(ValueError, match=r"has no index.json; make the index"):
        ShardedIndex(str(tmp_path))


def test_the_command_line(toy, tmp_path, cluster):
    """Encode and index in one process, search on a cluster that exists."""
    run, x, local = toy / "run", toy / "x.npy", ("--engine", "local", "--block-items", 500)
    text = done("encode", run, x, "--out", tmp_path / "codes", *local).stdout
    assert "2,000 codes in 4 blocks" in text
    on_ray = ("--engine", "ray", "--address", cluster.address, "--block-items", 500)
    done("encode", run, x, "--out", tmp_path / "again", *on_ray)
    assert contents(tmp_path / "again") == contents(tmp_path / "codes")
    shards = ("--shards", tmp_path / "index")
    text = done("index", run, "--embeddings", x, *shards, *local, "--shard-items", 1_000).stdout
    assert "2,000 entries with codes of 12 bits in 2 shards" in text
    done("index", run, "--embeddings", x, "--shards", tmp_path / "again", *on_ray, "--shard-items", 1_000)
    assert contents(tmp_path / "again") == contents(tmp_path / "index")
    more = (*shards, "--engine", "ray", "--address", cluster.address)
    np.save(tmp_path / "q.npy", features()[:2])
    found = done("search", run, tmp_path / "q.npy", "-k", 5, "--json", *more).stdout
    done("index", run, "--embeddings", x, "--overwrite", "--quiet")
    assert found == done("search", run, tmp_path / "q.npy", "-k", 5, "--json").stdout
    assert "made with another model" in refused("search", _other_run(toy, tmp_path), tmp_path / "q.npy", *more)
    assert "use ray, or leave it out" in refused("search", run, x, "--engine", "local")
    assert "need --engine" in refused("search", run, x, "--shards", "somewhere")
    assert "need --engine" in refused("index", run, "--shards", "somewhere")
    assert "need --engine" in refused("encode", run, x, "--out", tmp_path / "x.npy", "--address", "auto")
    assert "leave the other options out" in refused("index", run, "--engine", "local", "--add")


def _other_run(toy, folder: Path) -> Path:
    from combemb.methods.itq import ITQ

    ITQ(bits=12, seed=1).fit(features()[:300], labels()[:300], folder=folder / "run", progress=False)
    return folder / "run"


def test_a_sharded_collection_answers_like_a_collection(toy, indexed, cluster):
    collection = Collection.build(toy / "run", toy / "x.npy", overwrite=True, progress=False)
    with ShardedCollection(toy / "run", str(indexed)) as sharded:
        assert len(sharded) == len(collection)
        assert sharded.search(features()[:3], 7) == collection.search(features()[:3], 7)
        assert sharded.missing == ()
        assert sharded.entries.equals(collection.entries)
        z = sharded.model.embed(features()[:3], progress=False)
        rows, scores = sharded.nearest(z, 7, among=np.arange(N) % 2 == 0)
        expected = collection.to_index(numbered=True).search(z, 7, among=np.arange(N) % 2 == 0)
        np.testing.assert_array_equal(rows, expected.ids)
        np.testing.assert_array_equal(scores, expected.scores)


def asked(address: str, path: str, body: dict | None = None) -> dict:
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, content, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


def test_a_server_answers_like_a_collection_and_says_what_is_missing(toy, indexed, cluster, tmp_path):
    """The command in a process of its own, and an actor of it that is killed."""
    collection = Collection.build(toy / "run", toy / "x.npy", overwrite=True, progress=False)
    expected = [[(hit.id, hit.score) for hit in found.hits] for found in collection.search(features()[:3], 7)]
    printed, before = tmp_path / "printed", holders()
    options = ("--port", 0, "--engine", "ray", "--shards", indexed, "--address", cluster.address)
    command = map(str, (sys.executable, "-m", "combemb", "serve", toy / "run", *options))
    with printed.open("wb") as file, subprocess.Popen([*command], stdout=file) as server:
        try:
            wait_for(lambda: server.poll() is not None or " is served at " in printed.read_text())
            address = re.search(r"is served at (\S+);", printed.read_text())[1]
            about = asked(address, "api/index")
            assert (about["n_entries"], len(about["shards"]), about["missing"]) == (N, 5, [])

            def searched() -> dict:
                return asked(address, "api/search", {"x": features()[:3].tolist(), "k": 7})

            def hits(found: dict) -> list:
                return [[(hit["id"], hit["score"]) for hit in own] for own in found["hits"]]

            found = searched()
            assert (hits(found), found["missing"], found["n_missing"]) == (expected, [], 0)
            victim = (holders() - before).pop()
            os.kill(victim, signal.SIGKILL)
            seen = []
            wait_for(
                lambda: seen.append(searched()) or (not seen[-1]["missing"] and any(one["missing"] for one in seen))
            )
            for found in seen:
                n_there = sum(len(own) for own in found["hits"])
                assert found["n_missing"] == 0 if not found["missing"] else 0 < found["n_missing"] < N
                assert hits(found) == expected if not found["missing"] else n_there == 21
            server.send_signal(signal.SIGINT)
            assert server.wait(300) == 130
        finally:
            server.kill()


def holders() -> set[int]:
    """The processes of actors that hold shards."""
    return {pid for pid, command in marked(os.environ[MARK]).items() if command.startswith("ray::Holder")}


def test_what_a_server_of_shards_does_not_have(toy, tmp_path, cluster):
    run = toy / "run"
    assert "has no index.json" in refused("serve", run, "--engine", "ray", "--shards", tmp_path)
    assert "use ray, or leave it out" in refused("serve", run, "--engine", "local")
    assert "are for the page" in refused("serve", run, "--engine", "ray", "--open")
    assert "need --engine ray" in refused("serve", run, "--address", "auto")


def test_discovery_on_ray_is_that_of_one_process(toy, tmp_path, cluster):
    options = {"n_novel": 2, "sample_items": 600, "block_items": 300, "progress": False}
    for engine in ("local", "ray"):
        discover_sharded(str(toy / "x.npy"), str(tmp_path / engine), labels(), engine=engine, **options)
    assert contents(tmp_path / "local") == contents(tmp_path / "ray")


def test_a_cluster_that_is_started_here_ends_here(toy, tmp_path):
    mark = secrets.token_hex(8)
    code = (
        "from combemb.scale import encode_sharded\n"
        f"encode_sharded({str(toy / 'run')!r}, {str(toy / 'x.npy')!r}, {str(tmp_path)!r}, engine='ray', progress=False)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | {MARK: mark}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "Traceback" not in run.stderr
    require_none_left(mark)
