"""The three terms of Eq. 8 as functions of tensors; each returns the mean over its items."""

from torch import Tensor
from torch.nn import functional


def meta_class_loss(cosines: Tensor, meta_labels: Tensor, temperature: float) -> Tensor:
    """Normalised softmax over each meta-class set, summed over the sets (Eq. 4).

    L = -sum_m log softmax_k(z^m . theta^m_k / tau)[y^m], with z^m and theta^m_k of unit length.
    cosines (B, K, M), the inner products; meta_labels (B, M) in [0, K), or (B, K, M) shares that sum to one over K for
    items with several labels.
    """
    return functional.cross_entropy(cosines / temperature, meta_labels, reduction="sum") / len(cosines)


def similarity_loss(z: Tensor, pi: Tensor, positives: Tensor, temperature: float) -> Tensor:
    """Contrast each anchor's positives with the whole batch (Eq. 6); the paper's form has temperature 1.

    L = -1/|P| sum_{+ in P} log(exp(z . pi_+ / T) / sum_j exp(z . pi_j / T)), mean over the anchors.
    z (A, D) anchors and pi (B, D), both of unit length; positives (A, B) bool, or weights. An anchor without positives
    adds 0. For sub-vectors of unit length side by side and T = 1 this is the N-pair-PQ loss of GPQ.
    """
    share = positives.to(z.dtype)
    share = share / share.sum(dim=1, keepdim=True).clamp_(min=1e-12)
    return functional.cross_entropy(z @ pi.T / temperature, share, reduction="sum") / len(z)


def consistency_loss(prediction: Tensor, pi: Tensor) -> Tensor:
    """Negative cosine between h(pi(z)) and pi(z') of another view, no gradient through the latter (Eq. 7).

    prediction (B, D) = h(pi(z)); pi (B, D) = pi(z').
    """
    return -functional.cosine_similarity(prediction, pi.detach(), dim=1).mean()
