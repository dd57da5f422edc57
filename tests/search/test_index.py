"""The index against scoring every entry one by one: ids, scores and the order of ties, bit by bit."""

import itertools
import multiprocessing
from dataclasses import replace

import faiss
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from combemb import CodeIndex
from combemb.search import fast_scan
from combemb.search.codebook import ProductCodebook, binary_codebook
from combemb.search.fast_scan import FastScan
from combemb.search.joined import Joined
from combemb.search.parts import Part
from tests.search.problems import make, problems


@pytest.fixture
def small_shares(monkeypatch):
    """Threads share a few thousand codes too."""
    monkeypatch.setattr(fast_scan, "MIN_BLOCKS_PER_SHARE", 64)
    monkeypatch.setattr(fast_scan, "MIN_CODES_PER_THREAD", 2_048)


def indexed(problem, cuts=(), ids=None, n_threads=2):
    """An index to which the codes were added in several pieces."""
    index = CodeIndex(problem.codebook, n_threads)
    for rows in np.split(np.arange(len(problem.codes)), sorted(cuts)):
        index.add(problem.codes[rows], None if ids is None else [ids[row] for row in rows])
    return index


def assert_found(hits, expected):
    entries, scores = expected
    assert np.array_equal(hits.scores, scores)
    assert np.array_equal(hits.ids, entries)


@given(problems(), st.integers(1, 40), st.lists(st.integers(0, 300), max_size=3), st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_a_search_equals_scoring_every_entry(problem, k, cuts, n_threads):
    index = indexed(problem, cuts, n_threads=n_threads)
    assert len(index) == len(problem.codes)
    assert np.array_equal(index.codes(), problem.codes)
    assert_found(index.search(problem.queries, k), problem.nearest(k))


@given(problems(), st.lists(st.integers(0, 300), max_size=2), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_a_range_search_finds_all_that_score_enough(problem, cuts, share):
    entries, scores = problem.nearest(len(problem.codes))
    least = float(np.quantile(scores, share, method="nearest"))
    hits = indexed(problem, cuts).range_search(problem.queries, least)
    for q, own in enumerate(scores):
        n = int((own >= least).sum())
        assert np.array_equal(hits.ids[q], entries[q, :n])
        assert np.array_equal(hits.scores[q], own[:n])


@pytest.mark.parametrize("metric", ["cosine", "inner", "l2"])
@pytest.mark.parametrize("sizes", [[4] * 24, [2] * 48, [16] * 12, [8] * 16, [4] * 36], ids=str)
@pytest.mark.usefixtures("small_shares")
def test_fast_scan_leaves_nothing_out(sizes, metric):
    """Enough codes that only a part of them is scored exactly."""
    problem = make(0, sizes, 2, 20_000, metric=metric)
    table = problem.codebook.table(problem.queries).double().numpy()
    scores = np.zeros((3, 20_000))
    for m in range(len(sizes)):
        scores += table[:, m][:, problem.codes[:, m]]
    order = np.argsort(-scores, axis=1, kind="stable")
    for k, n_threads in itertools.product((1, 10, 100, 3_000), (1, 2)):  # 3 queries: threads share them, or the codes
        hits = indexed(problem, n_threads=n_threads).search(problem.queries, k)
        assert np.array_equal(hits.ids, order[:, :k])
        assert np.array_equal(hits.scores, np.take_along_axis(scores, order[:, :k], axis=1))


def test_more_candidates_are_fetched_when_the_first_are_not_enough(monkeypatch):
    """Words that hardly differ but for one set: rounded to the step of that set, all codes look alike."""
    rng = np.random.default_rng(0)
    words = 1e-4 * rng.normal(size=(6, 16, 1))
    words[0] *= 1e6
    problem = make(1, [16] * 6, 1, 30_000)
    problem = replace(problem, codebook=ProductCodebook(words, "inner"))
    asked = []
    nearest = FastScan.nearest
    monkeypatch.setattr(FastScan, "nearest", lambda scan, table, n: asked.append(n) or nearest(scan, table, n))
    hits = indexed(problem).search(problem.queries, 10)
    expected = problem.codebook.scores(problem.queries, problem.codes).numpy()
    order = np.argsort(-expected, axis=1, kind="stable")[:, :10]
    assert np.array_equal(hits.ids, order)
    assert max(asked) > 1_000


def test_equal_codes_are_scored_once(monkeypatch):
    problem = make(0, [4] * 6, 2, 5_000, distinct=0.01)
    index = indexed(problem)
    n_distinct = len(np.unique(problem.codes, axis=0))
    assert index.n_codes == n_distinct
    assert f"5,000 entries, {n_distinct} codes stored" in repr(index)
    scored = []
    scores = Joined.scores

    def counted(own, entries, codes, **how):
        scored.append(codes[:, 0].size)
        return scores(own, entries, codes, **how)

    monkeypatch.setattr(Joined, "scores", counted)
    assert_found(index.search(problem.queries, 200), problem.nearest(200))
    assert sum(scored) <= 3 * n_distinct  # joined sets


@pytest.mark.parametrize("size", [1e15, 1e16, 1e17])
def test_a_set_that_drowns_the_others_does_not_hide_what_is_nearest(size):
    """Partial sums then lose digits of the other sets, in float64 too."""
    problem = make(0, [16] * 6, 1, 20_000)
    words = problem.codebook.words.clone()
    words[0] = size
    problem = replace(problem, codebook=ProductCodebook(words, "inner"), queries=np.ones((1, 6)))
    scores = problem.codebook.scores(problem.queries, problem.codes).numpy()
    order = np.argsort(-scores, axis=1, kind="stable")[:, :5]
    assert np.array_equal(indexed(problem).search(problem.queries, 5).ids, order)


def test_more_sets_than_faiss_can_add_up():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2, (3_000, 1_040)).astype(np.uint8)
    index = CodeIndex(binary_codebook(1_040))
    index.add(codes)
    hits = index.search(codes[1_234:1_235] * 2.0 - 1.0, 2)
    assert hits.ids[0, 0] == 1_234
    assert hits.scores[0, 0] == 1_040


def test_faiss_finds_the_same():
    """IndexPQ is an independent reference for untied scores."""
    problem = make(3, [16] * 6, 4, 3_000, metric="inner")
    problem = replace(problem, codes=np.unique(problem.codes, axis=0))
    reference = faiss.IndexPQ(24, 6, 4, faiss.METRIC_INNER_PRODUCT)
    faiss.copy_array_to_vector(problem.codebook.words.numpy().ravel(), reference.pq.centroids)
    reference.is_trained = True
    reference.add_sa_codes(np.ascontiguousarray(problem.codes[:, 0::2] | problem.codes[:, 1::2] << 4))
    scores, entries = reference.search(problem.queries[1:].astype(np.float32), 20)
    hits = indexed(problem).search(problem.queries[1:], 20)
    np.testing.assert_allclose(hits.scores, scores, rtol=1e-5, atol=1e-5)
    assert np.array_equal(hits.ids, entries)


# Adding, removing, merging, choosing


@given(problems(), st.data())
@settings(max_examples=60, deadline=None)
def test_a_search_among_some_entries(problem, data):
    N = len(problem.codes)
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, N - 1), min_size=1))))
    names = [f"item {i}" for i in range(N)]
    index = indexed(problem, ids=names)
    entries, scores = problem.nearest(7, rows)
    shuffled = data.draw(st.permutations([names[row] for row in rows]))
    mask = np.isin(np.arange(N), rows)
    for among in (shuffled, mask, mask.tolist()):
        hits = index.search(problem.queries, 7, among=among)
        assert np.array_equal(hits.scores, scores)
        assert hits.ids.tolist() == [[names[entry] for entry in own] for own in entries]


@given(problems(), st.data())
@settings(max_examples=60, deadline=None)
def test_what_is_removed_is_never_found(problem, data):
    N = len(problem.codes)
    gone = data.draw(st.permutations(sorted(data.draw(st.sets(st.integers(0, N - 1), max_size=N - 1)))))
    index = indexed(problem, cuts=(N // 2,))
    index.remove(gone)
    kept = np.setdiff1d(np.arange(N), gone)
    assert len(index) == len(kept)
    assert np.array_equal(index.ids, kept)
    assert np.array_equal(index.codes(), problem.codes[kept])
    assert_found(index.search(problem.queries, 9), problem.nearest(9, kept))


def test_everything_can_be_removed():
    problem = make(0, [4] * 6, 2, 50)
    index = indexed(problem)
    index.remove(np.arange(50))
    assert len(index) == 0
    assert index.search(problem.queries, 5).ids.shape == (3, 0)
    index.add(problem.codes[:3])
    assert index.search(problem.queries, 5).ids.shape == (3, 3)


def test_a_merged_index_is_that_of_all_entries():
    problem = make(0, [4] * 6, 2, 400, distinct=0.5)
    names = [f"item {i}" for i in range(400)]
    index, other = CodeIndex(problem.codebook), CodeIndex(problem.codebook)
    index.add(problem.codes[:150], names[:150])
    other.add(problem.codes[150:], names[150:])
    index.merge(other)
    whole = indexed(problem, ids=names)
    assert index.search(problem.queries, 30).to_list() == whole.search(problem.queries, 30).to_list()
    with pytest.raises(ValueError, match=r"250 ids would be there twice, such as 'item \d+'"):
        index.merge(other)
    with pytest.raises(ValueError, match="the other index has another codebook"):
        index.merge(CodeIndex(binary_codebook(12)))
    index.merge(CodeIndex(problem.codebook))
    assert len(index) == 400


def test_many_small_additions_make_few_parts():
    problem = make(0, [4] * 6, 2, 500)
    index = indexed(problem, cuts=range(1, 500))
    assert len(index._parts) <= 6
    assert_found(index.search(problem.queries, 11), problem.nearest(11))


def test_embeddings_and_codes_are_told_apart_by_their_type():
    problem = make(0, [4] * 6, 2, 100)
    z = problem.codebook.decode(problem.codes)
    by_codes, by_vectors = indexed(problem), CodeIndex(problem.codebook)
    for part in (z[:50].numpy(), z[50:]):
        by_vectors.add(part)
    assert np.array_equal(by_vectors.codes(), problem.codebook.encode(z).numpy())
    tensor = CodeIndex(problem.codebook)
    tensor.add(torch.from_numpy(problem.codes[:30]))
    tensor.add(problem.codes[30:].astype(np.int64))
    assert tensor.search(z[:4], 5).to_list() == by_codes.search(z[:4], 5).to_list()


def test_hits_are_pairs_of_id_and_score():
    index = CodeIndex(binary_codebook(3))
    index.add(np.array([[1, 1, 1], [0, 0, 0]], np.uint8), ids=["all", "none"])
    hits = index.search(np.array([[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]]), k=9)
    assert hits.ids.tolist() == [["all", "none"], ["none", "all"]]
    assert hits.scores.tolist() == [[3.0, -3.0], [3.0, -3.0]]
    assert list(hits) == hits.to_list() == [[("all", 3.0), ("none", -3.0)], [("none", 3.0), ("all", -3.0)]]
    assert len(hits) == 2


# What bad input gets


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda: (np.zeros((2, 5)),), r"vectors of shape \(2, 5\) do not fit"),
        (lambda: (np.zeros((2, 5), np.uint8),), r"codes of shape \(2, 5\) do not fit"),
        (lambda: (np.full((2, 6), 4, np.uint8),), "codes of set 0 span 4..4, but it has words 0..3 only"),
        (lambda: (np.full((2, 12), np.nan),), "row 0 of x holds NaN or infinity"),
        (lambda: (np.zeros((2, 6), np.uint8), [1]), "there are 1 ids for 2 entries"),
        (lambda: (np.zeros((2, 6), np.uint8), [7, 7]), "1 ids would be there twice, such as 7"),
        (lambda: (np.zeros((2, 6), np.uint8), [100, 30]), "1 ids would be there twice, such as 30"),
        (lambda: (np.zeros((2, 6), np.uint8), ["a", "b"]), "the ids of this index are ints, the new ones strings"),
        (lambda: (np.zeros((2, 6), bool),), "codes are torch.bool"),
        (lambda: (np.zeros((2, 6), np.uint8), [1, "a"]), "ids are of type int, str; give all ints or all strings"),
        (lambda: (np.zeros((2, 6), np.uint8), [1, False]), "ids are of type bool, int; give"),
        (lambda: (np.zeros((2, 6), np.uint8), [1, 2**63]), "ids hold numbers beyond 64 signed bits"),
        (lambda: (np.zeros((5, 6), np.uint8), [60, 2**62, -(2**63), -(2**62), 60]), "1 ids would be there twice"),
        (lambda: (np.zeros((2, 6), np.uint8), [1.5, 2.0]), "ids are of type float; give all ints or all strings"),
        (lambda: (np.zeros((2, 6), np.uint8), [[1], [2]]), "ids are of type list; give all ints"),
        (lambda: (np.zeros((2, 6), np.uint8), np.ones((2, 1), int)), r"ids have shape \(2, 1\); give one per entry"),
        (lambda: (np.zeros((2, 6), np.uint8), "ab"), "ids are of type str; give a list"),
        (lambda: (np.zeros((2, 6), np.uint8), 3), "ids are of type int; give a list"),
    ],
)
def test_what_cannot_be_added_leaves_the_index_as_it_was(arguments, message):
    problem = make(0, [4] * 6, 2, 50)
    index = indexed(problem)
    before = index.search(problem.queries, 50).to_list()
    with pytest.raises(ValueError, match=message):
        index.add(*arguments())
    assert len(index) == 50
    assert index.search(problem.queries, 50).to_list() == before


def test_what_cannot_be_asked_says_why():
    problem = make(0, [4] * 6, 2, 50)
    index = indexed(problem)
    for k in (0, -1, 2.5, True, "a"):
        with pytest.raises(ValueError, match=f"k={k!r}; give a whole number, 1 or more"):
            index.search(problem.queries, k)
    with pytest.raises(ValueError, match="vectors hold values that are not finite"):
        index.search(np.array([[0.0] * 12, [np.nan] * 12]))
    with pytest.raises(ValueError, match=r"vectors of shape \(3, 11\) do not fit"):
        index.search(problem.queries[:, :11])
    with pytest.raises(ValueError, match="the least score is NaN"):
        index.range_search(problem.queries, np.nan)
    with pytest.raises(ValueError, match=r"2 of 3 ids are not in the index, such as 50"):
        index.remove([0, 50, 51])
    assert len(index) == 50
    with pytest.raises(ValueError, match="1 of 1 ids are not in the index, such as 'x'"):
        index.search(problem.queries, among=["x"])
    with pytest.raises(ValueError, match=r"the mask has shape \(3,\); give one bool per entry, \(50,\)"):
        index.search(problem.queries, among=np.ones(3, bool))


def test_numbers_beyond_float32_are_refused():
    for metric, size in (("l2", 1e20), ("inner", 1e30)):
        problem = make(0, [4] * 6, 2, 50, metric=metric)
        index = indexed(replace(problem, codebook=ProductCodebook(size * problem.codebook.words, metric)))
        with pytest.raises(ValueError, match="or so large that scores exceed float32"):
            index.search(1e20 * np.ones((1, 12)))


def test_a_failure_amid_a_change_leaves_the_index_as_it_was(monkeypatch):
    problem = make(0, [4] * 6, 2, 50)
    index = indexed(problem)
    before = index.search(problem.queries, 50).to_list()

    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(Part, "of", fail)
    for change in (lambda: index.add(problem.codes[:40]), lambda: index.remove([3])):
        with pytest.raises(MemoryError):
            change()
        assert len(index) == 50
        assert index.search(problem.queries, 50).to_list() == before


def test_rows_beyond_the_entries_are_no_codes():
    for row in (-1, 50):
        with pytest.raises(IndexError, match=f"rows span {row}..{row}, but there are 50 entries"):
            indexed(make(0, [4] * 6, 2, 50)).codes(np.array([row]))


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.usefixtures("small_shares")
def test_a_forked_process_can_search(n_threads):
    problem = make(0, [4] * 12, 2, 9_000)
    index = indexed(problem, n_threads=n_threads)
    expected = index.search(problem.queries[:1], 5).to_list()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(index.search, (problem.queries[:1], 5)).get(timeout=30).to_list() == expected


def test_more_than_there_is_gives_what_there_is():
    problem = make(0, [4] * 6, 2, 50)
    assert_found(indexed(problem).search(problem.queries, 51), problem.nearest(50))
    empty = CodeIndex(problem.codebook)
    assert empty.search(problem.queries, 5).ids.shape == (3, 0)
    assert empty.range_search(problem.queries, -9.0).to_list() == [[], [], []]
    assert_found(indexed(problem).range_search(problem.queries, -np.inf), problem.nearest(50))
    assert indexed(problem).search(problem.queries, 5, among=[]).to_list() == [[], [], []]
    assert indexed(problem).search(problem.queries[:0], 5).ids.shape == (0, 5)
