"""Words of product quantisers: k-means in every sub-space."""

import torch
from torch import Tensor

from combemb.discovery.kmeans import TooManyClusters, kmeans


def fit_words(
    x: Tensor, n_words: int, *, seed: int = 0, start: Tensor | None = None, n_iterations: int = 100
) -> tuple[Tensor, Tensor]:
    """Fit the words of M sets by k-means.

    Parameters
    ----------
    x : Tensor (N, M, d)
        Sub-vectors of all items.
    n_words : int
        Words K of each set. Where fewer sub-vectors are distinct, the first word is repeated.
    seed : int
        Draws first words by k-means++.
    start : Tensor (M, K, d), optional
        First words, instead of those.
    n_iterations : int
        Iterations of k-means. Each assigns items to the nearest words, then makes words the means of their items.

    Returns
    -------
    words : Tensor (M, K, d) float32
    codes : Tensor (N, M) int64
        The words that items are assigned to by the last iteration.
    """
    words, codes = [], []
    for m in range(x.shape[1]):
        part = x[:, m].contiguous()
        try:
            first = None if start is None else start[m]
            found = kmeans(part, n_words, start=first, seed=seed, n_iterations=n_iterations, progress=False)
        except TooManyClusters as error:
            found = kmeans(part, error.n_distinct, seed=seed, n_iterations=n_iterations, progress=False)
        centres = torch.from_numpy(found.centres)
        words.append(torch.cat([centres, centres[:1].expand(n_words - len(centres), -1)]))
        codes.append(torch.from_numpy(found.assignment))
    return torch.stack(words), torch.stack(codes, dim=1)
