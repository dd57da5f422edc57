"""Features in which neighbours are searched: each item is replaced by the mean of near items."""

import torch
from torch import Tensor

from combemb.system.arrays import unit


def smoothed(x: Tensor, landmarks: Tensor, n_neighbours: int, n_rows: int = 2_048) -> Tensor:
    """Replace each row by the mean of its nearest landmarks by cosine, scaled to unit length: (N, d) -> (N, d).

    The mean of near items represents a class better than one item, as in query expansion.
    """
    landmarks = unit(landmarks)
    k = min(n_neighbours, len(landmarks))
    means = []
    for rows in unit(x).split(n_rows):
        nearest = (rows @ landmarks.T).topk(k, dim=1, sorted=False).indices  # (n, k)
        means.append(unit(landmarks[nearest].mean(dim=1)))
    return torch.cat(means)
