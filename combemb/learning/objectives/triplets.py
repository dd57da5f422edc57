"""Triplets inside a batch: an anchor, an item that is similar to it and one that is not, and the hinge on them."""

import numpy as np
import torch
from torch import Tensor

from combemb.data.labels import Labels
from combemb.system.errors import require


def triplets(similar: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Draw one triplet for each item of a batch that has a similar item besides itself and a dissimilar one.

    Parameters
    ----------
    similar : Tensor (B, B), bool
        Which items are similar, such as `same_class(labels, labels)`; the diagonal does not matter.
    generator : torch.Generator, optional
        By default torch's global one, which the training loop seeds for each epoch.

    Returns
    -------
    anchors, positives, negatives : Tensor (T,)
        Positions in the batch; T may be 0.
    """
    other = ~torch.eye(len(similar), dtype=torch.bool, device=similar.device)
    positive, negative = similar & other, ~similar & other
    anchors = torch.nonzero(positive.any(dim=1) & negative.any(dim=1))[:, 0]
    return anchors, one_of_each(positive[anchors], generator), one_of_each(negative[anchors], generator)


def one_of_each(mask: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw the column (A,) of one true value in each row of a mask (A, B), all with equal chance.

    A row without any gets an arbitrary column.
    """
    luck = torch.rand(mask.shape, generator=generator)  # in [0, 1)
    return luck.to(mask.device).masked_fill(~mask, -1.0).argmax(dim=1)


def triplet_hinge(near: Tensor, far: Tensor, margin: float) -> Tensor:
    """Return the mean over triplets of max(0, margin + near - far), 0 if there are none.

    near and far (T,) are the (squared) distances of anchors to their positives and negatives.
    """
    return (margin + near - far).clamp(min=0).sum() / max(len(near), 1)


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """Return ||a_i - b_i||^2 for the rows of two tensors (n, D)."""
    return (a - b).square().sum(dim=1)


def require_triplets(labels: Labels) -> None:
    """Require a labelled item that shares a class with another one and shares none with a third.

    There is one if any two items share a class and any two share none: if one of the latter shares a class with some
    item, it is such an item itself; otherwise both of the former are.
    """
    member = labels.membership(labels.is_labelled) > 0  # (n, C)
    sets = np.unique(member, axis=0).astype(np.float32)  # far fewer than items
    require(
        bool((member.sum(axis=0) > 1).any() and (sets @ sets.T == 0).any()),
        f"no three of the {len(member)} labelled items form a triplet: two that share a class and one that shares none "
        "with the first; label at least two items of one class and one of another",
    )
