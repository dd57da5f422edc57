"""Features in which neighbours are sought: weighed by what the labels say matters, then averaged among near items."""

import torch
from torch import Tensor

from combemb.system.arrays import unit


def smoothed(x: Tensor, landmarks: Tensor, n_neighbours: int, n_rows: int = 2_048) -> Tensor:
    """Each row replaced by the mean of the landmarks nearest to it by cosine; all of unit length, (N, d) -> (N, d).

    The mean of near items is a better witness of a kind than one item, as query expansion knows.
    """
    landmarks = unit(landmarks)
    k = min(n_neighbours, len(landmarks))
    means = []
    for rows in unit(x).split(n_rows):
        nearest = (rows @ landmarks.T).topk(k, dim=1, sorted=False).indices  # (n, k)
        means.append(unit(landmarks[nearest].mean(dim=1)))
    return torch.cat(means)
