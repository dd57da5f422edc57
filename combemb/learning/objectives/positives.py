"""The positives of Eq. 6: which items of a batch count as one class, by labels, by pair rules and by features."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from combemb.data.labels import same_class
from combemb.discovery.class_number import Pile, count_novel, counted_rows
from combemb.learning.batches import Batch, Batches
from combemb.learning.curves import Panel
from combemb.learning.objectives.neighbours import Neighbourhood, mutual_lists, smoothed
from combemb.learning.objectives.pairs import (
    listed,
    mutual_neighbours,
    rank_statistics,
    same_cluster,
    similar,
    threshold_for_precision,
)
from combemb.learning.settings import setting
from combemb.search.metrics import pair_precision_recall
from combemb.system import processes
from combemb.system.arrays import unit

PAIR_RULES = ("similar", "nearest", "neighbours", "kmeans", "rank_statistics", "cosine")
MAX_LANDMARKS = 20_000  # neighbours are averaged among at most so many items, and listed if there are no more
MAX_SMOOTHING = 10
MAX_TOGETHER, ENOUGH_PER_CLASS = 4, 16  # neighbours come together if a batch has fewer items of a class


@dataclass(kw_only=True, eq=False, repr=False)
class PairSettings:
    """Settings that decide which pairs are positives."""

    pair_rules: tuple[str, ...] = setting(
        ("nearest", "neighbours"),
        "rules whose pairs are the positives: similar (Eq. 5), nearest and neighbours (ours); kmeans, rank_statistics "
        "and cosine, for the paper's ablation",
        choices=PAIR_RULES,
    )
    positive_threshold: float | None = setting(
        None, "gamma of Eq. 5; None calibrates it on labelled pairs; ours", at_least=-1, at_most=1
    )
    threshold_precision: float = setting(
        0.99, "precision on labelled pairs that a calibrated gamma must reach; ours", at_least=0, at_most=1
    )
    threshold_rate: float = setting(
        0.3, "step of gamma towards the calibrated value, every fourth step of training; ours", at_least=0, at_most=1
    )
    nearest_share: float = setting(
        0.4,
        "rule nearest: two items are positives if each is among the nearest of the other by pi; their number as a "
        "share of the items of its class in a batch; ours",
        above=0,
    )
    n_neighbours: int = setting(
        5, "rule neighbours: the same by features, among at most so many nearest in a batch; ours", above=0
    )
    n_listed: int = setting(
        10, "rule neighbours: also if they are among at most so many nearest of all items; ours", above=0
    )
    neighbour_features: int = setting(
        64, "directions of the features in which neighbours are searched; ours, 256 take four times as long", above=0
    )
    smoothing: int | None = setting(
        None,
        "nearest items whose mean replaces an item there; None: a quarter of a class, at most 10; ours",
        above=0,
    )
    n_together: int | None = setting(
        None,
        "an unlabelled item and its listed neighbours that come in one batch; None: up to 4 if a batch has few items "
        "of a class; ours",
        above=0,
    )
    n_clusters: int | None = setting(
        None,
        "rule kmeans: clusters of z of all items; the paper has the number of all classes; None: the seen ones and as "
        "many novel ones as are estimated on the features",
        above=0,
    )
    epochs_per_clustering: int = setting(
        5, "rule kmeans: epochs after which the items are clustered again; ours, open in the paper", above=0
    )
    n_ranked: int = setting(
        5, "rule rank_statistics: two items are positives if so many largest values of z have the same places", above=0
    )
    cosine_threshold: float = setting(
        0.95, "rule cosine: the least cosine of z of positives; NCL's", at_least=-1, at_most=1
    )
    include_self: bool = setting(True, "whether an anchor is its own positive, as in the formula of Eq. 5")
    feature_pull: float = setting(
        2.0,
        "weight of the similarities of features in Eq. 6 as if they were so many positives: it counts where positives "
        "are few; up to 2.5 times as much if labels are; ours, the paper has 0",
        at_least=0,
    )
    feature_temperature: float = setting(0.1, "temperature of the softmax of these similarities; ours", above=0)

    @property
    def wants_neighbours(self) -> bool:
        """Whether the neighbourhood of all items is needed."""
        return self.feature_pull > 0 or bool({"nearest", "neighbours"} & set(self.pair_rules))

    @property
    def rule_panel(self) -> Panel:
        """A plot of gamma, and of precision and recall on labelled pairs."""
        rules = [f"{rule}_precision" for rule in self.pair_rules]
        names = ("threshold", "pair_precision", "pair_recall", *rules)
        return Panel("pair rules on labelled pairs", names, is_share=True)

    def rule_report(self, last: dict[str, Any]) -> str:
        """Describe the pairs of the last epoch."""
        by_rule = ", ".join(f"{rule} " + _percent(last[f"{rule}_precision"]) for rule in self.pair_rules)
        return (
            f"pair rules: {last['positives_per_anchor']:.1f} positives per anchor with itself; on labelled pairs "
            f"precision {_percent(last['pair_precision'])}, recall {_percent(last['pair_recall'])}; by rule {by_rule}"
        )


def _percent(share: float | None) -> str:
    return "unknown (no such pair)" if share is None else f"{share:.0%}"


@dataclass(frozen=True, eq=False)
class Compared:
    """What the rules compare: the B items of a batch, those of all processes; a function is called by rules that ask.

    near: the neighbourhood of all N items; clusters (N,): theirs by k-means.
    """

    pi: Tensor  # (B, D) of unit length
    z: Callable[[], Tensor]  # (B, D)
    steady_pi: Callable[[], Tensor]  # (B, D) of unit length, of the clean view
    items: Callable[[], Tensor]  # (B,) positions in the data
    threshold: Tensor  # gamma of Eq. 5
    near: Neighbourhood | None = None
    clusters: Tensor | None = None

    def pairs(self, settings: PairSettings, rows: slice) -> dict[str, Tensor]:
        """Return the pairs of each rule that is set, (rows, B) bool."""
        return {rule: getattr(self, f"_{rule}")(settings, rows) for rule in settings.pair_rules}

    def positives(self, settings: PairSettings, batch: Batch, rows: slice, pull: float) -> Tensor:
        """Return the weights (rows, B) of the positives: known classes, pairs of the rules, similar features.

        Two labelled items are positives if they share a class. The features count `pull` for the unlabelled ones of the
        rows, which are the last.
        """
        pairs = united(self.pairs(settings, rows))
        labels = processes.gather(batch.labels.to(pairs.device))
        is_labelled = labels.flatten(1)[:, 0] >= 0 if labels.dim() > 1 else labels >= 0
        pairs = torch.where(is_labelled[rows, None] & is_labelled, same_class(labels[rows], labels), pairs)
        pairs[:, rows].fill_diagonal_(settings.include_self)
        weights = pairs.float()
        if settings.feature_pull > 0:
            assert self.near is not None
            features = self.near.features_of(self.items())
            own = features[rows][batch.n_labelled :]
            weights[batch.n_labelled :] += pull * torch.softmax(own @ features.T / settings.feature_temperature, dim=1)
        return weights

    def _similar(self, _: PairSettings, rows: slice) -> Tensor:
        return similar(self.pi, self.threshold, rows)

    def _nearest(self, settings: PairSettings, rows: slice) -> Tensor:
        return mutual_neighbours(self.steady_pi(), self._ranks(settings), rows, _gather_of(rows))

    def _neighbours(self, settings: PairSettings, rows: slice) -> Tensor:
        assert self.near is not None
        items = self.items()
        ranks = self._ranks(settings).clamp(max=settings.n_neighbours)
        found = mutual_neighbours(self.near.features_of(items), ranks, rows, _gather_of(rows))
        return found if self.near.lists is None else found | listed(self.near.lists[items], items, rows)

    def _kmeans(self, _: PairSettings, rows: slice) -> Tensor:
        assert self.clusters is not None
        return same_cluster(self.clusters[self.items()], rows)

    def _rank_statistics(self, settings: PairSettings, rows: slice) -> Tensor:
        return rank_statistics(self.z(), settings.n_ranked, rows)

    def _cosine(self, settings: PairSettings, rows: slice) -> Tensor:
        return similar(unit(self.z()), settings.cosine_threshold, rows)

    def _ranks(self, settings: PairSettings) -> Tensor:
        assert self.near is not None
        return self.near.ranks(settings.nearest_share, len(self.pi), self.items())


def _gather_of(rows: slice) -> Callable[[Tensor], Tensor] | None:
    """Return how several processes exchange what each has found for its own rows; None if one has all rows."""
    return None if processes.world_size() == 1 or rows == slice(None) else processes.gather


def united(masks: dict[str, Tensor]) -> Tensor:
    """Return the pairs that any of the rules found."""
    return reduce(torch.logical_or, masks.values())


def same_classes(batch: Batch) -> Tensor:
    """Return which pairs of labelled items, of all processes, share a class."""
    labels = processes.gather(batch.labels[: batch.n_labelled])
    return same_class(labels, labels)


def calibrated_threshold(pi: Tensor, same: Tensor, n_labelled: int, precision: float) -> Tensor:
    """Return the smallest gamma that is precise on the labelled pairs: pi (B, D), n_labelled of each process first."""
    pi = pi.view(processes.world_size(), -1, pi.shape[1])[:, :n_labelled].flatten(0, 1)
    return threshold_for_precision(pi @ pi.T, same, precision)


def estimated_classes(data: Batches, clean: Callable[[Tensor], Tensor], seed: int) -> int:
    """Return the number of seen classes and of novel ones, estimated on the features that `clean` returns of items."""
    rows = counted_rows(data.labels.values, seed)
    pile = Pile(clean(torch.from_numpy(rows)).numpy(), data.labels.values[rows], seed=seed)
    return data.labels.n_seen + count_novel(pile).n


def precision_of_rules(masks: dict[str, Tensor], same: Tensor, n_labelled: int) -> dict[str, Any]:
    """Return positives per anchor, and precision and recall of the rules on labelled pairs, also apart.

    masks: (B, B) pairs by rule; same: which of the labelled items of all processes share a class; n_labelled of each
    process, first in its part of the batch.
    """
    W, found = processes.world_size(), united(masks)

    def labelled(pairs: Tensor) -> Tensor:
        return pairs.view(W, len(pairs) // W, W, -1)[:, :n_labelled, :, :n_labelled].reshape(same.shape)

    precision, recall = pair_precision_recall(labelled(found), same)
    per_item = found.sum(dim=1).float().view(W, -1)
    per_item = per_item[:, n_labelled % per_item.shape[1] :]  # of unlabelled items, if there are any
    return {
        "positives_per_anchor": float(per_item.mean()),
        "pair_precision": precision,
        "pair_recall": recall,
        **{f"{rule}_precision": pair_precision_recall(labelled(mask), same)[0] for rule, mask in masks.items()},
    }


def neighbourhood(
    settings: PairSettings,
    data: Batches,
    clean: Callable[[Tensor], Tensor],
    labelled: tuple[Tensor, Tensor],
    rng: np.random.Generator,
) -> Neighbourhood:
    """Return the neighbourhood of all items, and let neighbours come together in the batches.

    clean returns the features (n, F') of items (n,); labelled: some labelled items and their membership, see
    `Neighbourhood.of`.
    """
    N, d, shares = len(data.items), settings.neighbour_features, data.labels.shares()
    shares = shares[shares > 0]
    n_averaged = settings.smoothing or int(np.clip(N * np.median(shares) / 4, 1, MAX_SMOOTHING))
    landmarks = clean(torch.from_numpy(rng.permutation(N)[:MAX_LANDMARKS]))[:, :d]
    n_averaged = min(n_averaged, max(len(landmarks) // 10, 1))  # the mean of all items would be useless
    parts = torch.arange(N).split(data.items.n_rows)
    features = torch.cat([smoothed(clean(rows)[:, :d], landmarks, n_averaged) for rows in parts])
    near = Neighbourhood.of(features, *labelled, torch.from_numpy(shares).float())
    if "neighbours" in settings.pair_rules and N <= MAX_LANDMARKS:
        near.lists = mutual_lists(features, near.ranks(settings.nearest_share, N).clamp(max=settings.n_listed))
        data.neighbours = near.lists
        per_class = (data.n_labelled + data.n_unlabelled) / data.labels.n_seen
        data.n_together = settings.n_together or int(np.clip(round(ENOUGH_PER_CLASS / per_class), 1, MAX_TOGETHER))
    return near
