"""A check without hidden truth: some seen classes lose their labels, and a second fit shows how well they are found."""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from combemb.data.given import Loaded
from combemb.data.items import Items
from combemb.data.labels import Labels
from combemb.learning.interface import Interface
from combemb.search.partly_labelled import estimated_precisions, seen_share
from combemb.system import processes
from combemb.system.arrays import unit_rows

HIDDEN_SHARE = 0.25  # of the seen classes
MIN_SEEN = 3  # with fewer, too few would be left to learn from
MAX_ITEMS, MAX_QUERIES = 20_000, 500
ROUGH_QUERIES = 30  # fewer do not tell much
GAIN, MAX_GUESS = 1.3, 0.95  # codes reach so many times what plain features do on the tuning splits, at most this
GUESS_CLASSES = 2.0  # weight of this guess, in hidden classes
MIN_COMPARED, SURE = 5, 2.0  # hidden classes, and standard errors by which plain features must be better


@dataclass(frozen=True)
class HiddenCheck:
    """How well items of hidden seen classes retrieve each other, which estimates what novel classes will get.

    Attributes
    ----------
    n_hidden, n_queries : int
        Number of hidden classes and of their items that searched.
    codes, z, plain : float or None
        Mean average precision by codes, by embeddings, and by the features as they were given, as far as there are any.
    plain_all : float or None
        That of the features as they were given for all seen classes, whether their labels were hidden or not.
    favours_plain : bool
        Whether plain features are better than embeddings beyond doubt, and the method can keep to them.
    """

    n_hidden: int
    n_queries: int
    codes: float | None
    z: float
    plain: float | None
    plain_all: float | None = None
    favours_plain: bool = False

    @property
    def own(self) -> float:
        """The mean average precision by codes, or by embeddings if there are no codes."""
        return self.z if self.codes is None else self.codes

    @property
    def expected(self) -> float:
        """The mean average precision to expect for novel classes.

        A few hidden classes may be easier or harder than novel ones. Plain features, which need no labels, can be
        measured on all seen classes; a usual gain over them counts as much as two hidden classes do.
        """
        if self.plain_all is None:
            return self.own
        guess = min(GAIN * self.plain_all, MAX_GUESS)
        return (self.n_hidden * self.own + GUESS_CLASSES * guess) / (self.n_hidden + GUESS_CLASSES)

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers for diagnosis.json."""
        return {**asdict(self), "expected": self.expected}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Self:
        """Return the check that `as_dict` described."""
        return cls(**{field.name: stored[field.name] for field in fields(cls)})

    def __str__(self) -> str:
        classes = f"{self.n_hidden} hidden class{'es' if self.n_hidden > 1 else ''}"
        own = f"your {'embeddings' if self.codes is None else 'codes'} {self.own:.2f}"
        plain = "" if self.plain is None else f", plain features {self.plain:.2f}"
        rough = "; few labels, so this is a rough guess" if self.n_queries < ROUGH_QUERIES else ""
        worse = "; the plain features are better here" if self.plain is not None and self.plain > self.own else ""
        kept = ", so the fit kept to them" if self.favours_plain else ""
        text = f"checked on {classes}: {own}{plain}, expected on new classes about {self.expected:.2f}"
        return f"{text}{worse}{kept}{rough}"


def hidden_check(method: Interface, data: Loaded, progress: bool | None) -> HiddenCheck | None:
    """Fit a copy of a method without the labels of some seen classes, and measure retrieval on these.

    Their items search the whole pile, as items of novel classes will.

    Parameters
    ----------
    method : Interface
        A method that has begun to be fitted.
    data : Loaded
        What it is fitted on.
    progress : bool, optional
        None shows it on a terminal only.

    Returns
    -------
    HiddenCheck or None
        None if there are too few classes or labels for the method, items have several labels, or several processes
        share the fit.
    """
    labels, rng = data.labels, np.random.default_rng(method.seed)
    if processes.world_size() > 1 or labels.is_multi or len(labels.classes) < MIN_SEEN:
        return None
    rows = np.sort(rng.permutation(len(labels))[:MAX_ITEMS])
    values, features = labels.values[rows], data.discovery_features
    plain = None if features is None else unit_rows(torch.from_numpy(np.array(features[rows], np.float32))).numpy()
    if not (values >= 0).any():
        return None
    share = (values >= 0).mean() if plain is None else seen_share(plain, values)
    sizes = labels.shares() * share * len(rows)

    def precisions(queries: np.ndarray, scores: np.ndarray) -> dict[int, float]:
        return estimated_precisions(scores, queries, values, sizes)

    everyone = np.sort(rng.permutation(np.flatnonzero(values >= 0))[:MAX_QUERIES])
    of_plain = {} if plain is None else precisions(everyone, plain[everyone] @ plain.T)
    hidden = _hidden_classes(labels, of_plain, rng)
    queries = np.sort(rng.permutation(np.flatnonzero(np.isin(values, hidden)))[:MAX_QUERIES])
    copy = _fitted_without(hidden, method, data, progress) if len(queries) > 1 else None
    if copy is None:
        return None
    z = _embedded(copy, data.items, torch.from_numpy(rows))
    of_z = precisions(queries, (unit_rows(z[queries]) @ unit_rows(z).T).numpy())
    if not of_z:
        return None
    codebook, hidden_plain = copy.codebook, {} if plain is None else precisions(queries, plain[queries] @ plain.T)
    codes = {} if codebook is None else precisions(queries, codebook.scores(z[queries], codebook.encode(z)).numpy())
    return HiddenCheck(
        len(hidden),
        len(queries),
        _mean(codes),
        _mean(of_z) or 0.0,
        _mean(hidden_plain),
        _mean(of_plain),
        method.can_keep_to_features and _is_surely_better(hidden_plain, of_z),
    )


def _mean(precisions: dict[int, float]) -> float | None:
    return min(float(np.mean(list(precisions.values()))), 1.0) if precisions else None


def _is_surely_better(a: dict[int, float], b: dict[int, float]) -> bool:
    """Return whether a is better than b in many classes, by more than chance."""
    gains = np.array([a[c] - b[c] for c in a])
    return len(gains) >= MIN_COMPARED and bool(gains.mean() > SURE * gains.std(ddof=1) / math.sqrt(len(gains)))


def _hidden_classes(labels: Labels, of_plain: dict[int, float], rng: np.random.Generator) -> np.ndarray:
    """Return the positions of the classes to hide, with two labelled items or more; two classes or more stay.

    They are spread evenly over easy and hard classes, as far as plain features tell.
    """
    counts = np.bincount(labels.values[labels.is_labelled])
    able = rng.permutation(np.flatnonzero(counts > 1))
    able = able[np.argsort([of_plain.get(int(c), 0.0) for c in able], kind="stable")]
    n = min(max(round(HIDDEN_SHARE * len(counts)), 1), len(counts) - 2, len(able))
    return np.asarray(able[((np.arange(n) + 0.5) / max(n, 1) * len(able)).astype(int)])


def _fitted_without(hidden: np.ndarray, method: Interface, data: Loaded, progress: bool | None) -> Interface | None:
    """Return a copy of a method that was fitted without the labels of some classes; None if too few are left."""
    copy = type(method)(**{**method.get_params(), "check": False})
    copy.image_input_, copy.path_, copy.broken_, copy.check_ = method.image_input_, method.path_, method.broken_, None
    copy.activity = "checking on hidden classes"
    visible = data.relabelled(data.labels.hidden(np.isin(data.labels.values, hidden)))
    try:
        copy.check_labels(visible.labels)
    except ValueError:  # such as for fewer classes than meta-classes
        return None
    copy._begin(visible, progress)
    copy.classes_ = visible.labels.classes
    copy._fit(visible, None, progress)
    return copy


@torch.no_grad()
def _embedded(method: Interface, items: Items, rows: Tensor) -> Tensor:
    return torch.cat([method._embed(items.take(some)).cpu() for some in rows.split(items.n_rows)])
