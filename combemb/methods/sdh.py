"""SDH, a supervised binary code in closed form steps, from labelled items only."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from combemb.data.given import Loaded
from combemb.data.items import chunks
from combemb.data.labels import Labels
from combemb.learning.codes import BinaryMethod
from combemb.learning.run_folder import RunFolder
from combemb.learning.settings import setting
from combemb.system.arrays import unit_rows
from combemb.system.errors import require

USUAL_WIDTH, MAX_RATIO = 0.4, 2.0  # the release's sigma, used if distances are at most so many times larger or smaller


@dataclass(kw_only=True, eq=False, repr=False)
class SDH(BinaryMethod):
    """Supervised discrete hashing (Shen et al. 2015): binary codes B from which the classes Y are linearly predicted.

    Minimises ||Y - B W||^2 + lambda ||W||^2 + nu (||B - F(X)||^2 + delta ||P||^2) over B in {-1, 1}, W and P, where
    F(x) = phi(x) P and phi(x) has exp(-|x - a|^2 / (2 sigma^2)) for each anchor a, and a constant 1. In turn,
    starting from random signs B:

        P = (phi^T phi + delta I)^-1 phi^T B        W = (B^T B + lambda I)^-1 B^T Y
        b_l = sign(q_l - B_-l W_-l w_l) for each bit l, until no bit changes, with Q = Y W^T + nu F(X)

    Rows are items here, columns in the paper: b_l and q_l are columns of B and Q, w_l a row of W, -l all other bits. A
    new item has the code sign(F(x)). Y is 0/1 and may have several ones in a row. Of the paper's losses for W, this is
    the squared one.
    """

    paper: ClassVar[str] = "Supervised Discrete Hashing, CVPR 2015"
    departs: ClassVar[str] = "the kernel width follows the data if 0.4 does not fit them"
    uses_unlabelled: ClassVar[bool] = False

    n_views: int = setting(1, "views per image stored as features; this method uses only the clean image", above=0)
    bits: int = setting(48, "length of a code", at_least=1)
    n_anchors: int = setting(
        1_000, "labelled items, drawn at random, that an item is compared with; the paper's, or all if fewer", above=0
    )
    kernel_width: float | None = setting(
        None,
        "sigma of the kernel; None: the release's 0.4 if it is at most 2 times larger or smaller than the root mean "
        "squared distance to the anchors, otherwise that distance; ours",
        above=0,
    )
    class_ridge: float = setting(1.0, "lambda, the ridge of W; the paper's", above=0)
    fit_weight: float = setting(1e-5, "nu, the weight of the distance between B and F(X); the paper's", at_least=0)
    kernel_ridge: float = setting(1e-2, "delta, the ridge of P; the release's", above=0)
    iterations: int = setting(5, "alternations of W, B and P; the paper's", at_least=1)
    sweeps: int = setting(10, "passes over the bits in each of them, unless no bit changes; the release's", at_least=1)
    unit_length: bool = setting(True, "whether items are scaled to unit length; ours")

    def _begin(self, data: Loaded, progress: bool | None) -> None:
        N = len(data.labels)
        rows = torch.randperm(N, generator=torch.Generator().manual_seed(int(self.seed)))[: self.n_anchors]
        self.anchors_ = self._scaled(data.items.take(rows.sort().values))  # (m, F)
        squares = [self._squared_distances(chunk).sum() for chunk in chunks(data.items)]
        distance = float(torch.stack(squares).sum() / (N * len(self.anchors_))) ** 0.5
        require(distance > 1e-5, "all items have the same features (at unit length); give features that differ")
        is_usual = distance / MAX_RATIO <= USUAL_WIDTH <= distance * MAX_RATIO
        self.width_ = torch.tensor(self.kernel_width or (USUAL_WIDTH if is_usual else distance), dtype=torch.float64)

    def _fit(self, data: Loaded, run: RunFolder | None, progress: bool | None) -> None:
        phi = torch.cat([self._kernel(chunk) for chunk in chunks(data.items, "comparing", progress)])  # (N, m + 1)
        for P, _, _ in self.steps(phi, class_table(data.labels)):
            self.projection_ = P

    def steps(self, phi: Tensor, Y: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield P, W and B after each step; none of them increases the objective.

        phi (N, m + 1) and Y (N, C), float64; P (m + 1, bits), W (bits, C), B (N, bits).
        """
        signs = torch.randint(2, (len(phi), self.bits), generator=torch.Generator().manual_seed(int(self.seed)))
        B = 2 * signs.double() - 1
        W, factor = phi.new_zeros(self.bits, Y.shape[1]), torch.linalg.cholesky(ridged(phi, self.kernel_ridge))
        yield (P := torch.cholesky_solve(phi.T @ B, factor)), W, B
        for _ in range(self.iterations):
            yield P, (W := torch.linalg.solve(ridged(B, self.class_ridge), B.T @ Y)), B
            yield P, W, (B := best_signs(B, Y @ W.T + self.fit_weight * (phi @ P), W, self.sweeps))
            yield (P := torch.cholesky_solve(phi.T @ B, factor)), W, B

    def _scaled(self, x: Tensor) -> Tensor:
        return (unit_rows(x) if self.unit_length else x).double()

    def _squared_distances(self, x: Tensor) -> Tensor:
        return torch.cdist(self._scaled(x), self.anchors_).square()

    def _kernel(self, x: Tensor) -> Tensor:
        near = torch.exp(-self._squared_distances(x) / (2 * self.width_.square()))
        return torch.cat([near, near.new_ones(len(x), 1)], dim=1)

    def _embed(self, x: Tensor) -> Tensor:
        return (self._kernel(x) @ self.projection_).float()

    @property
    def n_inputs(self) -> int:
        """Number of features F of the data that the method was fitted on."""
        return self.anchors_.shape[1]

    def state(self) -> dict[str, Tensor]:
        """Return the anchors, the width of the kernel and P."""
        return {"anchors": self.anchors_, "width": self.width_, "projection": self.projection_}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Set the fitted state from what `state` returned."""
        self.anchors_, self.width_, self.projection_ = state["anchors"], state["width"], state["projection"]


def class_table(labels: Labels) -> Tensor:
    """Return Y, the classes of labelled items as (n, C) of 0/1."""
    values = labels.values if labels.is_multi else labels.membership(np.arange(len(labels)))
    return torch.from_numpy(values).double()


def ridged(x: Tensor, ridge: float) -> Tensor:
    """Return x^T x + ridge I."""
    return x.T @ x + ridge * torch.eye(x.shape[1], dtype=x.dtype)


def best_signs(B: Tensor, Q: Tensor, W: Tensor, sweeps: int) -> Tensor:
    """Return codes (n, bits) with a smaller ||B W||^2 - 2 <B, Q>, by discrete cyclic coordinate descent.

    Each bit takes the better sign while the others are fixed: sign(q_l - B_-l W_-l w_l), with sign(0) = +1.
    B and Q (n, bits); W (bits, C).
    """
    B, products = B.clone(), W @ W.T
    for _ in range(sweeps):
        before = B.clone()
        for bit in range(B.shape[1]):
            others = B @ products[:, bit] - B[:, bit] * products[bit, bit]
            B[:, bit] = torch.where(Q[:, bit] >= others, 1.0, -1.0)
        if torch.equal(B, before):
            break
    return B
