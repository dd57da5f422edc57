"""Retrieval metrics of a table of scores. Ties are averaged over all their orders, so that storage never decides."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from combemb.system.arrays import Array, to_tensor
from combemb.system.errors import require

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SCORES_PER_BLOCK = 100_000  # ranked by a thread at a time; with more, freed memory goes back to the system every time


def average_precision(scores: Array, relevant: Array, at: int | None = None, sizes: Array | None = None) -> Tensor:
    """Return the expected average precision over all orders of items with equal score.

    Let a group of tied items have n items, r of them relevant, after t items with s relevant ones; R relevant items in
    all; H_j = 1 + 1/2 + ... + 1/j; rho = (r - 1)/(n - 1), 0 for n = 1. Then (McSherry & Najork 2008)

        AP = 1/R sum_groups r/n [rho n + (s + 1 - rho (t + 1)) (H_{t+n} - H_t)].

    Parameters
    ----------
    scores : (Q, G), larger = nearer
    relevant : (Q, G) bool or int
        How many items of each column are relevant to each query.
    at : int, optional
        Cut-off: a group adds only its first min(n, at - t) places, and R becomes min(R, at).
    sizes : (G,) int, optional
        The number of items that each column stands for; one by default.

    Returns
    -------
    Tensor (Q,) float64
        NaN for a query with R = 0.

    Examples
    --------
    >>> average_precision(torch.tensor([[3.0, 2.0, 2.0]]), torch.tensor([[True, False, True]]))
    tensor([0.9167], dtype=torch.float64)
    """
    check_place("at", at)
    return _measured(lambda groups: groups.average_precision(at), scores, relevant, sizes)


def mean_average_precision(scores: Array, relevant: Array, at: int | None = None) -> float:
    """Return the mean of `average_precision` over the queries to which anything is relevant.

    Parameters
    ----------
    scores, relevant, at : as for `average_precision`

    Examples
    --------
    >>> mean_average_precision(np.array([[3, 2, 1], [3, 2, 1]]), np.array([[1, 0, 0], [0, 1, 1]]))
    0.7916666666666666
    """
    precisions = average_precision(scores, relevant, at)
    if precisions.isnan().all():
        raise ValueError(f"nothing is relevant to any of {len(precisions)} queries; check `relevant`")
    return precisions.nanmean().item()


def precision_recall(scores: Array, relevant: Array, k: int, sizes: Array | None = None) -> tuple[Tensor, Tensor]:
    """Return expected precision and recall after the first k places, averaged over all orders of tied items.

    A group of tied items adds r/n min(n, k - t) hits, in the notation of `average_precision`.

    Parameters
    ----------
    scores, relevant, sizes : as for `average_precision`
    k : number of places, which may exceed the number of items

    Returns
    -------
    precision, recall : Tensor (Q,) float64
        hits/k and hits/R.
    """
    check_place("k", k)
    hits, R = _measured(lambda groups: torch.stack([groups.hits(k), groups.R], dim=1), scores, relevant, sizes).T
    return hits / k, hits / R


@dataclass(frozen=True)
class TieGroups:
    """Rankings as groups of tied items: n items, r > 0 of them relevant, after t items with s relevant ones.

    Groups without a relevant item add nothing and are left out. All are (groups,), but `R` (Q,), the relevant items of
    a query, and `N`, all items.
    """

    query: Ints
    n: Ints
    r: Ints
    t: Ints
    s: Ints
    R: Tensor
    N: int

    def average_precision(self, at: int | None) -> Tensor:
        """Return the expected average precision of each query, (Q,)."""
        n, r, t, s = self.n, self.r, self.t, self.s
        places = n if at is None else np.clip(at - t, 0, n)
        H = _harmonic_numbers(self.N)
        rho = (r - 1) / np.maximum(n - 1, 1)
        gain = r / n * (rho * places + (s + 1 - rho * (t + 1)) * (H[t + places] - H[t]))
        return self._sum(gain) / (self.R if at is None else self.R.clamp(max=at))

    def hits(self, k: int) -> Tensor:
        """Return the expected number of relevant items in the first k places of each query, (Q,)."""
        return self._sum(self.r / self.n * np.clip(k - self.t, 0, self.n))

    def _sum(self, gain: Floats) -> Tensor:
        return torch.from_numpy(np.bincount(self.query, gain, minlength=len(self.R))).double()  # integers if empty


@lru_cache(maxsize=1)
def _harmonic_numbers(N: int) -> Floats:
    """Return H_0 to H_N."""
    return np.cumsum(np.append(0.0, 1 / np.arange(1, N + 1)))


def rank(scores: Floats, relevant: Ints, sizes: Ints) -> TieGroups:
    """Rank columns that stand for sizes (G,) items, relevant (Q, G) of which are relevant, by falling score (Q, G)."""
    Q, G = scores.shape
    row = np.arange(Q)[:, None] * G  # where each query begins in a flat table
    order = _order(scores, row)
    ranked = scores.take(row + order)
    ends = np.ones((Q, G), dtype=bool)
    np.not_equal(ranked[:, 1:], ranked[:, :-1], out=ends[:, :-1])
    items = sizes.take(order).cumsum(axis=1)[ends]  # (groups,), of all queries one after the other
    hits = relevant.take(row + order).cumsum(axis=1)[ends]
    n_groups = np.count_nonzero(ends, axis=1)
    stop = n_groups.cumsum()
    t, s = np.roll(items, 1), np.roll(hits, 1)
    t[stop - n_groups] = s[stop - n_groups] = 0
    kept = np.flatnonzero(hits > s)
    items, hits, t, s = items[kept], hits[kept], t[kept], s[kept]
    query, R = np.searchsorted(stop, kept, side="right"), torch.from_numpy(relevant.sum(axis=1, dtype=np.float64))
    return TieGroups(query, items - t, hits - s, t, s, R, N=int(sizes.sum()))


def in_blocks(work: Callable[[slice], Tensor], Q: int, G: int) -> Tensor:
    """Return results (Q, ...) of work on a few queries at a time, by as many threads as torch uses."""
    step = max(SCORES_PER_BLOCK // G, 1)
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        return torch.cat(list(pool.map(work, [slice(start, start + step) for start in range(0, max(Q, 1), step)])))


def _order(scores: Floats, row: Ints) -> Ints:
    """Return columns by falling score, (Q, G). A first sort by 65,536 levels makes the exact one fast."""
    low, high = scores.min(axis=1, keepdims=True), scores.max(axis=1, keepdims=True)
    with np.errstate(all="ignore"):  # infinite or equal scores give meaningless levels, which only cost time
        level = ((high - scores) * (65_535 / (high - low))).astype(np.uint16)
    coarse = np.argsort(level, axis=1, kind="stable")  # a radix sort, as these are 16 bits
    return coarse.take(row + np.argsort(-scores.take(row + coarse), axis=1, kind="stable"))


def check_place(name: str, place: int | None) -> None:
    """Refuse a cut-off before the first place."""
    require(place is None or place >= 1, f"{name}={place}; a cut-off counts places from 1")


def _measured(measure: Callable[[TieGroups], Tensor], scores: Array, relevant: Array, sizes: Array | None) -> Tensor:
    """Return a measure of each query, (Q, ...), once scores, relevant counts and sizes are known to fit together."""
    score, count = to_tensor(scores), to_tensor(relevant)
    if score.ndim != 2 or score.shape != count.shape or score.shape[1] == 0:
        raise ValueError(f"scores {tuple(score.shape)} and relevant {tuple(count.shape)}; give (Q, G) for both, G > 0")
    size = torch.ones(score.shape[1], dtype=torch.int64) if sizes is None else to_tensor(sizes)
    if size.shape != score.shape[1:]:
        raise ValueError(f"sizes have shape {tuple(size.shape)}; give one per column of scores, ({score.shape[1]},)")
    if count.is_floating_point() or size.is_floating_point():
        raise ValueError(f"relevant is {count.dtype} and sizes {size.dtype}; counts of items are bool or integers")
    require(not score.isnan().any(), "scores hold NaN, which has no rank; check the vectors they come from")
    if (size < 1).any() or (count < 0).any() or (count > size).any():
        raise ValueError("need sizes >= 1 and 0 <= relevant <= sizes (1 without sizes); recount the items")

    def work(rows: slice) -> Tensor:
        return measure(rank(score[rows].double().numpy(), count[rows].long().numpy(), size.long().numpy()))

    return in_blocks(work, *score.shape)
