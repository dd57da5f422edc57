"""Metrics of codes: retrieval from a database, use of the code words, precision and recall of pairs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from combemb.search.codebook import Codebook
from combemb.search.ranking import Ints, check_place, in_blocks, rank
from combemb.system.arrays import Array, to_numpy, to_tensor
from combemb.system.errors import require

Targets = Array | Sequence[int] | Sequence[str]

SCORES_AT_ONCE = 16_000_000  # of 8 bytes each: enough queries at a time to make scoring them cheap


@dataclass(frozen=True)
class Retrieval:
    """How many items of their class queries retrieve from a database, and how early.

    Attributes
    ----------
    map : float
        Mean average precision.
    chance : float
        The expected `map` of a random ranking of a large database: the mean share of relevant items.
    n_queries, n_skipped : int
        Queries averaged over, and queries left out because nothing is relevant to them.
    precision, recall : dict of int to float
        Means after the first k places, by k.
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
) -> Retrieval:
    """Rank a database of codes for each query and measure the rankings; ties are averaged over all their orders.

    Only distinct codes are scored, a bounded number at a time: memory does not grow with the queries.

    Parameters
    ----------
    codebook : Codebook
    queries : embeddings (Q, D)
    codes : codes of the database (N, M)
    query_targets, database_targets : (n,) int or str, or (n, C) of 0 and 1
        One class per item, or several. Items that share a class with the query are relevant.
    at : int, optional
        Cut-off of the average precision; the whole ranking counts by default.
    k : sequence of int
        Numbers of places at which precision and recall are measured.

    Returns
    -------
    Retrieval
    """
    targets = _paired_targets(query_targets, database_targets, len(queries), len(codes))
    distinct, group = _distinct(to_tensor(codes))
    return _retrieval(lambda rows: codebook.scores(queries[rows], distinct), group, targets, at, k)


def float_retrieval(
    queries: Array,
    database: Array,
    query_targets: Targets,
    database_targets: Targets,
    *,
    at: int | None = None,
    k: Sequence[int] = (),
) -> Retrieval:
    """Rank a database of vectors by cosine, which is what codes would reach without quantisation.

    Parameters
    ----------
    queries, database : embeddings (Q, D) and (N, D)
    query_targets, database_targets, at, k : as for `code_retrieval`

    Returns
    -------
    Retrieval
    """
    targets = _paired_targets(query_targets, database_targets, len(queries), len(database))
    # Equal vectors are scored once, in sorted order: a matrix product may round equal columns differently.
    distinct, group = _distinct(_unit_rows(database, "database"))
    q = _unit_rows(queries, "queries")
    if q.shape[1] != distinct.shape[1]:
        raise ValueError(f"queries have {q.shape[1]} columns and the database {distinct.shape[1]}; embed both alike")
    return _retrieval(lambda rows: q[rows] @ distinct.T, group, targets, at, k)


def code_use(codes: Tensor, sizes: Sequence[int]) -> dict[str, Any]:
    """Return the share of items per word of each set, and the number of distinct codes: codes (N, M), sizes (M,)."""
    shares = [torch.bincount(codes[:, m].long(), minlength=K) / len(codes) for m, K in enumerate(sizes)]
    use = [[round(share, 4) for share in row.tolist()] for row in shares]
    return {"n_codes": len({row.tobytes() for row in codes.numpy()}), "n_coded": len(codes), "code_use": use}


def pair_precision_recall(predicted: Array, same: Array) -> tuple[float, float]:
    """Return precision and recall of predicted pairs; both masks (B, B) bool, pairs of an item with itself left out.

    Precision is NaN when nothing is predicted, recall when no pair is true.
    """
    said, true = to_tensor(predicted), to_tensor(same)
    if said.dtype != torch.bool or true.dtype != torch.bool:
        raise ValueError(f"pair masks are {said.dtype} and {true.dtype}; give bool, such as similarity > threshold")
    if said.ndim != 2 or said.shape[0] != said.shape[1] or said.shape != true.shape:
        raise ValueError(f"pair masks have shapes {tuple(said.shape)} and {tuple(true.shape)}; give (B, B) for both")
    others = ~torch.eye(len(said), dtype=torch.bool)
    hits, n_said, n_true = (int((mask & others).sum()) for mask in (said & true, said, true))
    return hits / n_said if n_said else math.nan, hits / n_true if n_true else math.nan


def _retrieval(
    score: Callable[[slice], Tensor], group: Ints, targets: tuple[Tensor, Tensor], at: int | None, k: Sequence[int]
) -> Retrieval:
    """Average over the queries, scored by slices; item i of the database has column group[i] of the scores."""
    check_place("at", at)
    for place in k:
        check_place("k", place)
    # Items with the same code and the same classes are ranked as one column.
    query_targets, database_targets = targets
    kinds, kind = _distinct(database_targets)
    column, sizes = np.unique(group * len(kinds) + kind, return_counts=True)
    group, kind, N = column // len(kinds), column % len(kinds), len(group)
    step = max(SCORES_AT_ONCE // len(column), 1)

    def measured(rows: slice) -> Tensor:  # (step, 2 + k): average precision, R, hits in the first k places
        scores = to_tensor(score(rows)).double().numpy()
        some = query_targets[rows]
        shared = (some[:, None] == kinds if some.ndim == 1 else some @ kinds.T > 0).numpy()

        def work(part: slice) -> Tensor:
            groups = rank(scores[part].take(group, axis=1), shared[part].take(kind, axis=1) * sizes, sizes)
            return torch.stack([groups.average_precision(at), groups.R, *map(groups.hits, k)], dim=1)

        return in_blocks(work, len(scores), len(column))

    Q = len(query_targets)
    found = torch.cat([measured(slice(start, start + step)) for start in range(0, max(Q, 1), step)])
    kept = found[found[:, 1] > 0]
    if len(kept) == 0:
        raise ValueError(f"none of {len(found)} queries shares a class with the {N} database items; check targets")
    precision, recall = {}, {}
    for place, hits in zip(k, kept[:, 2:].T, strict=True):
        precision[place], recall[place] = hits.mean().item() / place, (hits / kept[:, 1]).mean().item()
    ap, R = kept[:, :2].mean(0).tolist()
    return Retrieval(ap, R / N, len(kept), len(found) - len(kept), precision, recall)


def _distinct(rows: Tensor) -> tuple[Tensor, Ints]:
    """Return distinct rows (G, ...) and the number of each row among them (N,); bytes compare faster than values."""
    array = np.ascontiguousarray(rows.reshape(len(rows), -1))
    whole = array.view(np.dtype((np.void, array.shape[1] * array.itemsize)))[:, 0]
    _, first, group = np.unique(whole, return_index=True, return_inverse=True)
    return rows[torch.from_numpy(first)], group


def _paired_targets(query: Targets, database: Targets, Q: int, N: int) -> tuple[Tensor, Tensor]:
    """Return comparable targets of both sides: class numbers (n,) int64, or (n, C) float32 of 0 and 1."""
    q, db = to_numpy(query), to_numpy(database)
    if (len(q), len(db)) != (Q, N):
        raise ValueError(f"{len(q)} and {len(db)} targets for {Q} queries and {N} database items; give one per item")
    require(N > 0, "the database is empty; there is nothing to rank")
    if q.ndim == 2 and q.shape[1:] == db.shape[1:]:
        if not all(np.isin(t, (0, 1)).all() for t in (q, db)):
            raise ValueError("targets of shape (n, C) hold values other than 0 and 1; for one class per item give (n,)")
        return torch.from_numpy(q.astype(np.float32)), torch.from_numpy(db.astype(np.float32))
    if (q.ndim, db.ndim) != (1, 1):
        raise ValueError(f"targets have shapes {q.shape} and {db.shape}; give (n,) for both, or (n, C) with the same C")
    kinds = {_kind(t) for t in (q, db)}
    if len(kinds) > 1 or "other" in kinds or np.result_type(q, db).kind == "f":  # uint64 and int64 become float64
        raise ValueError(f"targets are of type {q.dtype} and {db.dtype}; give signed integers or strings for both")
    number = torch.from_numpy(np.unique(np.concatenate([q, db]), return_inverse=True)[1])
    return number[:Q], number[Q:]


def _kind(targets: np.ndarray) -> str:
    """Return whether targets are integers or strings; pandas stores strings as objects."""
    is_string = targets.dtype.kind == "U" or all(isinstance(t, str) for t in targets)
    return "integers" if targets.dtype.kind in "iu" else "strings" if is_string else "other"


def _unit_rows(vectors: Array, name: str) -> Tensor:
    """Scale rows (N, D) to unit length in float64, without system.unit_rows' other rounding; zero rows stay zero."""
    rows = to_tensor(vectors).double()
    if rows.ndim != 2 or not rows.isfinite().all():
        raise ValueError(f"{name} of shape {tuple(rows.shape)} must be (N, D) and finite; remove or fix such rows")
    length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / torch.where(length == 0, 1.0, length) + 0.0  # no -0.0, which equals 0.0 but for its bytes
