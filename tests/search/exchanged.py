"""Indexes to be written for other tools, and what must come back."""

import faiss
import numpy as np
from hypothesis import strategies as st

from combemb.search.codebook import ProductCodebook
from combemb.search.index import CodeIndex

METRICS = ("cosine", "inner", "l2")
SIZES = [(2,) * 9, (4,) * 6, (8,) * 3, (16,) * 5, (2, 16, 4, 8, 2), (4,)]
INDEXES = {
    "sizes": st.lists(st.sampled_from([2, 4, 8, 16]), min_size=1, max_size=9).map(tuple),
    "d": st.integers(1, 9),
    "metric": st.sampled_from(METRICS),
    "n": st.sampled_from([0, 1, 8, 150]),
    "strings": st.booleans(),
    "seed": st.integers(0, 2**32 - 1),
}


def an_index(sizes=(2, 16, 4, 8, 2), d=3, *, metric="cosine", n=150, strings=False, seed=0) -> CodeIndex:
    """An index whose later codes repeat earlier ones, added in two steps under ids in no order."""
    rng = np.random.default_rng(seed)
    index = CodeIndex(ProductCodebook([rng.normal(size=(K, d)) for K in sizes], metric), n_threads=1)
    codes = np.stack([rng.integers(K, size=n) for K in sizes], axis=1).astype(np.uint8)
    codes[n - n // 3 :] = codes[: n // 3]
    ids = rng.permutation(10 * n + 1)[:n] - n
    ids = [f"é {number}" for number in ids] if strings else ids
    for some in (slice(0, n // 3), slice(n // 3, n)):
        index.add(codes[some], ids[some])
    return index


def queries_for(index: CodeIndex, n=20, seed=1) -> np.ndarray:
    """Queries as `embed` gives them: under "cosine" every sub-vector has length 1 / sqrt(M)."""
    M, _, d = index.codebook.words.shape
    q = np.random.default_rng(seed).normal(size=(n, M, d))
    if index.codebook.metric == "cosine":
        q /= np.linalg.norm(q, axis=2, keepdims=True) * np.sqrt(M)
    return q.reshape(n, M * d).astype(np.float32)


def assert_same(found: CodeIndex, index: CodeIndex, max_ulp=0):
    np.testing.assert_array_equal(found.codes(), index.codes())
    np.testing.assert_array_equal(found.ids, index.ids)
    assert found.ids.dtype == index.ids.dtype
    assert (found.codebook.metric, found.codebook.sizes) == (index.codebook.metric, index.codebook.sizes)
    words = [i.codebook.words.numpy() for i in (found, index)]
    np.testing.assert_array_max_ulp(*words, max_ulp)


def assert_same_hits(ids, scores, index: CodeIndex, queries):
    """Scores are those of the best entries and of the ids found; ids agree wherever no other score is near."""
    ids, k = np.asarray(ids), np.shape(ids)[1]
    hits = index.search(queries, k=len(index))
    np.testing.assert_allclose(scores, hits.scores[:, :k], rtol=1e-5, atol=1e-5)
    for found, score, all_ids, all_scores in zip(ids, scores, hits.ids, hits.scores, strict=True):
        assert len(set(found)) == k
        score_of = dict(zip(all_ids, all_scores, strict=True))
        np.testing.assert_allclose([score_of[number] for number in found], score, rtol=1e-5, atol=1e-5)
    gaps = np.pad(-np.diff(hits.scores), ((0, 0), (1, 1)), constant_values=np.inf)
    is_alone = (np.minimum(gaps[:, 1:], gaps[:, :-1]) > 1e-4)[:, :k]
    assert is_alone.any() or index.codebook.bits < 6
    np.testing.assert_array_equal(ids[is_alone], hits.ids[:, :k][is_alone])


def metric_of(index: CodeIndex) -> str:
    """What `from_faiss` must be told."""
    return "inner" if index.codebook.metric == "inner" else "cosine"


def pq_index(n_bits=4, *, M=4, d=3, n=100, metric=faiss.METRIC_L2, kind=faiss.IndexPQ, options=()):
    """An index that FAISS filled by itself, and the codes that its vectors were made of."""
    rng = np.random.default_rng(0)
    words = rng.normal(size=(M, 2**n_bits, d)).astype(np.float32)
    codes = rng.integers(2**n_bits, size=(n, M)).astype(np.uint8)
    index = kind(M * d, M, n_bits, metric, *options)
    faiss.copy_array_to_vector(words.ravel(), index.pq.centroids)
    index.is_trained = True
    index.add(words[np.arange(M), codes].reshape(n, M * d))
    return index, codes
