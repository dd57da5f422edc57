"""OPQ, an unsupervised product quantiser of rotated features."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from combemb.data.given import Loaded
from combemb.learning.linear import LinearCodes
from combemb.learning.objectives.rotations import balanced_components, nearest_rotation
from combemb.learning.objectives.words import fit_words
from combemb.learning.run_folder import RunFolder
from combemb.learning.settings import setting
from combemb.search.codebook import WORD_COUNTS, ProductCodebook
from combemb.system.errors import require
from combemb.system.progress import Display


@dataclass(kw_only=True, eq=False, repr=False)
class OPQ(LinearCodes):
    """Optimised product quantisation (Ge et al. 2013): rotate, then quantise M sub-vectors by K words each.

    Minimises ||X R - Y||^2 over rotations R, words and codes; a row of Y has the words of an item side by side. This is
    the non-parametric solution: k-means in each sub-space for given R, then the Procrustes step R = W U^T from the
    singular value decomposition Y^T X = U S W^T. It starts from the parametric solution, principal components that are
    allocated to the M sub-spaces so that the products of their variances are balanced. Queries stay real: a score is
    -||q R - y||^2, added from tables of the words. Labels are not used.

    X are at most `n_components` leading principal components, a multiple of M: ours, since M need not divide the number
    of features. Each alternation makes one iteration of k-means, from the words before it.
    """

    paper: ClassVar[str] = "Optimized Product Quantization for Approximate Nearest Neighbor Search, CVPR 2013"
    departs: ClassVar[str] = "on leading principal components, as many as a multiple of M"
    fitted: ClassVar[tuple[str, ...]] = ("mean", "rotation", "words")
    trial_settings: ClassVar[dict[str, Any]] = {"iterations": 3}

    bits: int = setting(48, "length of a code, M log2(K)", at_least=1)
    n_words: int = setting(
        16, "words K of each set; the paper has 256, ours are what fast scan reads", choices=WORD_COUNTS
    )
    n_components: int = setting(
        128, "most principal components to quantise, rounded down to a multiple of M; ours", at_least=1
    )
    iterations: int = setting(50, "alternations of words and rotation; ours, as in FAISS", at_least=0)

    def check_settings(self) -> None:
        """Require whole sets of words, at least one component for each."""
        super().check_settings()
        per_set = int(self.n_words).bit_length() - 1
        require(
            self.bits % per_set == 0,
            f"bits={self.bits} is no multiple of the {per_set} bits of a set with n_words={self.n_words}; "
            f"use {-(-self.bits // per_set) * per_set} bits or other n_words",
        )
        require(
            self.n_sets <= self.n_components,
            f"n_components={self.n_components} for {self.n_sets} sets of words; use at least {self.n_sets}",
        )

    @property
    def n_sets(self) -> int:
        """M, the number of sub-spaces."""
        return int(self.bits) // (int(self.n_words).bit_length() - 1)

    def check_features(self, n_items: int, n_features: int) -> None:
        """Require a feature for each set of words and an item for each word."""
        require(
            self.n_sets <= n_features,
            f"bits={self.bits} makes {self.n_sets} sets of words for {n_features} features; use fewer bits",
        )
        require(n_items >= self.n_words, f"n_words={self.n_words} for {n_items} items; use fewer words or more items")

    def _fit(self, data: Loaded, run: RunFolder | None, progress: bool | None) -> None:
        M, items = self.n_sets, self.scaled(data, "projecting", progress)
        mean, components = balanced_components(items, M, int(self.n_components))
        x = self.projected(data, mean, components)  # (N, D)
        words, codes = fit_words(x.unflatten(1, (M, -1)), int(self.n_words), seed=int(self.seed))
        with Display("rotating", int(self.iterations), "iterations", progress) as display:
            rotation, self.words_, self.losses_ = alternate(x, words, codes, int(self.iterations), display)
        self.mean_, self.rotation_ = mean.float(), components.float() @ rotation

    @property
    def codebook(self) -> ProductCodebook:
        """The words; scores are minus squared distances."""
        self._require_fitted()
        return ProductCodebook(self.words_, "l2")

    def facts(self) -> dict[str, Any]:
        """Return the mean squared error of the training items before and after the alternation."""
        return {"quantisation_loss": [round(self.losses_[i], 6) for i in (0, -1)]}


def alternate(
    x: Tensor, words: Tensor, codes: Tensor, iterations: int, display: Display | None = None
) -> tuple[Tensor, Tensor, list[float]]:
    """Improve rotation and words in turns, starting with the identity.

    Parameters
    ----------
    x : Tensor (N, D)
    words, codes : Tensor (M, K, d), (N, M)
        Words of x, and those that the items are assigned to.
    iterations : int
    display : Display, optional
        Shows the progress.

    Returns
    -------
    rotation : Tensor (D, D)
    words : Tensor (M, K, d)
        Words of x @ rotation.
    losses : list of float
        Mean of ||x R - y||^2, at the start and after each half-step: rotation, words, rotation, words, ...
    """
    M, K, d = words.shape
    rotation = torch.eye(M * d)

    def quantised() -> Tensor:
        return words[torch.arange(M), codes].flatten(1)  # y (N, D)

    def loss() -> float:
        return float((x @ rotation - quantised()).double().square().sum(dim=1).mean())

    losses = [loss()]
    for _ in range(iterations):
        rotation = nearest_rotation(x, quantised())
        losses.append(loss())
        words, codes = fit_words((x @ rotation).unflatten(1, (M, d)), K, start=words, n_iterations=1)
        losses.append(loss())
        if display:
            display.advance(1)
    return rotation, words, losses
