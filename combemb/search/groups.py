"""Groups of entries that share a code, which take hardly any memory where few do."""

from typing import Self

import numpy as np


class Groups:
    """N entries in the order of adding, in G groups of equal code, numbered by their first entries.

    An entry that is not the first of its group is a repeat. Stored are the repeats, by group, and either all firsts or,
    if repeats are fewer, the number of firsts before each repeat. This takes nothing if all codes are different, and
    4 bytes per entry if few are.
    """

    def __init__(self, n_entries: int, firsts: np.ndarray, owners: np.ndarray, starts: np.ndarray, repeats: np.ndarray):
        """Take over the uint32 arrays of `arrays`.

        firsts (G,), or the number of firsts before each repeat (R,); owners: the groups with repeats, in order; starts:
        where the repeats of each owner begin, and the end; repeats (R,): entries by group, then by number.
        """
        self.n_entries, self.n_groups = n_entries, n_entries - len(repeats)
        self.firsts, self.owners, self.starts, self.repeats = firsts, owners, starts, repeats

    @classmethod
    def of(cls, codes: np.ndarray, value_bits: int) -> tuple[Self, np.ndarray]:
        """Group entries by codes (N, M') below 2**value_bits; return also the first entry of each group (G,)."""
        keys = _keys(codes, value_bits)
        order = np.argsort(keys[0]) if len(keys) == 1 else np.lexsort(keys)
        is_new = np.ones(len(order), bool)
        is_new[1:] = False
        for key in keys:
            ranked = key[order]
            is_new[1:] |= ranked[1:] != ranked[:-1]
        n_repeats = len(order) - int(is_new.sum())
        if n_repeats == 0:
            none = np.empty(0, np.uint32)
            return cls(len(order), none, none, np.zeros(1, np.uint32), none), np.arange(len(order))
        rank = np.empty(len(order), np.uint32)  # of an entry's key among the distinct ones
        rank[order] = np.cumsum(is_new) - 1
        first_of_rank = np.minimum.reduceat(order, np.flatnonzero(is_new))
        is_repeat = np.ones(len(order), bool)
        is_repeat[first_of_rank] = False
        firsts, repeats = np.flatnonzero(~is_repeat), np.flatnonzero(is_repeat)
        group_of_rank = np.empty(len(firsts), np.uint32)
        group_of_rank[np.argsort(first_of_rank)] = np.arange(len(firsts))
        group = group_of_rank[rank[repeats]]
        order = np.argsort(group, kind="stable")
        owners, starts = np.unique(group[order], return_index=True)
        before = repeats - np.arange(n_repeats)  # firsts that came before each repeat
        kept = firsts if len(firsts) < n_repeats else before
        arrays = (kept, owners, np.append(starts, n_repeats), repeats[order])
        return cls(len(is_new), *(array.astype(np.uint32) for array in arrays)), firsts

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the stored arrays by name."""
        return {"firsts": self.firsts, "owners": self.owners, "starts": self.starts, "repeats": self.repeats}

    def first(self, groups: np.ndarray) -> np.ndarray:
        """Return the first entry of each of these groups."""
        if len(self.repeats) == 0:
            return groups
        if self.n_groups < len(self.repeats):
            return np.asarray(self.firsts[groups], np.int64)
        return np.asarray(groups + np.searchsorted(self.firsts, groups, side="right"))

    def sizes(self, groups: np.ndarray) -> np.ndarray:
        """Return the number of entries of each of these groups, at least 1."""
        if len(self.repeats) == 0:
            return np.ones_like(groups)
        start, end = self._range(groups)
        return np.asarray(1 + end - start)

    def entries(self, groups: np.ndarray, at_most: int) -> tuple[np.ndarray, np.ndarray]:
        """Return positions in `groups` (n,) and entries of these groups: of each its first ones, up to `at_most`."""
        if len(self.repeats) == 0:
            return np.arange(len(groups)), groups
        start, end = self._range(groups)
        n = np.minimum(end - start, at_most - 1)
        owner = np.repeat(np.arange(len(groups)), n)
        place = np.arange(len(owner)) - np.repeat(np.cumsum(n) - n, n)  # 0, 1, ... in each group
        repeats = self.repeats[np.repeat(start, n) + place].astype(np.int64)
        return np.append(np.arange(len(groups)), owner), np.append(self.first(groups), repeats)

    def of_entries(self) -> np.ndarray:
        """Return the group of every entry, (N,)."""
        groups = np.empty(self.n_entries, np.int64)
        groups[self.first(np.arange(self.n_groups))] = np.arange(self.n_groups)
        groups[self.repeats] = np.repeat(self.owners, np.diff(self.starts))
        return groups

    def _range(self, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return where the repeats of these groups begin and end."""
        place = np.searchsorted(self.owners, groups)
        has_repeats = self.owners[np.minimum(place, len(self.owners) - 1)] == groups
        place = np.where(has_repeats, place, 0)
        start, end = self.starts[place].astype(np.int64), self.starts[place + 1].astype(np.int64)
        return start, np.where(has_repeats, end, start)


def _keys(codes: np.ndarray, value_bits: int) -> list[np.ndarray]:
    """Return codes (N, M') as columns of uint64, each of as many columns as its 64 bits hold."""
    keys, step = [], 64 // value_bits
    for start in range(0, codes.shape[1], step):
        key = np.zeros(len(codes), np.uint64)
        for column in codes[:, start : start + step].T:
            key = key << np.uint64(value_bits) | column
        keys.append(key)
    return keys
