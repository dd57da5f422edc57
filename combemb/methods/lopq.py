"""LOPQ, an unsupervised quantiser with rotations and words of its own in each cell of a multi-index."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from combemb.data.given import Loaded
from combemb.learning.linear import LinearCodes
from combemb.learning.objectives.rotations import balanced_components
from combemb.learning.objectives.words import fit_words
from combemb.learning.run_folder import RunFolder
from combemb.learning.settings import setting
from combemb.search.codebook import WORD_COUNTS
from combemb.search.local_codebook import LocalCodebook
from combemb.system.errors import require

ITEMS_PER_WORD = 8  # a cell with fewer items keeps the words that all cells of its half share


@dataclass(kw_only=True, eq=False, repr=False)
class LOPQ(LinearCodes):
    """Locally optimised product quantisation (Kalantidis and Avrithis 2014), on a multi-index of two halves.

    A half x of the projected vector belongs to the cell v with the nearest of V centres. It is quantised as
    q(x) = o_v + R_v (w_1, ..., w_m): o_v is the mean of the cell's items, R_v has the principal components of their
    residuals x - o_v, allocated to m sub-spaces so that the products of their variances are balanced, and w_i is the
    nearest of K words to sub-vector i of R_v^T (x - o_v). A code has the cell and the words of both halves:
    bits = 2 log2(V) + 2 m log2(K). Queries stay real: a score is -||q - q(x)||^2, added from tables of the words of
    each cell; all cells are searched. Labels are not used.

    Rotation and words belong to a cell, as in the paper, which quantises cells individually; its public release shares
    words between cells (`local_words=False`), which is less accurate. Words of a cell start from words of all cells of
    its half, and stay there in small cells. A cell with fewer items than dimensions is not rotated, as in the release.
    Cells count as bits, since a code is stored without inverted lists. The projection is to balanced principal
    components, a multiple of the sets of words.
    """

    paper: ClassVar[str] = "Locally Optimized Product Quantization for Approximate Nearest Neighbor Search, CVPR 2014"
    departs: ClassVar[str] = "coarse cells count as bits and all are searched; small cells share their words"
    fitted: ClassVar[tuple[str, ...]] = ("mean", "rotation", "centres", "origins", "rotations", "words")

    bits: int = setting(48, "length of a code, of cells and words of both halves", at_least=1)
    n_cells: int | None = setting(
        None,
        "cells V of each half; None is the most of 16, 8, 4, 2 that leave whole sets of words",
        choices=WORD_COUNTS,
    )
    n_words: int = setting(16, "words K of each set; ours, the paper has 256", choices=WORD_COUNTS)
    local_words: bool = setting(True, "whether each cell has words of its own, as in the paper, or shares them")
    n_components: int = setting(
        64, "most principal components to quantise, rounded down to a multiple of the sets; ours", at_least=2
    )

    def check_settings(self) -> None:
        """Require whole sets of words in both halves, and a component for each set."""
        super().check_settings()
        M = 2 * self.shape()[1]
        require(self.n_components >= M, f"n_components={self.n_components} for {M} sets of words; use at least {M}")

    def shape(self) -> tuple[int, int]:
        """Return V and m, the cells and the sets of words of each half."""
        bits_per_set, choices = int(self.n_words).bit_length() - 1, (self.n_cells,) if self.n_cells else (16, 8, 4, 2)
        for V in map(int, choices):
            left = int(self.bits) - 2 * (V.bit_length() - 1)
            if left > 0 and left % (2 * bits_per_set) == 0:
                return V, left // (2 * bits_per_set)
        raise ValueError(
            f"bits={self.bits} is not 2 log2(V) + 2 m log2({self.n_words}) with V = {' or '.join(map(str, choices))} "
            "cells and m sets of n_words; use 12, 24, 48 or 72 bits with n_cells=None and n_words=16"
        )

    def check_features(self, n_items: int, n_features: int) -> None:
        """Require a feature for each set of words, and an item for each word and each cell."""
        V, m = self.shape()
        most = max(int(self.n_words), V)
        require(
            2 * m <= n_features,
            f"bits={self.bits} makes {2 * m} sets of words for {n_features} features; use fewer bits",
        )
        require(n_items >= most, f"{n_items} items for {most} words or cells; use fewer of them or more items")

    def _fit(self, data: Loaded, run: RunFolder | None, progress: bool | None) -> None:
        items = self.scaled(data, "projecting", progress)
        mean, components = balanced_components(items, 2 * self.shape()[1], int(self.n_components))
        halves = self.projected(data, mean, components).unflatten(1, (2, -1))  # (N, 2, h)
        fitted = [self._fit_half(halves[:, half].contiguous()) for half in (0, 1)]
        self.centres_, self.origins_, self.rotations_, self.words_ = map(torch.stack, zip(*fitted, strict=True))
        self.mean_, self.rotation_ = mean.float(), components.float()

    def _fit_half(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return centres and origins (V, h), rotations (V, h, h) and words (V, m, K, d) of items x (N, h)."""
        (V, m), K, seed = self.shape(), int(self.n_words), int(self.seed)
        centres = fit_words(x[:, None], V, seed=seed)[0][0]
        cells = torch.cdist(x, centres, compute_mode="donot_use_mm_for_euclid_dist").argmin(dim=1)
        origins, rotations, turned = centres.clone(), [], torch.empty_like(x)
        for v in range(V):
            items = x[cells == v]
            if len(items):
                origins[v] = items.mean(dim=0)
            rotations.append(_local_rotation(items - origins[v], m))
            turned[cells == v] = (items - origins[v]) @ rotations[v]
        sub_vectors = turned.unflatten(1, (m, -1))
        shared, _ = fit_words(sub_vectors, K, seed=seed)
        words = shared.expand(V, -1, -1, -1).clone()
        for v in range(V):
            items = sub_vectors[cells == v]
            if self.local_words and len(items) >= ITEMS_PER_WORD * K:
                words[v], _ = fit_words(items, K, seed=seed, start=shared)
        return centres, origins, torch.stack(rotations), words

    @property
    def codebook(self) -> LocalCodebook:
        """Cells, local rotations and words; scores are minus squared distances."""
        self._require_fitted()
        return LocalCodebook(self.centres_, self.origins_, self.rotations_, self.words_)


def _local_rotation(residuals: Tensor, n_sets: int) -> Tensor:
    """Return the balanced principal components (h, h) of residuals (n, h); the identity if they are too few."""
    if len(residuals) < residuals.shape[1]:
        return torch.eye(residuals.shape[1])
    return balanced_components([residuals], n_sets, residuals.shape[1])[1].float()
