"""Metrics of discovery: agreement of clusters with hidden classes, for seen and novel ones apart, and novelty AUROC."""

import math
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy
import torch

from combemb.system.arrays import to_numpy
from combemb.system.errors import require

METRICS = ("acc_joint", "acc_split", "acc_paper", "nmi", "ari")
NOISE = -1


class Parts(NamedTuple):
    """A number for all items, for those of seen and for those of novel classes; NaN where there are no items."""

    all: float
    seen: float
    novel: float


@dataclass(frozen=True)
class Agreement:
    """How well clusters agree with the hidden classes of the same items.

    An accuracy is the share of items whose cluster is matched to their class, one to one and with as many right items
    as possible. Each attribute has its values in `.all`, `.seen` and `.novel`.

    Attributes
    ----------
    acc_joint, acc_split, acc_paper : Parts
        Accuracy of one matching of all items; of two matchings, one for the items of seen classes and one for those of
        novel classes; and as papers report it, the first for all items, the second for seen and novel ones.
    nmi, ari : Parts
        Normalised mutual information (arithmetic mean) and adjusted Rand index. Where a part has one class, they are 1
        if it has one cluster, otherwise 0.
    n_items : Parts
        Number of items.
    """

    acc_joint: Parts
    acc_split: Parts
    acc_paper: Parts
    nmi: Parts
    ari: Parts
    n_items: Parts

    def as_dict(self, prefix: str = "") -> dict[str, float]:
        """Return the fifteen numbers by flat names: `acc_joint_novel`, or `test_acc_joint_novel` with prefix "test"."""
        start = f"{prefix}_" if prefix else ""
        pairs = ((name, part) for name in METRICS for part in Parts._fields)
        return {f"{start}{name}_{part}": getattr(getattr(self, name), part) for name, part in pairs}

    def __str__(self) -> str:
        rows = [("", *Parts._fields), ("items", *(str(n) for n in self.n_items))]
        for name in METRICS:
            rows.append((name, *("-" if math.isnan(x) else f"{x:.3f}" for x in getattr(self, name))))
        return "\n".join(f"{name:9}" + "".join(f"{cell:>8}" for cell in cells) for name, *cells in rows)


def agreement(clusters: Any, targets: Any, is_novel: Any) -> Agreement:
    """Compare clusters with hidden classes.

    Of several best matchings for `acc_joint`, one with the most right items of seen classes counts. So neither the
    order of the items nor the names of the clusters matter, and novel classes are not favoured.

    Parameters
    ----------
    clusters : sequence of length N
        Ints, strings or other hashable values. None or -1 is noise: wrong in every accuracy, one more cluster in `nmi`
        and `ari`. A cluster that has the name of a class is matched like any other.
    targets, is_novel : sequence and bool array of length N
        Hidden class of each item, and whether that class is novel.

    Returns
    -------
    Agreement

    Examples
    --------
    >>> print(agreement([0, 0, 0, 0, 0, 1], ["cat", "cat", "cat", "owl", "owl", "owl"], [False] * 3 + [True] * 3))
                  all    seen   novel
    items           6       3       3
    acc_joint   0.667   1.000   0.333
    acc_split   0.833   1.000   0.667
    acc_paper   0.667   1.000   0.667
    nmi         0.231   1.000   0.000
    ari         0.000   1.000   0.000
    """
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score  # noqa: PLC0415 - slow

    novel = _read_mask(is_novel)
    cluster, _ = _numbered(clusters, "clusters", len(novel))
    target, classes = _numbered(targets, "targets", len(novel))
    n_missing = int((target == NOISE).sum())
    require(n_missing == 0, f"{n_missing} of {len(target)} targets are missing (None or -1); drop these items")
    _require_whole_classes(target, novel, classes)
    is_matched = matched(cluster, target, ~novel)
    is_matched_apart = np.empty_like(is_matched)
    for part in (novel, ~novel):
        is_matched_apart[part] = matched(cluster[part], target[part])

    def parts(metric: Callable[[np.ndarray], float]) -> Parts:
        return Parts(*(float(metric(of)) if of.any() else math.nan for of in (novel | True, ~novel, novel)))

    acc_joint = parts(lambda of: is_matched[of].mean())
    acc_split = parts(lambda of: is_matched_apart[of].mean())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # some versions warn if most classes or clusters have one item
        nmi = parts(lambda of: min(normalized_mutual_info_score(target[of], cluster[of]), 1.0))  # not 1 + 1e-16
        ari = parts(lambda of: adjusted_rand_score(target[of], cluster[of]))
    n_items = Parts(len(novel), int((~novel).sum()), int(novel.sum()))
    return Agreement(acc_joint, acc_split, acc_split._replace(all=acc_joint.all), nmi, ari, n_items)


def novelty_auroc(scores: Any, is_novel: Any) -> float:
    """Compute the area under the ROC curve of novelty scores.

    Parameters
    ----------
    scores : array of shape (N,)
        Higher scores are more likely novel; infinite ones are allowed.
    is_novel : bool array of shape (N,)
        Which items belong to novel classes.

    Returns
    -------
    float
        How often a novel item has a higher score than a seen one, ties counted half; NaN without one of the two kinds.
    """
    from sklearn.metrics import roc_auc_score  # noqa: PLC0415 - takes a second

    novel = _read_mask(is_novel)
    score = to_numpy(scores)
    found = f"scores have shape {score.shape} and dtype {score.dtype} for {len(novel)} items"
    is_usable = score.shape == novel.shape and score.dtype.kind in "iuf"
    require(is_usable, f"{found}; give one number per item")
    n_nan = int(np.isnan(score).sum())
    require(n_nan == 0, f"{n_nan} of {len(score)} scores are NaN, which have no rank; drop or fix these items")
    if novel.all() or not novel.any():
        return math.nan
    _, ranks = np.unique(score, return_inverse=True)  # scikit-learn refuses infinite scores
    return float(roc_auc_score(novel, ranks))


def matched(cluster: np.ndarray, target: np.ndarray, is_favoured: np.ndarray | bool = False) -> np.ndarray:
    """Return (N,) bool: items whose cluster is matched to their class, one to one, with as many right as possible.

    Of several such matchings, one with the most favoured right items counts. Exact below 90 million items.
    """
    weights = np.zeros((cluster.max(initial=NOISE) + 2, target.max(initial=0) + 1), np.int64)  # the last row is noise
    np.add.at(weights, (cluster, target), len(cluster) + 1 + np.asarray(is_favoured))
    pairs = np.zeros_like(weights, bool)
    pairs[scipy.optimize.linear_sum_assignment(weights[:-1], maximize=True)] = True
    return np.asarray(pairs[cluster, target])


def _read_mask(is_novel: Any) -> np.ndarray:
    mask = to_numpy(is_novel)
    found = f"is_novel has shape {mask.shape} and dtype {mask.dtype}"
    is_mask = mask.ndim == 1 and mask.dtype == bool and len(mask) > 0
    require(is_mask, f"{found}; give (N,) bool of at least one item, True where its class is novel")
    return mask


def _numbered(values: Any, name: str, N: int) -> tuple[np.ndarray, list[Hashable]]:
    """Return ids as numbers (N,) int64, -1 for None and -1, and the distinct ids in the order of their numbers."""
    if not isinstance(values, list | tuple):  # numpy would turn a list [1, "a"] into two strings
        array = to_numpy(values)
        require(array.ndim == 1, f"{name} have shape {array.shape}; give (N,), one id per item")
        values = array.tolist()
    require(len(values) == N, f"there are {len(values)} {name} for the {N} items of is_novel; give one per item")
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
    """Raise a ValueError if a class is partly novel."""
    n_items, n_novel = np.bincount(target), np.bincount(target[novel], minlength=len(classes))
    mixed = np.flatnonzero((n_novel > 0) & (n_novel < n_items))
    if len(mixed) > 0:
        c = mixed[0]
        found = f"{n_novel[c]} of {n_items[c]} items of class {classes[c]!r} are marked novel"
        raise ValueError(f"{found}; a class is novel as a whole or not at all")
