"""DualRank: rank statistics of whole items and of their parts, in two branches that teach each other."""

from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from combemb.backbones.base import Backbone, LastStage, MapStage
from combemb.data.labels import same_class
from combemb.learning.batches import Batch, Batches
from combemb.learning.curves import Panel
from combemb.learning.head import HeadMethod
from combemb.learning.loop import Terms
from combemb.learning.objectives.distillation import mutual_divergence, similarities
from combemb.learning.objectives.pairs import rank_statistics
from combemb.learning.objectives.parts import FeatureBlocks, PlaceLayer, bag_of_parts, inner_places, word_distances
from combemb.learning.objectives.queues import Queue
from combemb.learning.objectives.ramps import ramp_up
from combemb.learning.objectives.two_branches import TwoBranches
from combemb.learning.objectives.two_heads import ALL, SEEN, start_at_axes, two_head_terms
from combemb.learning.published import WithSGD
from combemb.learning.settings import setting
from combemb.system import processes
from combemb.system.arrays import unit

PUBLISHED_RANKED, PUBLISHED_WORDS = 5, 2048
N_RANKED, N_WORDS = 1, 128  # on frozen features; chosen on tune-0
DELTA_MOMENTUM = 0.99  # of the running mean of the release


@dataclass(kw_only=True, eq=False, repr=False)
class DualRank(WithSGD, HeadMethod):
    """Dual ranking statistics and mutual knowledge distillation (Zhao & Han 2021), with heads over all classes.

    A global branch g and a local one l have features f, a head over the seen classes and one over all, for views x, x':

    L = sum over both branches of [CE + BCE + w(t) MSE] + mutual_weight * (KL(s^g || s^l) + KL(s^l || s^g)) / 2

    - CE of the seen head on labelled items; MSE of the softmax of both views, for both heads and all items;
      w(t) = consistency_weight * exp(-5 (1 - t / ramp_share)^2);
    - BCE of the other head on all pairs of unlabelled items: -log(p_i . p'_j) for those of one class, -log(1 - p_i .
      p'_j) for others. One class for g: the `n_ranked` largest features of f are the same ones. For l: those of the bag
      of parts v = mean over places z of softmax_w(-(sharpness / delta) ||z - e_w||^2), e the dictionary;
    - s_i = softmax([f_i . f'_i, f_i . m_1, ...] / temperature) on unlabelled items, at unit length; m is a memory of
      earlier f', filled with the same items in both branches.

    The dictionary has the last `n_words` places, one random place of each item of a batch; it is used once it is full.
    delta is a running mean (0.99, from 0.5) of the squared distance from a place to the nearest word. Outputs of the
    head over all classes are matched to the seen ones by labelled items. `embed` and `predict` use the global branch.

    Places are those of the map of the backbone's last stage, without the outermost ring if it is larger than 4 x 4. If
    the backbone is trained, branch l is a copy of that stage; if it is frozen, a layer with a ReLU, the same at every
    place, on their mapped features, whose mean is what branch g sees. Embeddings, and backbones that end in a vector,
    have no map: places are then `n_places` blocks of the features, each with a layer of its own. That is an analogue,
    not the published operation.

    The release feeds the local heads with global features and uses one view twice in the local BCE; the paper does not.
    """

    paper: ClassVar[str] = (
        "Novel Visual Category Discovery with Dual Ranking Statistics and Mutual Knowledge Distillation, NeurIPS 2021"
    )
    departs: ClassVar[str] = (
        "heads over all classes (the dagger version of the CombEmb paper); for a frozen backbone, a layer in the place "
        "of the last stage; for embeddings, blocks of features instead of places in a map; AdamW"
    )
    uses_maps: ClassVar[bool] = True
    paper_stages: ClassVar[tuple[str, ...]] = ("simclr", "supervised")
    trial_settings: ClassVar[dict[str, Any]] = {
        **{"start_steps": 50, "width": 64, "pretraining_epochs": 1},
        **{"n_words": 64, "n_memory": 128, "learning_rate": 0.01},
    }

    n_ranked: int | None = setting(
        None,
        "k, largest features that must agree; None: 5, the paper's, for a backbone that is trained, and 1 on frozen "
        "features, where larger sets hardly ever agree",
        above=0,
    )
    n_words: int | None = setting(
        None,
        "words of the dictionary of parts; None: 2048, the paper's, for a backbone that is trained, and 128 on frozen "
        "features",
        above=0,
    )
    sharpness: float = setting(15.0, "of the assignment of places to words; the release's", above=0)
    n_places: int = setting(4, "P, blocks of features that stand for places where there is no map; ours", above=0)
    n_memory: int = setting(2048, "items in the memory of each branch; the release's", above=0)
    temperature: float = setting(0.07, "T of the distributions that the branches exchange; the paper's", above=0)
    mutual_weight: float = setting(1.0, "weight of the mutual distillation; the paper's", at_least=0)
    consistency_weight: float = setting(5.0, "largest w(t); RankStats' for CIFAR-10, the release has 50", at_least=0)
    ramp_share: float = setting(
        0.25, "share of the training in which w(t) rises; 50 of 200 epochs, the release has 150", above=0, at_most=1
    )

    def network(self, n_features: int, n_seen: int, n_novel: int) -> TwoBranches:
        """Return the network; a copy of the last stage becomes part of the backbone, whose learning rate it has."""
        backbone, heads = self.tower_.backbone, {SEEN: n_seen, ALL: n_seen + n_novel}
        local: nn.Module | None = None
        local_width = n_features
        if backbone is None:
            local_width = max(self.width // self.n_places, 1)
            local = FeatureBlocks(n_features, self.n_places, local_width)
        elif isinstance(backbone, MapStage):
            local_width = self.width
            local = PlaceLayer(n_features, local_width)
        else:
            assert isinstance(backbone, LastStage | Backbone)
            stage = backbone.stage if isinstance(backbone, LastStage) else list(backbone.stages.values())[-1]
            backbone.add_module("local", deepcopy(stage))
        n_words = self.n_words or (PUBLISHED_WORDS if self._trains_backbone else N_WORDS)
        lengths = {"local_width": local_width, "n_words": n_words, "n_memory": self.n_memory}
        net = TwoBranches(n_features, self.trunk_width, heads, local, **lengths)
        start_at_axes(net.trunk)
        return net

    @property
    def _k(self) -> int:
        return self.n_ranked or (PUBLISHED_RANKED if self._trains_backbone else N_RANKED)

    @property
    def _net(self) -> TwoBranches:
        assert isinstance(self.network_, TwoBranches)
        return self.network_

    def mapped(self, batch: Batch) -> Batch:
        """Return the batch as it is: both branches start from it."""
        return batch

    def branches(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features (B, D) of the global branch and the maps (B, D', h, w) of the local one."""
        net, backbone = self._net, self.tower_.backbone
        if net.local is not None:
            places = self.tower_.maps_of(x) if isinstance(backbone, MapStage) else x
            return net.trunk(self.tower_.features_of(x)), net.local(places)
        assert isinstance(backbone, LastStage | Backbone)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self._is_mixed(x.device)):
            before = x.unflatten(1, backbone.shape) if isinstance(backbone, LastStage) else backbone.before_last(x)
            f, maps = backbone.last(before).float(), backbone.get_submodule("local")(before).float()
        return net.trunk(self.tower_.feature_map(f)), maps if maps.ndim == 4 else maps[..., None, None]

    def prepare(self, data: Batches) -> None:
        """Learn the labels by both branches, unless they are stages of a backbone, which has learned them."""
        if self._net.local is not None:
            self.learn_labels(data, SEEN)
            pooled = nn.Sequential(self._net.local, nn.AdaptiveAvgPool2d(1), nn.Flatten())
            self.learn_labels(data, SEEN, (pooled, self._net.local_heads))

    def losses(self, batch: Batch) -> Terms:
        """Return the terms of both branches and the mutual distillation, then fill dictionary and memories."""
        net, n = self._net, batch.n_labelled
        (f, maps), (f_other, maps_other) = self.branches(batch.x), self.branches(batch.other)
        part, part_other = maps.mean(dim=(2, 3)), maps_other.mean(dim=(2, 3))
        places = inner_places(maps.detach())  # (B, P, D')
        labels, weight = batch.labels[:n], self.consistency_weight * ramp_up(batch.fraction_done / self.ramp_share)
        similar, alike = self.similar(f[n:].detach()), self.similar_parts(places[n:])
        terms = two_head_terms(net.heads, f, f_other, labels, similar=similar, weight=weight)
        local = two_head_terms(net.local_heads, part, part_other, labels, similar=alike, weight=weight)
        terms |= {f"local_{name}": term for name, term in local.items()}
        terms["mutual"] = self.mutual_weight * mutual_divergence(
            self._compared(f[n:], f_other[n:], net.memory), self._compared(part[n:], part_other[n:], net.local_memory)
        )
        drawn = batch.drawn(partial(torch.randint, places.shape[1]))
        words = places[torch.arange(len(places), device=places.device), drawn]
        for part in words.tensor_split([n]):  # in the order of one process
            net.words.push(part)
        return terms

    def similar(self, f: Tensor) -> Tensor:
        """Return the pairs of items that have the same largest features f (n, D), with those of all processes."""
        return rank_statistics(processes.gather(f), self._k, processes.own(len(f)))

    @torch.no_grad()
    def similar_parts(self, places: Tensor) -> Tensor | None:
        """Return the pairs of items whose bags of parts have the same largest words, and update delta.

        places (n, P, D'); pairs are those with the items of all processes. None until the dictionary is full.
        """
        net = self._net
        if not net.words.is_full:
            return None
        distances = word_distances(places, net.words.rows)
        nearest = processes.mean(distances.amin(dim=2).mean())
        net.delta.copy_(DELTA_MOMENTUM * net.delta + (1 - DELTA_MOMENTUM) * nearest)
        return self.similar(bag_of_parts(distances, self.sharpness, net.delta))

    def _compared(self, f: Tensor, other: Tensor, memory: Queue) -> Tensor:
        """Return the logits of items against their second views and a memory, to which the views are then added."""
        f, other = unit(f), unit(other)
        logits = similarities(f, other, memory.content()[0], self.temperature)
        memory.push(other)
        return logits

    def logits(self, features: Tensor) -> Tensor:
        """Return the scores of all classes by the global branch, seen ones first."""
        scores: Tensor = self._net.heads[ALL](self._net.trunk(features))
        return scores[:, self._net.order]

    def on_end(self, data: Batches) -> None:
        """Match the outputs of the head over all classes to the seen ones."""
        self.match_outputs(data)

    @torch.no_grad()
    def diagnostics(self, batch: Batch, data: Batches) -> dict[str, Any]:
        """Return how many others an unlabelled item is paired with in each branch, and how many labelled pairs fit."""
        n, found = batch.n_labelled, {}
        f, maps = self.branches(batch.x)
        distances = word_distances(inner_places(maps), self._net.words.rows)
        bags = bag_of_parts(distances, self.sharpness, self._net.delta)
        same = same_class(batch.labels[:n], batch.labels[:n])
        for name, ranked in (("", f), ("local_", bags)):
            pairs = rank_statistics(ranked, self._k).fill_diagonal_(False)
            given = pairs[:n, :n]
            found[f"{name}positives_per_anchor"] = float(pairs[n:, n:].sum(dim=1).float().mean())
            found[f"{name}pair_precision"] = float(same[given].float().mean())  # NaN without pairs
        return found

    @property
    def panels(self) -> tuple[Panel, ...]:
        """The pair rules of both branches."""
        names = ("positives_per_anchor", "local_positives_per_anchor"), ("pair_precision", "local_pair_precision")
        return Panel("other items an item is paired with", names[0]), Panel("right pairs", names[1], is_share=True)
