"""Codes of 4-bit numbers in the layout of FAISS's fast scan, which adds table entries for 32 codes at a time."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

import faiss
import numpy as np

BLOCK = 32  # codes that lie together
# A block has 16 bytes per joined set: byte j holds code ORDER[j] in its lower half and code ORDER[j] + 16 in its upper.
ORDER = np.array([0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15])
BYTE = np.argsort(ORDER)
PACKED_AT_ONCE = 2**20  # codes


class FastScan:
    """N codes (N, M'), searched by tables of what each of the 16 words of a set is worth.

    FAISS rounds every table to 8 bits with one step for all of them, so that its sums err by at most half a step per
    table; `nearest` says how much that is. Each thread scans a part of the codes, all queries at once.
    """

    def __init__(self, blocks: np.ndarray, n_codes: int, n_sets: int, n_threads: int):
        """Take over blocks (n, M'', 16) uint8 as `pack` makes them; M'' is M' or one more, which is even."""
        self.n_codes, self.n_sets = n_codes, n_sets
        n_parts = max(1, min(n_threads, len(blocks) // 64))  # tiny parts would be slower than one
        edges = np.linspace(0, len(blocks), n_parts + 1).astype(int).tolist()
        self.firsts = [edge * BLOCK for edge in edges[:-1]]
        self.parts = [
            _index(blocks[start:end], min(end * BLOCK, n_codes) - start * BLOCK, n_sets)
            for start, end in pairwise(edges)
        ]

    @property
    def blocks(self) -> np.ndarray:
        """All codes in their layout, (n, M'', 16); a copy if there are several parts."""
        views = [_blocks(part) for part in self.parts]
        return views[0] if len(views) == 1 else np.concatenate(views)

    def codes(self, rows: np.ndarray) -> np.ndarray:
        """The codes of these rows (...) -> (..., M') uint8."""
        found = np.empty((*rows.shape, self.n_sets), np.uint8)
        part_of = np.searchsorted(self.firsts, rows, side="right") - 1
        for number, (first, part) in enumerate(zip(self.firsts, self.parts, strict=True)):
            mine = part_of == number if len(self.parts) > 1 else np.ones(rows.shape, bool)
            block, place = np.divmod(rows[mine] - first, BLOCK)
            both = _blocks(part)[block, : self.n_sets, BYTE[place % 16]]
            found[mine] = np.where(place[:, None] < 16, both & 15, both >> 4)
        return found

    def nearest(self, tables: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The codes with the k largest rounded sums of each query, k <= N / 2, in no order.

        tables (Q, M', 16), not negative. Returns rows (Q, k), -1 where FAISS found none; the least rounded sum of each
        query (Q,), above which no other code lies; and by how much a rounded sum may be wrong (Q,).
        """
        queries = np.ascontiguousarray(tables.reshape(len(tables), -1), np.float32)
        wanted = [min(k, part.ntotal) for part in self.parts]
        if len(self.parts) == 1:
            found = [_search(self.parts[0], queries, k)]
        else:
            found = list(_threads(len(self.parts)).map(_search, self.parts, [queries] * len(self.parts), wanted))
        sums = np.concatenate([part_sums for part_sums, _ in found], axis=1)
        rows = np.concatenate(
            [
                np.where(part_rows < 0, -1, part_rows + first)
                for first, (_, part_rows) in zip(self.firsts, found, strict=True)
            ],
            axis=1,
        )
        if sums.shape[1] > k:
            kept = np.argpartition(-sums, k - 1, axis=1)[:, :k]
            sums, rows = np.take_along_axis(sums, kept, axis=1), np.take_along_axis(rows, kept, axis=1)
        step = np.ptp(tables, axis=2).max(axis=1) / 255
        return rows, sums.min(axis=1).astype(np.float64), step * (self.n_sets + 1) / 2  # one more for float32


def pack(codes: np.ndarray) -> np.ndarray:
    """Codes (N, M') uint8 below 16 -> blocks (ceil(N / 32), M'', 16) uint8, padded with zeros."""
    n_sets = codes.shape[1] + codes.shape[1] % 2
    blocks = np.empty((-(-len(codes) // BLOCK), n_sets, 16), np.uint8)
    for start in range(0, len(codes), PACKED_AT_ONCE):
        some = codes[start : start + PACKED_AT_ONCE]
        padded = np.zeros((-(-len(some) // BLOCK) * BLOCK, n_sets), np.uint8)
        padded[: len(some), : codes.shape[1]] = some
        lower, upper = (padded.reshape(-1, BLOCK, n_sets)[:, ORDER + half] for half in (0, 16))
        first = start // BLOCK
        blocks[first : first + len(lower)] = (lower | upper << 4).transpose(0, 2, 1)
    return blocks


def _index(blocks: np.ndarray, n_codes: int, n_sets: int) -> faiss.IndexPQFastScan:
    """An index whose centroids are the unit vectors, so that the queries are the tables themselves."""
    index = faiss.IndexPQFastScan(16 * n_sets, n_sets, 4, faiss.METRIC_INNER_PRODUCT)
    faiss.copy_array_to_vector(np.tile(np.eye(16, dtype=np.float32), (n_sets, 1, 1)).ravel(), index.pq.centroids)
    index.is_trained, index.ntotal = True, n_codes
    index.ntotal2 = len(blocks) * BLOCK  # type: ignore[attr-defined]
    index.codes.resize(blocks.size)
    if blocks.size:
        blocks = np.ascontiguousarray(blocks)
        faiss.memcpy(index.codes.get(), faiss.swig_ptr(blocks), blocks.nbytes)
    return index


def _blocks(index: faiss.IndexPQFastScan) -> np.ndarray:
    """The blocks of an index, without a copy."""
    found: np.ndarray = faiss.rev_swig_ptr(index.codes.get(), index.codes.size())
    return found.reshape(-1, index.M2, 16)


def _search(index: faiss.IndexPQFastScan, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    found: tuple[np.ndarray, np.ndarray] = index.search(queries, k)
    return found


@cache
def _threads(n: int) -> ThreadPoolExecutor:
    """Threads in each of which FAISS uses one thread."""
    return ThreadPoolExecutor(n, initializer=faiss.omp_set_num_threads, initargs=(1,))
