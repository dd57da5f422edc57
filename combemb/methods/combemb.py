"""CombEmb, the method of the paper (Eq. 1 to 8) with every silent choice a field."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from combemb import processes
from combemb.codes import Codebook
from combemb.data.labels import Labels, require_partly_labelled, same_class
from combemb.data.partly_labelled import Batch, PartlyLabelled
from combemb.embedding import similarities, soft_assignment, unit
from combemb.losses import consistency_loss, meta_class_loss, similarity_loss
from combemb.meta_classes import MetaClasses, draw_meta_classes, meta_labels
from combemb.methods.base import DeepMethod, setting
from combemb.metrics import pair_precision_recall
from combemb.pairs import mutual_neighbours, similar, threshold_for_precision
from combemb.training import Terms

SAMPLE = 2_048  # items from which the threshold is calibrated and the use of codes is counted after each epoch


@dataclass(kw_only=True, eq=False, repr=False)
class CombEmb(DeepMethod):
    """Combinatorial embedding: each sub-vector of z learns one partition of the seen classes into meta-classes.

    L = L_meta / M + similarity_weight * L_sim + consistency_weight * L_cons: Eq. 8 divided by M, so that the weights
    do not depend on the bits; the paper's alpha and beta are M times these.
    """

    task: ClassVar[Literal["retrieval", "discovery", "both"]] = "both"
    paper: ClassVar[str] = "Open-Set Representation Learning through Combinatorial Embedding, CVPR 2023"

    bits: int = setting(48, "length of a code, a multiple of log2(n_meta_classes)")
    n_meta_classes: int = setting(4, "K, meta-classes per set: 2, 4, 8 or 16; the paper's 4")
    sub_vector: int = setting(12, "d, length of a sub-vector; the paper's")
    subspace: int = setting(100, "Q, dimensions per meta-class k-means, a quarter of the features if fewer than 400; ours")
    temperature: float = setting(0.1, "tau of Eq. 4; ours, 0.05 in the normalised softmax paper")
    sharpness: float = setting(10.0, "lambda of Eq. 3; ours, 20 in GPQ's release")
    positive_threshold: float | None = setting(None, "gamma of Eq. 5; None calibrates it on labelled pairs")
    threshold_precision: float = setting(0.9, "precision on labelled pairs that a calibrated gamma has to reach; ours")
    n_neighbours: int = setting(5, "mutual neighbours in the batch that join the positives of Eq. 5; 0 is the paper; ours")
    anchors: str = setting("unlabelled", "items that Eq. 6 pulls to their positives: unlabelled (the paper's text) or all")
    include_self: bool = setting(True, "whether an anchor is one of its own positives, as in the formula of Eq. 5")
    similarity_weight: float = setting(5.0, "weight of Eq. 6 against the mean over sets of Eq. 4; ours")
    similarity_temperature: float = setting(0.2, "temperature of Eq. 6; ours, the paper has none, that is 1")
    positive_gradient: bool = setting(False, "whether Eq. 6 also moves pi(z+); the paper does not say; ours")
    consistency_weight: float = setting(4.0, "weight of Eq. 7 against the mean over sets of Eq. 4; ours")

    def network(self, n_features: int, n_classes: int) -> nn.Module:
        """A linear map to z, the prototypes and the predictor h."""
        return Network(n_features, n_classes, self.n_sets, self.n_meta_classes, self.sub_vector)

    @property
    def n_sets(self) -> int:
        """M, what the bits allow."""
        return self.bits // int(math.log2(self.n_meta_classes))

    def check(self, x: np.ndarray, labels: Labels) -> None:
        require_partly_labelled(labels, self.n_meta_classes)

    def prepare(self, data: PartlyLabelled) -> None:
        rows = np.flatnonzero(data.labels.is_labelled)
        rows = np.random.default_rng(self.seed).permutation(rows)[:20_000]
        classifier = linear_classifier(data.items.take(torch.from_numpy(rows)), torch.from_numpy(data.labels.membership(rows)))
        F = classifier.shape[1]
        n_dims = min(self.subspace, F // 4 if F < 400 else F)
        self.meta_classes_ = draw_meta_classes(classifier, self.n_sets, self.n_meta_classes, n_dims, self.seed)
        self.module_.meta_classes.copy_(self.meta_classes_.table)

    def losses(self, batch: Batch) -> Terms:
        net = self.module_
        prototypes = unit(net.prototypes)
        z = net.sub_vectors(batch.x)
        cosines = similarities(z, prototypes)
        pi = soft_assignment(cosines, prototypes, self.sharpness)
        with torch.no_grad():
            other = soft_assignment(similarities(net.sub_vectors(batch.other), prototypes), prototypes, self.sharpness)
        labelled = slice(batch.n_labelled)
        unit_pi = processes.gather(unit(pi))
        positives = processes.own_rows(self.positives(unit_pi.detach(), processes.gather(unit(batch.x))))
        anchors = slice(batch.n_labelled, None) if self.anchors == "unlabelled" else slice(None)
        targets = unit_pi if self.positive_gradient else unit_pi.detach()
        return {
            "meta": meta_class_loss(cosines[labelled], meta_labels(net.meta_classes, batch.labels[labelled]), self.temperature) / self.n_sets,
            "similarity": self.similarity_weight * similarity_loss(z[anchors].flatten(1) / math.sqrt(self.n_sets), targets, positives[anchors], self.similarity_temperature),
            "consistency": self.consistency_weight * consistency_loss(net.predictor(pi), other),
        }

    def positives(self, pi: Tensor, features: Tensor) -> Tensor:
        mask = similar(pi, self.module_.threshold)
        if self.n_neighbours:
            mask |= mutual_neighbours(features, self.n_neighbours)
        return mask if self.include_self else mask.fill_diagonal_(False)

    def pi(self, x):
        prototypes = unit(self.module_.prototypes)
        return unit(soft_assignment(similarities(self.module_.sub_vectors(x), prototypes), prototypes, self.sharpness))

    @torch.no_grad()
    def on_epoch(self, data: PartlyLabelled, epoch: int) -> None:
        if self.positive_threshold is not None:
            self.module_.threshold.fill_(self.positive_threshold)
            return
        rows = np.flatnonzero(data.labels.is_labelled)
        rows = np.random.default_rng(self.seed).permutation(rows)[:SAMPLE]
        labels = torch.from_numpy(data.labels.values[rows])
        pi = self.pi(data.items.take(torch.from_numpy(rows)))
        self.module_.threshold.fill_(threshold_for_precision(pi, same_class(labels, labels), self.threshold_precision))

    @torch.no_grad()
    def diagnostics(self, batch, data):
        mask = self.positives(self.pi(batch.x), unit(batch.x))
        n = batch.n_labelled
        precision, recall = pair_precision_recall(mask[:n, :n], same_class(batch.labels[:n], batch.labels[:n]))
        out = {"threshold": float(self.module_.threshold), "positives_per_anchor": float(mask[n:].sum(1).float().mean()), "pair_precision": precision, "pair_recall": recall}
        if hasattr(data, "hidden"):
            t = data.hidden[batch.rows][n:]
            out["u_precision"], out["u_recall"] = pair_precision_recall(mask[n:, n:], same_class(t, t))
            nov = data.novel[batch.rows][n:]
            out["n_precision"], out["n_recall"] = pair_precision_recall(mask[n:, n:][nov][:, nov], same_class(t[nov], t[nov]))
        return out

    @property
    def codebook(self) -> Codebook:
        return Codebook(unit(self.module_.prototypes.detach()).cpu())


class Network(nn.Module):
    """x -> z: a linear map cut into M sub-vectors; beside it the prototypes and h."""

    def __init__(self, n_features: int, n_classes: int, n_sets: int, n_meta_classes: int, sub_vector: int):
        super().__init__()
        D = n_sets * sub_vector
        self.n_sets = n_sets
        self.project = nn.Linear(n_features, D)
        self.prototypes = nn.Parameter(unit(torch.randn(n_sets, n_meta_classes, sub_vector)))
        self.predictor = nn.Sequential(nn.Linear(D, D // 4), processes.BatchNorm(D // 4), nn.ReLU(), nn.Linear(D // 4, D))
        self.register_buffer("meta_classes", torch.zeros(n_sets, n_classes, dtype=torch.int64))
        self.register_buffer("threshold", torch.tensor(1.0))

    def sub_vectors(self, x: Tensor) -> Tensor:
        """Unit sub-vectors (B, M, d)."""
        return unit(self.project(x).unflatten(1, (self.n_sets, -1)))

    def forward(self, x: Tensor) -> Tensor:
        """z (B, D), rows of unit length."""
        return self.sub_vectors(x).flatten(1) / math.sqrt(self.n_sets)


def linear_classifier(x: Tensor, membership: Tensor, weight_decay: float = 1e-3, iterations: int = 50) -> Tensor:
    """Weights (C, F) of a softmax classifier on labelled items, fitted by L-BFGS.

    x (n, F); membership (n, C) with rows that sum to one.
    """
    weights = torch.zeros(membership.shape[1], x.shape[1], requires_grad=True)
    bias = torch.zeros(membership.shape[1], requires_grad=True)
    optimiser = torch.optim.LBFGS([weights, bias], max_iter=iterations, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = functional.cross_entropy(x @ weights.T + bias, membership) + weight_decay * weights.square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    return weights.detach()
