"""How well codes do: search in a database, use of the code words, precision and recall of pairs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from combemb.search.codebook import Codebook
from combemb.search.ranking import (
    Array,
    Ints,
    average_precision,
    check_place,
    cpu_tensor,
    in_blocks,
    mean_average_precision,
    precision_recall,
    rank,
)

__all__ = [
    "Retrieval",
    "average_precision",
    "code_retrieval",
    "code_use",
    "float_retrieval",
    "mean_average_precision",
    "pair_precision_recall",
    "precision_recall",
]

Targets = Array | Sequence[int] | Sequence[str]

CELLS = 16_000_000  # scores to hold at a time, 8 bytes each: enough queries at once to make scoring them cheap


@dataclass(frozen=True)
class Retrieval:
    """How well queries find their kind in a database.

    `map` is the mean average precision; `chance` what a random ranking tends to, the mean share of relevant items;
    `n_queries` the queries all is averaged over; `n_skipped` those left out because nothing was relevant;
    `precision` and `recall` the means after the first k places, by k.
    """

    map: float
    chance: float
    n_queries: int
    n_skipped: int
    precision: dict[int, float] = field(default_factory=dict)
    recall: dict[int, float] = field(default_factory=dict)

    def __str__(self) -> str:
        skipped = f", {self.n_skipped} skipped" if self.n_skipped else ""
        at_k = (f"; at {k} precision {self.precision[k]:.3f}, recall {self.recall[k]:.3f}" for k in self.precision)
        return f"mAP {self.map:.3f} (chance {self.chance:.3f}, {self.n_queries} queries{skipped}){''.join(at_k)}"


def code_retrieval(
    codebook: Codebook,
    queries: Array,
    codes: Array,
    query_targets: Targets,
    database_targets: Targets,
    *,
    at: int | None = None,
    k: Sequence[int] = (),
    chunk: int | None = None,
) -> Retrieval:
    """Search a database of codes (N, M) by queries (Q, D): mean average precision (until `at`), precision, recall at k.

    Targets are one class per item, (n,) integers or strings, or several, (n, C) of 0 and 1; items are relevant that
    share a class with the query. Only distinct codes are scored, `chunk` queries at a time; by default as many as make
    16 million scores, so that memory does not grow with the queries.
    """
    targets = _paired_targets(query_targets, database_targets, len(queries), len(codes))
    distinct, group = _distinct(cpu_tensor(codes))
    return _retrieval(lambda rows: codebook.scores(queries[rows], distinct), group, *targets, at=at, k=k, chunk=chunk)


def float_retrieval(
    queries: Array,
    database: Array,
    query_targets: Targets,
    database_targets: Targets,
    *,
    at: int | None = None,
    k: Sequence[int] = (),
    chunk: int | None = None,
) -> Retrieval:
    """Rank a database (N, D) of vectors by cosine, what codes would reach without quantisation; see `code_retrieval`.

    Equal vectors are scored once, in sorted order: a matrix product may round equal columns differently.
    """
    targets = _paired_targets(query_targets, database_targets, len(queries), len(database))
    distinct, group = _distinct(_unit_rows(database, "database"))
    q = _unit_rows(queries, "queries")
    if q.shape[1] != distinct.shape[1]:
        raise ValueError(f"queries have {q.shape[1]} columns and the database {distinct.shape[1]}; embed both alike")
    return _retrieval(lambda rows: q[rows] @ distinct.T, group, *targets, at=at, k=k, chunk=chunk)


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
    said, true = cpu_tensor(predicted), cpu_tensor(same)
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
    group: Ints,
    query_targets: Tensor,
    database_targets: Tensor,
    *,
    at: int | None,
    k: Sequence[int],
    chunk: int | None,
) -> Retrieval:
    """Means over the queries, scored by slices; item i of the database belongs to column group[i] of the scores."""
    check_place("at", at)
    for place in k:
        check_place("k", place)
    # Items with the same score and the same classes stand or fall together: one column each.
    kinds, kind = _distinct(database_targets)
    column, sizes = np.unique(group * len(kinds) + kind, return_counts=True)
    group, kind, N = column // len(kinds), column % len(kinds), len(group)
    chunk = max(CELLS // len(column), 1) if chunk is None else chunk
    if chunk < 1:
        raise ValueError(f"chunk={chunk}; give the number of queries to score at a time, at least 1")

    def measured(rows: slice) -> Tensor:  # (chunk, 2 + k): average precision, R, hits in the first k places
        scores = cpu_tensor(score(rows)).double().numpy()
        shared = _share_a_class(query_targets[rows], kinds).numpy()

        def work(part: slice) -> Tensor:
            runs = rank(scores[part].take(group, axis=1), shared[part].take(kind, axis=1) * sizes, sizes)
            return torch.stack([runs.average_precision(at), runs.R, *map(runs.hits, k)], dim=1)

        return in_blocks(work, len(scores), len(column))

    Q = len(query_targets)
    found = torch.cat([measured(slice(start, start + chunk)) for start in range(0, max(Q, 1), chunk)])
    kept = found[found[:, 1] > 0]
    if len(kept) == 0:
        raise ValueError(f"none of {len(found)} queries shares a class with the {N} database items; check targets")
    precision, recall = {}, {}
    for place, hits in zip(k, kept[:, 2:].T, strict=True):
        precision[place], recall[place] = hits.mean().item() / place, (hits / kept[:, 1]).mean().item()
    ap, R = kept[:, :2].mean(0).tolist()
    return Retrieval(ap, R / N, len(kept), len(found) - len(kept), precision, recall)


def _distinct(rows: Tensor) -> tuple[Tensor, Ints]:
    """Distinct rows (G, ...) and which of them each row is (N,); compared as bytes, many times faster than by value."""
    array = np.ascontiguousarray(rows.reshape(len(rows), -1))
    whole = array.view(np.dtype((np.void, array.shape[1] * array.itemsize)))[:, 0]
    _, first, group = np.unique(whole, return_index=True, return_inverse=True)
    return rows[torch.from_numpy(first)], group


def _share_a_class(query: Tensor, database: Tensor) -> Tensor:
    """Whether items share a class, (Q, N) bool; targets (n,) class numbers or (n, C) of 0 and 1."""
    return query[:, None] == database if query.ndim == 1 else query @ database.T > 0


def _paired_targets(query: Targets, database: Targets, Q: int, N: int) -> tuple[Tensor, Tensor]:
    """Targets of both sides on one footing: class numbers (n,) int64, or (n, C) float32 of 0 and 1."""
    q, db = (np.asarray(cpu_tensor(t)) if isinstance(t, Tensor) else np.asarray(t) for t in (query, database))
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
    if len(kinds) > 1 or "other" in kinds or np.result_type(q, db).kind == "f":  # uint64 and int64 become float64
        raise ValueError(
            f"targets are of type {q.dtype} and {db.dtype}; give signed integers for both or strings for both"
        )
    number = torch.from_numpy(np.unique(np.concatenate([q, db]), return_inverse=True)[1])
    return number[:Q], number[Q:]


def _kind(targets: npt.NDArray[Any]) -> str:
    """Whether targets are integers or strings; pandas keeps strings as objects."""
    if targets.dtype.kind in "iu":
        return "integers"
    is_string = targets.dtype.kind == "U" or all(isinstance(t, str) for t in targets)
    return "strings" if is_string else "other"


def _unit_rows(vectors: Array, name: str) -> Tensor:
    """Rows (N, D) float64 at unit length; zero rows stay zero and so score 0 with everything."""
    rows = cpu_tensor(vectors).double()
    if rows.ndim != 2 or not rows.isfinite().all():
        raise ValueError(f"{name} of shape {tuple(rows.shape)} must be (N, D) and finite; remove or repair such rows")
    length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / torch.where(length == 0, 1.0, length) + 0.0  # no -0.0, which equals 0.0 but for its bytes
