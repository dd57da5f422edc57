"""DTC, discovery by clusters whose soft assignments are sharpened step by step."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from combemb.backbones.feature_map import moments
from combemb.backbones.whitening import eigh
from combemb.discovery.kmeans import kmeans
from combemb.learning.batches import Batch, Batches
from combemb.learning.curves import Panel
from combemb.learning.head import HeadMethod
from combemb.learning.loop import Terms
from combemb.learning.objectives.head_network import HeadNetwork
from combemb.learning.objectives.ramps import ramp_up
from combemb.learning.published import WithSGD
from combemb.learning.settings import setting
from combemb.system import processes

MAX_CLUSTERED = 20_000  # components and first centres come from at most so many unlabelled items
AVERAGED = ("te", "tep")  # variants with averages over the epochs
ROWS, MAX_DIFFERENCES = 4_096, 2**28  # at most so many items are assigned at a time, with so many elements of z - u


class ClusterNetwork(HeadNetwork):
    """A trunk, a classifier of the seen classes for the start, a linear layer z and the centres u of all classes."""

    def __init__(self, n_features: int, width: int | None, n_seen: int, n_classes: int):
        n_outputs = min(n_classes, width or n_features)  # there are no more principal components
        super().__init__(n_features, width, {"seen": n_seen, "clusters": n_outputs})
        self.centres = nn.Parameter(torch.zeros(n_classes, n_outputs))
        self.order = torch.arange(n_classes)

    def squared_distances(self, x: Tensor) -> Tensor:
        """Return ||z_i - u_k||^2 (B, K) of mapped features (B, F')."""
        z: Tensor = self.heads["clusters"](self.trunk(x))
        return (z[:, None] - self.centres).square().sum(dim=2)


def assignments(squared_distances: Tensor) -> Tensor:
    """Return q_ik = (1 + d_ik)^-1 / sum_l (1 + d_il)^-1 (n, K) of squared distances d (n, K)."""
    close = 1 / (1 + squared_distances)
    return close / close.sum(dim=1, keepdim=True)


def sharpened(q: Tensor) -> Tensor:
    """Return p_ik = (q_ik^2 / f_k) / sum_l (q_il^2 / f_l) with f_k = sum_i q_ik, over all items. q (N, K)."""
    squared = q.square() / q.sum(dim=0)
    return squared / squared.sum(dim=1, keepdim=True)


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """Return the mean of p_ik log(p_ik / q_ik) over items and classes, as in the release; p, q (n, K)."""
    return functional.kl_div(q.log(), p, reduction="sum") / p.numel()


@dataclass(kw_only=True, eq=False, repr=False)
class DTC(WithSGD, HeadMethod):
    """Deep transfer clustering (Han, Vedaldi & Zisserman 2019), with clusters for all classes, seen and novel.

    A classifier learns the labels (`start_steps`). Its features f of the unlabelled items are clustered: K principal
    components, then k-means with K centres, K the number of all classes. From then on, only unlabelled items count.
    With a linear layer z = W f + b (W, b: the components, at the start), centres u (K, K) and N unlabelled items,

    q_ik = (1 + ||z_i - u_k||^2)^-1, scaled to sum_k q_ik = 1
    p_ik = q_ik^2 / sum_i q_ik, scaled to sum_k p_ik = 1; the targets, held fixed between refreshes
    L = mean_ik p_ik log(p_ik / q_ik) + w(t) mean_ik (q_ik - q'_ik)^2

    Targets are those of the start for `fixed_share` of the training, with w = 0, then new ones are computed every
    `refresh_every` epochs. w(t) = consistency_weight * exp(-5 (1 - t / ramp_share)^2), t counted from there. Means over
    n K elements, as in the release, keep the meaning of that weight. The variants differ in q' and p:

    - baseline: w = 0;
    - pi: q' is that of a second view;
    - te: q'_i is an average Q_i <- a Q_i + (1 - a) q_i over the epochs (a = `ensemble_momentum`), divided by 1 - a^n;
    - tep: w = 0, and the targets are computed from Q.

    An item belongs to the nearest centre; centres are matched to seen classes by the labelled items in the end.

    The release initialises W at random, counts only novel classes and averages once per epoch; here Q_i changes
    whenever item i is drawn, about once per epoch. `embed` returns f at unit length.
    """

    paper: ClassVar[str] = "Learning to Discover Novel Visual Categories via Deep Transfer Clustering, ICCV 2019"
    departs: ClassVar[str] = (
        "clusters for all classes (the dagger version of the CombEmb paper); W starts as principal components; AdamW"
    )
    paper_stages: ClassVar[tuple[str, ...]] = ("simclr", "supervised")
    trial_settings: ClassVar[dict[str, Any]] = {"start_steps": 100, "width": 64, "pretraining_epochs": 1}

    variant: str = setting(
        "pi",
        "what is added to the divergence: see above; the paper has all four",
        choices=("baseline", "pi", "te", "tep"),
    )
    labelled_share: float = setting(
        0.05, "labelled part of a batch, which the losses do not use; small, for time", above=0, below=1
    )
    fixed_share: float = setting(
        0.1, "share of the training in which targets are those of the start; 10 of 110 epochs", at_least=0, below=1
    )
    refresh_every: int = setting(5, "epochs between new targets after that; the paper's", above=0)
    consistency_weight: float = setting(10.0, "largest w(t); the paper's", at_least=0)
    ramp_share: float = setting(0.05, "share of the training in which w(t) rises; 5 of 100 epochs", above=0, at_most=1)
    ensemble_momentum: float = setting(0.6, "a of the averages in te and tep; the paper's", at_least=0, below=1)
    cluster_starts: int = setting(20, "starts of the first k-means; the release's", above=0)

    @classmethod
    def as_published(cls, **settings: Any) -> Self:
        """Return the form of the release, for a GPU: all layers are trained, 110 epochs; see `WithSGD`."""
        decay = 1e-5 if settings.get("variant") in AVERAGED else 1e-4
        published = {"finetune": "all", "epochs": 110, "fixed_share": 10 / 110, "ramp_share": 5 / 110}
        return super().as_published(**{**published, "weight_decay": decay, **settings})

    def sgd_rate(self, t: float) -> float:
        """Return 1 while targets are fixed, then a half: SGD at 0.1 and at 0.05."""
        return 1.0 if t < self.fixed_share else 0.5

    def network(self, n_features: int, n_seen: int, n_novel: int) -> ClusterNetwork:
        """Return trunk, classifier, linear layer and centres."""
        return ClusterNetwork(n_features, self.trunk_width, n_seen, n_seen + n_novel)

    @property
    def _net(self) -> ClusterNetwork:
        assert isinstance(self.network_, ClusterNetwork)
        return self.network_

    def logits(self, features: Tensor) -> Tensor:
        """Return -||z - u_k||^2 of the centre that stands for each class."""
        return -self._net.squared_distances(features)[:, self._net.order]

    def prepare(self, data: Batches) -> None:
        """Learn the labels, then initialise linear layer, centres and targets by the unlabelled items."""
        net, hidden = self._net, np.flatnonzero(~data.labels.is_labelled)
        if self.trunk_width is not None:
            self.learn_labels(data, "seen")
        net.heads["seen"].requires_grad_(False)  # only the start uses it
        some = np.sort(np.random.default_rng(self.seed).permutation(hidden)[:MAX_CLUSTERED])
        self._cluster(self.clean_features(data.items, torch.from_numpy(some)))
        N, K = len(data.labels), len(net.centres)
        self.scratch.hidden = torch.from_numpy(hidden)
        self.kept["targets"] = torch.zeros(N, K)
        if self.variant in AVERAGED:
            self.kept["average"], self.kept["n_averaged"] = torch.zeros(N, K), torch.zeros(N, 1)
        self._refresh(data)

    @torch.no_grad()
    def _cluster(self, features: Tensor) -> None:
        """Initialise linear layer and centres from mapped features (n, F')."""
        net, layer = self._net, self._net.heads["clusters"]
        assert isinstance(layer, nn.Linear)
        f = net.trunk(features.to(net.order.device))
        mean, covariance = moments([f.cpu()])
        components = eigh(covariance)[1].flip(-1)[:, : net.centres.shape[1]]  # (D, K), of falling variance
        layer.weight.copy_(components.T)
        layer.bias.copy_(-mean @ components)
        options: dict[str, Any] = {"seed": int(self.seed), "n_starts": self.cluster_starts, "progress": False}
        net.centres.copy_(torch.from_numpy(kmeans(layer(f).cpu(), len(net.centres), **options).centres))

    @torch.no_grad()
    def _refresh(self, data: Batches) -> None:
        """Compute the targets from q of the clean views of all unlabelled items, or from its averages."""
        net, hidden = self._net, self.scratch.hidden
        parts = hidden.split(max(min(ROWS, MAX_DIFFERENCES // net.centres.numel()), 1))
        chunks = (self.clean_features(data.items, rows).to(net.order.device) for rows in parts)
        q = torch.cat([assignments(net.squared_distances(chunk)).cpu() for chunk in chunks])
        self.kept["targets"][hidden] = sharpened(self.averaged(hidden, q) if self.variant == "tep" else q)

    def averaged(self, rows: Tensor, q: Tensor) -> Tensor:
        """Return the averages Q (n, K) of items at these rows of the data; q for items that have none yet."""
        n = self.kept["n_averaged"][rows]
        corrected = self.kept["average"][rows] / (1 - self.ensemble_momentum**n).clamp(min=1e-6)
        return torch.where(n.to(q.device) > 0, corrected.to(q.device), q)

    def _average(self, rows: Tensor, q: Tensor) -> None:
        """Take q (n, K) of items at these rows into the averages, those of all processes."""
        q, rows = processes.gather(q).cpu(), processes.gather(rows.to(q.device)).cpu()
        a = self.ensemble_momentum
        self.kept["average"][rows] = a * self.kept["average"][rows] + (1 - a) * q
        self.kept["n_averaged"][rows] += 1

    def on_epoch(self, data: Batches, epoch: int) -> None:
        """Compute new targets, every few epochs after those in which they are fixed."""
        since = epoch - round(self.fixed_share * self.n_epochs(len(data)))
        if since >= 0 and since % self.refresh_every == 0:
            self._refresh(data)

    def on_end(self, data: Batches) -> None:
        """Match the centres to the seen classes."""
        self.match_outputs(data)

    def consistency(self, fraction_done: float) -> float:
        """Return w(t), 0 while targets are fixed."""
        t = fraction_done - self.fixed_share
        return self.consistency_weight * ramp_up(t / self.ramp_share) if t >= 0 else 0.0

    def losses(self, batch: Batch) -> Terms:
        """Return the divergence from the targets, and the consistency of the variant, of the unlabelled items."""
        rows, weight = batch.rows[batch.n_labelled :], self.consistency(batch.fraction_done)
        q, targets = self._assigned(batch.x, batch), self.kept["targets"][rows]
        terms = {"divergence": divergence(targets.to(q.device), q)}
        if self.variant == "pi":
            terms["consistency"] = weight * (q - self._assigned(batch.other, batch)).square().mean()
        if self.variant == "te":
            terms["consistency"] = weight * (q - self.averaged(rows, q.detach())).square().mean()
        if self.variant in AVERAGED:
            self._average(rows, q.detach())
        return terms

    def _assigned(self, x: Tensor, batch: Batch) -> Tensor:
        """Return q of the unlabelled items in one view of the batch."""
        return assignments(self._net.squared_distances(x[batch.n_labelled :]))

    @torch.no_grad()
    def diagnostics(self, batch: Batch, data: Batches) -> dict[str, Any]:
        """Return how sure assignments and targets are, and the share of items whose nearest centre both agree on."""
        q, p = self._assigned(self.mapped(batch).x, batch).cpu(), self.kept["targets"][batch.rows[batch.n_labelled :]]
        agree = q.argmax(dim=1) == p.argmax(dim=1)
        return {
            "sureness": float(q.amax(dim=1).mean()),
            "target_sureness": float(p.amax(dim=1).mean()),
            "as_targets": float(agree.float().mean()),
        }

    @property
    def panels(self) -> tuple[Panel, ...]:
        """Sureness and agreement."""
        return (Panel("assignments and targets", ("sureness", "target_sureness", "as_targets"), is_share=True),)
