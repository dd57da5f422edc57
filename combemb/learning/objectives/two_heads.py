"""Two heads on one trunk, over the seen classes by labels and over all classes by pairs: their losses."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from combemb.learning.objectives.pair_losses import consistency, pairwise_bce
from combemb.system import processes

SEEN, ALL = "seen", "all"


def two_head_terms(
    heads: nn.ModuleDict, f: Tensor, other: Tensor, labels: Tensor, *, similar: Tensor | None, weight: float
) -> dict[str, Tensor]:
    """Return CE + BCE + w MSE of RankStats, as named terms.

    classes: cross-entropy of the seen head on the n labelled items, which are the first; pairs: `pairwise_bce` of the
    head over all classes in both views, on the others, with the second view of all processes; consistency: w times that
    of both heads, on all items.

    heads: SEEN and ALL; f, other (B, D) features of both views; labels (n,); similar (B - n, those of all processes)
    bool: the items of one class, None if they are not known yet; weight w.
    """
    n = len(labels)
    scores, p, q = heads[SEEN](f), heads[ALL](f).softmax(dim=1), heads[ALL](other).softmax(dim=1)
    views = consistency(scores.softmax(dim=1), heads[SEEN](other).softmax(dim=1)) + consistency(p, q)
    return {
        "classes": functional.cross_entropy(scores[:n], labels),
        "pairs": p.new_zeros(()) if similar is None else pairwise_bce(p[n:], processes.gather(q[n:]), similar),
        "consistency": weight * views,
    }


@torch.no_grad()
def start_at_axes(trunk: nn.Module) -> None:
    """Set the weights (D, F') of the layer of a trunk, if it has one, to e_1, -e_1, e_2, -e_2, ...

    Random directions of features have almost no ranks in common. Rows after the first 2 F' stay as they are.
    """
    for layer in trunk.modules():
        if isinstance(layer, nn.Linear):
            rows = torch.arange(min(layer.out_features, 2 * layer.in_features))
            layer.weight[rows] = 0.0
            layer.weight[rows, rows // 2] = 1.0 - 2.0 * (rows % 2)
