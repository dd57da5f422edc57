"""NCL: pairs by cosine, and a contrast in which the nearest items of a queue count as positives too."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional

from combemb.data.labels import same_class
from combemb.learning.batches import Batch, Batches
from combemb.learning.loop import Terms
from combemb.learning.objectives.head_network import HeadNetwork
from combemb.learning.objectives.pairs import ALL, similar
from combemb.learning.objectives.queues import Queue
from combemb.learning.pair_heads import PairHeads
from combemb.learning.settings import setting
from combemb.system import processes
from combemb.system.arrays import unit

LABELLED, UNLABELLED = "labelled_queue", "unlabelled_queue"
MIXTURES = (1 / 3, 2 / 3)  # share of the far item in a hard negative; the release's


def latest(queue: Queue, at_most: int) -> tuple[Tensor, Tensor]:
    """Return the rows (n, D) that were pushed last, oldest first, and their labels (n,)."""
    n = min(len(queue), at_most)
    places = (queue.n_pushed - n + torch.arange(n, device=queue.rows.device)) % len(queue.rows)
    return queue.rows[places], queue.labels[places]


def neighbour_targets(cosines: Tensor, k: int, own_share: float) -> Tensor:
    """Return what the contrast of unlabelled items aims at (n, 1 + m), each row summing to one.

    own_share for the other view of an item, the rest evenly over its k nearest of the queue; all for the other view if
    k = 0. cosines (n, m) with the queue.
    """
    k = min(k, cosines.shape[1])
    rest = torch.zeros_like(cosines)
    if k > 0:
        rest.scatter_(1, cosines.topk(k, dim=1).indices, (1 - own_share) / k)
    return torch.cat([1 - rest.sum(dim=1, keepdim=True), rest], dim=1)


def label_targets(labels: Tensor, queued: Tensor) -> Tensor:
    """Return what the contrast of labelled items aims at (n, 1 + m): evenly the other view and queued items of a class.

    labels (n,); queued (m,) labels in the queue.
    """
    positives = functional.pad(same_class(labels, queued).float(), (1, 0), value=1.0)
    return positives / positives.sum(dim=1, keepdim=True)


def neighbour_loss(
    z: Tensor, other: Tensor, queue: Tensor, targets: Tensor, *, temperature: float, hard: Tensor | None = None
) -> Tensor:
    """Return -mean_i sum_j t_ij log softmax_j(c_i / T), c_i = (z_i . z'_i, z_i . queue, hard negatives).

    z, other (n, D) and queue (m, D) of unit length; targets t (n, 1 + m); hard (n, h) cosines with negatives. Gradients
    pass through z, not through the other view.
    """
    hard = z.new_zeros(len(z), 0) if hard is None else hard
    own = (z * other.detach()).sum(dim=1, keepdim=True)
    logits = torch.cat([own, z @ queue.T, hard], dim=1) / temperature
    return functional.cross_entropy(logits, functional.pad(targets, (0, hard.shape[1])))


def hard_negatives(
    z: Tensor,
    queue: Tensor,
    labelled: Tensor,
    *,
    n_far: int,
    n_rounds: int,
    n_hard: int,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the n_hard largest cosines z_i . g (n, h) of items with mixtures g of other items (HNG).

    g = (a q + (1 - a) l) / |a q + (1 - a) l|, a = 1/3 and 2/3, for each of the n_far items q of the queue that are
    farthest from z_i and n_rounds random labelled items l. z (n, D), queue (m, D), labelled (m', D) of unit length.
    """
    if min(len(queue), len(labelled)) == 0:
        return z.new_zeros(len(z), 0)
    to_queue, to_labelled, between = z @ queue.T, z @ labelled.T, queue @ labelled.T
    far = to_queue.detach().topk(min(n_far, len(queue)), dim=1, largest=False).indices.repeat(1, n_rounds)
    n_all = (processes.world_size() * len(far), far.shape[1])
    mixed = processes.own_rows(torch.randint(len(labelled), n_all, generator=generator)).to(z.device)
    near_far, near_mixed, inner = to_queue.gather(1, far), to_labelled.gather(1, mixed), between[far, mixed]
    cosines = [
        (a * near_far + (1 - a) * near_mixed) / (a**2 + (1 - a) ** 2 + 2 * a * (1 - a) * inner).clamp(min=1e-12).sqrt()
        for a in MIXTURES
    ]  # of a mixture with an item, from those of its parts
    found = torch.cat(cosines, dim=1)
    return found.topk(min(n_hard, found.shape[1]), dim=1).values


@dataclass(kw_only=True, eq=False, repr=False)
class NCL(PairHeads):
    """Neighbourhood contrastive learning (Zhong et al. 2021): pairs by cosine, and contrasts with two queues.

    With z = f / |f|, f the features of the trunk, z' those of the other view, and two queues of z of earlier batches,
    L = CE + BCE + w(t) * MSE + neighbour_weight * N + label_weight * S:

    - CE, BCE, MSE and w(t) as in `PairHeads`; i and j are of one class if z_i . z_j >= positive_threshold;
    - N = -mean_i sum_j t_ij log softmax_j(c_i / temperature) over the unlabelled items, c_i = (z_i . z'_i, z_i . q_1,
      z_i . q_2, ...) with the m items q of the unlabelled queue. t_i is own_share for z'_i and 1 - own_share evenly for
      the k = m / (2 C) nearest q, C the number of all classes;
    - S = the same over the labelled items and their queue; t_i is even over z'_i and the queued items of its class;
    - with hard_negatives (HNG), the items of the queue farthest from z_i, mixed with labelled ones, are in c_i too.

    The queues get z of a batch after its losses; z' and the queues have no gradient. Departures, besides those of
    `PairHeads`: the release sets t_i to (1 - own_share) / k for the k largest of c_i and then to own_share for z'_i, so
    that it does not always sum to one; neighbours and hard negatives count from the first steps on, in the release from
    epochs 1 and 3 on. Unlabelled items may be of seen classes here, so that a hard negative may have the class of its
    item. With few items, only half as many of a queue are used.
    """

    paper: ClassVar[str] = "NCL: Neighborhood Contrastive Learning for Novel Class Discovery, CVPR 2021"
    departs: ClassVar[str] = f"targets of the contrast sum to one; {PairHeads.departs}; a lower positive_threshold"

    positive_threshold: float = setting(
        0.7,
        "least cosine of two items of one class; ours for a layer on frozen features, the release has 0.95",
        above=-1,
        at_most=1,
    )
    queue_length: int = setting(
        2000, "items in each queue; the paper's, but at most half of the items that could be in it", above=0
    )
    temperature: float = setting(0.05, "T of N and S; the paper's", above=0)
    own_share: float = setting(0.2, "share of the other view in the targets of N; the release's", above=0, at_most=1)
    neighbour_weight: float = setting(1.0, "weight of N; the release's", at_least=0)
    label_weight: float = setting(0.1, "weight of S; the release's", at_least=0)
    hard_negatives: bool = setting(False, "whether N has hard negatives; off, as the release advises for CIFAR-10")
    n_far: int = setting(50, "farthest items of the queue that are mixed; the release's for CIFAR-10", above=0)
    n_rounds: int = setting(5, "labelled items that each of them is mixed with; the release's", above=0)
    n_hard: int = setting(400, "hardest mixtures, which are the negatives of an item; the release's", above=0)

    @classmethod
    def as_published(cls, **settings: Any) -> Self:
        """Return the form of the release for CIFAR-10, for a GPU; see `PairHeads.as_published`.

        For CIFAR-100, the release has `n_far=400`.
        """
        return super().as_published(**{"positive_threshold": 0.95, **settings})

    def network(self, n_features: int, n_seen: int, n_novel: int) -> HeadNetwork:
        """Return the trunk, the two heads and the two queues."""
        net = super().network(n_features, n_seen, n_novel)
        for name in (LABELLED, UNLABELLED):
            net.add_module(name, Queue(int(self.queue_length), net.n_outputs))
        return net

    @property
    def queues(self) -> tuple[Queue, Queue]:
        """The queue of labelled items, and that of unlabelled ones."""
        labelled, unlabelled = self.heads_.get_submodule(LABELLED), self.heads_.get_submodule(UNLABELLED)
        assert isinstance(labelled, Queue)
        assert isinstance(unlabelled, Queue)
        return labelled, unlabelled

    def prepare(self, data: Batches) -> None:
        """Learn the labels, and limit the queues: in a longer one, an item would often find itself."""
        super().prepare(data)
        n_labelled = int(data.labels.is_labelled.sum())
        self.scratch.n_queued = [max(n // 2, 1) for n in (n_labelled, len(data.labels) - n_labelled)]

    def pairs(self, f: Tensor, rows: slice = ALL) -> Tensor:
        """Pair items with a large cosine."""
        return similar(unit(f), self.positive_threshold, rows)

    def terms(self, f: Tensor, other: Tensor, batch: Batch) -> Terms:
        """Return CE, BCE, MSE, N and S with their weights."""
        terms, n, z, other = super().terms(f, other, batch), batch.n_labelled, unit(f), unit(other)
        (labelled, classes), (queue, _) = map(latest, self.queues, self.scratch.n_queued)
        k = len(queue) // (2 * len(self.heads_.order))
        near = neighbour_targets((z[n:] @ queue.T).detach(), k, self.own_share)
        hard = None
        if self.hard_negatives:
            options = {"n_far": self.n_far, "n_rounds": self.n_rounds, "n_hard": self.n_hard}
            hard = hard_negatives(z[n:], queue, labelled, **options, generator=batch.generator)
        same = label_targets(batch.labels[:n], classes)
        neighbours = neighbour_loss(z[n:], other[n:], queue, near, temperature=self.temperature, hard=hard)
        of_class = neighbour_loss(z[:n], other[:n], labelled, same, temperature=self.temperature)
        self.queues[0].push(z[:n], batch.labels[:n])
        self.queues[1].push(z[n:])
        return terms | {"neighbours": self.neighbour_weight * neighbours, "of_class": self.label_weight * of_class}
