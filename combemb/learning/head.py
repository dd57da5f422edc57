"""Deep methods with a head over all classes, seen and novel."""

import warnings
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam

from combemb.data.labels import Labels
from combemb.discovery.class_number import counted_rows
from combemb.discovery.discovering import NOVEL, discover
from combemb.discovery.result import free_names
from combemb.learning.batches import Batches
from combemb.learning.deep import DeepMethod
from combemb.learning.objectives.head_network import HeadNetwork
from combemb.learning.pretraining import FirstStage
from combemb.learning.pretraining.simclr import SimCLR
from combemb.learning.pretraining.supervised import Supervised
from combemb.learning.pretraining.training import BackboneTraining, TrainedStage
from combemb.learning.settings import setting
from combemb.system.errors import Note, require
from combemb.system.machine import resolved

STAGES: dict[str, type[BackboneTraining]] = {"simclr": SimCLR, "supervised": Supervised}
START_BATCH, START_RATE = 256, 1e-3  # of the start on the labels
MAX_LABELLED = 20_000  # the start and the match of outputs to classes use at most so many labelled items


@dataclass(kw_only=True, eq=False, repr=False)
class HeadMethod(DeepMethod):
    """A deep method whose network has an output for every class, which `predict` uses.

    `n_novel_`, the number of novel classes, is determined before the network is built and stored in run.json. On frozen
    features, a layer of `width` outputs takes the place of the last stage of a backbone (`HeadNetwork`).
    """

    predicts_by: ClassVar[str] = "head"
    paper_stages: ClassVar[tuple[str, ...]] = ()  # first stages of a backbone that starts with random weights

    n_novel: int | None = setting(
        None, "novel classes that the head has outputs for; None: estimated on the features before training", at_least=0
    )
    width: int = setting(
        512,
        "outputs of the layer that stands for the last stage of a backbone on frozen features; as ResNet-18 has",
        above=0,
    )
    start_steps: int = setting(
        300, "steps in which a method that starts from a classifier learns the labels first; ours", at_least=0
    )
    pretraining: tuple[str, ...] | None = setting(
        None,
        "first stages of the backbone, in order: simclr, supervised, or none; None: those of the paper if the backbone "
        "has no weights",
        choices=("none", *STAGES),
    )
    pretraining_epochs: int | None = setting(None, "passes of each first stage; None: those of its recipe", above=0)

    @abstractmethod
    def logits(self, features: Tensor) -> Tensor:
        """Return scores of all classes, seen ones first: mapped features (n, F') -> (n, n_seen + n_novel_)."""

    def check_labels(self, labels: Labels) -> None:
        """Require one label per item, in addition to what every deep method requires."""
        require(not labels.is_multi, f"{type(self).__name__} takes one label per item, but these may have several")
        super().check_labels(labels)

    def first_stages(self) -> Sequence[FirstStage]:
        """Return the stages that are set, or those of the paper for a backbone without weights."""
        assert self.image_input_ is not None
        names = self.pretraining or (() if self.image_input_.is_pretrained else self.paper_stages)
        epochs: dict[str, Any] = {} if self.pretraining_epochs is None else {"epochs": self.pretraining_epochs}
        return [TrainedStage(STAGES[name](**epochs)) for name in names if name != "none"]

    def head_network(self, n_features: int, heads: dict[str, int], *, bias: bool = True) -> HeadNetwork:
        """Return a trunk with heads."""
        return HeadNetwork(n_features, self.trunk_width, heads, bias=bias)

    @property
    def trunk_width(self) -> int | None:
        """Outputs of the layer on frozen features; None if the backbone is trained, which needs no layer as a trunk."""
        return None if self._trains_backbone else self.width

    @property
    def uses_feature_map(self) -> bool:  # type: ignore[override]
        """Whether the network sees principal components; the features of a trained backbone are compared themselves."""
        return self.trunk_width is not None

    def learn_labels(self, data: Batches, head: str, branch: tuple[nn.Module, nn.ModuleDict] | None = None) -> None:
        """Train the trunk and a head over the seen classes on the labelled items, for methods that start from that.

        It is called in `prepare`; `branch` is another trunk with its heads. The part of a backbone that is trained has
        learned them in a first stage.
        """
        net, rows = self.heads_, self._labelled_rows(data)
        trunk, heads = branch or (net.trunk, net.heads)
        device, classes = net.order.device, torch.from_numpy(data.labels.values[rows])
        features = self.clean_features(data.items, torch.from_numpy(rows))
        optimiser = Adam([*trunk.parameters(), *heads[head].parameters()], lr=START_RATE)
        for _ in range(self.start_steps):
            some = torch.randint(len(rows), (START_BATCH,))
            scores = heads[head](trunk(features[some].to(device)))
            loss = functional.cross_entropy(scores, classes[some].to(device))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    @torch.no_grad()
    def match_outputs(self, data: Batches) -> None:
        """Find the output of the head over all classes that stands for each seen class; the others are novel ones.

        For heads that learn from pairs, whose outputs have no names; it is called in `on_end`. The matching maximises
        the number of labelled items in the output of their class.
        """
        net, rows = self.heads_, self._labelled_rows(data)
        net.order.copy_(torch.arange(len(net.order)))
        features = self.clean_features(data.items, torch.from_numpy(rows)).to(net.order.device)
        found = self.logits(features).argmax(dim=1).cpu().numpy()
        counts = np.zeros((data.labels.n_seen, len(net.order)), dtype=np.int64)
        np.add.at(counts, (data.labels.values[rows], found), 1)
        own = linear_sum_assignment(counts, maximize=True)[1]
        others = np.setdiff1d(np.arange(len(net.order)), own)
        net.order.copy_(torch.from_numpy(np.concatenate([own, others])))

    @property
    def heads_(self) -> HeadNetwork:
        """The network, of a method that built it by `head_network`."""
        assert isinstance(self.network_, HeadNetwork)
        return self.network_

    def _labelled_rows(self, data: Batches) -> np.ndarray:
        return data.labels.labelled_rows(MAX_LABELLED, np.random.default_rng(self.seed))

    def predict(
        self, x: Any, *, by: Literal["clusters", "head"] | None = None, progress: bool | None = None
    ) -> np.ndarray:
        """Return the class of each item, by default from the head; see `Method.predict`."""
        if by == "clusters":
            return super().predict(x, by=by, progress=progress)
        require(by in {None, "head"}, f"by={by!r}; choose 'head' or 'clusters'")
        places = []
        for chunk in self._chunks(x, progress):
            with torch.no_grad():
                places.append(self.logits(self.tower_.features(chunk.to(resolved(self.device)))).argmax(dim=1).cpu())
        seen = self.classes_.tolist()
        names = np.array([*seen, *islice(free_names(NOVEL, set(seen)), self.n_novel_), None], dtype=object)
        return np.asarray(names[torch.cat(places).numpy()])

    def report(self) -> list[str]:
        """Return a line with the number of classes of the head, and whether that of the novel ones was estimated."""
        n, how = self.n_novel_, "estimated" if self.n_novel is None else "given"
        return [f"head over {len(self.classes_)} seen and {n} novel class{'' if n == 1 else 'es'} ({how})"]

    def _count_novel(self, data: Batches, progress: bool | None) -> None:
        if self.n_novel is not None:
            self.n_novel_ = int(self.n_novel)
        elif not hasattr(self, "n_novel_"):  # a resumed run has it
            rows = counted_rows(data.labels.values, int(self.seed))
            x = self.clean_features(data.items, torch.from_numpy(rows)).numpy()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Note)  # what labels cannot support, `discover` says after the fit
                found = discover(x, data.labels.values[rows], seed=int(self.seed), progress=progress)
            self.n_novel_ = found.n_novel
