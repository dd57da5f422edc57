"""A part of an index: entries with codes, equal codes stored and scored once, searched exactly."""

from collections.abc import Callable
from typing import Self

import numpy as np

from combemb.search.codebook import Codebook, ProductCodebook
from combemb.search.fast_scan import FastScan
from combemb.search.full_scan import FullScan
from combemb.search.groups import Groups

# Candidates for each entry that is wanted. With 1.2, some of 16 queries among a million codes or more needed a second
# scan nearly always; with 1.4, hardly ever.
CANDIDATES = 1.4
GROWTH = 4  # factor for the number of candidates when some may be missing
MAX_CANDIDATES = 2**22  # of all queries, held at a time
FIRST_WITHIN = 1_024  # candidates that a search by score begins with

Scan = FastScan | FullScan
Take = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def empty_scan(codebook: Codebook, n_threads: int) -> Scan:
    """Return a scan without codes: `FastScan` for a product codebook, `FullScan` for any other."""
    return FastScan(codebook, n_threads) if isinstance(codebook, ProductCodebook) else FullScan(codebook)


class Part:
    """Entries in the order of adding. `nearest` and `within` equal exhaustive scoring of every entry.

    A scan proposes groups of equal code with their exact scores, and an upper bound of the scores of all other groups:
    more are fetched until none of the others can matter. Queries (Q, ...) are those of `Scan.prepare`.
    """

    def __init__(self, scan: Scan, groups: Groups):
        self.scan, self.groups = scan, groups

    @classmethod
    def of(cls, scan: Scan, codes: np.ndarray) -> Self:
        """Make a part of joined codes (N, M'), which this kind of scan stores."""
        groups, firsts = Groups.of(codes, scan.value_bits)
        distinct = codes if groups.n_groups == len(codes) else codes[firsts]
        return cls(scan.of(distinct), groups)

    def __len__(self) -> int:
        return self.groups.n_entries

    def codes(self, rows: np.ndarray) -> np.ndarray:
        """Return the joined codes (n, M') of these entries."""
        return self.scan.codes(rows if len(self.groups.repeats) == 0 else self.groups.of_entries()[rows])

    def nearest(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best entries by score, then by number: entries and scores (Q, k), k <= N."""
        entries, scores = np.empty((len(queries), k), np.int64), np.empty((len(queries), k))
        has_repeats = len(self.groups.repeats) > 0

        def take(asked: np.ndarray, groups: np.ndarray, exact: np.ndarray, bound: np.ndarray) -> np.ndarray:
            groups, exact = _best_first(groups, exact)
            if not has_repeats:  # entries are groups
                done = np.asarray(exact[:, k - 1] > bound)
                found = asked[done]
                entries[found], scores[found] = groups[done, :k], exact[done, :k]
                return done
            n_so_far = np.minimum(self.groups.sizes(groups), k).cumsum(axis=1)
            last = np.minimum((n_so_far < k).sum(axis=1), groups.shape[1] - 1)
            kth = np.take_along_axis(exact, last[:, None], axis=1)  # the score of the k-th entry
            done = np.asarray((n_so_far[:, -1] >= k) & (kth[:, 0] > bound))
            query, entry, score = self._entries(groups, exact, (exact >= kth) & done[:, None], k)
            first = np.searchsorted(query, np.flatnonzero(done))
            entries[asked[done]], scores[asked[done]] = (x[first[:, None] + np.arange(k)] for x in (entry, score))
            return done

        per_group = len(self) / self.groups.n_groups
        self._propose(queries, int(CANDIDATES * k / per_group) + 8, take)
        return entries, scores

    def within(self, queries: np.ndarray, least: float) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the entries with at least this score, in the order of `nearest`, and their scores, for each query."""
        found: list[tuple[np.ndarray, np.ndarray]] = [(np.empty(0, np.int64), np.empty(0))] * len(queries)

        def take(asked: np.ndarray, groups: np.ndarray, exact: np.ndarray, bound: np.ndarray) -> np.ndarray:
            done = (bound < least) | np.isneginf(bound)
            query, entry, score = self._entries(groups, exact, (exact >= least) & done[:, None], len(self))
            edges = np.searchsorted(query, np.arange(len(asked) + 1))
            for i in np.flatnonzero(done):
                some = slice(edges[i], edges[i + 1])
                found[asked[i]] = entry[some], score[some]
            return done

        self._propose(queries, FIRST_WITHIN, take)
        return found

    def _propose(self, queries: np.ndarray, n: int, take: Take) -> None:
        """Pass about n groups, then more, to `take` until it is done with every query.

        take(numbers of queries (q,), groups (q, n), their scores (q, n), bound of other scores (q,)) returns done (q,).
        """
        todo = [(np.arange(len(queries)), n)] if len(queries) else []
        while todo:
            asked, n = todo.pop()
            n = self.scan.n_scored(n)
            step = max(1, MAX_CANDIDATES // n)
            for start in range(0, len(asked), step):
                some = asked[start : start + step]
                done = take(some, *self.scan.nearest(queries[some], n))
                if not done.all():
                    todo.append((some[~done], GROWTH * n))

    def _entries(
        self, groups: np.ndarray, exact: np.ndarray, chosen: np.ndarray, at_most: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return query, entry and score of the entries of chosen groups (q, n), sorted; `at_most` of each group."""
        query, place = np.nonzero(chosen)
        owner, entry = self.groups.entries(groups[query, place], at_most)
        query, score = query[owner], exact[query, place][owner]
        order = np.lexsort((entry, -score, query))
        return query[order], entry[order], score[order]


def _best_first(groups: np.ndarray, exact: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort groups (q, n) by their scores (q, n), largest first, then by number."""
    query, order = np.arange(len(exact))[:, None], np.argsort(-exact, axis=1)
    ranked = exact[query, order]
    if (ranked[:, 1:] == ranked[:, :-1]).any():
        order = np.lexsort((groups, -exact), axis=1)
        ranked = exact[query, order]
    return groups[query, order], ranked
