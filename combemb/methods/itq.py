"""ITQ, an unsupervised binary code and the baseline of all other methods."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from combemb.backbones.feature_map import moments
from combemb.data.given import Loaded
from combemb.data.items import chunks
from combemb.learning.codes import CodeMethod
from combemb.learning.run_folder import RunFolder
from combemb.learning.settings import setting
from combemb.search.codebook import ProductCodebook, binary_codebook
from combemb.system.arrays import unit_rows


@dataclass(kw_only=True, eq=False, repr=False)
class ITQ(CodeMethod):
    """Iterative quantisation (Gong et al. 2012): centre, project to `bits` principal components, rotate.

    Minimises ||B - V R||^2 over signs B and rotations R, V the projected data: B = sign(V R), then the Procrustes step
    R = W U^T from the singular value decomposition B^T V = U S W^T. Labels are not used.
    """

    paper: ClassVar[str] = "Iterative Quantization: A Procrustean Approach to Learning Binary Codes, TPAMI 2013"
    departs: ClassVar[str] = "items are scaled to unit length first"

    n_views: int = setting(1, "views per image stored as features; this method uses only the clean image", above=0)
    bits: int = setting(48, "length of a code, at most the number of features", at_least=1)
    unit_length: bool = setting(True, "whether items are scaled to unit length; ours, better on all tuning splits")
    iterations: int = setting(50, "alternations of signs and rotation; the paper's", at_least=0)
    asymmetric: bool = setting(
        False, "whether z of a query scores the codes, instead of its signs (Hamming distance), which is the paper's"
    )

    def check_features(self, n_items: int, n_features: int) -> None:
        """Require at least as many features and items as bits."""
        N, F = n_items, n_features
        if self.bits > min(F, N):
            raise ValueError(f"bits={self.bits} does not fit {N} items with {F} features; use 1 to {min(F, N)} bits")

    def _fit(self, data: Loaded, run: RunFolder | None, progress: bool | None) -> None:
        self.mean_, covariance = moments(map(self._scaled, chunks(data.items, "projecting", progress)))
        _, vectors = torch.linalg.eigh(covariance)
        components = vectors[:, -self.bits :].flip(1)  # (F, bits), by decreasing variance
        centred = (self._scaled(chunk) - self.mean_ for chunk in chunks(data.items))
        projected = torch.cat([(chunk @ components).float() for chunk in centred])  # (N, bits)
        generator = torch.Generator().manual_seed(int(self.seed))
        rotation = torch.linalg.qr(torch.randn(self.bits, self.bits, generator=generator)).Q
        for _ in range(self.iterations):
            signs = torch.where(projected @ rotation >= 0, 1.0, -1.0)
            U, _, Wt = torch.linalg.svd(signs.T @ projected)
            rotation = Wt.T @ U.T
        self.mean_ = self.mean_.float()
        self.rotation_ = components.float() @ rotation  # (F, bits)

    def _scaled(self, x: Tensor) -> Tensor:
        return unit_rows(x) if self.unit_length else x

    def _embed(self, x: Tensor) -> Tensor:
        projection: Tensor = (self._scaled(x) - self.mean_) @ self.rotation_
        return projection

    @property
    def codebook(self) -> ProductCodebook:
        """One bit per set: the words are -1 and +1."""
        return binary_codebook(self.bits, asymmetric=self.asymmetric)

    @property
    def n_inputs(self) -> int:
        """Number of features F of the data that the method was fitted on."""
        return len(self.mean_)

    def state(self) -> dict[str, Tensor]:
        """Return the mean, and projection and rotation as one matrix."""
        return {"mean": self.mean_, "rotation": self.rotation_}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Set the fitted state from what `state` returned."""
        self.mean_, self.rotation_ = state["mean"], state["rotation"]
