"""SSDH, a semi-supervised binary code from triplets, a graph inside the batch and pseudo-labels."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from combemb.data.labels import Labels, same_class
from combemb.learning.batches import Batch, Batches
from combemb.learning.codes import BinaryMethod
from combemb.learning.deep import DeepMethod
from combemb.learning.loop import Terms
from combemb.learning.objectives.triplets import (
    one_of_each,
    require_triplets,
    squared_distances,
    triplet_hinge,
    triplets,
)
from combemb.learning.settings import setting
from combemb.system import processes


class HashAndClassLayers(nn.Module):
    """A layer in the place of fc7; on it a hash layer and, beside that, a layer of the seen classes."""

    def __init__(self, n_features: int, n_seen: int, bits: int, hidden: int):
        super().__init__()
        self.fc7 = nn.Sequential(nn.Linear(n_features, hidden), nn.ReLU(), nn.Dropout()) if hidden else nn.Identity()
        n_features = hidden or n_features
        self.hash, self.classify = nn.Linear(n_features, bits), nn.Linear(n_features, n_seen)
        nn.init.normal_(self.hash.weight, std=0.005)  # both as in the release
        nn.init.constant_(self.hash.bias, 0.1)

    def layers(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the relaxed bits h (B, q) in (0, 1) and the scores (B, C) of the classes."""
        x = self.fc7(x)
        return self.hash(x).sigmoid(), self.classify(x)

    def forward(self, x: Tensor) -> Tensor:
        """Return z = 2 h(x) - 1, whose signs are the code."""
        return 2 * self.layers(x)[0] - 1


def graph_pairs(
    h: Tensor, n_near: int, far_share: float, n_far: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draw a near and a far item of the batch for each item, by the distances of h (B, q).

    Sorted by distance, an item itself is at rank 0. One of the ranks 1 to n_near is drawn, and one of the n_far ranks
    from far_share * B on.
    """
    B = len(h)
    distances = torch.cdist(h, h, compute_mode="donot_use_mm_for_euclid_dist")  # exact for items that nearly agree
    order = distances.fill_diagonal_(-1.0).argsort(dim=1, stable=True)  # (B, B)
    first = max(int(far_share * B), 1)
    n_near = max(min(n_near, first - 1), 1)
    near = torch.randint(1, n_near + 1, (B, 1), generator=generator).to(h.device)
    far = torch.randint(first, min(first + n_far, B), (B, 1), generator=generator).to(h.device)
    return order.gather(1, near)[:, 0], order.gather(1, far)[:, 0]


def pseudo_label_pairs(
    scores: Tensor, labels: Tensor, n_labelled: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw a positive and a negative for each unlabelled item that has both.

    An unlabelled item counts as one of the class with its largest score. Positives have the class of the anchor and not
    the class with the anchor's smallest score; negatives the other way round. Returns positions in the batch.
    """
    best, worst = scores[n_labelled:].argmax(dim=1), scores[n_labelled:].argmin(dim=1)
    given = labels[:n_labelled]
    given = functional.one_hot(given, scores.shape[1]) if given.ndim == 1 else given
    member = torch.cat([given > 0, functional.one_hot(best, scores.shape[1]) > 0])  # (B, C)
    has_best, has_worst = member.T[best], member.T[worst]  # (unlabelled, B)
    positive, negative = has_best & ~has_worst, has_worst & ~has_best
    positive[:, n_labelled:].fill_diagonal_(False)
    found = torch.nonzero(positive.any(dim=1) & negative.any(dim=1))[:, 0]
    return found + n_labelled, one_of_each(positive[found], generator), one_of_each(negative[found], generator)


def contrastive(near: Tensor, far: Tensor, margin: float) -> Tensor:
    """Return the mean of (D+^2 + max(0, margin - D-)^2) / 2 over pairs of squared distances (n,), 0 if there are none.

    The margin is on the plain distance.
    """
    apart = far.clamp(min=1e-12).sqrt()  # a root has no derivative at 0
    return 0.5 * (near + (margin - apart).clamp(min=0).square()).sum() / max(len(near), 1)


def class_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy, mean over the items; binary and summed over the classes for labels (n, C) of 0/1."""
    if labels.ndim == 1:
        return functional.cross_entropy(scores, labels)
    return functional.binary_cross_entropy_with_logits(scores, labels, reduction="sum") / len(labels)


@dataclass(kw_only=True, eq=False, repr=False)
class SSDH(DeepMethod, BinaryMethod):
    """Semi-supervised deep hashing (Zhang & Peng 2017): ranking, an online graph and pseudo-labels on one hash layer.

    With h = sigmoid(hash layer), D_ij = ||h_i - h_j|| and p the class layer beside it,
    L = R + graph_weight * G + pseudo_weight * P + C:

    - R = mean over labelled i of max(0, margin + D_ij^2 - D_ik^2) / 2; j shares a label with i, k none;
    - G = mean over all i of (D_ij^2 + max(0, pair_margin - D_ik)^2) / 2; j is near to i in the batch, k far from it, by
      the current h: the graph is built in every step, and the choice has no gradient;
    - P = the same form over unlabelled i; j has the class with the largest p_i, k the one with the smallest, by its
      labels or, if unlabelled, by its own largest p; i without both is left out;
    - C = cross-entropy of the labelled items, binary and summed over the classes if items have several labels.

    All j and k are drawn at random. The code is h > 1/2, z = 2 h - 1; there is no quantisation term. Departures: the
    release counts an item as its own nearest neighbour, and trains sigmoids of p by squared errors. Features of a
    frozen backbone pass through a layer of our own in the place of fc7. Half of a batch is labelled. The common loop
    (AdamW, a cosine) replaces SGD.
    """

    paper: ClassVar[str] = "SSDH: Semi-Supervised Deep Hashing for Large Scale Image Retrieval, TCSVT 2017"
    departs: ClassVar[str] = "softmax cross-entropy for the class layer; an item is not its own neighbour; AdamW"
    needs_other_gradient: ClassVar[bool] = False  # only one view is used

    bits: int = setting(48, "q, length of a code", at_least=1)
    batch_size: int = setting(128, "items per step, over all processes; the release's", above=0)
    hidden: int = setting(
        1024,
        "width of the layer in the place of fc7, with ReLU and dropout of a half; 0: none, for a backbone that is "
        "trained and ends with such a layer (alexnet); ours, VGG-F has 4096",
        at_least=0,
    )
    margin: float = setting(1.0, "margin of squared distances in R; the release's", above=0)
    pair_margin: float = setting(
        2.5,
        "margin of plain distances in G and P; the release's at all lengths, the largest distance is sqrt(q)",
        above=0,
    )
    n_near: int = setting(8, "nearest items of which one is j of G; the release's", above=0)
    far_share: float = setting(
        0.94,
        "rank from which on k of G is drawn, as a share of the batch; rank 120 of 128 in the release",
        above=0,
        below=1,
    )
    n_far: int = setting(4, "ranks of which one is k of G; the release's", above=0)
    graph_weight: float = setting(0.1, "lambda, weight of G; the release's", at_least=0)
    pseudo_weight: float = setting(0.1, "lambda, weight of P; the release's", at_least=0)

    def check_labels(self, labels: Labels) -> None:
        """Require unlabelled items, labels of two classes, and a triplet."""
        super().check_labels(labels)
        require_triplets(labels)

    def network(self, n_features: int, n_seen: int, n_novel: int) -> HashAndClassLayers:
        """Return the hash layer and the class layer."""
        return HashAndClassLayers(n_features, n_seen, int(self.bits), int(self.hidden))

    def prepare(self, data: Batches) -> None:
        """Find the classes that have a label: a column without any would get the smallest p of every item."""
        device = next(self.network_.parameters()).device
        self.scratch.seen = torch.from_numpy(data.labels.shares() > 0).to(device)

    def losses(self, batch: Batch) -> Terms:
        """Return R, G, P and C of the batch of all processes with their weights."""
        n, seen = batch.n_labelled * processes.world_size(), self.scratch.seen
        assert isinstance(self.network_, HashAndClassLayers)
        h, scores, labels = (batch.gather(part) for part in (*self.network_.layers(batch.x), batch.labels))
        labels = labels if labels.ndim == 1 else labels[:, seen]
        scores = scores[:, seen]  # (B, C)
        ranked = triplets(same_class(labels[:n], labels[:n]), batch.generator)
        near, far = graph_pairs(h.detach(), self.n_near, self.far_share, self.n_far, batch.generator)
        graph = torch.arange(len(h), device=h.device), near, far
        pseudo = pseudo_label_pairs(scores.detach(), labels, n, batch.generator)
        squared = [
            (squared_distances(h[i], h[j]), squared_distances(h[i], h[k])) for i, j, k in (ranked, graph, pseudo)
        ]
        return {
            "ranking": 0.5 * triplet_hinge(*squared[0], self.margin),
            "graph": self.graph_weight * contrastive(*squared[1], self.pair_margin),
            "pseudo_labels": self.pseudo_weight * contrastive(*squared[2], self.pair_margin),
            "classes": class_loss(scores[:n], labels[:n]),
        }
