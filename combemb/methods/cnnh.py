"""CNNH, a supervised binary code in two stages: codes of the labelled items, then a network that predicts them."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from combemb.data.labels import Labels
from combemb.learning.batches import Batch, Batches
from combemb.learning.codes import BinaryMethod
from combemb.learning.curves import Panel
from combemb.learning.deep import DeepMethod
from combemb.learning.loop import Terms
from combemb.learning.settings import setting
from combemb.system.errors import require

MAX_COMPARED = 1_000  # items whose pairs show how well stage 1 reconstructs the similarity


class Network(nn.Module):
    """A hidden layer, q outputs between -1 and 1, and for CNNH+ a classifier beside them."""

    def __init__(self, n_features: int, hidden: int, bits: int, n_classes: int):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(n_features, hidden), nn.ReLU())
        self.hash = nn.Linear(hidden, bits)
        self.classify = nn.Linear(hidden, n_classes) if n_classes > 0 else None

    def forward(self, x: Tensor) -> Tensor:
        """x (B, F) -> f(x) (B, bits)."""
        return torch.tanh(self.hash(self.trunk(x)))


@dataclass(kw_only=True, eq=False, repr=False)
class CNNH(DeepMethod, BinaryMethod):
    """Convolutional neural network hashing (Xia et al. 2014): a network f learns codes that reconstruct similarity.

    Stage 1: min over H in [-1, 1]^(n x q) of ||S - H H^T / q||^2, where S_ij = 1 if labelled items i and j share a
    label, otherwise -1. Entries of H take Newton steps in turn (`factorise`).
    Stage 2: L = mean (f(x_i) - sign(H_i))^2 + class_weight * cross_entropy(c(x_i), y_i); b = sign(f(x)).
    CNNH is class_weight = 0, CNNH+ has the second term, with a classifier c on the same hidden layer.

    The paper's f is a convolutional network on pixels; here it is the backbone, trained if `finetune` says so, and one
    hidden layer. The classes of an item with several labels have equal shares in the cross-entropy.
    """

    paper: ClassVar[str] = "Supervised Hashing for Image Retrieval via Image Representation Learning, AAAI 2014"
    departs: ClassVar[str] = "the network is a backbone and one hidden layer"
    uses_unlabelled: ClassVar[bool] = False
    needs_other_gradient: ClassVar[bool] = False  # the second view is not used

    bits: int = setting(48, "q, the length of a code, one output of f per bit", at_least=1)
    passes: int = setting(
        10, "T, Newton steps of each entry of H; fewer if none changes; the public port's", at_least=1
    )
    hidden: int = setting(512, "width of the hidden layer; ours", above=0)
    class_weight: float = setting(0.0, "weight of the class term of CNNH+; 0 is CNNH", at_least=0)

    def check_labels(self, labels: Labels) -> None:
        """Require two classes, and two labelled items that share no label."""
        super().check_labels(labels)
        _, similarity = label_sets(labels)
        require(
            bool((similarity < 0).any()),
            "any two labelled items share a label, so all codes would be equal; label items that share none, or drop "
            "a label that all items have",
        )

    def network(self, n_features: int, n_seen: int, n_novel: int) -> Network:
        """Return f and, for CNNH+, c."""
        return Network(n_features, self.hidden, self.bits, n_seen if self.class_weight > 0 else 0)

    def prepare(self, data: Batches) -> None:
        """Compute the targets of the labelled items (stage 1), in the rows that batches name them by."""
        rng, labelled = np.random.default_rng(self.seed), torch.from_numpy(np.flatnonzero(data.labels.is_labelled))
        item_sets, similarity = label_sets(data.labels)
        codes = np.where(factorise(item_sets, similarity, self.bits, self.passes, rng) >= 0, 1, -1).astype(np.int8)
        self.agreement_ = sign_agreement(codes, item_sets, similarity, rng)
        self.scratch.targets = torch.zeros(len(data.labels), self.bits, dtype=torch.int8)
        self.scratch.targets[labelled] = torch.from_numpy(codes)

    def losses(self, batch: Batch) -> Terms:
        """Return the squared error of the outputs and, for CNNH+, the cross-entropy of the classes."""
        net, n = self._net, batch.n_labelled
        terms = {"codes": functional.mse_loss(net(batch.x[:n]), self._targets(batch))}
        if net.classify is not None:
            labels = batch.labels[:n]
            labels = labels if labels.ndim == 1 else labels / labels.sum(dim=1, keepdim=True)
            classes = functional.cross_entropy(net.classify(net.trunk(batch.x[:n])), labels)
            terms["classes"] = self.class_weight * classes
        return terms

    def _targets(self, batch: Batch) -> Tensor:
        targets: Tensor = self.scratch.targets[batch.rows[: batch.n_labelled].cpu()]
        return targets.to(batch.x)

    @torch.no_grad()
    def diagnostics(self, batch: Batch, data: Batches) -> dict[str, Any]:
        """Return the share of bits that f gets right."""
        signs = self._net(self.mapped(batch).x[: batch.n_labelled]) >= 0
        return {"bits_right": float((signs == (self._targets(batch) > 0)).float().mean())}

    @property
    def panels(self) -> tuple[Panel, ...]:
        """The share of bits that f gets right."""
        return (Panel("bits of the last batch", ("bits_right",), is_share=True),)

    def facts(self) -> dict[str, Any]:
        """Return how well the codes of stage 1 reconstruct the similarity, if it was run here."""
        return {"sign_agreement": self.agreement_} if hasattr(self, "agreement_") else {}

    def report(self) -> list[str]:
        """Describe both stages."""
        if not hasattr(self, "agreement_"):
            return []
        return [
            f"stage 1: the codes have the right sign of similarity in {self.agreement_:.1%} of the labelled pairs",
            f"stage 2: {self.log_[-1]['bits_right']:.1%} of their bits are learned",
        ]

    @property
    def _net(self) -> Network:
        assert isinstance(self.network_, Network)
        return self.network_


def label_sets(labels: Labels) -> tuple[np.ndarray, np.ndarray]:
    """Return which set of labels each labelled item has (n,), and the similarity (U, U) of the U distinct sets.

    S of items i and j is similarity[sets[i], sets[j]]: with one label per item U is the number of classes, with
    several it is as large as their combinations. 1 if two sets share a label, otherwise -1, as int8.
    """
    values = labels.values[labels.is_labelled]
    if not labels.is_multi:
        return values, (2 * np.eye(len(labels.classes)) - 1).astype(np.int8)
    distinct, item_sets = np.unique(values, axis=0, return_inverse=True)
    return item_sets, np.where(distinct @ distinct.T > 0, 1, -1).astype(np.int8)


def factorise(
    item_sets: np.ndarray, similarity: np.ndarray, bits: int, passes: int, rng: np.random.Generator
) -> np.ndarray:
    """Return H (n, q) in [-1, 1] with a small ||q S - H H^T||^2, by Newton steps on one entry after the other.

    With L = H H^T - q S and h column j of H, entry (i, j) takes the step d = -g' / g'', clipped to stay in [-1, 1]:

        g' = 4 L_i h        g'' = 4 (h^T h + h_i^2 + L_ii)

    L is never built: L_i h = H_i (H^T h) - q S_i h. `products` = H^T h (q,) and `pulls` = S_i h, which items with equal
    labels share (U,), are updated with every step. The order is ours: bit after bit, over all items at random.
    If g'' is not positive, as with less than two items per bit, the step goes downhill to the bound; ours.
    item_sets (n,) and similarity (U, U) are those of `label_sets`. Takes O(n q (q + U)) time per pass.
    """
    n, q, sets = len(item_sets), bits, item_sets.tolist()
    H = rng.uniform(-1, 1, (n, q))
    for _ in range(passes):
        has_moved = False
        for j in range(q):
            h = H[:, j]
            products, pulls = h @ H, similarity @ np.bincount(item_sets, h, len(similarity))
            values, diagonal = h.tolist(), ((H**2).sum(axis=1) - q).tolist()  # L_ii, before the step
            for i in rng.permutation(n).tolist():
                value, row = values[i], H[i]
                slope = products.dot(row) - q * pulls[sets[i]]
                bend = products[j] + value * value + diagonal[i]
                step = -slope / bend if bend > 0 else -math.copysign(2, slope)
                moved = min(max(value + float(step), -1.0), 1.0)
                if moved == value:
                    continue
                has_moved = True
                d = moved - value
                products += d * row
                products[j] += d * moved
                pulls += d * similarity[sets[i]]
                row[j] = moved
        if not has_moved:
            break
    return H


def sign_agreement(codes: np.ndarray, item_sets: np.ndarray, similarity: np.ndarray, rng: np.random.Generator) -> float:
    """Return the share of pairs of items, in a sample, whose codes have a product with the sign of S."""
    some = rng.permutation(len(codes))[:MAX_COMPARED]
    found = codes[some].astype(np.float32) @ codes[some].T.astype(np.float32)
    return float((np.sign(found) == similarity[np.ix_(item_sets[some], item_sets[some])]).mean())
