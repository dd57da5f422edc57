"""An index in a file of FAISS finds the same there, and comes back; damage to any kind of file is noticed."""

import json
import subprocess
import sys

import faiss
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from combemb.search import exchange
from combemb.search.codebook import ProductCodebook, binary_codebook
from combemb.search.exchange import from_faiss, from_parquet, to_faiss, to_parquet
from combemb.search.index import CodeIndex
from tests.search.exchanged import (
    INDEXES,
    METRICS,
    SIZES,
    an_index,
    assert_same,
    assert_same_hits,
    metric_of,
    pq_index,
    queries_for,
)


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("sizes", SIZES)
def test_faiss_finds_the_same_in_its_file(tmp_path, sizes, metric, d):
    index = an_index(sizes, d, metric=metric)
    to_faiss(index, tmp_path / "codes.faiss")
    queries = queries_for(index)
    scores, ids = faiss.read_index(str(tmp_path / "codes.faiss")).search(queries, 30)
    assert_same_hits(ids, -scores if metric == "l2" else scores, index, queries)


@pytest.mark.parametrize("sizes", SIZES)
def test_codes_are_packed_as_faiss_packs_them(tmp_path, sizes):
    index = an_index(sizes, metric="l2")
    to_faiss(index, tmp_path / "codes.faiss")
    outer = faiss.read_index(str(tmp_path / "codes.faiss"))
    inner = faiss.downcast_index(outer.index)
    vectors = index.codebook.decode(index.codes()).numpy()
    np.testing.assert_array_equal(faiss.vector_to_array(inner.codes).reshape(len(index), -1), inner.sa_encode(vectors))
    np.testing.assert_array_equal(inner.reconstruct_n(0, len(index)), vectors)


@settings(max_examples=40, deadline=None)
@given(**(INDEXES | {"strings": st.just(False)}))
def test_an_index_comes_back_from_faiss(tmp_path_factory, **form):
    index = an_index(**form)
    path = tmp_path_factory.mktemp("faiss") / "codes"
    to_faiss(index, path)
    assert_same(from_faiss(path, metric_of(index)), index, max_ulp=1 if form["metric"] == "cosine" else 0)


def test_binary_words_come_back_from_faiss_exactly(tmp_path):
    for bits in range(12, 73, 4):
        index = CodeIndex(binary_codebook(bits))
        index.add(np.eye(bits, dtype=np.uint8))
        to_faiss(index, tmp_path / "codes.faiss")
        assert_same(from_faiss(tmp_path / "codes.faiss"), index)


def test_words_that_codes_name_come_back_from_faiss_though_they_repeat_the_first(tmp_path):
    index = CodeIndex(ProductCodebook(np.ones((2, 16, 3)), "l2"))
    index.add(np.array([[0, 5], [3, 15], [1, 0]], np.uint8))
    to_faiss(index, tmp_path / "codes.faiss")
    found = from_faiss(tmp_path / "codes.faiss")
    np.testing.assert_array_equal(found.codes(), index.codes())
    assert found.codebook.sizes == (4, 16)


@pytest.mark.parametrize("strings", [False, True])
def test_an_index_whose_entries_were_all_removed_comes_back(tmp_path, strings):
    index = an_index(strings=strings)
    index.remove(index.ids)
    to_parquet(index, tmp_path / "codes.parquet")
    assert_same(from_parquet(tmp_path / "codes.parquet"), index)


def test_large_indexes_are_written_and_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(exchange, "ROWS_AT_ONCE", 7)
    index = an_index()
    to_parquet(index, tmp_path / "codes.parquet")
    assert pq.ParquetFile(tmp_path / "codes.parquet").num_row_groups == -(-len(index) // 7)
    assert_same(from_parquet(tmp_path / "codes.parquet"), index)
    to_faiss(index, tmp_path / "codes.faiss")
    assert_same(from_faiss(tmp_path / "codes.faiss"), index, max_ulp=1)
    fast_scan, codes = pq_index(kind=faiss.IndexPQFastScan)
    faiss.write_index(fast_scan, str(tmp_path / "fast.faiss"))
    np.testing.assert_array_equal(from_faiss(tmp_path / "fast.faiss").codes(), codes)


def test_a_mapped_index_is_written_too(tmp_path):
    an_index().save(tmp_path / "codes.index")
    index = CodeIndex.load(tmp_path / "codes.index")
    to_faiss(index, tmp_path / "codes.faiss")
    assert_same(from_faiss(tmp_path / "codes.faiss"), index, max_ulp=1)


def test_a_process_without_this_package_reads_the_files(tmp_path):
    index = an_index()
    to_faiss(index, tmp_path / "codes.faiss")
    to_parquet(index, tmp_path / "codes.parquet")
    queries = queries_for(index, n=3)
    np.save(tmp_path / "queries.npy", queries)
    script = """
import json, sys, faiss, numpy as np, pyarrow.parquet as pq
scores, ids = faiss.read_index("codes.faiss").search(np.load("queries.npy"), 30)
table = pq.read_table("codes.parquet")
assert "combemb" not in sys.modules
print(json.dumps([scores.tolist(), ids.tolist(), table["id"].to_pylist(), table["code"].to_pylist()]))
"""
    out = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout
    scores, ids, all_ids, codes = json.loads(out)
    assert_same_hits(ids, scores, index, queries)
    assert (all_ids, codes) == (index.ids.tolist(), index.codes().tolist())


@pytest.mark.parametrize("n_ids", [None, 100])
@pytest.mark.parametrize("metric", [faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT])
@pytest.mark.parametrize(("kind", "n_bits"), [(faiss.IndexPQ, n) for n in (1, 2, 3, 4)] + [(faiss.IndexPQFastScan, 4)])
def test_indexes_of_faiss_are_read(tmp_path, kind, n_bits, metric, n_ids):
    M = 5  # odd, which fast scan pads
    bare, codes = pq_index(n_bits, M=M, metric=metric, kind=kind)
    inner = faiss.clone_index(bare)
    ids = np.arange(100) * 3 + 5
    if n_ids:
        inner.reset()
        outer = faiss.IndexIDMap(inner)
        outer.add_with_ids(bare.reconstruct_n(0, 100), ids)
    faiss.write_index(outer if n_ids else bare, str(tmp_path / "codes.faiss"))
    index = from_faiss(tmp_path / "codes.faiss", metric="inner")
    np.testing.assert_array_equal(index.codes(), codes)
    np.testing.assert_array_equal(index.ids, ids if n_ids else np.arange(100))
    exact = faiss.IndexFlat(bare.d, metric)
    exact.add(bare.reconstruct_n(0, 100))
    queries = queries_for(index)
    scores, rows = exact.search(queries, 10)
    assert_same_hits(index.ids[rows], -scores if metric == faiss.METRIC_L2 else scores, index, queries)


def trained(description, metric=faiss.METRIC_L2):
    index = faiss.index_factory(12, description, metric)
    index.train(np.random.default_rng(0).normal(size=(2_000, 12)).astype(np.float32))
    return index


def with_ids_twice():
    index, _ = pq_index(n=0)
    outer = faiss.IndexIDMap(index)
    outer.add_with_ids(np.zeros((3, 12), np.float32), np.array([4, 5, 4]))
    return outer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: faiss.IndexFlatL2(3), "it holds an IndexFlatL2"),
        (lambda: faiss.IndexIDMap2(faiss.IndexFlatL2(3)), "it holds an IndexFlatL2"),
        (lambda: trained("PCA4,PQ2x4np"), "it holds an IndexPreTransform"),
        (lambda: trained("IVF2,PQ2x4np"), "it holds an IndexIVFPQ"),
        (lambda: faiss.IndexPQ(12, 3, 8), "its codes have 8 bits per set, untrained"),
        (lambda: pq_index(n_bits=5)[0], "its codes have 5 bits per set"),
        (lambda: faiss.IndexPQ(12, 3, 4), "its codes have 4 bits per set, untrained"),
        (lambda: pq_index(metric=faiss.METRIC_L1, n=0)[0], "it has FAISS's metric 2, neither"),
        (lambda: pq_index(kind=faiss.IndexPQFastScan, options=[64])[0], "its fast scan has blocks of 64 codes, not 32"),
        (with_ids_twice, "1 ids would be there twice, such as 4"),
    ],
)
def test_other_indexes_of_faiss_are_refused(tmp_path, make, message):
    faiss.write_index(make(), str(tmp_path / "codes.faiss"))
    with pytest.raises(
        ValueError, match=rf"cannot read .*codes.faiss: {message}.*; expected a FAISS file of an IndexPQ"
    ):
        from_faiss(tmp_path / "codes.faiss")


def test_faiss_files_hold_no_strings_and_an_old_file_stays(tmp_path):
    to_faiss(an_index(), tmp_path / "codes.faiss")
    before = (tmp_path / "codes.faiss").read_bytes()
    with pytest.raises(ValueError, match="the ids are strings, which a FAISS file cannot store; use to_parquet"):
        to_faiss(an_index(strings=True), tmp_path / "codes.faiss")
    assert (tmp_path / "codes.faiss").read_bytes() == before
    with pytest.raises(ValueError, match=r"metric='l2'; give 'cosine' or 'inner' for inner products"):
        from_faiss(tmp_path / "codes.faiss", metric="l2")


@pytest.mark.parametrize(("write", "read"), [(to_faiss, from_faiss), (to_parquet, from_parquet)])
def test_damaged_foreign_and_missing_files_say_which(tmp_path, write, read):
    write(an_index(), tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    path = tmp_path / "damaged"
    for content in (b"", b"not an index", whole[:6], whole[: len(whole) // 2], whole[:-1]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"cannot read .*damaged: .*; expected a "):
            read(path)
    (tmp_path / "folder").mkdir()
    for name in ("none", "folder"):
        with pytest.raises(ValueError, match=f"cannot read .*{name}: "):
            read(tmp_path / name)


def test_no_changed_bit_of_a_parquet_file_changes_the_index(tmp_path):
    index = an_index(n=40, strings=True)
    to_parquet(index, tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    rng = np.random.default_rng(0)
    n_refused = 0
    for place in rng.choice(len(whole), 250, replace=False):
        changed = bytearray(whole)
        changed[place] ^= 1 << int(rng.integers(8))
        (tmp_path / "changed").write_bytes(changed)
        try:
            found = from_parquet(tmp_path / "changed")
        except ValueError:
            n_refused += 1
        else:  # statistics and names of writers are not looked at
            assert_same(found, index)
    assert n_refused > 125
