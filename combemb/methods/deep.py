"""What the methods share that train a module with the one loop."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from combemb import processes
from combemb.backbones.feature_map import FeatureMap, fit_feature_map
from combemb.data.labels import Labels, require_partly_labelled
from combemb.data.partly_labelled import CHUNK, ArrayItems, Batch, PartlyLabelled
from combemb.machine import limited_threads, resolved, seeded
from combemb.methods.base import Method, require, setting
from combemb.progress import tracked
from combemb.runs import Run
from combemb.training import Terms, descend, train

DEFAULT_STEPS = 1_200


@dataclass(kw_only=True, eq=False, repr=False)
class DeepMethod(Method):
    """A method with a module, trained by the one loop: it brings `network`, `losses` and what else it needs."""

    epochs: int | None = setting(None, "passes over the data; None makes 1,200 steps, but at least 10 passes; ours")
    batch_size: int = setting(512, "items per step, over all processes")
    labelled_share: float = setting(0.5, "labelled part of a batch; half, as in GPQ's release")
    learning_rate: float = setting(1e-3, "peak of the schedule (warm-up, then a cosine to zero); ours")
    weight_decay: float = setting(1e-4, "of AdamW; the paper's")
    warmup_share: float = setting(0.05, "part of the steps in which the learning rate rises; ours")
    clip_norm: float = setting(1.0, "largest norm of the gradient; ours")
    max_features: int = setting(256, "principal components of the input that the head sees; ours")
    threads: int = setting(
        1, "of the CPU in training: small heads gain nothing from more, and lose much on a busy machine"
    )
    view_noise: float = setting(
        0.5, "noise of the two views when items have one view only, in units of a feature; ours"
    )
    view_dropout: float = setting(0.1, "share of features set to zero in such views; ours")

    def check(self, x: np.ndarray, labels: Labels) -> None:
        """The numbers that steer the loop must make sense."""
        super().check(x, labels)
        for name in ("batch_size", "learning_rate", "clip_norm", "max_features", "threads"):
            require(getattr(self, name) > 0, f"{name}={getattr(self, name)} must be above 0")
        require(self.epochs is None or self.epochs > 0, f"epochs={self.epochs} must be above 0, or None")
        require(0 < self.labelled_share < 1, f"labelled_share={self.labelled_share} must lie between 0 and 1")
        require(0 <= self.view_dropout < 1, f"view_dropout={self.view_dropout} must be at least 0 and below 1")
        for name in ("weight_decay", "view_noise"):
            require(getattr(self, name) >= 0, f"{name}={getattr(self, name)} must not be negative")
        require_partly_labelled(labels, min_classes=2)
        require(0 <= self.warmup_share < 1, f"warmup_share={self.warmup_share} must be at least 0 and below 1")

    @abstractmethod
    def network(self, n_features: int, n_classes: int) -> nn.Module:
        """The untrained module on mapped features (B, n_features); all state of the method lives in it."""

    @abstractmethod
    def losses(self, batch: Batch) -> Terms:
        """Named loss terms of a batch; the loop descends along their sum and logs them."""

    def prepare(self, data: PartlyLabelled) -> None:
        """Start values of the module that come from the data, before the first epoch."""

    def on_epoch(self, data: PartlyLabelled, epoch: int) -> None:
        """Work before each epoch; state that it makes belongs into buffers of the module."""

    def diagnostics(self, batch: Batch, data: PartlyLabelled) -> dict[str, Any]:
        """Numbers for the log, after each epoch."""
        return {}

    def n_epochs(self, steps_per_epoch: int) -> int:
        """How often to go through the data."""
        return self.epochs or max(-(-DEFAULT_STEPS // steps_per_epoch), 10)

    def diagnosis(self, x: Any) -> dict[str, Any]:
        """The last epoch's numbers beside the use of the codes."""
        return {**(self.log_[-1] if hasattr(self, "log_") else {}), **super().diagnosis(x)}

    def optimisers(self) -> list[Optimizer]:
        """One AdamW over everything; methods with several players override this and `step`."""
        return [AdamW(self.module_.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay, fused=True)]

    def step(self, batch: Batch, optimisers: list[Optimizer]) -> Terms:
        """One step down the sum of `losses`."""
        terms = self.losses(batch)
        descend(self.module_.parameters(), optimisers[0], terms, self.clip_norm)
        return terms

    def _begin(self, x: np.ndarray, labels: Labels, progress: bool | None) -> None:
        self._batches(ArrayItems(x), labels).require_enough()
        with limited_threads(self.threads):
            chunks = tracked(ArrayItems(x).chunks(), "reading features", -(-len(x) // CHUNK), progress)
            self.feature_map_ = fit_feature_map(chunks, self.max_features)
            self._data = self._batches(ArrayItems(x, self.feature_map_).in_memory(), labels)
            with seeded(self.seed):
                self.module_ = self.network(self.feature_map_.n_features, len(labels.classes))
            self.module_.to(resolved(self.device))
            self.prepare(self._data)

    def _fit(self, x: np.ndarray, labels: Labels, run: Run | None, progress: bool | None) -> None:
        data = self.__dict__.pop("_data")
        with limited_threads(self.threads):
            self.log_ = train(self, data, run, progress)

    def _batches(self, items: ArrayItems, labels: Labels) -> PartlyLabelled:
        return PartlyLabelled(
            items,
            labels,
            self.batch_size,
            self.labelled_share,
            int(self.seed),
            self.view_noise,
            self.view_dropout,
            processes.rank(),
            processes.world_size(),
        )

    def _embed(self, x: Tensor) -> Tensor:
        embedding: Tensor = self.module_(self.feature_map_(x).to(resolved(self.device)))
        return embedding

    @property
    def n_inputs(self) -> int:
        """F of the data that the method was fitted on."""
        return len(self.feature_map_.mean)

    def state(self) -> dict[str, Tensor]:
        """The feature map and the module."""
        parts = {"feature_map": self.feature_map_, "module": self.module_}
        return {f"{part}.{name}": t for part, module in parts.items() for name, t in module.state_dict().items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Build the module again and fill it."""
        self.feature_map_ = FeatureMap(*state["feature_map.components"].shape)
        with seeded(self.seed):
            self.module_ = self.network(self.feature_map_.n_features, len(self.classes_)).to(resolved(self.device))
        for part, module in (("feature_map.", self.feature_map_), ("module.", self.module_)):
            module.load_state_dict({n.removeprefix(part): t for n, t in state.items() if n.startswith(part)})
            module.eval()
