"""Codes of a product codebook in the layout of FAISS's fast scan, which adds table entries for 32 codes at a time."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache, reduce
from itertools import pairwise
from typing import Self

import faiss
import numpy as np

from combemb.search.codebook import ProductCodebook
from combemb.search.joined import Joined, largest_sums
from combemb.system.arrays import Array
from combemb.system.machine import limited_threads

BLOCK = 32  # codes per block
# A block has 16 bytes per joined set: byte j holds code ORDER[j] in its lower half and code ORDER[j] + 16 in its upper.
ORDER = np.array([0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15])
BYTE = np.tile(np.argsort(ORDER), 2)  # of each code of a block
SHIFT = np.repeat(np.array([0, 4], np.uint8), 16)  # from its half of that byte
PACKED_AT_ONCE = 2**20  # codes
CODES_AT_ONCE = 2**13  # where all codes are scored
MIN_BLOCKS_PER_SHARE = 2**15  # a million codes: fewer are scanned by one thread before another one has begun
MIN_CODES_PER_THREAD = 2**19  # of all queries together
# Eight queries per pass over the codes, four at a time in the registers. FAISS's own choice, up to eleven queries and
# three at a time, took 1.5 times as long on 5,000,000 codes of 48 bits.
QUERIES_PER_PASS = 0x44
MAX_SETS = 257  # FAISS adds up table entries in 16 bits
FAISS_THREADS = (faiss.omp_get_max_threads, faiss.omp_set_num_threads)  # of the calling thread only


class FastScan:
    """N distinct codes, whose neighbouring sets are joined, and a proposal of the nearest ones to each query.

    Threads share the queries, as in FAISS itself, or the codes where there are few queries.

    FAISS rounds the table of every joined set to 8 bits with one step for all of them, so that its sums err by at most
    half a step per set. The codes that it proposes are scored exactly, and the scores of all others are bounded.
    """

    value_bits = 4  # of a column of joined codes

    def __init__(self, codebook: ProductCodebook, n_threads: int, blocks: np.ndarray | None = None, n_codes: int = 0):
        """Take over blocks (n, M'', 16) uint8 as `pack` makes them; M'' is M' or one more, which is even."""
        self.codebook, self.n_threads, self.n_codes, self.joined = codebook, n_threads, n_codes, Joined(codebook.sizes)
        self.n_columns, self.join, self.split = self.joined.n_sets, self.joined.join, self.joined.split
        blocks = pack(np.empty((0, self.n_columns), np.uint8)) if blocks is None else blocks
        n_shares = max(1, min(n_threads, len(blocks) // MIN_BLOCKS_PER_SHARE))
        edges = np.linspace(0, len(blocks), n_shares + 1).astype(int).tolist()
        self.firsts = [start * BLOCK for start in edges[:-1]]
        self.shares = [
            _index(blocks[start:end], min(end * BLOCK, n_codes) - start * BLOCK, self.n_columns)
            for start, end in pairwise(edges)
        ]
        self.blocks, self.sets = [blocks_of(share) for share in self.shares], np.arange(self.n_columns)

    def __reduce__(self) -> tuple[type[Self], tuple[ProductCodebook, int, np.ndarray, int]]:
        return type(self), (self.codebook, self.n_threads, self.stored, self.n_codes)

    def of(self, codes: np.ndarray) -> Self:
        """Return a scan of these joined codes (N, M')."""
        return self.of_stored(pack(codes), len(codes))

    def of_stored(self, stored: np.ndarray, n_codes: int) -> Self:
        """Return the scan of N codes with this attribute `stored`."""
        return type(self)(self.codebook, self.n_threads, stored, n_codes)

    @property
    def stored(self) -> np.ndarray:
        """All codes as blocks (n, M'', 16)."""
        return np.concatenate(self.blocks)

    def prepare(self, queries: Array) -> np.ndarray:
        """Return the table of word scores of queries (Q, D), (Q, M, K) float32."""
        return self.codebook.table(queries).numpy()

    def codes(self, rows: np.ndarray) -> np.ndarray:
        """Return the joined codes of these rows, (n,) to (n, M') uint8."""
        if len(self.shares) == 1:
            return stored_codes(self.blocks[0], self.sets, rows).T
        found = np.empty((len(rows), self.n_columns), np.uint8)
        number = np.searchsorted(self.firsts, rows, side="right") - 1
        for i, (first, blocks) in enumerate(zip(self.firsts, self.blocks, strict=True)):
            mine = number == i
            found[mine] = stored_codes(blocks, self.sets, rows[mine] - first).T
        return found

    def n_scored(self, n: int) -> int:
        """Return n, or the number of all codes where FAISS cannot propose n of them or would save no time."""
        return n if 2 * n <= self.n_codes and self.joined.n_sets <= MAX_SETS else self.n_codes

    def nearest(self, table: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Propose about n codes to each query, n as `n_scored` gave it, by tables (Q, M, K) of float32.

        Returns rows (Q, n'), their exact scores (Q, n'), and an upper bound of the scores of all other codes (Q,):
        infinity where FAISS gives none.
        """
        if n >= self.n_codes:
            return self._all(table)
        tables, (sizes, is_exact) = self.joined.tables(table), largest_sums(table)
        low = tables.min(axis=2)
        above = tables - low[:, :, None]
        step = above.max(axis=(1, 2)) / 255
        is_bounded = step > 0  # else all scores are the same, and FAISS would divide by zero
        if not is_bounded.all():
            above[~is_bounded, :, 0] = 1
        found = self._search(above.reshape(len(above), -1).astype(np.float32), n)
        for _, rows in found:
            is_bounded &= rows[:, -1] >= 0
        least = reduce(np.maximum, (sums[:, -1] for sums, _ in found))  # of the rounded sums
        error = step * ((self.joined.n_sets + 1) / 2)  # one more for rounding in float32
        error += table.shape[1] * 2.0**-51 * sizes  # and in float64
        beyond = low.sum(axis=1) + least + error
        if not is_bounded.all():
            beyond[~is_bounded] = np.inf
            found = [(sums, np.maximum(rows, 0)) for sums, rows in found]
        codes = [stored_codes(blocks, self.sets, rows) for blocks, (_, rows) in zip(self.blocks, found, strict=True)]
        scores = self.joined.scores(tables if is_exact else table, _side_by_side(codes), is_joined=is_exact)
        numbers = [rows + first if first else rows for first, (_, rows) in zip(self.firsts, found, strict=True)]
        return _side_by_side(numbers), scores, beyond

    def _all(self, table: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        scores, is_exact = np.empty((len(table), self.n_codes)), largest_sums(table)[1]
        entries = self.joined.tables(table) if is_exact else table
        for start in range(0, self.n_codes, CODES_AT_ONCE):
            codes = self.codes(np.arange(start, min(start + CODES_AT_ONCE, self.n_codes))).T[:, None]  # (M', 1, n)
            codes = np.broadcast_to(codes, (len(codes), len(table), codes.shape[2]))
            scores[:, start : start + CODES_AT_ONCE] = self.joined.scores(entries, codes, is_joined=is_exact)
        return np.broadcast_to(np.arange(self.n_codes), scores.shape), scores, np.full(len(table), -np.inf)

    def _search(self, queries: np.ndarray, n: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return about the n largest rounded sums, some of each share, descending, and their rows; -1 if none."""
        n_shares = len(self.shares)
        if n_shares > 1:
            n = int(1.05 * n / n_shares) + 12
        if n_shares == 1 or len(queries) >= 2 * n_shares:
            n_threads = max(1, min(self.n_threads, len(queries) * self.n_codes // MIN_CODES_PER_THREAD))
            with limited_threads(n_threads, *FAISS_THREADS):
                return [share.search(queries, n) for share in self.shares]
        started = [_threads(n_shares).submit(share.search, queries, n) for share in self.shares[1:]]
        with limited_threads(1, *FAISS_THREADS):
            own = self.shares[0].search(queries, n)
        return [own, *(search.result() for search in started)]


def pack(codes: np.ndarray) -> np.ndarray:
    """Pack codes (N, M') uint8 below 16 into blocks (ceil(N / 32), M'', 16) uint8, padded with zeros."""
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
    """Return an index whose centroids are the unit vectors, so that the tables themselves are its queries."""
    index = faiss.IndexPQFastScan(16 * n_sets, n_sets, 4, faiss.METRIC_INNER_PRODUCT)
    faiss.copy_array_to_vector(np.tile(np.eye(16, dtype=np.float32), (n_sets, 1, 1)).ravel(), index.pq.centroids)
    index.is_trained, index.ntotal, index.qbs = True, n_codes, QUERIES_PER_PASS
    index.ntotal2 = len(blocks) * BLOCK  # type: ignore[attr-defined]
    index.codes.resize(blocks.size)
    if blocks.size:
        blocks = np.ascontiguousarray(blocks)
        faiss.memcpy(index.codes.get(), faiss.swig_ptr(blocks), blocks.nbytes)
    return index


def blocks_of(index: faiss.IndexPQFastScan) -> np.ndarray:
    """Return the blocks (n, M'', 16) of an index, without a copy: the array is valid as long as the index."""
    found: np.ndarray = faiss.rev_swig_ptr(index.codes.get(), index.codes.size())
    return found.reshape(-1, index.M2, 16)


def stored_codes(blocks: np.ndarray, sets: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return some sets (m,) of the codes of these rows of blocks (n, M'', 16): (...) to (m, ...) uint8."""
    place = rows % BLOCK
    first = (rows // BLOCK) * (blocks.shape[1] * 16) + BYTE[place]
    both = blocks.ravel().take(np.add.outer(16 * sets, first))
    found: np.ndarray = (both >> SHIFT[place]) & 15
    return found


def _side_by_side(parts: list[np.ndarray]) -> np.ndarray:
    """Return arrays joined along the last axis; a single one as it is."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


@cache
def _threads(n: int) -> ThreadPoolExecutor:
    """Return threads in each of which FAISS uses one thread."""
    return ThreadPoolExecutor(n, initializer=faiss.omp_set_num_threads, initargs=(1,))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.cache_clear)  # a forked process has none of these threads
