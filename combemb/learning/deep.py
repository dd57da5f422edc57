"""What the methods share that train a module with the one loop."""

import math
from abc import abstractmethod
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from combemb import backbones
from combemb.backbones.base import Backbone
from combemb.backbones.feature_map import FeatureMap, fit_feature_map
from combemb.data.augmentation import Views
from combemb.data.image_items import ImageItems, readable
from combemb.data.images import Images
from combemb.data.items import ArrayItems, Items, chunks
from combemb.data.labels import Labels, require_partly_labelled
from combemb.learning.batches import Batch, PartlyLabelled
from combemb.learning.image_input import Given, made_of
from combemb.learning.loop import Terms, descend, train
from combemb.learning.method import Method
from combemb.learning.run_folder import Run
from combemb.learning.settings import setting
from combemb.learning.tower import LastStage, Tower
from combemb.system import processes
from combemb.system.errors import require
from combemb.system.machine import bfloat16_runs, limited_threads, resolved, seeded

DEFAULT_STEPS = 600
PRETRAINED_RATE = 0.01  # learning rate of a pretrained backbone, in units of the head's
FINETUNED = ("none", "last", "all")


@dataclass(kw_only=True, eq=False, repr=False)
class DeepMethod(Method):
    """A method with a module, trained by the one loop: it brings `network`, `losses` and what else it needs."""

    needs_other_gradient: ClassVar[bool] = True  # whether a loss sends gradients through the second view

    finetune: str = setting("none", "stages of the backbone that train with the head, on images: none, last or all")
    backbone_rate: float | None = setting(
        None, "learning rate of the backbone as a share of the head's; None: 0.01 if it is pretrained, else 1; ours"
    )
    mixed_precision: bool | None = setting(
        None, "whether the backbone trains in bfloat16; None: on CUDA devices that have it; ours"
    )
    epochs: int | None = setting(None, "passes over the data; None makes 600 steps, but at least 10 passes; ours")
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

    def check(self, labels: Labels, n_features: int | None) -> None:
        """The numbers that steer the loop must make sense."""
        super().check(labels, n_features)
        require(self.finetune in FINETUNED, f"finetune={self.finetune!r}; choose one of {', '.join(FINETUNED)}")
        for name in ("batch_size", "learning_rate", "clip_norm", "max_features", "threads"):
            require(getattr(self, name) > 0, f"{name}={getattr(self, name)} must be above 0")
        for name in ("epochs", "backbone_rate"):
            value = getattr(self, name)
            require(value is None or value > 0, f"{name}={value} must be above 0, or None")
        require(0 < self.labelled_share < 1, f"labelled_share={self.labelled_share} must lie between 0 and 1")
        require(0 <= self.view_dropout < 1, f"view_dropout={self.view_dropout} must be at least 0 and below 1")
        for name in ("weight_decay", "view_noise"):
            require(getattr(self, name) >= 0, f"{name}={getattr(self, name)} must not be negative")
        require_partly_labelled(labels)
        require(0 <= self.warmup_share < 1, f"warmup_share={self.warmup_share} must be at least 0 and below 1")

    @abstractmethod
    def network(self, n_features: int, n_classes: int) -> nn.Module:
        """The untrained module on mapped features (B, n_features); all state of the method lives in it."""

    @abstractmethod
    def losses(self, batch: Batch) -> Terms:
        """Named loss terms of a batch of mapped features; the loop descends along their sum and logs them."""

    def prepare(self, data: PartlyLabelled) -> None:
        """Start values of the module that come from the data, before the first epoch."""

    def on_epoch(self, data: PartlyLabelled, epoch: int) -> None:
        """Work before each epoch; state that it makes belongs into buffers of the module."""

    def diagnostics(self, batch: Batch, data: PartlyLabelled) -> dict[str, Any]:
        """Numbers for the log, after each epoch, from its last batch (as the loop has it) and the data."""
        return {}

    @property
    def wants_clean(self) -> bool:
        """Whether batches shall hold the clean view too, unless all of a backbone trains: it would cost too much."""
        return False

    def n_epochs(self, steps_per_epoch: int) -> int:
        """How often to go through the data."""
        return self.epochs or max(-(-DEFAULT_STEPS // steps_per_epoch), 10)

    def optimisers(self) -> list[Optimizer]:
        """One AdamW over everything; methods with several players override this and `step`."""
        groups = [{"params": list(self.module_.parameters()), "lr": self.learning_rate}]
        if self.tower_.backbone is not None:
            rate = self.learning_rate * (self.backbone_rate or (PRETRAINED_RATE if self._is_pretrained else 1.0))
            groups.append({"params": list(self.tower_.backbone.parameters()), "lr": rate})
        return [AdamW(groups, weight_decay=self.weight_decay, fused=True)]

    def step(self, batch: Batch, optimisers: list[Optimizer]) -> Terms:
        """One step down the sum of `losses`."""
        terms = self.losses(self.mapped(batch))
        descend(self.tower_.parameters(), optimisers[0], terms, self.clip_norm)
        return terms

    def mapped(self, batch: Batch) -> Batch:
        """The batch as the head sees it; features of a frozen backbone have been mapped before."""
        if self.tower_.backbone is None:
            return batch
        with torch.autocast(batch.x.device.type, torch.bfloat16, enabled=self._is_mixed(batch.x.device)):
            x = self.tower_.features(batch.x)
            with torch.set_grad_enabled(torch.is_grad_enabled() and self.needs_other_gradient):
                other = self.tower_.features(batch.other)
            with torch.no_grad():
                clean = None if batch.clean is None else self.tower_.features(batch.clean)
        return replace(batch, x=x, other=other, clean=clean)

    @torch.no_grad()
    def clean_features(self, items: Items, rows: Tensor) -> Tensor:
        """Mapped features (n, F') of the clean view of some items of a training, on the CPU."""
        device = resolved(self.device)
        parts = []
        for some in rows.split(items.n_rows):
            x = items.take(some)
            parts.append(x if self.tower_.backbone is None else self.tower_.features(x.to(device)).cpu())
        return torch.cat(parts)

    def _is_mixed(self, device: torch.device) -> bool:
        if self.mixed_precision is None:
            return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return self.mixed_precision

    def _image_items(self, images: Images, n_views: int, progress: bool | None) -> Given:
        """Features where the backbone is frozen, else what its trained part gets."""
        if self.finetune == "none":
            return self._extracted(images, n_views, progress)
        require(
            not self.mixed_precision or bfloat16_runs(resolved(self.device)),
            f"mixed_precision=True: bfloat16 does not run on this {resolved(self.device).type}; leave it at None",
        )
        if self.finetune == "last":
            return self._extracted(images, n_views, progress, last_stage=True)
        self._require_same_backbone()
        size = self._size(images)
        if not hasattr(self, "classes_"):  # a fit finds out whether the backbone takes this size
            self._backbone.n_outputs(size, self._backbone.for_inference(), torch.device("cpu"))
        views = Views(images, size, self.augmentation, int(self.seed))
        rows, broken = readable(images, progress)
        return made_of(images, ImageItems(views, rows), rows, broken)

    def _begin(self, items: Items, labels: Labels, progress: bool | None) -> None:
        self._batches(items, labels).require_enough()
        with limited_threads(self.threads):
            backbone = self._trained_part()
            feature_map = self._feature_map(items, backbone, progress)
            if backbone is None and isinstance(items, ArrayItems):
                items = ArrayItems(items.x, feature_map).in_memory()
            self._data = self._batches(items, labels)
            self._assemble(backbone, feature_map, len(labels.classes))
            self.prepare(self._data)

    def _fit(self, items: Items, labels: Labels, run: Run | None, progress: bool | None) -> None:
        data = self.__dict__.pop("_data")
        with limited_threads(self.threads):
            self.log_ = train(self, data, run, progress)

    def _diagnosis(self, items: Items) -> dict[str, Any]:
        """The last epoch's numbers beside the use of the codes."""
        return {**(self.log_[-1] if hasattr(self, "log_") else {}), **super()._diagnosis(items)}

    @property
    def _takes_pixels(self) -> bool:
        return isinstance(self.tower_.backbone, Backbone)

    @property
    def _is_finetuned(self) -> bool:
        return self.finetune != "none" and hasattr(self, "image_size_")  # which only a fit on images sets

    @property
    def _borrowed(self) -> dict[str, Tensor]:
        """Nothing where all of the backbone trains."""
        return {} if self.finetune == "all" else super()._borrowed

    def _trained_part(self) -> LastStage | Backbone | None:
        """A copy of what trains of the backbone, on the device; None for embeddings and a frozen backbone."""
        if not self._is_finetuned:
            return None
        backbone = deepcopy(self._backbone).to(resolved(self.device)).eval()
        return LastStage(backbone, self.image_size_) if self.finetune == "last" else backbone

    @torch.no_grad()
    def _feature_map(self, items: Items, backbone: nn.Module | None, progress: bool | None) -> FeatureMap | None:
        """Fitted on the features at the start; none for a backbone that starts at random."""
        if backbone is not None and self.finetune == "all" and not self._is_pretrained:
            return None
        found = chunks(items, "reading features", progress)
        if backbone is not None:
            device = resolved(self.device)
            found = (backbone(chunk.to(device)).cpu() for chunk in found)
        return fit_feature_map(found, self.max_features)

    def _assemble(self, backbone: nn.Module | None, feature_map: FeatureMap | None, n_classes: int) -> None:
        n_features = self._backbone.n_features if feature_map is None else feature_map.n_features
        with seeded(self.seed):
            self.module_ = self.network(n_features, n_classes)
        self.tower_ = Tower(backbone, feature_map or nn.Identity(), self.module_).to(resolved(self.device))

    def _batches(self, items: Items, labels: Labels) -> PartlyLabelled:
        return PartlyLabelled(
            items,
            labels,
            int(self.batch_size),
            self.labelled_share,
            int(self.seed),
            self.view_noise,
            self.view_dropout,
            processes.rank(),
            processes.world_size(),
            self.wants_clean and not (self._is_finetuned and self.finetune == "all"),
        )

    def _embed(self, x: Tensor) -> Tensor:
        embedding: Tensor = self.tower_(x.to(resolved(self.device)))
        return embedding

    @property
    def feature_map_(self) -> FeatureMap:
        """The map from embeddings, or features of the backbone, to what `module_` sees."""
        assert isinstance(self.tower_.feature_map, FeatureMap), "a backbone that starts at random has none"
        return self.tower_.feature_map

    @property
    def n_inputs(self) -> int:
        """F of the data that the method was fitted on."""
        backbone = self.tower_.backbone
        return math.prod(backbone.shape) if isinstance(backbone, LastStage) else len(self.feature_map_.mean)

    def state(self) -> dict[str, Tensor]:
        """All that was fitted; of the backbone what was trained."""
        return self.tower_.state_dict()

    def restore(self, state: dict[str, Tensor]) -> None:
        """Build the module again and fill it."""
        if self._is_finetuned and self.finetune == "all":
            with seeded(self.seed):
                self._backbone = backbones.build(self.backbone, width=self.backbone_width, pretrained=False)
        components = state.get("feature_map.components")
        feature_map = None if components is None else FeatureMap(*components.shape)
        self._assemble(self._trained_part(), feature_map, len(self.classes_))
        self.tower_.load_state_dict(state)
        self.tower_.eval()
