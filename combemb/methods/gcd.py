"""GCD, a contrastive representation that semi-supervised k-means divides into seen and novel classes."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from combemb.discovery.class_number import counted_rows
from combemb.discovery.kmeans import kmeans
from combemb.learning.batches import Batch, Batches
from combemb.learning.head import HeadMethod
from combemb.learning.loop import Terms
from combemb.learning.objectives.contrast import contrastive_loss, other_views, views_of_class
from combemb.learning.objectives.head_network import HeadNetwork
from combemb.learning.published import WithSGD
from combemb.learning.settings import setting
from combemb.system import processes
from combemb.system.arrays import unit


class Network(nn.Module):
    """The trunk, a projector on it for the losses, and the centres of the classes in the output of the trunk."""

    centres: Tensor  # (C, D)

    def __init__(self, body: HeadNetwork, hidden: int, projection: int, n_classes: int):
        super().__init__()
        self.trunk = body.trunk
        self.projector = nn.Sequential(
            *(nn.Linear(body.n_outputs, hidden), nn.GELU()),
            *(nn.Linear(hidden, hidden), nn.GELU()),
            nn.Linear(hidden, projection),
        )
        self.register_buffer("centres", torch.zeros(n_classes, body.n_outputs))

    def views(self, x: Tensor) -> Tensor:
        """Map x (B, F') to what the losses compare, (B, d) of unit length."""
        return unit(self.projector(self.trunk(x)))

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, F') to the output of the trunk, (B, D) of unit length."""
        return unit(self.trunk(x))


@dataclass(kw_only=True, eq=False, repr=False)
class GCD(WithSGD, HeadMethod):
    """Generalized category discovery (Vaze et al., CVPR 2022): two contrasts of views, then semi-supervised k-means.

    L = (1 - lambda) InfoNCE + lambda SupCon, lambda the `label_weight`, on v = unit(projector(f(x))), f the trunk:

    - InfoNCE = -log(exp(v_i . v_j / T) / sum_{k != i} exp(v_i . v_k / T)), i and j the two views of an item, k all
      views of the batch, T the `temperature`; the mean over the views of all items, labelled or not;
    - SupCon = -1/|P_i| sum_{j in P_i} log(exp(v_i . v_j / T') / sum_{k != i} exp(v_i . v_k / T')), P_i the other views
      of the class of i, k all views of labelled items, T' the `label_temperature`; the mean over these views.

    After the last epoch, k-means divides f(x) at unit length, which is the embedding, of all training items into the
    seen and `n_novel_` more classes; labelled items stay in their class. A logit is minus the squared distance to the
    centre of a class.
    """

    paper: ClassVar[str] = "Generalized Category Discovery, CVPR 2022"
    departs: ClassVar[str] = (
        "a smaller projector, the release has 2048 hidden and 65,536 outputs for a ViT; AdamW with a cosine instead of "
        "SGD; the last epoch instead of the one with the best accuracy on test images; on frozen features, a layer in "
        "the place of the last stage"
    )
    paper_stages: ClassVar[tuple[str, ...]] = ("simclr",)  # of the comparison in CombEmb's paper; GCD's own has a ViT
    trial_settings: ClassVar[dict[str, Any]] = {"pretraining_epochs": 1}

    label_weight: float = setting(0.35, "lambda, weight of SupCon; the paper's", at_least=0, at_most=1)
    temperature: float = setting(1.0, "T of InfoNCE; the release's", above=0)
    label_temperature: float = setting(0.07, "T' of SupCon; the release's", above=0)
    hidden: int = setting(
        256,
        "width of the two hidden layers of the projector; ours, as good as 512 on tune-1; the release has 2048",
        above=0,
    )
    projection: int = setting(
        128, "outputs of the projector; ours, the release has 65,536 after a bottleneck of 256", above=0
    )
    n_starts: int = setting(20, "starts of k-means; ours, the release has 100", above=0)
    n_iterations: int = setting(200, "largest number of iterations of a start; the release's", above=0)
    labelled_share: float = setting(0.5, "labelled part of a batch; the release's", above=0, below=1)
    batch_size: int = setting(512, "items per step, over all processes; ours, the release has 128", above=0)
    learning_rate: float = setting(
        1e-3,
        "peak of the schedule; ours, the release has SGD with 0.1, momentum 0.9 and a cosine to 1e-4 in 200 epochs",
        above=0,
    )
    weight_decay: float = setting(1e-4, "weight decay; ours, the release has 5e-5 with SGD", at_least=0)

    @classmethod
    def as_published(cls, **settings: Any) -> Self:
        """Return the form of the release, for a GPU; see `WithSGD.as_published`.

        The backbone is the ResNet-18 of the comparison in CombEmb's paper; the projector ends at the bottleneck of 256.
        """
        published: dict[str, Any] = {"weight_decay": 5e-5, "hidden": 2048, "projection": 256, "n_starts": 100}
        return super().as_published(**{**published, **settings})

    def sgd_rate(self, t: float) -> float:
        """Return a cosine from 1 to a thousandth."""
        return 1e-3 + (1 - 1e-3) * (1 + math.cos(math.pi * t)) / 2

    def network(self, n_features: int, n_seen: int, n_novel: int) -> Network:
        """Return the trunk, the projector and the centres."""
        return Network(self.head_network(n_features, {}), self.hidden, self.projection, n_seen + n_novel)

    def losses(self, batch: Batch) -> Terms:
        """Return both contrasts, of the views of all processes."""
        first, second = (self._net.views(x) for x in (batch.x, batch.other))
        n = batch.n_labelled
        every, labelled = (
            torch.cat([processes.gather(first[part]), processes.gather(second[part])])
            for part in (slice(None), slice(n))
        )
        same_item = other_views(len(every) // 2).to(every.device)
        same_class = views_of_class(processes.gather(batch.labels[:n]))
        return {
            "items": (1 - self.label_weight) * contrastive_loss(every, same_item, self.temperature),
            "labels": self.label_weight * contrastive_loss(labelled, same_class, self.label_temperature),
        }

    @torch.no_grad()
    def on_end(self, data: Batches) -> None:
        """Find the centres by k-means of all items; of very many, of those that are counted."""
        rows = counted_rows(data.labels.values, int(self.seed))
        parts = torch.from_numpy(rows).split(data.items.n_rows)
        device = self._net.centres.device
        x = torch.cat([self._net(self.clean_features(data.items, part).to(device)).cpu() for part in parts])
        found = kmeans(
            *(x, len(self._net.centres), data.labels.values[rows]),
            seed=int(self.seed),
            n_starts=self.n_starts,
            n_iterations=self.n_iterations,
            progress=False,
        )
        self._net.centres.copy_(torch.from_numpy(found.centres))

    def logits(self, features: Tensor) -> Tensor:
        """Return minus the squared distances of the embeddings to the centres."""
        return -torch.cdist(self._net(features), self._net.centres).square()

    @property
    def _net(self) -> Network:
        assert isinstance(self.network_, Network)
        return self.network_
