"""Blocks and shards, worked on in one process: what is kept, what is continued, what is refused."""

import json
import subprocess
import sys

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from combemb import CodeIndex, methods
from combemb.collection.indexed import Collection
from combemb.data.images import ManyBroken
from combemb.methods.itq import ITQ
from combemb.scale import encode_sharded, index_sharded
from combemb.scale.blocks import read_block
from combemb.scale.encoding import CODES, codes_of
from combemb.scale.holder import Holder
from combemb.scale.indexing import read_manifest
from combemb.scale.plan import Plan, Table
from combemb.scale.store import Store
from tests.pictures import IDS, write_folder, write_manifest
from tests.scale.toy_run import N, contents, features, labels


def encoded(toy, out, **options):
    return encode_sharded(toy / "run", str(toy / "x.npy"), str(out), block_items=256, progress=False, **options)


def all_codes(found) -> np.ndarray:
    return np.concatenate([codes_of(read_block(found.store, receipt)) for receipt in found.receipts])


@pytest.mark.parametrize("sizes", [(10,), (5, 5), (3, 1, 8), (4,)])
def test_a_plan_has_every_row_once(sizes):
    plan = Plan("x", "embeddings", "", 4, tuple(Table(str(i), n, 0) for i, n in enumerate(sizes)))
    blocks = [plan.block(number) for number in range(plan.n_blocks)]
    rows = [(b.table.url, row) for b in blocks for row in range(b.start, b.start + b.n_rows)]
    assert rows == [(str(i), row) for i, n in enumerate(sizes) for row in range(n)]
    assert [b.first for b in blocks] == np.cumsum([0, *(b.n_rows for b in blocks)])[:-1].tolist()
    assert max(b.n_rows for b in blocks) <= 4


def test_codes_in_blocks_are_those_of_the_model(toy, tmp_path):
    found = encoded(toy, tmp_path / "out")
    model = methods.load(toy / "run")
    np.testing.assert_array_equal(all_codes(found), model.encode(features()).numpy())
    assert len(found.receipts) == 8
    manifest = json.loads((tmp_path / "out/codes.json").read_text())
    assert manifest["n_items"] == N
    assert [block[0] for block in manifest["blocks"]] == [f"{CODES}/{i:08}.parquet" for i in range(8)]
    ids = pq.read_table(tmp_path / "out" / manifest["blocks"][1][0])["id"].to_pylist()
    assert ids == list(range(256, 512))


@pytest.mark.parametrize("lost", ["*.parquet", "receipts/*.json", "*"])
def test_a_stopped_run_continues_to_the_same_bytes(toy, tmp_path, lost):
    encoded(toy, tmp_path / "whole")
    encoded(toy, tmp_path / "part")
    (tmp_path / "part/codes.json").unlink()
    for place in (3, 5):
        for path in [*(tmp_path / "part/codes").glob(lost)]:
            if path.is_file() and path.name.startswith(f"{place:08}"):
                path.unlink()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "part/codes").glob("*.parquet")}
    encoded(toy, tmp_path / "part")
    assert contents(tmp_path / "part") == contents(tmp_path / "whole")
    same = [path for path, time in before.items() if path.stat().st_mtime_ns == time]
    assert len(same) >= 6  # what was done is not done twice


def test_an_interrupted_run_keeps_its_blocks(toy, tmp_path, monkeypatch):
    from combemb.scale import encoding

    real = encoding.encoded

    def dying(model, items):
        if len([*(tmp_path / "out/codes").glob("*.parquet")]) == 3:
            raise KeyboardInterrupt
        return real(model, items)

    monkeypatch.setattr(encoding, "encoded", dying)
    with pytest.raises(KeyboardInterrupt):
        encoded(toy, tmp_path / "out")
    monkeypatch.undo()
    assert len([*(tmp_path / "out/codes/receipts").iterdir()]) == 3
    assert not (tmp_path / "out/codes.json").exists()
    encoded(toy, tmp_path / "out")
    encoded(toy, tmp_path / "whole")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_what_is_continued_must_be_the_same(toy, tmp_path):
    encoded(toy, tmp_path / "out")
    with pytest.raises(ValueError, match=r"block_items was 256, now it is 100; undo this, or use overwrite"):
        encode_sharded(toy / "run", str(toy / "x.npy"), str(tmp_path / "out"), block_items=100)
    np.save(tmp_path / "y.npy", features())
    with pytest.raises(ValueError, match="source was"):
        encode_sharded(toy / "run", str(tmp_path / "y.npy"), str(tmp_path / "out"))
    np.save(tmp_path / "y.npy", features()[:100])
    found = encode_sharded(toy / "run", str(tmp_path / "y.npy"), str(tmp_path / "out"), overwrite=True, progress=False)
    assert found.n_items == 100
    np.save(tmp_path / "y.npy", features()[:101])
    (tmp_path / "out/codes/receipts/00000000.json").unlink()
    with pytest.raises(ValueError, match=r"has changed since the blocks were planned"):
        encode_sharded(toy / "run", str(tmp_path / "y.npy"), str(tmp_path / "out"), progress=False)


def test_a_folder_of_something_else_is_left_alone(toy, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(ValueError, match=r"has no plan.json"):
            encoded(toy, tmp_path / "out", overwrite=overwrite)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.tex"]


def test_a_damaged_block_is_found_when_it_is_indexed(toy, tmp_path):
    encoded(toy, tmp_path / "out")
    path = tmp_path / "out/codes/00000002.parquet"
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"00000002.parquet is damaged: its checksum is wrong"):
        index_sharded(toy / "run", str(toy / "x.npy"), str(tmp_path / "out"), progress=False)


def test_parquet_shards_in_an_object_store(toy):
    """memory:// has neither renaming nor paths, as object stores."""
    x, y, store = features(), labels(), fsspec.filesystem("memory")
    for number, rows in enumerate(np.split(np.arange(N), [700, 1_500])):
        table = {"embedding": list(x[rows]), "id": [f"item-{row}" for row in rows]}
        table["label"] = [None if label < 0 else f"class {label}" for label in y[rows]]
        with store.open(f"/bucket/x/{number}.parquet", "wb") as file:
            pq.write_table(pa.table(table), file, row_group_size=300)
    out = "memory://bucket/index"
    found = index_sharded(toy / "run", "memory://bucket/x", out, block_items=256, shard_items=600, progress=False)
    assert [shard.n_entries for shard in found.shards] == [512, 444, 544, 500]  # whole blocks
    model = methods.load(toy / "run")
    holder = Holder(Store(out), list(read_manifest(Store(out)).shards), None, 1)
    hits = holder.search(model.embed(x[:9]).numpy(), 30)
    single = CodeIndex(model.codebook)
    single.add(model.encode(x), ids=[f"item-{row}" for row in range(N)])
    expected = single.search(model.embed(x[:9]), 30)
    np.testing.assert_array_equal(hits.ids, expected.ids)
    np.testing.assert_array_equal(hits.scores, expected.scores)
    named = [[None if y[n] < 0 else f"class {y[n]}" for n in row] for row in hits.numbers.tolist()]
    assert hits.labels.tolist() == named
    some = [f"item-{row}" for row in (3, 999, 1_998)]
    np.testing.assert_array_equal(
        holder.search(model.embed(x[:9]).numpy(), 5, some).ids, single.search(model.embed(x[:9]), 5, among=some).ids
    )
    store.rm("/bucket", recursive=True)


BROKEN = IDS[30]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A run fitted on an image folder, and the folder with a broken image in it."""
    folder = tmp_path_factory.mktemp("photos")
    write_folder(folder / "images", broken=(BROKEN,))
    model = ITQ(bits=12, image_size=32, n_views=1, device="cpu")
    model.fit(folder / "images", folder=folder / "run", progress=False)
    return folder


def test_images_are_searched_by_path_and_label(photos, tmp_path):
    """The same files, ids, labels and codes as those of a `Collection`."""
    found = index_sharded(
        photos / "run", str(photos / "images"), str(tmp_path), block_items=25, shard_items=40, progress=False
    )
    collection = Collection.build(photos / "run", photos / "images", overwrite=True, progress=False)
    assert list(found.broken) == [str(photos / "images" / BROKEN)]
    assert found.n_entries == len(collection) == len(IDS) - 1
    assert len(found.shards) == 2
    holder = Holder(Store(str(tmp_path)), list(found.shards), None, 1)
    queries = collection.model.embed(photos / "images" / IDS[0], progress=False).numpy()
    hits = holder.search(queries, 1_000)
    (expected,) = collection.search(photos / "images" / IDS[0], 1_000, progress=False)
    assert hits.ids is not None
    assert hits.labels is not None
    assert hits.ids[0].tolist() == [hit.id for hit in expected.hits]
    assert hits.labels[0].tolist() == [hit.label for hit in expected.hits]
    assert hits.scores[0].tolist() == [hit.score for hit in expected.hits]


@pytest.mark.parametrize("kind", ["parquet", "remote folder", "remote csv", "remote parquet"])
def test_images_in_folders_and_manifests_have_the_same_codes(photos, tmp_path, kind):
    is_remote, name = kind.startswith("remote"), kind.split()[-1]
    source = {"folder": photos / "images"}.get(name) or write_manifest(tmp_path / f"m.{name}", photos / "images")
    url = str(source)
    if is_remote:
        memory = fsspec.filesystem("memory")
        url = f"memory://photos/{source.name}"
        memory.put(str(source), f"/photos/{source.name}", recursive=True)
        if name == "folder":
            memory.pipe_file("/photos/images/.hidden.png", b"")
    found = encode_sharded(photos / "run", url, str(tmp_path / "out"), block_items=25, progress=False)
    assert len(found.broken) == 1
    codes = {id.rpartition("images/")[2]: code for id, code in _codes_by_id(found)}
    model = methods.load(photos / "run")
    data = model.read(photos / "images", progress=False)
    expected = dict(zip(data.ids.tolist(), model.encode(data, progress=False).numpy().tolist(), strict=True))
    assert codes == expected
    labels = {label for r in found.receipts for label in read_block(found.store, r)["label"].to_pylist()}
    assert labels == {"ant", "bee", "cat", "dog", None}
    if is_remote:
        memory.rm("/photos", recursive=True)


def _codes_by_id(found):
    for receipt in found.receipts:
        table = read_block(found.store, receipt)
        yield from zip(table["id"].to_pylist(), codes_of(table).tolist(), strict=True)


def test_many_broken_images_are_an_error_and_there_is_no_manifest(photos, tmp_path):
    write_folder(tmp_path / "images", broken=tuple(IDS[:8]))
    with pytest.raises(ManyBroken, match="8 of 72 images cannot be read, more than 10%"):
        encode_sharded(photos / "run", str(tmp_path / "images"), str(tmp_path / "out"), block_items=4, progress=False)
    assert not (tmp_path / "out/codes.json").exists()


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("x.npy", np.zeros((2, 3, 4, 5), np.float32), "give embeddings"),
        ("x.npy", np.zeros((4, 24), np.float32, order="F"), "give embeddings"),
        ("x.npy", np.zeros((4, 7), np.float32), "x has 7 features; this model was fitted on 24"),
        ("nothing/", None, "there is no such file or folder"),
        ("*.parquet", None, "there is no file .*; check the pattern"),
        ("nope://x", None, "give a path, or a URL that fsspec knows"),
    ],
)
def test_unsuitable_sources_are_refused(toy, tmp_path, name, array, message):
    if array is not None:
        np.save(tmp_path / name, array)
    source = name if "://" in name else str(tmp_path / name)
    with pytest.raises(ValueError, match=message):
        encode_sharded(toy / "run", source, str(tmp_path / "out"), progress=False)


def test_an_unknown_engine_is_refused_before_anything_is_written(toy, tmp_path):
    with pytest.raises(ValueError, match=r"engine='spark' is unknown; choose one of local, ray"):
        encoded(toy, tmp_path / "out", engine="spark")
    assert not (tmp_path / "out").exists()


def test_without_ray_an_error_says_how_to_install_it(toy, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install combemb\[ray\]"):
        encoded(toy, tmp_path / "out", engine="ray")


def test_ray_is_imported_only_when_it_is_asked_for(toy, tmp_path):
    """Neither by the package nor by the local engine."""
    code = (
        "import sys, combemb.scale, combemb.cli; from combemb.scale import encode_sharded, ShardedIndex;"
        f"encode_sharded({str(toy / 'run')!r}, {str(toy / 'x.npy')!r}, {str(tmp_path / 'out')!r}, progress=False);"
        "print('ray' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
