"""A part of an index: entries with codes, equal codes stored and scored once, searched exactly."""

from collections.abc import Callable
from typing import Self

import numpy as np

from combemb.search.fast_scan import MOST_SETS, FastScan, pack
from combemb.search.groups import Groups
from combemb.search.joined import Joined

MORE = 4  # times as many candidates are fetched when some may be missing
CELLS = 2**22  # candidates of all queries that are held at a time
CODES_AT_ONCE = 2**13  # where all are scored
FIRST_WITHIN = 1_024  # candidates that a search by score begins with

Take = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


class Part:
    """Entries in the order in which they came. `nearest` and `within` equal exhaustive scoring of every entry.

    A score is the sum of float32 table entries in the order of the sets, in float64. Fast scan, which rounds, only
    proposes groups of equal code: they are scored anew, and more are fetched until none of the others can matter.
    """

    def __init__(self, scan: FastScan, groups: Groups):
        self.joined, self.scan, self.groups = scan.joined, scan, groups

    @classmethod
    def of(cls, joined: Joined, codes: np.ndarray, n_threads: int) -> Self:
        """Of joined codes (N, M')."""
        groups, firsts = Groups.of(codes)
        distinct = codes if groups.n_groups == len(codes) else codes[firsts]
        return cls(FastScan(joined, pack(distinct), len(distinct), n_threads), groups)

    def __len__(self) -> int:
        return self.groups.n_entries

    def codes(self, rows: np.ndarray) -> np.ndarray:
        """Joined codes (n, M') of these entries."""
        return self.scan.codes(rows if len(self.groups.repeats) == 0 else self.groups.of_entries()[rows])

    def nearest(self, table: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The k best entries by score, then by number: table (Q, M, K) -> entries and scores (Q, k), k <= N."""
        entries, scores = np.empty((len(table), k), np.int64), np.empty((len(table), k))

        def take(queries: np.ndarray, groups: np.ndarray, exact: np.ndarray, beyond: np.ndarray) -> np.ndarray:
            order = np.lexsort((groups, -exact), axis=1)
            groups, exact = np.take_along_axis(groups, order, axis=1), np.take_along_axis(exact, order, axis=1)
            n_so_far = np.minimum(self.groups.sizes(groups), k).cumsum(axis=1)
            last = np.minimum((n_so_far < k).sum(axis=1), groups.shape[1] - 1)
            kth = np.take_along_axis(exact, last[:, None], axis=1)  # the score of the k-th entry
            done = np.asarray((n_so_far[:, -1] >= k) & (kth[:, 0] > beyond))
            if len(self.groups.repeats) == 0:
                entries[queries[done]], scores[queries[done]] = groups[done, :k], exact[done, :k]
                return done
            query, entry, score = self._entries(groups, exact, (exact >= kth) & done[:, None], k)
            first = np.searchsorted(query, np.flatnonzero(done))
            entries[queries[done]], scores[queries[done]] = (x[first[:, None] + np.arange(k)] for x in (entry, score))
            return done

        per_group = len(self) / self.groups.n_groups
        self._propose(table, int(1.2 * k / per_group) + 8, take)
        return entries, scores

    def within(self, table: np.ndarray, least: float) -> list[tuple[np.ndarray, np.ndarray]]:
        """All entries with at least this score, in the order of `nearest`: entries and scores of each query."""
        found: list[tuple[np.ndarray, np.ndarray]] = [(np.empty(0, np.int64), np.empty(0))] * len(table)

        def take(queries: np.ndarray, groups: np.ndarray, exact: np.ndarray, beyond: np.ndarray) -> np.ndarray:
            done = (beyond < least) | np.isneginf(beyond)
            query, entry, score = self._entries(groups, exact, (exact >= least) & done[:, None], len(self))
            edges = np.searchsorted(query, np.arange(len(queries) + 1))
            for i in np.flatnonzero(done):
                some = slice(edges[i], edges[i + 1])
                found[queries[i]] = entry[some], score[some]
            return done

        self._propose(table, FIRST_WITHIN, take)
        return found

    def _propose(self, table: np.ndarray, n: int, take: Take) -> None:
        """Hand groups to `take` until it has enough of them for every query.

        take(queries, groups (q, n), their scores (q, n), what no other group's score exceeds (q,)) -> done (q,)
        """
        todo = [(np.arange(len(table)), n)] if len(table) else []
        while todo:
            queries, n = todo.pop()
            is_scan = 2 * n <= self.groups.n_groups and self.joined.n_sets <= MOST_SETS
            n = n if is_scan else self.groups.n_groups
            for some in np.array_split(queries, -(-len(queries) * n // CELLS)):
                done = take(some, *self._scored(table[some], n))
                if not done.all():
                    todo.append((some[~done], MORE * n))

    def _scored(self, table: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """About n promising groups with their scores (Q, n'), and what no other's score exceeds (Q,)."""
        if n < self.groups.n_groups:
            return self.scan.nearest(table, n)
        scores = np.empty((len(table), n))
        for start in range(0, n, CODES_AT_ONCE):
            codes = self.scan.codes(np.arange(start, min(start + CODES_AT_ONCE, n)))
            codes = np.broadcast_to(codes, (len(table), *codes.shape))
            scores[:, start : start + CODES_AT_ONCE] = self.joined.scores(table, codes)
        return np.broadcast_to(np.arange(n), scores.shape), scores, np.full(len(table), -np.inf)

    def _entries(
        self, groups: np.ndarray, exact: np.ndarray, chosen: np.ndarray, at_most: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The entries of the chosen groups (q, n), sorted: query, entry and score of each; `at_most` of a group."""
        query, place = np.nonzero(chosen)
        owner, entry = self.groups.entries(groups[query, place], at_most)
        query, score = query[owner], exact[query, place][owner]
        order = np.lexsort((entry, -score, query))
        return query[order], entry[order], score[order]
