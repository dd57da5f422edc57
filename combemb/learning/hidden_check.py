"""A check without hidden truth: some seen classes lose their labels, and a second fit shows how well they are found."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from combemb.data.given import Loaded
from combemb.data.items import Items
from combemb.data.labels import Labels
from combemb.learning.interface import Interface
from combemb.system import processes
from combemb.system.arrays import unit_rows

HIDDEN_SHARE = 0.25  # of the seen classes
MIN_SEEN = 3  # with fewer, too few would be left to learn from
MAX_ITEMS, MAX_QUERIES = 4_000, 500
ROUGH_QUERIES = 30  # fewer do not tell much


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
    """

    n_hidden: int
    n_queries: int
    codes: float | None
    z: float
    plain: float | None
    plain_all: float | None = None

    @property
    def own(self) -> float:
        """The mean average precision by codes, or by embeddings if there are no codes."""
        return self.z if self.codes is None else self.codes

    @property
    def expected(self) -> float:
        """The mean average precision to expect for novel classes.

        Few classes are hidden, and they may be easier or harder than others. Plain features need no labels, so that
        they show on all seen classes by how much.
        """
        if not self.plain or not self.plain_all:
            return self.own
        return min(self.own * self.plain_all / self.plain, 1.0)

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers for diagnosis.json."""
        return {**asdict(self), "expected": self.expected}

    def __str__(self) -> str:
        classes = f"{self.n_hidden} hidden class{'es' if self.n_hidden > 1 else ''}"
        own = f"your {'embeddings' if self.codes is None else 'codes'} {self.own:.2f}"
        plain = "" if self.plain is None else f", plain features {self.plain:.2f}"
        rough = "; few labels, so this is a rough guess" if self.n_queries < ROUGH_QUERIES else ""
        worse = "; the plain features are better here" if self.plain is not None and self.plain > self.own else ""
        return f"checked on {classes}: {own}{plain}, expected on new classes about {self.expected:.2f}{worse}{rough}"


def hidden_check(method: Interface, data: Loaded, progress: bool | None) -> HiddenCheck | None:
    """Fit a copy of a method without the labels of some seen classes, and measure retrieval on these.

    The copy does not see half of the other labels either. Items whose labels it has not seen search each other, as
    novel items will search a pile in which most items are unlabelled; the labelled ones are easily told apart.

    Parameters
    ----------
    method : Interface
        A fitted method.
    data : Loaded
        What it was fitted on.
    progress : bool, optional
        None shows it on a terminal only.

    Returns
    -------
    HiddenCheck or None
        None if there are too few classes or labels for the method, items have several labels, or several processes
        share the fit.
    """
    labels, rng = data.labels, np.random.default_rng(method.seed)
    hidden = _hidden_classes(labels, rng) if processes.world_size() == 1 else np.zeros(0, np.int64)
    if len(hidden) == 0:
        return None
    is_unseen = np.isin(labels.values, hidden) | _every_second(labels.values, rng)
    copy = type(method)(**{**method.get_params(), "check": False})
    copy.image_input_, copy.path_, copy.broken_ = method.image_input_, method.path_, method.broken_
    visible = data.relabelled(labels.hidden(is_unseen))
    try:
        copy.check_labels(visible.labels)
    except ValueError:  # such as for fewer classes than meta-classes
        return None
    copy._begin(visible, progress)
    copy.classes_ = visible.labels.classes
    copy._fit(visible, None, progress)
    rows = np.sort(rng.permutation(np.flatnonzero(is_unseen))[:MAX_ITEMS])
    classes = torch.from_numpy(labels.values[rows])
    is_hidden = np.flatnonzero(np.isin(labels.values[rows], hidden))
    queries = torch.from_numpy(np.sort(rng.permutation(is_hidden)[:MAX_QUERIES]))
    everyone = torch.from_numpy(np.sort(rng.permutation(len(rows))[:MAX_QUERIES]))
    z = _embedded(copy, data.items, torch.from_numpy(rows))
    sizes = torch.from_numpy(labels.shares() * len(labels))

    def precision(scores: Tensor, of: Tensor = queries) -> float:
        return expected_precision(scores, of, classes, sizes, len(labels))

    features = data.discovery_features
    plain = None if features is None else unit_rows(torch.from_numpy(np.array(features[rows], np.float32)))
    codebook = copy.codebook
    return HiddenCheck(
        len(hidden),
        len(queries),
        None if codebook is None else precision(codebook.scores(z[queries], codebook.encode(z))),
        precision(unit_rows(z[queries]) @ unit_rows(z).T),
        None if plain is None else precision(plain[queries] @ plain.T),
        None if plain is None else precision(plain[everyone] @ plain.T, everyone),
    )


def _hidden_classes(labels: Labels, rng: np.random.Generator) -> np.ndarray:
    """Return the positions of the classes to hide, with two labelled items or more; none if there are too few."""
    if labels.is_multi or len(labels.classes) < MIN_SEEN:
        return np.zeros(0, np.int64)
    counts = np.bincount(labels.values[labels.is_labelled])
    able = rng.permutation(np.flatnonzero(counts > 1))
    n = min(max(round(HIDDEN_SHARE * len(counts)), 1), len(counts) - 2)
    return np.asarray(able[:n])


def _every_second(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a random half of the labelled items of each class, (N,) bool; of three items one, of one none."""
    found = np.zeros(len(values), bool)
    for c in range(values.max() + 1):
        rows = rng.permutation(np.flatnonzero(values == c))
        found[rows[: len(rows) // 2]] = True
    return found


@torch.no_grad()
def _embedded(method: Interface, items: Items, rows: Tensor) -> Tensor:
    return torch.cat([method._embed(items.take(some)).cpu() for some in rows.split(items.n_rows)])


def expected_precision(scores: Tensor, queries: Tensor, classes: Tensor, sizes: Tensor, n_items: int) -> float:
    """Return the mean average precision of the queries in a whole pile, of which the items given are a part.

    scores (Q, n) of the items; queries (Q,) are the positions of the queries among them, which do not find themselves;
    classes (n,); sizes (C,) of the classes in the pile of n_items. In a small part of the pile the first relevant item
    comes too early: every item stands for several of the pile, relevant ones for those of the class, others for those
    of all other classes, novel ones too. Half of them come before it. Items of equal score are in the middle of each
    other.
    """
    found = []
    for row, query in zip(scores.double(), queries.tolist(), strict=True):
        relevant = classes == classes[query]
        others = row[~relevant].sort().values
        relevant[query] = False
        own = row[relevant].sort().values
        if len(own) == 0:
            continue
        size = float(sizes[classes[query]])
        right = _above(own, own) * max(size / (len(own) + 1), 1)  # with the query
        wrong = _above(others, own) * max((n_items - size) / max(len(others), 1), 1)
        found.append(float(((right + 0.5) / (right + 0.5 + wrong)).mean()))
    return float(np.mean(found)) if found else 0.0


def _above(rising: Tensor, at: Tensor) -> Tensor:
    """Return how many of the rising scores are above each of the others, those that are equal counted half."""
    low, high = (torch.searchsorted(rising, at, right=right) for right in (False, True))
    return len(rising) - (low + high) / 2
