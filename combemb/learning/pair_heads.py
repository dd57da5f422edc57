"""Discovery by pairs: a head over all classes that learns which unlabelled items belong together."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from combemb.data.labels import same_class
from combemb.learning.batches import Batch, Batches
from combemb.learning.curves import Panel
from combemb.learning.deep import MIN_EPOCHS
from combemb.learning.head import HeadMethod
from combemb.learning.loop import Terms
from combemb.learning.objectives.head_network import HeadNetwork
from combemb.learning.objectives.pairs import ALL as EVERY
from combemb.learning.objectives.ramps import ramp_up
from combemb.learning.objectives.two_heads import ALL, SEEN, start_at_axes, two_head_terms
from combemb.learning.published import WithSGD
from combemb.learning.settings import setting
from combemb.system import processes

DEFAULT_STEPS = 1200


@dataclass(kw_only=True, eq=False, repr=False)
class PairHeads(WithSGD, HeadMethod):
    """Two heads on one trunk: over the seen classes, by labels, and over all classes, by pairs of unlabelled items.

    L = CE + BCE + w(t) * MSE, after a start on the labels (Han et al. 2020):

    - CE of the seen head on the labelled items of view 1;
    - BCE of "i and j are of one class", whose probability is p_i . p'_j, over all ordered pairs of unlabelled items,
      i = j included; p is the softmax of the head over all classes in view 1, p' in view 2. Which pairs are of one
      class, a method decides by `pairs`;
    - MSE of the softmax in both views, of both heads and for all items;
    - w(t) = consistency_weight * exp(-5 (1 - t / ramp_share)^2), t the share of the training that is done.

    The outputs of the head over all classes have no names while it learns; they are matched to classes at the end. In
    the release, that head has the novel classes alone and every unlabelled item is novel.

    On frozen features, the trunk is a layer with a ReLU that starts with the axes of the feature map and their
    opposites: f = (max(0, x_1), max(0, -x_1), max(0, x_2), ...). Along these axes, items differ most compared with
    items of one class, so that single features tell classes apart, as those of a trained backbone do.
    """

    paper_stages: ClassVar[tuple[str, ...]] = ("simclr", "supervised")
    departs: ClassVar[str] = "a head over all classes; clean views in pairs; AdamW, a cosine and fewer steps"
    trial_settings: ClassVar[dict[str, Any]] = {"pretraining_epochs": 1, "start_steps": 50, "learning_rate": 0.01}

    epochs: int | None = setting(None, "passes over the data; None: 1200 steps, but at least 10 passes; ours", above=0)
    batch_size: int = setting(128, "items per step, over all processes; the release's", above=0)
    learning_rate: float = setting(3e-3, "peak of the schedule (warm-up, then a cosine to zero); ours", above=0)
    consistency_weight: float = setting(
        5.0, "c, weight of the consistency of two views at its peak; the release's for CIFAR-10", at_least=0
    )
    ramp_share: float = setting(
        0.25, "T, share of the training in which that weight rises; the release's 50 of 200 epochs", above=0, at_most=1
    )

    clean_pairs: bool = setting(
        True,
        "whether pairs are found on the clean view, not on view 1, unless the whole backbone is trained; ours, because "
        "the release has weaker views",
    )

    @abstractmethod
    def pairs(self, f: Tensor, rows: slice = EVERY) -> Tensor:
        """Return which of these rows count as one class with which items (rows, n) bool, from features f (n, D)."""

    @classmethod
    def as_published(cls, **settings: Any) -> Self:
        """Return the form of the release for CIFAR-10, for a GPU; see `WithSGD.as_published`.

        For CIFAR-100, the release has `consistency_weight=50` and `ramp_share=0.75`.
        """
        published: dict[str, Any] = {"consistency_weight": 5.0, "ramp_share": 0.25, "clean_pairs": False}
        return super().as_published(**{**published, **settings})

    @property
    def wants_clean(self) -> bool:
        """Whether pairs are found on the clean view."""
        return self.clean_pairs

    def network(self, n_features: int, n_seen: int, n_novel: int) -> HeadNetwork:
        """Return the trunk and the two heads."""
        net = self.head_network(n_features, {SEEN: n_seen, ALL: n_seen + n_novel})
        start_at_axes(net.trunk)
        return net

    def n_epochs(self, steps_per_epoch: int) -> int:
        """Return the number of epochs; a head that learns from pairs takes longer than one that learns from labels."""
        return self.epochs or max(-(-DEFAULT_STEPS // steps_per_epoch), MIN_EPOCHS)

    def prepare(self, data: Batches) -> None:
        """Learn the labels."""
        self.learn_labels(data, SEEN)

    def losses(self, batch: Batch) -> Terms:
        """Return the terms of a batch."""
        return self.terms(self.heads_.trunk(batch.x), self.heads_.trunk(batch.other), batch)

    def terms(self, f: Tensor, other: Tensor, batch: Batch) -> Terms:
        """Return CE, BCE and MSE with their weights, from the features of both views (B, D)."""
        n = batch.n_labelled
        compared = self._compared(f, batch)[n:]
        similar = self.pairs(processes.gather(compared), processes.own(len(compared)))
        weight = self.consistency_weight * ramp_up(batch.fraction_done / self.ramp_share)
        return two_head_terms(self.heads_.heads, f, other, batch.labels[:n], similar=similar, weight=weight)

    def logits(self, features: Tensor) -> Tensor:
        """Return the scores of all classes, seen ones first."""
        scores: Tensor = self.heads_.heads[ALL](self.heads_.trunk(features))
        return scores[:, self.heads_.order]

    def on_end(self, data: Batches) -> None:
        """Match the outputs of the head over all classes to the seen ones."""
        self.match_outputs(data)

    @torch.no_grad()
    def diagnostics(self, batch: Batch, data: Batches) -> dict[str, Any]:
        """Return how many others an unlabelled item is paired with, and how good the rule is on labelled items."""
        mapped, n = self.mapped(batch), batch.n_labelled
        f = self._compared(self.heads_.trunk(mapped.x), mapped)
        n_positives = self.pairs(f[n:]).sum().item() - (len(f) - n)
        own = torch.eye(n, dtype=torch.bool, device=f.device)
        found, same = self.pairs(f[:n]) & ~own, same_class(batch.labels[:n], batch.labels[:n]) & ~own
        right = (found & same).sum().item()
        n_found, n_same = found.sum().item(), same.sum().item()
        return {
            "positives_per_anchor": n_positives / max(len(f) - n, 1),
            "pair_precision": right / n_found if n_found else float("nan"),
            "pair_recall": right / n_same if n_same else float("nan"),
        }

    def _compared(self, f: Tensor, batch: Batch) -> Tensor:
        """Return the features (B, D) that pairs are found on; they have no gradient."""
        if batch.clean is None:
            return f.detach()
        with torch.no_grad():
            clean: Tensor = self.heads_.trunk(batch.clean)
        return clean

    @property
    def panels(self) -> tuple[Panel, ...]:
        """The pair rule on labelled items, and the pairs of unlabelled ones."""
        return (
            Panel("pair rule on labelled pairs", ("pair_precision", "pair_recall"), is_share=True),
            Panel("other items an item is paired with", ("positives_per_anchor",)),
        )
