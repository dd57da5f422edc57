"""CombEmb, the method of the paper (Eq. 1 to 8); every choice that the paper leaves open is a setting."""

import math
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from combemb.data.labels import Labels
from combemb.discovery.kmeans import kmeans
from combemb.learning.batches import Batch, Batches
from combemb.learning.codes import CodeMethod
from combemb.learning.curves import Panel
from combemb.learning.deep import DeepMethod
from combemb.learning.loop import Terms
from combemb.learning.objectives.losses import consistency_loss, meta_class_loss, similarity_loss
from combemb.learning.objectives.meta_classes import (
    MetaClasses,
    class_embeddings,
    draw_meta_classes,
    meta_classes_for,
    meta_labels,
)
from combemb.learning.objectives.positives import (
    Compared,
    PairSettings,
    calibrated_threshold,
    estimated_classes,
    neighbourhood,
    precision_of_rules,
    same_classes,
)
from combemb.learning.objectives.prototypes import CombinatorialNetwork, prototype_matrix, similarities, soft_assignment
from combemb.learning.objectives.ramps import ramp_up
from combemb.learning.settings import setting
from combemb.search.codebook import ProductCodebook
from combemb.search.metrics import code_use
from combemb.system import processes
from combemb.system.arrays import unit
from combemb.system.errors import require

STEPS_PER_CALIBRATION = 4  # of gamma; successive batches give nearly the same value
FEATURES_ALONE = 1_000.0  # weight of the features as positives that leaves nothing to the others
MIN_TRUST = 0.4  # the features count more where labels are trusted less, down to this
MAX_CLASSIFIER_ITEMS = 20_000  # class embeddings are learned from at most so many labelled items
MAX_DIAGNOSED_ITEMS = 512  # codes of at most so many items are counted after each epoch


@dataclass(kw_only=True, eq=False, repr=False)
class CombEmb(PairSettings, DeepMethod, CodeMethod):
    """Combinatorial embedding (Kim, Kang & Han, CVPR 2023): each sub-vector of z learns one partition of the classes.

    L = L_meta / M + similarity_weight * L_sim + consistency_weight * L_cons, which is Eq. 8 divided by M, so that the
    weights do not depend on the bits: the paper's alpha and beta are M times these.
    """

    needs_other_gradient: ClassVar[bool] = False  # Eq. 7 stops the gradient
    paper: ClassVar[str] = "Open-Set Representation Learning through Combinatorial Embedding, CVPR 2023"
    departs: ClassVar[str] = (
        "positives by rank and by features, labelled anchors, a sharper Eq. 6; not in `as_published`"
    )

    bits: int = setting(48, "length of a code, a multiple of log2(n_meta_classes)", at_least=1)
    n_meta_classes: int | None = setting(
        None,
        "K, meta-classes per set; None: 2 for fewer than 4 seen classes, 4 for fewer than 16, 8 for fewer than 32, "
        "else 16, or less if the bits are no multiple; ours, the paper has 4",
        choices=(2, 4, 8, 16),
    )
    sub_vector: int | None = setting(
        None,
        "d, length of a sub-vector; None: the paper's 12, or more for fewer than 24 sets, so that D is about 288; ours",
        above=0,
    )
    subspace: int = setting(
        100, "Q, dimensions per meta-class k-means; a quarter of all if there are fewer than 400; ours", above=0
    )
    temperature: float = setting(0.1, "tau of Eq. 4; ours, the normalised softmax paper has 0.05", above=0)
    sharpness: float = setting(10.0, "lambda of Eq. 3; ours, GPQ's release has 20", above=0)
    labelled_anchors: float = setting(
        0.3,
        "weight of labelled items as anchors of Eq. 6, with their class as positives; ours, the paper has 0",
        at_least=0,
    )
    label_trust: float = setting(
        20.0,
        "labels per class from which on Eq. 4 and labelled anchors have their full weight; ours, the paper has 0",
        at_least=0,
    )
    similarity_weight: float = setting(20.0, "weight of Eq. 6, alpha / M; ours", at_least=0)
    similarity_temperature: float | None = setting(
        None,
        "temperature of Eq. 6; None: 0.33 / C^(1/4), 0.2 for 7 seen classes; ours, the paper has none, that is 1",
        above=0,
    )
    positive_gradient: bool = setting(False, "whether Eq. 6 also moves pi of the positives; ours, open in the paper")
    consistency_weight: float = setting(4.0, "weight of Eq. 7, beta / M; ours", at_least=0)
    predictor_share: float = setting(0.25, "width of the hidden layer of h as a share of D; SimSiam's", above=0)
    classifier_decay: float = setting(
        1e-3, "weight decay of the classifier whose weights are the class embeddings; ours", above=0
    )
    ramp_share: float = setting(
        0.3, "share of training in which the weights of Eq. 6 and 7 rise to their values; ours", at_least=0, at_most=1
    )

    check: bool = setting(
        True,
        "whether a fit without the labels of some seen classes shows first how well novel ones will be found, and "
        "whether labels help; if plain features are better, z keeps to them; ours",
    )

    @classmethod
    def as_published(cls, bits: int, **settings: Any) -> Self:
        """Return the paper's own form: positives by Eq. 5 alone, Eq. 6 without temperature, no ramp, d = 12.

        Of what the paper leaves open, gamma is 0.7, chosen on the tuning splits (docs/decisions/pairs.md); tau, lambda,
        alpha, beta, Q and the schedule have our defaults.

        Parameters
        ----------
        bits : int
            Length of a code.
        **settings
            Any other settings.
        """
        published: dict[str, Any] = {
            "sub_vector": 12,
            "similarity_temperature": 1.0,
            "positive_gradient": True,
            "ramp_share": 0.0,
        }
        published |= {"labelled_anchors": 0.0, "feature_pull": 0.0, "label_trust": 0.0, "balanced_labels": False}
        published |= {"pair_rules": ("similar",), "positive_threshold": 0.7, "n_meta_classes": 4}
        published |= {"max_features": 256}
        return cls(bits=bits, **{**published, **settings})

    @property
    def wants_clean(self) -> bool:
        """Whether batches hold the clean view, which the rule `nearest` needs."""
        return "nearest" in self.pair_rules

    @property
    def can_keep_to_features(self) -> bool:
        """Whether features are among the positives of Eq. 6, so that they can be all of them."""
        return self.feature_pull > 0

    @property
    def n_sets(self) -> int:
        """M, the number of meta-class sets of a fitted model."""
        return self._net.n_sets

    def check_settings(self) -> None:
        """Require that the bits are a multiple of those of one set."""
        super().check_settings()
        if self.n_meta_classes is None:
            return
        per_set = int(math.log2(self.n_meta_classes))
        lower = max(self.bits // per_set, 1) * per_set
        require(
            self.bits % per_set == 0,
            f"bits={self.bits} is not a multiple of log2(n_meta_classes)={per_set}; use {lower} or {lower + per_set}",
        )

    def check_labels(self, labels: Labels) -> None:
        """Require a label, and at least as many seen classes as meta-classes if their number is set."""
        n, K = labels.n_seen, self.n_meta_classes or 1
        require(n > 0, f"none of the {len(labels)} items is labelled; label some items, of two classes or more")
        require(
            n >= K,
            f"found {n} seen classes, n_meta_classes={K} needs at least {K}; "
            "use fewer meta-classes or label more classes",
        )
        require(
            not labels.is_multi or self.n_clusters is not None or "kmeans" not in self.pair_rules,
            "rule kmeans: the number of classes cannot be estimated if items have several labels; set n_clusters",
        )

    def network(self, n_features: int, n_seen: int, n_novel: int) -> CombinatorialNetwork:
        """Return a linear map to z, the prototypes and the predictor h."""
        K = self.n_meta_classes or meta_classes_for(n_seen, self.bits)
        M = self.bits // int(math.log2(K))
        d = self.sub_vector or max(12, 288 // M)
        return CombinatorialNetwork(n_features, n_seen, (M, K, d), max(round(self.predictor_share * M * d), 1))

    def prepare(self, data: Batches) -> None:
        """Draw the meta-class sets (Eq. 1) from the weights of a classifier on the labelled items."""
        rng = np.random.default_rng(self.seed)
        rows = data.labels.labelled_rows(MAX_CLASSIFIER_ITEMS, rng)
        membership = torch.from_numpy(data.labels.membership(rows))  # (n, columns of the labels)
        seen = membership.sum(dim=0) > 0  # a multi-label column may have no item at all
        labelled = self.clean_features(data.items, torch.from_numpy(rows))
        embeddings = class_embeddings(labelled, membership[:, seen], self.classifier_decay)
        F, (M, K, _) = embeddings.shape[1], self._net.prototypes.shape
        n_dims = min(self.subspace, F if F >= 400 else max(F // 4, 1))
        if len(embeddings) > 1:
            self.meta_classes_ = draw_meta_classes(embeddings, M, K, n_dims, self.seed)
        else:  # one class has no partition: there is nothing for Eq. 4 to learn
            self.meta_classes_ = MetaClasses(torch.zeros(M, 1, dtype=torch.int64))
        self._net.meta_classes[:, seen] = self.meta_classes_.table.to(self._net.meta_classes.device)
        self._net.threshold.fill_(1.0 if self.positive_threshold is None else self.positive_threshold)
        per_class = data.labels.is_labelled.sum() / data.labels.n_seen
        self.scratch.trust = min(float(per_class) / self.label_trust, 1.0) if self.label_trust > 0 else 1.0
        self.scratch.pull = self.feature_pull / max(self.scratch.trust, MIN_TRUST)
        self.scratch.trust *= len(embeddings) > 1
        check = getattr(self, "check_", None)
        if check is not None and check.favours_plain:  # labels do harm here
            self.scratch.trust, self.scratch.pull = 0.0, FEATURES_ALONE
        clean = partial(self.clean_features, data.items)
        if self.wants_neighbours:
            known = torch.from_numpy(rows), membership[:, seen]
            self.scratch.near = neighbourhood(self, data, clean, known, rng).to(self._net.threshold.device)
        if "kmeans" in self.pair_rules:
            n = self.n_clusters or estimated_classes(data, clean, int(self.seed))
            self.n_clusters_ = min(n, len(data.items))

    @torch.no_grad()
    def on_epoch(self, data: Batches, epoch: int) -> None:
        """Cluster z of all items, for the rule `kmeans`."""
        if "kmeans" in self.pair_rules and epoch % self.epochs_per_clustering == 0:
            device, parts = self._net.threshold.device, torch.arange(len(data.items)).split(data.items.n_rows)
            z = torch.cat([self._net(self.clean_features(data.items, rows).to(device)).cpu() for rows in parts])
            found = kmeans(z, self.n_clusters_, seed=int(self.seed), progress=False)
            self.kept["clusters"] = torch.from_numpy(found.assignment)

    def losses(self, batch: Batch) -> Terms:
        """Return the three terms of Eq. 8, divided by M; Eq. 5 and 6 use the batch of all processes."""
        net, labelled = self._net, slice(batch.n_labelled)
        matrix = prototype_matrix(unit(net.prototypes))  # (D, K*M)
        z = net.sub_vectors(batch.x)  # (B, D)
        cosines = similarities(z, matrix, self.n_sets)  # (B, K, M)
        pi = soft_assignment(cosines, matrix, self.sharpness)  # (B, D)
        all_pi = processes.gather(unit(pi))  # (all B, D)
        others = all_pi if self.positive_gradient else all_pi.detach()
        own = processes.own(len(z))
        with torch.no_grad():
            other = self._pi(batch.other, matrix)
            if batch.step % STEPS_PER_CALIBRATION == 0:
                self._calibrate(all_pi, batch)
            compared = self._compared(all_pi, z, batch, matrix)
            positives = compared.positives(self, batch, own, self.scratch.pull)
        known = meta_labels(net.meta_classes, batch.labels[labelled], cosines.shape[1])
        meta = meta_class_loss(cosines[labelled], known, self.temperature)
        anchors = (z / math.sqrt(self.n_sets)).split([batch.n_labelled, len(z) - batch.n_labelled])
        weights = self.labelled_anchors * self.scratch.trust, 1.0
        similarity = sum(
            weight * similarity_loss(anchor, others, positive, self._similarity_temperature)
            for weight, anchor, positive in zip(weights, anchors, positives.split([*map(len, anchors)]), strict=True)
            if weight > 0 and len(anchor) > 0
        )
        consistency = consistency_loss(net.predictor(pi), other)
        ramp = self._ramp(batch.fraction_done)
        return {
            "meta": self.scratch.trust * meta / self.n_sets,
            "similarity": ramp * self.similarity_weight * similarity,
            "consistency": ramp * self.consistency_weight * consistency,
        }

    @property
    def _similarity_temperature(self) -> float:
        return self.similarity_temperature or 0.33 / self.meta_classes_.table.shape[1] ** 0.25  # C, seen classes

    def _compared(self, pi: Tensor, z: Tensor, batch: Batch, matrix: Tensor) -> Compared:
        """Return what the pair rules compare. pi (all B, D) of unit length, z (B, D)."""
        clusters = self.kept.get("clusters")
        return Compared(
            pi,
            cache(lambda: processes.gather(z)),
            cache(lambda: processes.gather(self._steady_pi(batch, matrix))),
            cache(lambda: processes.gather(batch.rows.to(pi.device))),
            self._net.threshold,
            getattr(self.scratch, "near", None),
            None if clusters is None else clusters.to(pi.device),
        )

    def _steady_pi(self, batch: Batch, matrix: Tensor) -> Tensor:
        """Return pi (B, D) of unit length, of the clean view if there is one, otherwise the mean over both views."""
        if batch.clean is not None:
            return unit(self._pi(batch.clean, matrix))
        return unit(unit(self._pi(batch.x, matrix)) + unit(self._pi(batch.other, matrix)))

    def _calibrate(self, pi: Tensor, batch: Batch) -> None:
        """Move gamma towards the smallest one that is precise on the labelled pairs of this batch, unless it is set."""
        if self.positive_threshold is None and "similar" in self.pair_rules:
            found = calibrated_threshold(pi, same_classes(batch), batch.n_labelled, self.threshold_precision)
            self._net.threshold.lerp_(found, self.threshold_rate)

    def _ramp(self, done: float) -> float:
        """Return exp(-5 (1 - t)^2), t from 0 to 1 over the first `ramp_share` of training."""
        return ramp_up(done / self.ramp_share) if done < self.ramp_share else 1.0

    @torch.no_grad()
    def diagnostics(self, batch: Batch, data: Batches) -> dict[str, Any]:
        """Return positives per anchor, precision and recall of the pair rules on labelled pairs, use of the codes."""
        batch = self.mapped(batch)
        matrix = prototype_matrix(unit(self._net.prototypes))
        z = self._net.sub_vectors(batch.x)
        pi = processes.gather(unit(soft_assignment(similarities(z, matrix, self.n_sets), matrix, self.sharpness)))
        masks = self._compared(pi, z, batch, matrix).pairs(self, slice(None))
        rows = torch.linspace(0, len(data.items) - 1, min(len(data.items), MAX_DIAGNOSED_ITEMS)).long()
        codebook = self.codebook
        codes = codebook.encode(self._net(self.clean_features(data.items, rows).to(pi.device)).cpu())
        threshold = {"threshold": float(self._net.threshold)} if "similar" in self.pair_rules else {}
        rules = precision_of_rules(masks, same_classes(batch), batch.n_labelled)
        return {**threshold, **rules, **code_use(codes, codebook.sizes)}

    def facts(self) -> dict[str, Any]:
        """Return a text about the meta-class sets, if they were drawn here, and the clusters of the rule `kmeans`."""
        sets = {"meta_class_sets": str(self.meta_classes_)} if hasattr(self, "meta_classes_") else {}
        return sets | ({"n_clusters": self.n_clusters_} if hasattr(self, "n_clusters_") else {})

    @property
    def panels(self) -> tuple[Panel, ...]:
        """Precision and recall of the pair rules; positives and distinct codes."""
        return (
            self.rule_panel,
            Panel("counts", ("positives_per_anchor", "n_codes"), is_log=True),
        )

    def report(self) -> list[str]:
        """Describe the meta-class sets, the pairs and the codes of the last epoch."""
        if not hasattr(self, "meta_classes_"):
            return []
        last = self.log_[-1]
        few = ["one seen class: the labels only tell what is not new; label a second class to learn from them"]
        used = [share for row in last["code_use"] for share in row]
        how = "estimated" if self.n_clusters is None else "given"
        return [
            f"meta-classes: {self.meta_classes_}",
            self.rule_report(last),
            *([f"rule kmeans: {self.n_clusters_} clusters ({how})"] if hasattr(self, "n_clusters_") else []),
            f"codes: {last['n_codes']} distinct among {last['n_coded']} items; "
            f"a word is used by {min(used):.1%} to {max(used):.1%} of them",
            *(few if len(self.classes_) == 1 else []),
        ]

    def _pi(self, x: Tensor, matrix: Tensor) -> Tensor:
        return soft_assignment(similarities(self._net.sub_vectors(x), matrix, self.n_sets), matrix, self.sharpness)

    @property
    def codebook(self) -> ProductCodebook:
        """The codebook whose words are the prototypes."""
        self._require_fitted()
        return ProductCodebook(unit(self._net.prototypes.detach()).cpu())

    @property
    def _net(self) -> CombinatorialNetwork:
        assert isinstance(self.network_, CombinatorialNetwork)
        return self.network_
