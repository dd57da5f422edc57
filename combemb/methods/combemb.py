"""CombEmb, the method of the paper (Eq. 1 to 8), with every choice that the paper leaves open a field."""

import math
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from combemb.backbones.feature_map import discriminant_map
from combemb.data.items import Items
from combemb.data.labels import Labels, require_partly_labelled, same_class
from combemb.learning.batches import Batch, PartlyLabelled
from combemb.learning.deep import DeepMethod
from combemb.learning.loop import Terms
from combemb.learning.objectives.losses import consistency_loss, meta_class_loss, similarity_loss
from combemb.learning.objectives.meta_classes import class_embeddings, draw_meta_classes, meta_labels
from combemb.learning.objectives.neighbours import smoothed
from combemb.learning.objectives.pairs import mutual_neighbours, similar, threshold_for_precision
from combemb.learning.objectives.prototypes import prototype_matrix, similarities, soft_assignment, unit
from combemb.learning.run_folder import Run
from combemb.learning.settings import setting
from combemb.search.codebook import Codebook
from combemb.search.metrics import code_use, pair_precision_recall
from combemb.system import processes
from combemb.system.errors import require

PAIR_RULES = ("similar", "nearest", "neighbours")
ANCHORS = ("unlabelled", "all")
POSITIVE = (
    *("temperature", "sharpness", "predictor_share", "classifier_decay", "nearest_share"),
    *("subspace", "n_neighbours", "neighbour_features", "smoothing"),
)
CALIBRATE_EVERY = 4  # steps; each batch would tell nearly the same
LANDMARKS = 20_000  # items among which the nearest are averaged, at most
CLASSIFIER_ITEMS = 20_000  # labelled items from which the class embeddings are learned, at most
DIAGNOSED_ITEMS = 512  # items whose codes are counted after each epoch, at most


@dataclass(kw_only=True, eq=False, repr=False)
class CombEmb(DeepMethod):
    """Combinatorial embedding (Kim, Kang & Han, CVPR 2023): each sub-vector of z learns one partition of the classes.

    L = L_meta / M + similarity_weight * L_sim + consistency_weight * L_cons, which is Eq. 8 divided by M, so that the
    weights do not depend on the bits: the paper's alpha and beta are M times these.
    """

    task: ClassVar[Literal["retrieval", "discovery", "both"]] = "both"
    needs_other_gradient: ClassVar[bool] = False  # Eq. 7 stops it
    paper: ClassVar[str] = "Open-Set Representation Learning through Combinatorial Embedding, CVPR 2023"

    bits: int = setting(48, "length of a code, a multiple of log2(n_meta_classes)")
    n_meta_classes: int = setting(4, "K, meta-classes per set: 2, 4, 8 or 16; the paper's 4")
    sub_vector: int | None = setting(
        None, "d, length of a sub-vector; the paper's 12, or more for fewer than 24 sets, so that D is about 288; ours"
    )
    subspace: int = setting(100, "Q, dimensions per meta-class k-means, a quarter of them all if fewer than 400; ours")
    temperature: float = setting(0.1, "tau of Eq. 4; ours, the normalised softmax paper has 0.05")
    sharpness: float = setting(10.0, "lambda of Eq. 3; ours, GPQ's release has 20")
    pair_rules: tuple[str, ...] = setting(
        ("nearest", "neighbours"), "united into the positives: similar (Eq. 5), nearest and neighbours (ours)"
    )
    positive_threshold: float | None = setting(None, "gamma of Eq. 5; None calibrates it on labelled pairs; ours")
    threshold_precision: float = setting(0.99, "precision on labelled pairs that a calibrated gamma must reach; ours")
    threshold_rate: float = setting(
        0.3, "share of the way that gamma goes at each calibration, every fourth step; ours"
    )
    nearest_share: float = setting(
        0.4,
        "how near two items must be to each other by pi, in ranks: this share of those of its kind in a batch; ours",
    )
    n_neighbours: int = setting(5, "how near mutual neighbours by features must be, in ranks in a batch; ours")
    neighbour_features: int = setting(
        64, "directions in which neighbours are sought; ours, 256 cost four times as much"
    )
    smoothing: int = setting(
        10, "items of the whole set whose mean stands for an item where neighbours are sought; ours"
    )
    include_self: bool = setting(True, "whether an anchor is a positive of its own, as in the formula of Eq. 5")
    anchors: str = setting("unlabelled", "items whose positives Eq. 6 pulls: unlabelled (the paper's text) or all")
    similarity_weight: float = setting(20.0, "weight of Eq. 6, alpha / M; ours")
    similarity_temperature: float | None = setting(
        None, "temperature of Eq. 6; the paper has none, that is 1; None: 0.33 / C^(1/4), 0.2 for 7 seen classes; ours"
    )
    positive_gradient: bool = setting(False, "whether Eq. 6 also moves pi of the positives; ours, the paper is silent")
    consistency_weight: float = setting(4.0, "weight of Eq. 7, beta / M; ours")
    predictor_share: float = setting(0.25, "width of h as a share of D; SimSiam's quarter")
    classifier_decay: float = setting(
        1e-3, "weight decay of the classifier whose weights are the class embeddings; ours"
    )
    ramp_share: float = setting(0.3, "part of training in which Eq. 6 and 7 come up to their weights; ours")

    @classmethod
    def as_published(cls, bits: int, **fields: Any) -> Self:
        """The paper's own form: positives by Eq. 5 alone, Eq. 6 without temperature, full weights at once, d = 12.

        Of what the paper leaves open, gamma is 0.7, by the tuning splits (docs/decisions/pairs.md); tau, lambda, alpha,
        beta, Q and the schedule have our defaults.
        """
        published = {"sub_vector": 12, "similarity_temperature": 1.0, "positive_gradient": True, "ramp_share": 0.0}
        return cls(bits=bits, **{"pair_rules": ("similar",), "positive_threshold": 0.7, **published, **fields})

    @property
    def wants_clean(self) -> bool:
        """Whether the rule `nearest` asks for it."""
        return "nearest" in self.pair_rules

    @property
    def n_sets(self) -> int:
        """M, what the bits allow."""
        return self.bits // int(math.log2(self.n_meta_classes))

    def check(self, labels: Labels, n_features: int | None) -> None:
        """The bits must divide, the labels must cover some of the items and enough classes."""
        super().check(labels, n_features)
        K = self.n_meta_classes
        require(K in {2, 4, 8, 16}, f"n_meta_classes={K} is not a size of a meta-class set; use 2, 4, 8 or 16")
        per_set = int(math.log2(K))
        lower = max(self.bits // per_set, 1) * per_set
        require(
            self.bits >= per_set and self.bits % per_set == 0,
            f"bits={self.bits} is not a multiple of log2(n_meta_classes)={per_set}; use {lower} or {lower + per_set}",
        )
        require(
            isinstance(self.pair_rules, tuple) and len(self.pair_rules) > 0 and set(self.pair_rules) <= set(PAIR_RULES),
            f"pair_rules={self.pair_rules!r}; give a tuple of one or more of {', '.join(PAIR_RULES)}",
        )
        require(self.anchors in ANCHORS, f"anchors={self.anchors!r}; choose one of {', '.join(ANCHORS)}")
        for name in POSITIVE:
            require(getattr(self, name) > 0, f"{name}={getattr(self, name)} must be above 0")
        for name in ("similarity_weight", "consistency_weight"):
            require(getattr(self, name) >= 0, f"{name}={getattr(self, name)} must not be negative")
        for name in ("threshold_precision", "threshold_rate", "ramp_share"):
            require(0 <= getattr(self, name) <= 1, f"{name}={getattr(self, name)} must lie between 0 and 1")
        for name in ("sub_vector", "similarity_temperature"):
            value = getattr(self, name)
            require(value is None or value > 0, f"{name}={value} must be above 0, or None")
        gamma = self.positive_threshold
        require(gamma is None or -1 <= gamma <= 1, f"positive_threshold={gamma} must lie between -1 and 1, or be None")
        require_partly_labelled(labels)
        need = f"n_meta_classes={K} needs at least {K}; use fewer meta-classes or label more classes"
        require(labels.n_seen >= K, f"found {labels.n_seen} seen classes, {need}")

    def network(self, n_features: int, n_classes: int) -> "Network":
        """A linear map to z, the prototypes and the predictor h."""
        d = self.sub_vector or max(12, 288 // self.n_sets)
        hidden = max(round(self.predictor_share * self.n_sets * d), 1)
        return Network(n_features, n_classes, (self.n_sets, self.n_meta_classes, d), hidden)

    def prepare(self, data: PartlyLabelled) -> None:
        """Draw the meta-class sets (Eq. 1) from the weights of a classifier on the labelled items."""
        rng = np.random.default_rng(self.seed)
        rows = data.labels.labelled_rows(CLASSIFIER_ITEMS, rng)
        membership = torch.from_numpy(data.labels.membership(rows))  # (n, columns of the labels)
        seen = membership.sum(dim=0) > 0  # a multi-label column may have no item at all
        labelled = self.clean_features(data.items, torch.from_numpy(rows))
        embeddings = class_embeddings(labelled, membership[:, seen], self.classifier_decay)
        F = embeddings.shape[1]
        n_dims = min(self.subspace, F if F >= 400 else max(F // 4, 1))
        self.meta_classes_ = draw_meta_classes(embeddings, self.n_sets, self.n_meta_classes, n_dims, self.seed)
        self._net.meta_classes[:, seen] = self.meta_classes_.table.to(self._net.meta_classes.device)
        self._net.threshold.fill_(1.0 if self.positive_threshold is None else self.positive_threshold)
        self._kinship = float(np.square(data.labels.shares()).sum())  # that two labelled items are of one class
        if "neighbours" in self.pair_rules:
            self._neighbour_features = self._sought_in(data, labelled, membership[:, seen], rng)

    def _sought_in(
        self, data: PartlyLabelled, labelled: Tensor, membership: Tensor, rng: np.random.Generator
    ) -> Tensor:
        """(N, d) float16 of unit length, all items in the features in which neighbours are sought."""
        N = len(data.items)
        picked = rng.permutation(N)[:LANDMARKS]
        some = self.clean_features(data.items, torch.from_numpy(picked))
        directions = discriminant_map(labelled, membership, some, self.neighbour_features)
        landmarks = some @ directions
        n_averaged = min(self.smoothing, max(len(landmarks) // 10, 1))  # the mean of all would tell nothing
        found = torch.empty(N, directions.shape[1], dtype=torch.float16)
        for rows in torch.arange(N).split(data.items.n_rows):
            found[rows] = smoothed(self.clean_features(data.items, rows) @ directions, landmarks, n_averaged).half()
        return found.to(self._net.threshold.device)

    def _fit(self, items: Items, labels: Labels, run: Run | None, progress: bool | None) -> None:
        try:
            super()._fit(items, labels, run, progress)
        finally:
            self.__dict__.pop("_neighbour_features", None)  # as large as the data, and of no use after training

    def losses(self, batch: Batch) -> Terms:
        """The three terms of Eq. 8, divided by M; Eq. 5 and 6 see the batch of all processes."""
        net, labelled = self._net, slice(batch.n_labelled)
        matrix = prototype_matrix(unit(net.prototypes))  # (D, K*M)
        z = net.sub_vectors(batch.x)  # (B, D)
        cosines = similarities(z, matrix, self.n_sets)  # (B, K, M)
        pi = soft_assignment(cosines, matrix, self.sharpness)  # (B, D)
        everyone = processes.gather(unit(pi))  # (all B, D)
        first = batch.n_labelled if self.anchors == "unlabelled" else 0
        own = processes.rank() * len(batch.x)
        with torch.no_grad():
            other = self._pi(batch.other, matrix)
            if batch.step % CALIBRATE_EVERY == 0:
                self._calibrate(everyone, batch)
            masks = self._pairs(everyone, batch, matrix, slice(own + first, own + len(batch.x)))
            positives = self._united(list(masks.values()), slice(own + first, own + len(batch.x)))  # (A, all B)
        meta = meta_class_loss(
            cosines[labelled], meta_labels(net.meta_classes, batch.labels[labelled]), self.temperature
        )
        similarity = similarity_loss(
            z[first:] / math.sqrt(self.n_sets),
            everyone if self.positive_gradient else everyone.detach(),
            positives,
            self._similarity_temperature,
        )
        consistency = consistency_loss(net.predictor(pi), other)
        ramp = self._ramp(batch.progress)
        return {
            "meta": meta / self.n_sets,
            "similarity": ramp * self.similarity_weight * similarity,
            "consistency": ramp * self.consistency_weight * consistency,
        }

    @property
    def _similarity_temperature(self) -> float:
        return self.similarity_temperature or 0.33 / self.meta_classes_.table.shape[1] ** 0.25  # of seen classes

    def _pairs(self, pi: Tensor, batch: Batch, matrix: Tensor, rows: slice) -> dict[str, Tensor]:
        """Which items each rule takes to be of a row's kind. pi (all B, D) of unit length -> (rows, all B) bool."""
        found = {}
        for rule in self.pair_rules:
            if rule == "similar":
                found[rule] = similar(pi, self._net.threshold, rows)
            elif rule == "nearest":
                rank = max(round(self.nearest_share * self._kinship * len(pi)), 1)
                found[rule] = mutual_neighbours(processes.gather(self._steady_pi(batch, matrix)), rank, rows)
            else:
                features = unit(processes.gather(self._neighbour_features[batch.rows].float()))  # float16 is rough
                found[rule] = mutual_neighbours(features, self.n_neighbours, rows)
        return found

    def _steady_pi(self, batch: Batch, matrix: Tensor) -> Tensor:
        """pi (B, D) of unit length, of the clean view if it is there, else the mean of both views'."""
        if batch.clean is not None:
            return unit(self._pi(batch.clean, matrix))
        return unit(unit(self._pi(batch.x, matrix)) + unit(self._pi(batch.other, matrix)))

    def _united(self, masks: list[Tensor], rows: slice) -> Tensor:
        united = reduce(torch.logical_or, masks)
        if not self.include_self:
            united[:, rows].fill_diagonal_(False)
        return united

    def _calibrate(self, pi: Tensor, batch: Batch) -> None:
        """Move gamma towards the smallest one that is precise on this batch's labelled pairs, unless it is given."""
        if self.positive_threshold is None and "similar" in self.pair_rules:
            pi = pi.view(processes.world_size(), -1, pi.shape[1])[:, : batch.n_labelled].flatten(0, 1)
            found = threshold_for_precision(pi @ pi.T, self._same_class(batch), self.threshold_precision)
            self._net.threshold.lerp_(found, self.threshold_rate)

    def _same_class(self, batch: Batch) -> Tensor:
        """Which pairs of labelled items, of all processes, share a class."""
        labels = processes.gather(batch.labels[: batch.n_labelled])
        return same_class(labels, labels)

    def _ramp(self, progress: float) -> float:
        """exp(-5 (1 - t)^2), t from 0 to 1 over the first `ramp_share` of training."""
        return math.exp(-5 * (1 - progress / self.ramp_share) ** 2) if progress < self.ramp_share else 1.0

    @torch.no_grad()
    def diagnostics(self, batch: Batch, data: PartlyLabelled) -> dict[str, Any]:
        """How many positives an anchor has, how right the pair rules are on labelled pairs, how the codes are used."""
        batch = self.mapped(batch)
        matrix = prototype_matrix(unit(self._net.prototypes))
        pi = processes.gather(unit(self._pi(batch.x, matrix)))
        same = self._same_class(batch)
        masks = self._pairs(pi, batch, matrix, slice(None))
        positives = self._united(list(masks.values()), slice(None))
        precision, recall = pair_precision_recall(_labelled(positives, batch), same)
        apart = {f"{rule}_precision": pair_precision_recall(_labelled(m, batch), same)[0] for rule, m in masks.items()}
        per_item = positives.sum(dim=1).float().view(processes.world_size(), -1)  # (processes, B)
        first = batch.n_labelled if self.anchors == "unlabelled" else 0
        rows = torch.linspace(0, len(data.items) - 1, min(len(data.items), DIAGNOSED_ITEMS)).long()
        codebook = self.codebook
        codes = codebook.encode(self._net(self.clean_features(data.items, rows).to(pi.device)).cpu())
        threshold = {"threshold": float(self._net.threshold)} if "similar" in self.pair_rules else {}
        return {
            **threshold,
            "positives_per_anchor": float(per_item[:, first:].mean()),
            "pair_precision": precision,
            "pair_recall": recall,
            **apart,
            **code_use(codes, codebook.sizes),
        }

    def _diagnosis(self, items: Items) -> dict[str, Any]:
        """The meta-class sets beside the last epoch's numbers and the use of the codes."""
        drawn = {"meta_class_sets": str(self.meta_classes_)} if hasattr(self, "meta_classes_") else {}
        return {**drawn, **super()._diagnosis(items)}

    def summary(self) -> list[str]:
        """The codebook, the meta-class sets and the last epoch's diagnostics."""
        lines = super().summary()
        if hasattr(self, "meta_classes_"):
            last = self.log_[-1]
            used = [share for row in last["code_use"] for share in row]
            lines += [
                f"meta-classes: {self.meta_classes_}",
                f"pair rules: {last['positives_per_anchor']:.1f} positives per anchor with itself; on labelled pairs "
                f"precision {_percent(last['pair_precision'])}, recall {_percent(last['pair_recall'])}; "
                f"by rule {', '.join(f'{rule} ' + _percent(last[f'{rule}_precision']) for rule in self.pair_rules)}",
                f"codes: {last['n_codes']} distinct among {last['n_coded']} items; "
                f"a word is used by {min(used):.1%} to {max(used):.1%} of them",
            ]
        return lines

    def _pi(self, x: Tensor, matrix: Tensor) -> Tensor:
        return soft_assignment(similarities(self._net.sub_vectors(x), matrix, self.n_sets), matrix, self.sharpness)

    @property
    def codebook(self) -> Codebook:
        """The prototypes as words."""
        self._require_fitted()
        return Codebook(unit(self._net.prototypes.detach()).cpu())

    @property
    def _net(self) -> "Network":
        assert isinstance(self.module_, Network)
        return self.module_


def _percent(share: float | None) -> str:
    return "unknown (no such pair)" if share is None else f"{share:.0%}"


def _labelled(pairs: Tensor, batch: Batch) -> Tensor:
    """The part of a (B, B) table over the batch of all processes where both items are labelled."""
    W, n = processes.world_size(), batch.n_labelled
    return pairs.view(W, len(pairs) // W, W, -1)[:, :n, :, :n].reshape(W * n, W * n)


class Network(nn.Module):
    """x -> z, a linear map cut into M sub-vectors; beside it the prototypes, h and what was drawn or calibrated."""

    meta_classes: Tensor
    threshold: Tensor

    def __init__(self, n_features: int, n_classes: int, words: tuple[int, int, int], hidden: int):
        super().__init__()
        self.n_sets, _, d = words  # M, K, d
        D = self.n_sets * d
        self.project = nn.Linear(n_features, D)
        self.prototypes = nn.Parameter(unit(torch.randn(words)))
        # h of Eq. 7, in the shape of SimSiam's predictor.
        self.predictor = nn.Sequential(
            nn.Linear(D, hidden, bias=False), processes.BatchNorm(hidden), nn.ReLU(), nn.Linear(hidden, D)
        )
        self.register_buffer("meta_classes", torch.zeros(self.n_sets, n_classes, dtype=torch.int64))
        self.register_buffer("threshold", torch.ones(()))

    def sub_vectors(self, x: Tensor) -> Tensor:
        """x (B, F) -> sub-vectors of unit length, side by side (B, D)."""
        return unit(self.project(x).unflatten(1, (self.n_sets, -1))).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, F) -> z (B, D), rows of unit length."""
        return self.sub_vectors(x) / math.sqrt(self.n_sets)
