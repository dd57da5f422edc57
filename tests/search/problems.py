"""Random codebooks with codes and queries, and what scoring every entry one by one finds."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from combemb.search.codebook import ProductCodebook


@dataclass(frozen=True, eq=False)
class Problem:
    codebook: ProductCodebook
    codes: np.ndarray  # (N, M) uint8
    queries: np.ndarray  # (Q, M*d)

    def scores(self, codes: np.ndarray | None = None) -> np.ndarray:
        """(Q, N): table entries added in the order of the sets, one entry after the other."""
        table = self.codebook.table(self.queries).double().tolist()
        rows = (self.codes if codes is None else codes).tolist()
        return np.array([[_sum(sets[m][word] for m, word in enumerate(row)) for row in rows] for sets in table])

    def nearest(self, k: int, rows: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Entries and scores (Q, min(k, n)) by score, then by number, among all entries or these rows."""
        rows = np.arange(len(self.codes)) if rows is None else rows
        scores = self.scores(self.codes[rows]).reshape(len(self.queries), len(rows))
        order = [sorted(range(len(rows)), key=lambda i, own=own: (-own[i], i))[:k] for own in scores]
        return rows[np.array(order, dtype=int).reshape(len(order), -1)], np.take_along_axis(scores, np.array(order), 1)


def _sum(values) -> float:
    total = 0.0
    for value in values:
        total += value
    return total


def make(seed: int, sizes: list[int], d: int, n: int, *, distinct: float = 1.0, whole: bool = False, metric="cosine"):
    """Words and queries are normal numbers, or small whole ones, which tie; `distinct`: share of different codes."""
    rng = np.random.default_rng(seed)

    def numbers(*shape):
        return rng.integers(-1, 2, shape).astype(float) if whole else rng.normal(size=shape)

    codebook = ProductCodebook([numbers(K, d) for K in sizes], metric)
    pool = np.stack([rng.integers(0, K, size=n) for K in sizes], axis=1).astype(np.uint8)
    codes = pool[rng.integers(0, max(1, round(distinct * n)), size=n)]
    queries = numbers(3, len(sizes) * d)
    queries[0] *= rng.integers(0, 2)  # now and then nothing at all
    return Problem(codebook, codes, queries)


@st.composite
def problems(draw, most: int = 300):
    """Sets of one size or of several, with repeats and ties."""
    size = st.sampled_from([2, 4, 8, 16])
    M = draw(st.integers(1, 7))
    sizes = draw(st.one_of(st.lists(size, min_size=M, max_size=M), size.map(lambda K: [K] * M)))
    return make(
        draw(st.integers(0, 2**32 - 1)),
        sizes,
        draw(st.integers(1, 3)),
        draw(st.integers(1, most)),
        distinct=draw(st.sampled_from([0.02, 0.5, 1.0])),
        whole=draw(st.booleans()),
        metric=draw(st.sampled_from(["cosine", "inner", "l2"])),
    )
