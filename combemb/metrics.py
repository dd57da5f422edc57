"""Retrieval and pair metrics. Ties are averaged over all their orders, so the order of storage never decides."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = Tensor | npt.NDArray[Any]
Targets = Array | Sequence[int] | Sequence[str]


class Scorer(Protocol):
    """Whatever scores codes for queries, larger = nearer; `codes.Codebook` does."""

    def scores(self, queries: Array, codes: Tensor, /) -> Tensor:
        """Score codes (N, M) for queries (Q, D): (Q, N)."""


@dataclass(frozen=True)
class Retrieval:
    """How well queries find their kind in a database.

    `map` is the mean average precision; `chance` what a random ranking tends to, the mean share of relevant items;
    `n_queries` the queries both are averaged over; `n_skipped` those left out because nothing was relevant.
    """

    map: float
    chance: float
    n_queries: int
    n_skipped: int

    def __str__(self) -> str:
        skipped = f", {self.n_skipped} skipped" if self.n_skipped else ""
        return f"mAP {self.map:.3f} (chance {self.chance:.3f}, {self.n_queries} queries{skipped})"


def average_precision(scores: Array, relevant: Array, at: int | None = None, sizes: Array | None = None) -> Tensor:
    """Return the expected average precision over all orders of items with equal score: (Q,) float64.

    scores (Q, G), larger = nearer. Column g stands for sizes[g] items (one, when `sizes` is None), relevant[q, g] of
    which are relevant; bool or integers. Let a run of equal scores hold n items, r of them relevant, after t items with
    s relevant ones; R relevant items in all; H_j = 1 + 1/2 + ... + 1/j; rho = (r - 1)/(n - 1), 0 for n = 1. Then

        AP = 1/R sum_runs r/n [rho n + (s + 1 - rho (t + 1)) (H_{t+n} - H_t)]     (McSherry & Najork 2008).

    With the cut-off `at`, a run adds only its first min(n, at - t) places and R becomes min(R, at).
    A query with R = 0 gives NaN.

    >>> average_precision(torch.tensor([[3.0, 2.0, 2.0]]), torch.tensor([[True, False, True]]))
    tensor([0.9167], dtype=torch.float64)
    """
    scores, relevant, sizes = _checked_ranking(scores, relevant, sizes)
    if at is not None and at < 1:
        raise ValueError(f"at={at}; a cut-off counts places from 1, and None ranks everything")
    ranked, order = scores.sort(dim=1, descending=True)  # (Q, G), as everything below
    items, hits = sizes[order], relevant.gather(1, order)
    items_so_far, hits_so_far = items.cumsum(1), hits.cumsum(1)
    edge = torch.ones(len(scores), 1, dtype=torch.bool)
    changes = ranked[:, 1:] != ranked[:, :-1]
    starts, ends = torch.cat([edge, changes], 1), torch.cat([changes, edge], 1)

    # Both totals only grow, so the largest value yet seen at a start is the one at the start of the present run.
    t = torch.where(starts, items_so_far - items, 0).cummax(1).values
    s = torch.where(starts, hits_so_far - hits, 0).cummax(1).values
    n, r = items_so_far - t, hits_so_far - s  # complete where a run ends
    places = n if at is None else torch.minimum(n, at - t).clamp(min=0)
    H = torch.arange(1, int(sizes.sum()) + 1, dtype=torch.float64).reciprocal().cumsum(0)
    H = torch.nn.functional.pad(H, (1, 0))  # H_0 = 0
    rho = (r - 1).double() / (n - 1).clamp(min=1)
    gain = r.double() / n * (rho * places + (s + 1 - rho * (t + 1)) * (H[t + places] - H[t]))
    R = hits_so_far[:, -1]
    return torch.where(ends, gain, 0.0).sum(1) / (R if at is None else R.clamp(max=at))


def code_retrieval(
    codebook: Scorer,
    queries: Array,
    codes: Array,
    query_targets: Targets,
    database_targets: Targets,
    *,
    at: int | None = None,
    chunk: int = 64,
) -> Retrieval:
    """Search a database of codes (N, M) by queries (Q, D) and report the mean average precision.

    Targets are one class per item, (n,) integers or strings, or several, (n, C) of 0 and 1; items are relevant that
    share a class with the query. Only distinct codes are scored and ranked, `chunk` queries at a time.
    """
    targets = _paired_targets(query_targets, database_targets, len(queries), len(codes))
    distinct, group = torch.unique(_tensor(codes), dim=0, return_inverse=True)
    return _retrieval(lambda rows: codebook.scores(queries[rows], distinct), group, *targets, at=at, chunk=chunk)


def float_retrieval(
    queries: Array,
    database: Array,
    query_targets: Targets,
    database_targets: Targets,
    *,
    at: int | None = None,
    chunk: int = 64,
) -> Retrieval:
    """Rank a database (N, D) of vectors by cosine, what codes would reach without quantisation; see `code_retrieval`.

    Equal vectors are scored once, in sorted order: a matrix product may round equal columns differently.
    """
    targets = _paired_targets(query_targets, database_targets, len(queries), len(database))
    distinct, group = torch.unique(_unit_rows(database, "database"), dim=0, return_inverse=True)
    q = _unit_rows(queries, "queries")
    if q.shape[1] != distinct.shape[1]:
        raise ValueError(f"queries have {q.shape[1]} columns and the database {distinct.shape[1]}; embed both alike")
    return _retrieval(lambda rows: q[rows] @ distinct.T, group, *targets, at=at, chunk=chunk)


def code_use(codes: Tensor, sizes: Sequence[int]) -> dict[str, Any]:
    """How codes are used: the share of items per word of each set, and the number of distinct codes.

    codes (N, M); sizes, K of each set.
    """
    shares = [torch.bincount(codes[:, m].long(), minlength=K) / len(codes) for m, K in enumerate(sizes)]
    use = [[round(share, 4) for share in row.tolist()] for row in shares]
    return {"n_codes": len({row.tobytes() for row in codes.numpy()}), "n_coded": len(codes), "code_use": use}


def pair_precision_recall(predicted: Array, same: Array) -> tuple[float, float]:
    """Return precision and recall of predicted pairs; both masks (B, B) bool, pairs of an item with itself left out.

    Precision is NaN when nothing is predicted, recall when no pair is true.
    """
    said, true = _tensor(predicted), _tensor(same)
    if said.dtype != torch.bool or true.dtype != torch.bool:
        raise ValueError(
            f"pair masks are {said.dtype} and {true.dtype}; give bool, for instance similarity > threshold"
        )
    if said.ndim != 2 or said.shape[0] != said.shape[1] or said.shape != true.shape:
        raise ValueError(f"pair masks have shapes {tuple(said.shape)} and {tuple(true.shape)}; give (B, B) for both")
    others = ~torch.eye(len(said), dtype=torch.bool)
    hits, n_said, n_true = (int((mask & others).sum()) for mask in (said & true, said, true))
    return hits / n_said if n_said else math.nan, hits / n_true if n_true else math.nan


def _retrieval(
    score: Callable[[slice], Tensor],
    group: Tensor,
    query_targets: Tensor,
    database_targets: Tensor,
    *,
    at: int | None,
    chunk: int,
) -> Retrieval:
    """Mean over the queries, scored by slices; item i of the database belongs to column group[i] of the scores."""
    if chunk < 1:
        raise ValueError(f"chunk={chunk}; give the number of queries to score at a time, at least 1")
    sizes = group.bincount()
    precisions, shares = [torch.empty(0, dtype=torch.float64)], [torch.empty(0, dtype=torch.float64)]
    for start in range(0, len(query_targets), chunk):
        rows = slice(start, start + chunk)
        relevant = _relevant_counts(query_targets[rows], database_targets, group, len(sizes))
        precisions.append(average_precision(score(rows), relevant, at, sizes))
        shares.append(relevant.sum(1).double() / len(group))
    precision, share = torch.cat(precisions), torch.cat(shares)
    kept = share > 0
    if not kept.any():
        raise ValueError(
            f"none of {len(kept)} queries shares a class with the {len(group)} database items; check targets"
        )
    n_kept = int(kept.sum())
    return Retrieval(float(precision[kept].mean()), float(share[kept].mean()), n_kept, len(kept) - n_kept)


def _relevant_counts(query: Tensor, database: Tensor, group: Tensor, G: int) -> Tensor:
    """Relevant items (Q, G) of each query in each group; targets (n,) class numbers or (n, C) of 0 and 1."""
    if query.ndim == 2:
        shares_class = query @ database.T > 0  # (Q, N)
        return torch.zeros(len(query), G, dtype=torch.int64).index_add_(1, group, shares_class.long())
    classes, row = torch.unique(query, return_inverse=True)
    position = torch.full((int(torch.cat([query, database]).max()) + 1,), -1)
    position[classes] = torch.arange(len(classes))
    place = position[database]  # (N,), -1 for classes that no query of this chunk has
    cell = (place * G + group)[place >= 0]
    return cell.bincount(minlength=len(classes) * G).view(-1, G)[row]


def _paired_targets(query: Targets, database: Targets, Q: int, N: int) -> tuple[Tensor, Tensor]:
    """Targets of both sides on one footing: class numbers (n,) int64, or (n, C) float32 of 0 and 1."""
    q, db = (np.asarray(_tensor(t)) if isinstance(t, Tensor) else np.asarray(t) for t in (query, database))
    if (len(q), len(db)) != (Q, N):
        raise ValueError(f"{len(q)} and {len(db)} targets for {Q} queries and {N} database items; give one per item")
    if N == 0:
        raise ValueError("the database is empty; there is nothing to rank")
    if q.ndim == 2 and q.shape[1:] == db.shape[1:]:
        if not all(np.isin(t, (0, 1)).all() for t in (q, db)):
            raise ValueError("targets of shape (n, C) hold values other than 0 and 1; for one class per item give (n,)")
        return torch.from_numpy(q.astype(np.float32)), torch.from_numpy(db.astype(np.float32))
    if (q.ndim, db.ndim) != (1, 1):
        raise ValueError(f"targets have shapes {q.shape} and {db.shape}; give (n,) for both, or (n, C) with the same C")
    kinds = {_kind(t) for t in (q, db)}
    if len(kinds) > 1 or "other" in kinds:
        raise ValueError(f"targets are of type {q.dtype} and {db.dtype}; give integers for both or strings for both")
    number = torch.from_numpy(np.unique(np.concatenate([q, db]), return_inverse=True)[1])
    return number[:Q], number[Q:]


def _kind(targets: npt.NDArray[Any]) -> str:
    """Whether targets are integers or strings; pandas keeps strings as objects."""
    if targets.dtype.kind in "iu":
        return "integers"
    is_string = targets.dtype.kind == "U" or all(isinstance(t, str) for t in targets)
    return "strings" if is_string else "other"


def _checked_ranking(scores: Array, relevant: Array, sizes: Array | None) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (Q, G) float64, relevant counts (Q, G) and sizes (G,) int64 of one ranking problem that makes sense."""
    score, count = _tensor(scores), _tensor(relevant)
    if score.ndim != 2 or score.shape != count.shape or score.shape[1] == 0:
        raise ValueError(f"scores {tuple(score.shape)} and relevant {tuple(count.shape)}; give (Q, G) for both, G > 0")
    size = torch.ones(score.shape[1], dtype=torch.int64) if sizes is None else _tensor(sizes)
    if size.shape != score.shape[1:]:
        raise ValueError(f"sizes have shape {tuple(size.shape)}; give one per column of scores, ({score.shape[1]},)")
    if count.is_floating_point() or size.is_floating_point():
        raise ValueError(f"relevant is {count.dtype} and sizes {size.dtype}; counts of items are bool or integers")
    if score.isnan().any():
        raise ValueError("scores hold NaN, which has no rank; check the vectors they come from")
    size, count = size.long(), count.long()
    if (size < 1).any() or (count < 0).any() or (count > size).any():
        raise ValueError(
            "need sizes >= 1 and 0 <= relevant <= sizes (1 without sizes) in every column; recount the items"
        )
    return score.double(), count, size


def _unit_rows(vectors: Array, name: str) -> Tensor:
    """Rows (N, D) float64 at unit length; zero rows stay zero and so score 0 with everything."""
    rows = _tensor(vectors).double()
    if rows.ndim != 2 or not rows.isfinite().all():
        raise ValueError(f"{name} of shape {tuple(rows.shape)} must be (N, D) and finite; remove or repair such rows")
    length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / torch.where(length == 0, 1.0, length)


def _tensor(values: Array) -> Tensor:
    """A CPU tensor without gradient that shares memory where it can."""
    if isinstance(values, np.ndarray):
        values = np.require(values, requirements=["C", "W"])  # torch warns of read-only arrays, refuses reversed ones
    return torch.as_tensor(values).detach().cpu()
