"""A classifier of the labelled images as a first stage."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn
from torch.nn import functional

from combemb.data.labels import Labels, require_labelled
from combemb.learning.batches import Batch
from combemb.learning.loop import Terms
from combemb.learning.pretraining.training import BackboneTraining
from combemb.learning.settings import setting
from combemb.system.errors import require


@dataclass(kw_only=True, eq=False, repr=False)
class Supervised(BackboneTraining):
    """Cross-entropy of a linear classifier on the labelled images, as DTC and RankStats start (Han et al. 2019, 2020).

    L = -log softmax(W f(x))[y]. The classifier is thrown away. It trains the whole backbone by AdamW; the release of
    RankStats trains the last stage and the classifier by SGD.
    """

    paper: ClassVar[str] = "Learning to Discover Novel Visual Categories via Deep Transfer Clustering, ICCV 2019"
    stage: ClassVar[str] = "supervised"
    uses_labels: ClassVar[bool] = True
    uses_unlabelled: ClassVar[bool] = False

    epochs: int | None = setting(100, "passes over the labelled images; RankStats' release", above=0)
    batch_size: int = setting(128, "items per step, over all processes; RankStats' release", above=0)
    clip_norm: float = setting(10.0, "largest norm of the gradient; ours", above=0)

    def check_labels(self, labels: Labels) -> None:
        """Require one label per item, of at least two classes."""
        require(not labels.is_multi, "a supervised first stage takes one label per item, but these may have several")
        require_labelled(labels)

    def network(self, n_features: int, n_seen: int, n_novel: int) -> nn.Module:
        """Return the classifier."""
        return nn.Linear(n_features, n_seen)

    def losses(self, batch: Batch) -> Terms:
        """Return the cross-entropy of one view."""
        return {"classes": functional.cross_entropy(self.network_(batch.x), batch.labels)}
