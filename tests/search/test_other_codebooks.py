"""An index of a codebook that is no product finds what scoring every entry finds."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from combemb.search import exchange, full_scan, parts
from combemb.search.codebook import Codebook, binary_codebook
from combemb.search.index import CodeIndex
from combemb.search.metrics import code_retrieval, code_use
from combemb.search.ranking import mean_average_precision
from combemb.system.arrays import to_tensor

D, CELLS, WORDS = 4, 5, 200


class LocalCodebook:
    """A cell, then two words of the residual in the cell's own rotation; scores are -|q - x|^2."""

    def __init__(self, seed: int, whole: bool = False) -> None:
        rng = np.random.default_rng(seed)
        self.sizes = (CELLS, WORDS, WORDS)
        self.bits = sum((size - 1).bit_length() for size in self.sizes)
        normal = rng.normal(size=(CELLS, D, D))
        # Whole numbers make different codes stand for one vector, so that they tie.
        permuted = np.stack([np.eye(D)[rng.permutation(D)] for _ in range(CELLS)])
        self.rotations = to_tensor(permuted if whole else np.linalg.qr(normal)[0])
        self.cells, self.words = (
            to_tensor(rng.integers(-1, 2, shape).astype(float) if whole else rng.normal(size=shape))
            for shape in ((CELLS, D), (CELLS, 2, WORDS, D // 2))
        )

    def encode(self, z):
        z = to_tensor(z).double()
        cell = torch.cdist(z, self.cells).argmin(dim=1)
        residual = torch.einsum("nij,nj->ni", self.rotations[cell], z - self.cells[cell]).unflatten(1, (2, -1))
        word = (residual[:, :, None] - self.words[cell]).square().sum(dim=3).argmin(dim=2)
        return torch.cat([cell[:, None], word], dim=1).to(torch.uint8)

    def decode(self, codes):
        cell, *word = to_tensor(codes).long().T
        residual = torch.cat([self.words[cell, m, word[m]] for m in (0, 1)], dim=1)
        turned = sum(residual[:, j, None] * self.rotations[cell, j] for j in range(D))  # in one order, as `scores`
        return (self.cells[cell] + turned).float()

    def scores(self, queries, codes):
        q, x = to_tensor(queries).double(), self.decode(codes).double()
        total = torch.zeros(len(q), len(x), dtype=torch.float64)
        for column in range(D):  # one order of adding, whatever else is scored
            total -= (q[:, column, None] - x[:, column]).square()
        return total

    def state(self):
        return {
            "rotations": self.rotations,
            "cells": self.cells,
            "words": self.words,
            "n_bits": torch.tensor(self.bits),
        }

    def __repr__(self) -> str:
        return f"LocalCodebook({self.bits} bits)"


def make(seed: int = 0, n: int = 300, whole: bool = True):
    """A codebook, codes that repeat, and queries."""
    codebook: Codebook = LocalCodebook(seed, whole)
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, size, n) for size in codebook.sizes], axis=1).astype(np.uint8)
    codes = codes[rng.integers(0, max(1, n // 2), n)]
    return codebook, codes, rng.integers(-2, 3, (3, D)).astype(float) if whole else rng.normal(size=(3, D))


def ranked(codebook, codes, queries, rows=None):
    """Entries and scores by score, then by number."""
    rows = np.arange(len(codes)) if rows is None else rows
    scores = codebook.scores(queries, codes[rows]).numpy()
    order = np.argsort(-scores, axis=1, kind="stable")
    return rows[order], np.take_along_axis(scores, order, axis=1)


def assert_found(hits, entries, scores):
    assert np.array_equal(hits.ids, entries)
    assert np.array_equal(hits.scores, scores)


def indexed(codebook, codes):
    """Added in pieces, which become parts."""
    index = CodeIndex(codebook)
    for some in np.array_split(codes, [len(codes) // 2, len(codes) - len(codes) // 8]):
        index.add(some)
    return index


@given(st.integers(0, 2**32 - 1), st.integers(1, 300), st.booleans(), st.integers(1, 320))
@settings(max_examples=40, deadline=None)
def test_search_equals_scoring_every_entry(tmp_path_factory, seed, n, whole, k):
    codebook, codes, queries = make(seed, n, whole)
    index = indexed(codebook, codes)
    assert np.array_equal(index.codes(), codes)
    entries, scores = ranked(codebook, codes, queries)
    assert_found(index.search(queries, k), entries[:, :k], scores[:, :k])
    least = float(scores[0, n // 3])
    found = index.range_search(queries, least)
    for own, own_scores, ids, hits in zip(entries, scores, found.ids, found.scores, strict=True):
        assert_found(type(found)(ids, hits), own[own_scores >= least], own_scores[own_scores >= least])
    rows = np.flatnonzero(np.random.default_rng(seed).random(n) < 0.5)
    expected = [both[:, :k] for both in ranked(codebook, codes, queries, rows)]
    assert_found(index.search(queries, k, among=rows), *expected)
    assert_found(index.search(queries, k, among=np.isin(np.arange(n), rows)), *expected)
    path = tmp_path_factory.mktemp("index") / "index.safetensors"
    index.save(path)
    loaded = CodeIndex.load(path, LocalCodebook(seed, whole))
    assert_found(loaded.search(queries, k), entries[:, :k], scores[:, :k])
    loaded.remove(np.setdiff1d(np.arange(n), rows))
    assert_found(loaded.search(queries, k), *expected)
    other = CodeIndex(LocalCodebook(seed, whole))
    other.add(codes[rows], rows + n)
    index.merge(other)
    both = np.concatenate([codes, codes[rows]])
    entries, scores = ranked(codebook, both, queries)
    names = np.concatenate([np.arange(n), rows + n])
    assert_found(index.search(queries, k), names[entries[:, :k]], scores[:, :k])


def test_queries_and_codes_are_scored_a_few_at_a_time(monkeypatch):
    codebook, codes, queries = make(n=1_000)
    index, expected = indexed(codebook, codes), ranked(codebook, codes, queries)
    monkeypatch.setattr(full_scan, "CODES_AT_ONCE", 7)
    monkeypatch.setattr(parts, "MAX_CANDIDATES", 10)
    assert_found(index.search(torch.from_numpy(queries), 1_000), *expected)


def test_vectors_become_codes_that_are_counted_once():
    codebook, codes, _ = make(whole=False)
    vectors = codebook.decode(codes)
    index = CodeIndex(codebook)
    index.add(vectors)
    encoded = codebook.encode(vectors).numpy()
    assert (encoded != codes).any()  # a vector may be nearer to another cell than the one it was made from
    assert np.array_equal(index.codes(), encoded)
    assert index.n_codes == len(np.unique(encoded, axis=0))
    assert repr(index).endswith("codes stored, LocalCodebook(19 bits))")


def test_later_changes_of_an_array_do_not_reach_the_index():
    codebook, codes, _ = make()
    codes = np.unique(codes, axis=0)
    index, before = CodeIndex(codebook), codes.copy()
    index.add(codes)
    codes[:] = 0
    index.codes()[:] = 0
    assert np.array_equal(index.codes(), before)


def test_a_file_needs_its_codebook(tmp_path):
    path, (codebook, codes, queries) = tmp_path / "index.safetensors", make()
    indexed(codebook, codes).save(path)
    with pytest.raises(
        ValueError, match=r"has codes of LocalCodebook\(19 bits\), which is not stored .*; give it as co"
    ):
        CodeIndex.load(path)
    for other in (LocalCodebook(1, whole=True), binary_codebook(12)):
        with pytest.raises(
            ValueError, match=r"was made with another codebook: LocalCodebook\(19 bits\), not .*; index"
        ):
            CodeIndex.load(path, other)
        with pytest.raises(ValueError, match="the other index has another codebook"):
            CodeIndex(codebook).merge(CodeIndex(other))
    product = CodeIndex(binary_codebook(12))
    product.save(path)
    with pytest.raises(ValueError, match="was made with another codebook: ProductCodebook"):
        CodeIndex.load(path, codebook)
    CodeIndex(codebook).save(path)
    assert CodeIndex.load(path, codebook).search(queries, 3).ids.shape == (3, 0)


def test_faiss_gets_products_only(tmp_path):
    with pytest.raises(ValueError, match=r"LocalCodebook\(19 bits\) is no product codebook.*; use to_parquet"):
        exchange.to_faiss(CodeIndex(LocalCodebook(0)), tmp_path / "codes")


@pytest.mark.parametrize("to", ["parquet", "lance"])
def test_tables_are_read_with_their_codebook(tmp_path, to):
    write, read = getattr(exchange, f"to_{to}"), getattr(exchange, f"from_{to}")
    codebook, codes, queries = make()
    path, index = tmp_path / f"codes.{to}", indexed(codebook, codes)
    write(index, path)
    again = read(path, LocalCodebook(0, whole=True))
    assert np.array_equal(again.codes(), codes)
    assert np.array_equal(again.search(queries, 5).ids, index.search(queries, 5).ids)
    with pytest.raises(ValueError, match=r"has codes of LocalCodebook\(19 bits\), which is not stored .*codebook="):
        read(path)
    for other in (LocalCodebook(1, whole=True), binary_codebook(12)):
        with pytest.raises(ValueError, match=r"made with another codebook: LocalCodebook\(19 bits\), not"):
            read(path, other)
    write(CodeIndex(binary_codebook(12)), path)
    assert len(read(path, binary_codebook(12))) == 0
    with pytest.raises(ValueError, match=r"made with ProductCodebook\(12 bits.*, not with LocalCodebook"):
        read(path, codebook)


def test_what_cannot_be_scored_says_why():
    codebook, codes, queries = make()
    index = indexed(codebook, codes)
    with pytest.raises(ValueError, match=r"queries have shape \(4,\); give \(Q, D\)"):
        index.search(queries[0])
    with pytest.raises(ValueError, match="queries get scores that are not finite"):
        index.search(queries * np.nan)
    with pytest.raises(ValueError, match=r"codes of set 0 span 0..5, but it has words 0..4 only"):
        index.add(np.array([[0, 199, 199], [5, 0, 0]]))


@pytest.mark.parametrize("whole", [False, True])
def test_metrics_are_those_of_all_scores(whole):
    codebook, codes, queries = make(whole=whole)
    targets = np.random.default_rng(1).integers(0, 4, len(codes))
    found = code_retrieval(codebook, queries, codes, np.array([0, 1, 2]), targets)
    relevant = np.array([[0], [1], [2]]) == targets
    assert found.map == pytest.approx(mean_average_precision(codebook.scores(queries, codes), relevant), abs=1e-12)
    use = code_use(torch.from_numpy(codes), codebook.sizes)
    assert use["n_codes"] == len(np.unique(codes, axis=0))
    assert [len(shares) for shares in use["code_use"]] == [CELLS, WORDS, WORDS]
    assert use["code_use"][0][0] == pytest.approx(np.mean(codes[:, 0] == 0), abs=1e-4)
