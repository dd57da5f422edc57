"""SimCLR, a first stage that needs no labels."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from combemb.data.items import Items
from combemb.data.labels import Labels
from combemb.learning.batches import Batch, Batches
from combemb.learning.loop import Terms
from combemb.learning.objectives.contrast import contrastive_loss, other_views
from combemb.learning.pretraining.training import BackboneTraining
from combemb.learning.settings import setting
from combemb.system import processes
from combemb.system.arrays import unit


@dataclass(kw_only=True, eq=False, repr=False)
class SimCLR(BackboneTraining):
    """A simple framework for contrastive learning (Chen et al. 2020), on all images.

    L = -log(exp(v_i . v_j / T) / sum_{k != i} exp(v_i . v_k / T)) for the two views i, j of an image among all views of
    a batch, v the output of a projector at unit length: the mean over all views. The projector is thrown away.
    """

    paper: ClassVar[str] = "A Simple Framework for Contrastive Learning of Visual Representations, ICML 2020"
    stage: ClassVar[str] = "simclr"
    uses_labels: ClassVar[bool] = False

    epochs: int | None = setting(
        200, "passes over the images; the usual recipe for small images has 500 to 1,000", above=0
    )
    learning_rate: float = setting(1e-3, "peak of the schedule, of AdamW; ours, the paper has LARS", above=0)
    weight_decay: float = setting(1e-6, "weight decay; the usual recipe's", at_least=0)
    clip_norm: float = setting(10.0, "largest norm of the gradient; ours", above=0)
    temperature: float = setting(0.5, "T; the usual recipe's for small images", above=0)
    projection: int = setting(128, "outputs of the projector; the paper's", above=0)
    crop_area: float = setting(0.2, "smallest part of an image in a view; ours, the paper has 0.08", above=0, at_most=1)

    def check_labels(self, labels: Labels) -> None:
        """Accept any labels: they are only used to check the features."""

    def network(self, n_features: int, n_seen: int, n_novel: int) -> nn.Module:
        """Return the projector: two layers, as wide as the features."""
        return nn.Sequential(
            nn.Linear(n_features, n_features), nn.ReLU(inplace=True), nn.Linear(n_features, self.projection)
        )

    def losses(self, batch: Batch) -> Terms:
        """Return the contrast of all views of the batch of all processes."""
        views = processes.gather(unit(self.network_(torch.cat([batch.x, batch.other]))))
        return {"contrast": contrastive_loss(views, self._positives(len(batch.x), views), self.temperature)}

    def _positives(self, n: int, views: Tensor) -> Tensor:
        """Return which views are those of one image: each process has n images, first views before second ones."""
        parts = [other_views(n)] * processes.world_size()
        positives: Tensor = torch.block_diag(*parts)
        return positives.to(views.device, torch.bool)

    def _batches(self, items: Items, labels: Labels) -> Batches:
        """Return batches that ignore the labels, which only the check uses."""
        self.scratch.labels = labels
        return super()._batches(items, labels.hidden(np.full(len(labels), True)))

    def _labels(self, data: Batches) -> Labels:
        labels: Labels = self.scratch.labels
        return labels
