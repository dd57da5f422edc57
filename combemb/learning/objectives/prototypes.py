"""The combinatorial embedding of Eq. 3, every sub-vector as a soft mixture of its set's prototypes; its network."""

import math

import torch
from torch import Tensor, nn

from combemb.system import processes
from combemb.system.arrays import unit


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


class CombinatorialNetwork(nn.Module):
    """A linear map to the M sub-vectors of z, the prototypes, h, and buffers for meta-classes and gamma."""

    meta_classes: Tensor
    threshold: Tensor

    def __init__(self, n_features: int, n_seen: int, words: tuple[int, int, int], hidden: int):
        super().__init__()
        self.n_sets, _, d = words  # M, K, d
        D = self.n_sets * d
        self.project = nn.Linear(n_features, D)
        nn.init.orthogonal_(self.project.weight)  # z starts with the cosines of the features
        nn.init.zeros_(self.project.bias)
        self.prototypes = nn.Parameter(unit(torch.randn(words)))
        # h of Eq. 7, in the shape of SimSiam's predictor.
        self.predictor = nn.Sequential(
            nn.Linear(D, hidden, bias=False), processes.BatchNorm(hidden), nn.ReLU(), nn.Linear(hidden, D)
        )
        self.register_buffer("meta_classes", torch.zeros(self.n_sets, n_seen, dtype=torch.int64))
        self.register_buffer("threshold", torch.ones(()))

    def sub_vectors(self, x: Tensor) -> Tensor:
        """Map x (B, F) to concatenated sub-vectors of unit length (B, D)."""
        return unit(self.project(x).unflatten(1, (self.n_sets, -1))).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, F) to z (B, D), rows of unit length."""
        return self.sub_vectors(x) / math.sqrt(self.n_sets)
