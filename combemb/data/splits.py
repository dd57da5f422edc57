"""Open-set splits: which classes are novel, and which items of the seen classes keep their labels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from combemb.data.labels import Labels, read_labels
from combemb.system.errors import require

SPLITS = ("0", "1", "2", "3", "tune-0", "tune-1", "tune-2")
FIRST_TUNING_SEED = 100


@dataclass(frozen=True, eq=False)
class OpenSetSplit:
    """Known targets, and the labels of them that a model may see.

    Attributes
    ----------
    labels : array (N,) or (N, n_seen)
        The targets with -1 (ints) or None (strings) where hidden; multi-label, a column for each class of `seen` and
        rows of -1 where hidden.
    targets : array (N,) or (N, C)
        The true classes of all items.
    seen, novel : array
        Sorted classes.
    """

    labels: np.ndarray
    targets: np.ndarray
    seen: np.ndarray
    novel: np.ndarray

    def is_novel(self, targets: Any) -> np.ndarray:
        """Return which targets are novel, (n,) bool; multi-label, which items have at least one novel label."""
        n_classes = len(self.seen) + len(self.novel)
        if self.targets.ndim == 2:
            matrix = np.asarray(targets)
            fits = matrix.ndim == 2 and matrix.shape[1] == n_classes
            require(fits, f"targets have shape {matrix.shape}; this split needs (n, {n_classes})")
            return np.asarray((matrix[:, self.novel] > 0).any(axis=1))
        given = _read_targets(targets)
        unknown = set(given.classes.tolist()) - set(self.seen.tolist()) - set(self.novel.tolist())
        if unknown:
            name = min(unknown, key=str)
            raise ValueError(f"targets hold class {name!r}, which is not one of the {n_classes} classes of this split")
        return np.asarray(np.isin(given.classes, self.novel)[given.values])


def open_set_split(
    targets: Any,
    split: int | str | None = None,
    *,
    seen_share: float = 0.75,
    labelled_share: float = 0.5,
    class_order: Sequence[Any] | np.ndarray | None = None,
    seed: int = 0,
) -> OpenSetSplit:
    """Hide the labels of some classes, which become novel, and of a part of the items of the others.

    Parameters
    ----------
    targets : list, array or tensor (N,) or (N, C)
        The class of every item, in any form that `read_labels` takes.
    split : int or str, optional
        0 to 3 (default 0): with n_novel = C - floor(seen_share·C), split s takes as novel the n_novel classes that end
        at position C - s·n_novel of `class_order`, counted around the circle. "tune-0" to "tune-2": split 0 of an
        order shuffled with seeds 100 to 102.
    seen_share : float
        Share of the classes that are seen.
    labelled_share : float
        Share of the items of each seen class that are labelled: exactly floor(labelled_share·n_c). Multi-label: an
        item with any novel label is unlabelled, and floor(labelled_share·n) of the n others are labelled.
    class_order : sequence, optional
        All classes in some order; sorted by default.
    seed : int
        Draws the labelled items: the same in every split that sees the class, and a larger share contains a smaller.

    Returns
    -------
    OpenSetSplit

    Examples
    --------
    >>> split = open_set_split([0, 0, 1, 1, 2, 2, 3, 3])
    >>> split.novel.tolist(), int((split.labels >= 0).sum())
    ([3], 3)
    """
    for name, share in (("seen_share", seen_share), ("labelled_share", labelled_share)):
        require(0 < share < 1, f"{name}={share} is outside (0, 1); use a share such as 0.5")
    known = _read_targets(targets)
    order = _read_class_order(class_order, known)  # positions in known.classes
    novel = _novel_positions(order, split, seen_share)
    is_novel_class = np.isin(np.arange(len(order)), novel)

    labelled = _draw(known, is_novel_class, labelled_share, np.random.default_rng(seed))
    values = known.values[:, ~is_novel_class] if known.is_multi else known.values
    hidden = np.full_like(values, -1)
    hidden[labelled] = values[labelled]
    seen = known.classes[~is_novel_class]
    is_drawn = (hidden > 0).any(axis=0) if known.is_multi else np.isin(np.flatnonzero(~is_novel_class), hidden)
    if not is_drawn.all():
        missing = f"seen class {seen[~is_drawn].tolist()[0]!r} has no labelled item at labelled_share={labelled_share}"
        raise ValueError(f"{missing}; raise the share or drop it")
    return OpenSetSplit(known.names(hidden), known.names(known.values), seen, known.classes[is_novel_class])


def _read_targets(targets: Any) -> Labels:
    known = read_labels(targets, len(targets))
    n = int((~known.is_labelled).sum())
    require(n == 0, f"{n} targets are missing (-1 or None); a split needs the class of every item, drop them")
    return known


def _read_class_order(class_order: Sequence[Any] | np.ndarray | None, known: Labels) -> np.ndarray:
    """Return the order as positions (C,) in the sorted classes."""
    classes = known.classes.tolist()
    wanted = classes if class_order is None else np.asarray(class_order, dtype=object).tolist()
    if len(wanted) != len(classes) or set(wanted) != set(classes):
        missing, unknown = sorted(set(classes) - set(wanted))[:5], list(set(wanted) - set(classes))[:5]
        found = f"class_order has {len(wanted)} entries for {len(classes)} classes of the targets"
        raise ValueError(f"{found}; list each class exactly once (missing {missing}, unknown {unknown})")
    position = {name: i for i, name in enumerate(classes)}
    return np.array([position[name] for name in wanted], dtype=np.int64)


def _novel_positions(order: np.ndarray, split: int | str | None, seen_share: float) -> np.ndarray:
    name = "0" if split is None else str(split)
    require(name in SPLITS, f"split {split!r} is unknown; choose one of {', '.join(SPLITS)}")
    n_classes = len(order)
    n_novel = n_classes - _floor_share(seen_share, n_classes)
    if n_novel in (0, n_classes):
        empty = "novel" if n_novel == 0 else "seen"
        raise ValueError(f"seen_share={seen_share} of {n_classes} classes leaves none {empty}; use another share")
    number = int(name.removeprefix("tune-"))
    if name.startswith("tune-"):
        order, number = np.random.default_rng(FIRST_TUNING_SEED + number).permutation(order), 0
    end = n_classes - number * n_novel
    return order[np.arange(end - n_novel, end) % n_classes]


def _draw(known: Labels, is_novel_class: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Draw the labelled items; novel classes are drawn too, so that splits agree on the classes that both see."""
    if known.is_multi:
        rows = rng.permutation(len(known))
        groups = [rows[~(known.values[rows][:, is_novel_class] > 0).any(axis=1)]]
    else:
        drawn = [rng.permutation(np.flatnonzero(known.values == position)) for position in range(len(is_novel_class))]
        groups = [rows for rows, is_novel in zip(drawn, is_novel_class, strict=True) if not is_novel]
    return np.concatenate([rows[: _floor_share(share, len(rows))] for rows in groups])


def _floor_share(share: float, n: int) -> int:
    """Return floor(share·n) without the error of floats: 0.29 · 100 is 28.999999999999996."""
    return math.floor(share * n + 1e-9)
