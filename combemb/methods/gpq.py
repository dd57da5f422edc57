"""GPQ, a product quantiser that learns from labelled and unlabelled items."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from combemb.data.labels import same_class
from combemb.learning.batches import Batch
from combemb.learning.codes import CodeMethod
from combemb.learning.deep import DeepMethod
from combemb.learning.loop import Terms
from combemb.learning.objectives.gradient_reversal import gradient_reversed
from combemb.learning.objectives.losses import similarity_loss
from combemb.learning.settings import setting
from combemb.search.codebook import ProductCodebook
from combemb.system import processes
from combemb.system.arrays import unit
from combemb.system.errors import require

BITS_PER_BOOK = 4  # 16 words, the release's


class Network(nn.Module):
    """A linear map to M sub-vectors x_m (F), the class prototypes c (C) and the parameters of the words (Z)."""

    def __init__(self, n_features: int, n_seen: int, n_books: int, sub_vector: int):
        super().__init__()
        D, K = n_books * sub_vector, 2**BITS_PER_BOOK
        self.shape = (n_books, sub_vector)
        self.project = nn.Linear(n_features, D)
        self.prototypes, self.word_parameters = (
            nn.Parameter(nn.init.xavier_uniform_(torch.empty(n, D))) for n in (n_seen, K)
        )

    def sub_vectors(self, x: Tensor) -> Tensor:
        """Map x (B, F) to sub-vectors of unit length (B, M, d)."""
        return unit(self.project(x).unflatten(1, self.shape))

    def unit_prototypes(self) -> Tensor:
        """Return the prototypes (C, M, d), normalised in each book."""
        return unit(self.prototypes.unflatten(1, self.shape))

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, F) to z (B, M*d), rows of unit length."""
        return self.sub_vectors(x).flatten(1) / math.sqrt(self.shape[0])


def soft_assigned(x: Tensor, words: Tensor, sharpness: float) -> Tensor:
    """Return x as the mean of the words, weighted by softmax_k(alpha x_m . w_mk), normalised in each book.

    x (B, M, d); words (K, M, d). Returns (B, M, d).
    """
    weights = torch.einsum("bmd,kmd->bmk", x, words).mul(sharpness).softmax(dim=2)
    return unit(torch.einsum("bmk,kmd->bmd", weights, words))


def class_logits(x: Tensor, prototypes: Tensor, scale: float) -> Tensor:
    """Return the mean over the books of beta x_m . beta c_m. x (B, M, d); prototypes (C, M, d). Returns (B, C)."""
    return scale**2 * (x.flatten(1) @ prototypes.flatten(1).T) / x.shape[1]


def negative_entropy(logits: Tensor) -> Tensor:
    """Return sum_c p_c log p_c with p = softmax(logits), the mean over the items. logits (B, C)."""
    log_p = logits.log_softmax(dim=1)
    return (log_p.exp() * log_p).sum(dim=1).mean()


@dataclass(kw_only=True, eq=False, repr=False)
class GPQ(DeepMethod, CodeMethod):
    """Generalised product quantisation (Jang & Cho, CVPR 2020): the words of a code are mixtures of class prototypes.

    L = L_NPQ + class_weight * L_cls + entropy_weight * L_SEM, with sub-vectors x_m = F(x)_m (`sub_vectors`) and
    prototypes c_m of unit length in each book m of M:

    - words (`words`): w_m = unit(sum_c softmax_c(alpha z_m . c_m) c_m), z their parameters, which are not normalised;
    - N-pair-PQ: cross-entropy between softmax_j(sum_m x_im . q_jm) and the items j that share a label with i, equally
      weighted; q_m = unit(sum_k softmax_k(alpha x_m . w_mk) w_mk). Labelled items only;
    - L_cls: cross-entropy of softmax_c(mean_m beta^2 x_m . c_m) on labelled items;
    - L_SEM: sum_c p_c log p_c of the same softmax on unlabelled items. F gets its gradient reversed: prototypes
      maximise the entropy, features minimise it.

    A code names the nearest word of each book, and the query's cosines with the words are added (asymmetric tables).

    Departures from the release: codes use the words of the losses, where it searches with z; its term .002 / 4 (|x|^2 +
    |q|^2) is left out, since vectors of constant length have no gradient there; similar items share a label, where it
    counts the shared labels; the loop is the common one, with AdamW, where it has Adam with beta_1 = 0.5 and 300
    epochs; F is linear on the features of a backbone, which `finetune` trains.
    """

    paper: ClassVar[str] = "Generalized Product Quantization Network for Semi-supervised Image Retrieval, CVPR 2020"
    departs: ClassVar[str] = "codes use the words of the losses, where the release searches with their parameters"
    needs_other_gradient: ClassVar[bool] = False  # every item has one view

    bits: int = setting(48, "length of a code, 4 for each of the M books", at_least=4)
    sub_vector: int = setting(12, "d, length of a sub-vector; the release's", above=0)
    sharpness: float = setting(20.0, "alpha of both soft assignments; the release's", above=0)
    class_scale: float = setting(
        4.0, "beta, length of sub-vectors and prototypes in the classes; the release's", above=0
    )
    class_weight: float = setting(0.1, "weight of L_cls, lambda_2 of the release; its value", at_least=0)
    entropy_weight: float = setting(0.1, "weight of L_SEM, lambda_1 of the release; its value", at_least=0)
    learning_rate: float = setting(2e-4, "peak of the schedule; the release's", above=0)

    def check_settings(self) -> None:
        """Require 4 bits for each book."""
        super().check_settings()
        lower = self.bits // BITS_PER_BOOK * BITS_PER_BOOK
        require(
            self.bits % BITS_PER_BOOK == 0,
            f"bits={self.bits} is not a multiple of {BITS_PER_BOOK}; use {lower} or {lower + BITS_PER_BOOK}",
        )

    def network(self, n_features: int, n_seen: int, n_novel: int) -> Network:
        """Return F, the prototypes and the parameters of the words."""
        return Network(n_features, n_seen, self.bits // BITS_PER_BOOK, self.sub_vector)

    def losses(self, batch: Batch) -> Terms:
        """Return the three terms; the pairs of L_NPQ are those of the batch of all processes."""
        labelled, unlabelled = self._net.sub_vectors(batch.x).tensor_split([batch.n_labelled])  # (B, M, d)
        labels = batch.labels[: batch.n_labelled]
        prototypes = self._net.unit_prototypes()
        quantised = soft_assigned(labelled, self.words(), self.sharpness)
        similar = same_class(labels, processes.gather(labels))
        targets = labels if labels.ndim == 1 else labels / labels.sum(dim=1, keepdim=True)
        logits = class_logits(labelled, prototypes, self.class_scale)
        open_logits = class_logits(gradient_reversed(unlabelled), prototypes, self.class_scale)
        return {
            "n_pair": similarity_loss(labelled.flatten(1), processes.gather(quantised.flatten(1)), similar, 1.0),
            "classes": self.class_weight * functional.cross_entropy(logits, targets),
            "entropy": self.entropy_weight * negative_entropy(open_logits),
        }

    def words(self) -> Tensor:
        """Return the words (K, M, d): their parameters, soft-assigned to the prototypes."""
        net = self._net
        return soft_assigned(net.word_parameters.unflatten(1, net.shape), net.unit_prototypes(), self.sharpness)

    @property
    def codebook(self) -> ProductCodebook:
        """One set of 16 words per book, scored by cosines."""
        self._require_fitted()
        with torch.no_grad():
            return ProductCodebook(self.words().transpose(0, 1).cpu())

    @property
    def _net(self) -> Network:
        assert isinstance(self.network_, Network)
        return self.network_
