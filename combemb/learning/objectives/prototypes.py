"""The combinatorial embedding of Eq. 3: every sub-vector as a soft mixture of its set's prototypes."""

import torch
from torch import Tensor


def prototype_matrix(prototypes: Tensor) -> Tensor:
    """Put all sets into one matrix, zero where sub-vector and prototype are of different sets: (M, K, d) -> (M*d, K*M).

    One product with it is several times faster than M small ones.
    """
    M, K, d = prototypes.shape
    own = torch.eye(M, dtype=prototypes.dtype, device=prototypes.device)
    matrix = prototypes.transpose(1, 2)[..., None] * own[:, None, None, :]  # (M, d, K, M)
    return matrix.reshape(M * d, K * M)


def similarities(z: Tensor, matrix: Tensor, n_sets: int) -> Tensor:
    """Return z^m . theta^m_k of Eq. 3 and 4, which are cosines if both are of unit length.

    z (B, M*d); matrix from `prototype_matrix`. Returns (B, K, M), in which a softmax over K is fast.
    """
    return (z @ matrix).view(len(z), -1, n_sets)


def soft_assignment(cosines: Tensor, matrix: Tensor, sharpness: float) -> Tensor:
    """Return pi(z) of Eq. 3: prototypes weighted by softmax_k(lambda * z^m . theta^m_k), the sets concatenated.

    cosines (B, K, M) from `similarities`; matrix from `prototype_matrix`. Returns (B, M*d), not normalised.
    """
    return torch.softmax(sharpness * cosines, dim=1).flatten(1) @ matrix.T
