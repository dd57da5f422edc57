"""NINH, a supervised binary code whose bits have features of their own, trained on triplets."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from combemb.data.labels import Labels, same_class
from combemb.learning.batches import Batch
from combemb.learning.codes import BinaryMethod
from combemb.learning.deep import DeepMethod
from combemb.learning.loop import Terms
from combemb.learning.objectives.triplets import require_triplets, squared_distances, triplet_hinge, triplets
from combemb.learning.settings import setting


def piecewise_threshold(s: Tensor, epsilon: float) -> Tensor:
    """Return g(s): 0 below 1/2 - epsilon, s inside the band, 1 above 1/2 + epsilon; only the band has a gradient."""
    return torch.where((s - 0.5).abs() <= epsilon, s, (s > 0.5).to(s.dtype))


class DivideAndEncode(nn.Module):
    """The end of the trunk, and the divide-and-encode module: each bit sees a slice of the trunk's output alone."""

    def __init__(self, n_features: int, bits: int, slice_size: int, epsilon: float):
        super().__init__()
        self.epsilon = epsilon
        self.trunk = nn.Sequential(nn.Linear(n_features, bits * slice_size), nn.ReLU())
        bound = 1 / math.sqrt(slice_size)  # torch's own for a linear layer of this width
        self.weight = nn.Parameter(torch.empty(bits, slice_size).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(bits).uniform_(-bound, bound))

    def bits(self, x: Tensor) -> Tensor:
        """Return F(x), the relaxed bits in [0, 1]: (B, n_features) -> (B, q)."""
        slices = self.trunk(x).unflatten(1, self.weight.shape)  # (B, q, 50)
        return piecewise_threshold(((slices * self.weight).sum(dim=2) + self.bias).sigmoid(), self.epsilon)

    def forward(self, x: Tensor) -> Tensor:
        """Return z = 2 F(x) - 1, whose signs are the code."""
        return 2 * self.bits(x) - 1


@dataclass(kw_only=True, eq=False, repr=False)
class NINH(DeepMethod, BinaryMethod):
    """Network-in-network hashing (Lai et al. 2015), also called DNNH: divide and encode, then rank triplets.

    L = mean over triplets (I, I+, I-) of max(0, margin + ||F(I) - F(I+)||^2 - ||F(I) - F(I-)||^2), with
    F_i = g(sigmoid(w_i . f_i + c_i)) for bit i, f_i the i-th slice of `slice_size` features of the trunk and g the
    piece-wise threshold with `epsilon`. The code is F > 1/2; z = 2 F - 1.

    The trunk is the backbone, then Linear and ReLU to the slices. With backbone="nin" and finetune="all" it is the
    paper's for small images, except that the mean over the positions precedes the last 1x1 convolution. One stream and
    triplets inside a batch, one per item, stand for three streams that share their weights. With several labels, I+
    shares one with I and I- none; the paper ranks by how many are shared. The common loop (AdamW, a cosine) replaces
    SGD.
    """

    paper: ClassVar[str] = "Simultaneous Feature Learning and Hash Coding with Deep Neural Networks, CVPR 2015"
    departs: ClassVar[str] = "triplets inside a batch; AdamW; with several labels, a positive shares any of them"
    uses_unlabelled: ClassVar[bool] = False
    needs_other_gradient: ClassVar[bool] = False  # only one view is used

    bits: int = setting(48, "q, length of a code", at_least=1)
    slice_size: int = setting(50, "features of the trunk for each bit; the paper's", at_least=1)
    epsilon: float = setting(
        0.5,
        "half the width of the band in which the threshold g passes a value on; the paper calls it small, without a "
        "number; 0.5 passes everything on, as the public configuration does",
        above=0,
        at_most=0.5,
    )
    margin: float = setting(1.0, "margin of the squared distances, one bit; the paper's", above=0)

    def check_labels(self, labels: Labels) -> None:
        """Require labels of two classes, and a triplet."""
        super().check_labels(labels)
        require_triplets(labels)

    def network(self, n_features: int, n_seen: int, n_novel: int) -> DivideAndEncode:
        """Return the layer to the slices, and divide-and-encode."""
        return DivideAndEncode(n_features, int(self.bits), int(self.slice_size), float(self.epsilon))

    def losses(self, batch: Batch) -> Terms:
        """Return the ranking loss of the triplets of the batch of all processes."""
        assert isinstance(self.network_, DivideAndEncode)
        relaxed, labels = batch.gather(self.network_.bits(batch.x)), batch.gather(batch.labels)
        anchors, positives, negatives = triplets(same_class(labels, labels), batch.generator)
        near = squared_distances(relaxed[anchors], relaxed[positives])
        far = squared_distances(relaxed[anchors], relaxed[negatives])
        return {"ranking": triplet_hinge(near, far, self.margin)}
