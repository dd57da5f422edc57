"""How well clusters agree with hidden classes, for seen and novel ones apart, and how well scores tell novel items."""

import math
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy
import torch

from combemb.system.arrays import to_numpy

METRICS = ("acc_joint", "acc_split", "acc_paper", "nmi", "ari")
NOISE = -1


class Parts(NamedTuple):
    """One number for all items, one for those of seen and one for those of novel classes; NaN where there are none."""

    all: float
    seen: float
    novel: float


@dataclass(frozen=True)
class Agreement:
    """How well clusters agree with the hidden classes of the same items.

    An accuracy is the share of items whose cluster is matched to their class. Matchings are one to one and have as many
    right items as possible: among all items (`acc_joint`), or among those of seen and those of novel classes apart
    (`acc_split`). `acc_paper` has the latter for seen and novel, the former for all. `nmi`, over the mean of both
    entropies, and `ari` compare the same clusters and classes without a matching; where a part has one class, they are
    1 if it is one cluster, else 0. `n_items` are the items of each part.
    """

    acc_joint: Parts
    acc_split: Parts
    acc_paper: Parts
    nmi: Parts
    ari: Parts
    n_items: Parts

    def as_dict(self, prefix: str = "") -> dict[str, float]:
        """The fifteen numbers by flat names, such as `acc_joint_novel`, or `test_acc_joint_novel` with a prefix."""
        start = f"{prefix}_" if prefix else ""
        return {
            f"{start}{name}_{part}": getattr(getattr(self, name), part) for name in METRICS for part in Parts._fields
        }

    def __str__(self) -> str:
        rows = [("", *Parts._fields), ("items", *(str(n) for n in self.n_items))]
        for name in METRICS:
            rows.append((name, *("-" if math.isnan(x) else f"{x:.3f}" for x in getattr(self, name))))
        return "\n".join(f"{name:9}" + "".join(f"{cell:>8}" for cell in cells) for name, *cells in rows)


def agreement(clusters: Any, targets: Any, is_novel: Any) -> Agreement:
    """Compare clusters (N,) with targets (N,); `is_novel` (N,) bool says which targets are novel classes.

    Ids are ints, strings or other hashable values; a cluster that bears the name of a class is matched like any other.
    None or -1 in place of a cluster is noise: wrong in every accuracy, one more cluster in `nmi` and `ari`. Of several
    best matchings for `acc_joint`, one with the most right items of seen classes counts: then neither the order of the
    items nor the names of the clusters decide, and novel classes are not flattered.

    >>> print(agreement([0, 0, 0, 0, 0, 1], ["cat", "cat", "cat", "owl", "owl", "owl"], [False] * 3 + [True] * 3))
                  all    seen   novel
    items           6       3       3
    acc_joint   0.667   1.000   0.333
    acc_split   0.833   1.000   0.667
    acc_paper   0.667   1.000   0.667
    nmi         0.231   1.000   0.000
    ari         0.000   1.000   0.000
    """
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score  # noqa: PLC0415 - as below

    novel = _read_mask(is_novel)
    cluster, _ = _numbered(clusters, "clusters", len(novel))
    target, classes = _numbered(targets, "targets", len(novel))
    n_missing = int((target == NOISE).sum())
    if n_missing > 0:
        raise ValueError(f"{n_missing} of {len(target)} targets are missing (None or -1); drop these items")
    _require_whole_classes(target, novel, classes)
    is_right = _is_right(cluster, target, ~novel)
    is_right_apart = np.empty_like(is_right)
    for part in (novel, ~novel):
        is_right_apart[part] = _is_right(cluster[part], target[part])

    def parts(metric: Callable[[np.ndarray], float]) -> Parts:
        return Parts(*(float(metric(of)) if of.any() else math.nan for of in (novel | True, ~novel, novel)))

    acc_joint = parts(lambda of: is_right[of].mean())
    acc_split = parts(lambda of: is_right_apart[of].mean())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # some versions warn if most classes or clusters have one item
        nmi = parts(lambda of: min(normalized_mutual_info_score(target[of], cluster[of]), 1.0))  # not 1 + 1e-16
        ari = parts(lambda of: adjusted_rand_score(target[of], cluster[of]))
    n_items = Parts(len(novel), int((~novel).sum()), int(novel.sum()))
    return Agreement(acc_joint, acc_split, acc_split._replace(all=acc_joint.all), nmi, ari, n_items)


def novelty_auroc(scores: Any, is_novel: Any) -> float:
    """How often a novel item has a higher score than a seen one, over all such pairs, equal scores counted half.

    scores (N,), higher = more likely novel; is_novel (N,) bool. NaN when all items are novel or all are seen.
    """
    from sklearn.metrics import roc_auc_score  # noqa: PLC0415 - would cost every start of a fit a second

    novel = _read_mask(is_novel)
    score = to_numpy(scores)
    if score.shape != novel.shape or score.dtype.kind not in "iuf":
        raise ValueError(
            f"scores have shape {score.shape} and dtype {score.dtype} for {len(novel)} items; give one number per item"
        )
    n_nan = int(np.isnan(score).sum())
    if n_nan > 0:
        raise ValueError(f"{n_nan} of {len(score)} scores are NaN, which have no rank; drop or repair these items")
    if novel.all() or not novel.any():
        return math.nan
    _, ranks = np.unique(score, return_inverse=True)  # scikit-learn refuses infinite scores
    return float(roc_auc_score(novel, ranks))


def _is_right(cluster: np.ndarray, target: np.ndarray, is_favoured: np.ndarray | bool = False) -> np.ndarray:
    """(N,) bool: items whose cluster is matched to their class; noise never is.

    The matching has the most right items, and among such matchings the most right items that are favoured; its weights
    are exact in float64 below 90 million items.
    """
    weights = np.zeros((cluster.max(initial=NOISE) + 2, target.max(initial=0) + 1), np.int64)  # the last row is noise
    np.add.at(weights, (cluster, target), len(cluster) + 1 + np.asarray(is_favoured))
    is_matched = np.zeros_like(weights, bool)
    is_matched[scipy.optimize.linear_sum_assignment(weights[:-1], maximize=True)] = True
    return np.asarray(is_matched[cluster, target])


def _read_mask(is_novel: Any) -> np.ndarray:
    mask = to_numpy(is_novel)
    if mask.ndim != 1 or mask.dtype != bool or len(mask) == 0:
        raise ValueError(
            f"is_novel has shape {mask.shape} and dtype {mask.dtype}; give (N,) bool of at least one item, True where "
            "its class is novel"
        )
    return mask


def _numbered(values: Any, name: str, N: int) -> tuple[np.ndarray, list[Hashable]]:
    """Ids as numbers (N,) int64, -1 for None and -1, and the distinct ids in the order of their numbers."""
    if not isinstance(values, list | tuple):  # of a list [1, "a"] numpy would make two strings
        array = to_numpy(values)
        if array.ndim != 1:
            raise ValueError(f"{name} have shape {array.shape}; give (N,), one id per item")
        values = array.tolist()
    if len(values) != N:
        raise ValueError(f"there are {len(values)} {name} for the {N} items of is_novel; give one per item")
    number: dict[Hashable, int] = {None: NOISE, NOISE: NOISE}
    try:
        numbers = [number.setdefault(value, len(number) - 2) for value in values]
    except TypeError as error:
        raise ValueError(f"{name} hold what cannot be an id ({error}); give one int or string per item") from error
    ids = list(number)[2:]
    for i in ids:
        if isinstance(i, torch.Tensor) or (isinstance(i, float | np.floating) and math.isnan(i)):
            raise ValueError(f"{name} hold {i!r}, which equals no other id; give one int or string per item")
    return np.array(numbers, dtype=np.int64), ids


def _require_whole_classes(target: np.ndarray, novel: np.ndarray, classes: list[Hashable]) -> None:
    """A class is novel as a whole or not at all; raise a ValueError otherwise."""
    n_items, n_novel = np.bincount(target), np.bincount(target[novel], minlength=len(classes))
    mixed = np.flatnonzero((n_novel > 0) & (n_novel < n_items))
    if len(mixed) > 0:
        raise ValueError(
            f"{n_novel[mixed[0]]} of {n_items[mixed[0]]} items of class {classes[mixed[0]]!r} are marked novel; "
            "a class is novel as a whole or not at all"
        )
