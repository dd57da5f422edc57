"""ITQ, an unsupervised binary code and the baseline of all other methods."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from combemb.data.given import Loaded
from combemb.learning.codes import BinaryMethod
from combemb.learning.linear import LinearCodes
from combemb.learning.objectives.rotations import nearest_rotation, principal_components
from combemb.learning.run_folder import RunFolder
from combemb.learning.settings import setting


@dataclass(kw_only=True, eq=False, repr=False)
class ITQ(LinearCodes, BinaryMethod):  # in this order, so that `n_views` is that of linear codes
    """Iterative quantisation (Gong et al. 2012): centre, project to `bits` principal components, rotate.

    Minimises ||B - V R||^2 over signs B and rotations R, V the projected data: B = sign(V R), then the Procrustes step
    R = W U^T from the singular value decomposition B^T V = U S W^T. Labels are not used.
    """

    paper: ClassVar[str] = "Iterative Quantization: A Procrustean Approach to Learning Binary Codes, TPAMI 2013"
    departs: ClassVar[str] = "items are scaled to unit length first"

    bits: int = setting(48, "length of a code, at most the number of features", at_least=1)
    iterations: int = setting(50, "alternations of signs and rotation; the paper's", at_least=0)

    def check_features(self, n_items: int, n_features: int) -> None:
        """Require at least as many features and items as bits."""
        N, F = n_items, n_features
        if self.bits > min(F, N):
            raise ValueError(f"bits={self.bits} does not fit {N} items with {F} features; use 1 to {min(F, N)} bits")

    def _fit(self, data: Loaded, run: RunFolder | None, progress: bool | None) -> None:
        mean, components, _ = principal_components(self.scaled(data, "projecting", progress))
        components = components[:, : self.bits]  # (F, bits)
        projected = self.projected(data, mean, components)  # (N, bits)
        generator = torch.Generator().manual_seed(int(self.seed))
        rotation = torch.linalg.qr(torch.randn(self.bits, self.bits, generator=generator)).Q
        for _ in range(self.iterations):
            signs = torch.where(projected @ rotation >= 0, 1.0, -1.0)
            rotation = nearest_rotation(projected, signs)
        self.mean_ = mean.float()
        self.rotation_ = components.float() @ rotation  # (F, bits)
