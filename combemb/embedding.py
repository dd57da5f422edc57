"""The combinatorial embedding of Eq. 3: every sub-vector as a soft mixture of its set's prototypes."""

import torch
from torch import Tensor
from torch.nn import functional


def unit(x: Tensor) -> Tensor:
    """Rows of length one along the last axis."""
    return functional.normalize(x, dim=-1)


def block_diagonal(prototypes: Tensor) -> Tensor:
    """(M, K, d) -> (M*d, M*K): one matrix product then serves all sets, several times faster than M tiny ones."""
    return torch.block_diag(*prototypes.transpose(1, 2))


def similarities(z: Tensor, prototypes: Tensor) -> Tensor:
    """Cosine of every sub-vector to every prototype of its set, the z^m . theta^m_k of Eq. 3 and 4.

    z (B, M, d) and prototypes (M, K, d) with unit sub-vectors. Returns (B, M, K).
    """
    M, K, _ = prototypes.shape
    return (z.flatten(1) @ block_diagonal(prototypes)).view(-1, M, K)


def soft_assignment(cosines: Tensor, prototypes: Tensor, sharpness: float) -> Tensor:
    """pi(z), Eq. 3: prototypes weighted by softmax_k(lambda * z^m . theta^m_k), side by side.

    cosines (B, M, K) from `similarities`; prototypes (M, K, d) of unit length. Returns (B, M*d), not normalised.
    """
    weights = torch.softmax(sharpness * cosines, dim=-1)  # (B, M, K)
    return weights.flatten(1) @ block_diagonal(prototypes).T
