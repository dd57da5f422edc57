"""The base class of methods that train a network with the common loop."""

import math
from abc import abstractmethod
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from combemb.backbones.base import LastStage, MapStage
from combemb.backbones.feature_map import FeatureMap, fit_feature_map, unit_feature_map
from combemb.data.given import Loaded
from combemb.data.items import ArrayItems, Items, chunks
from combemb.data.labels import Labels, require_labelled, require_partly_labelled
from combemb.learning.batches import Batch, Batches, MappedItems
from combemb.learning.input import ImageInput
from combemb.learning.loop import Terms, descend, require_trained, schedule, train
from combemb.learning.method import Method
from combemb.learning.objectives.image_players import steady_statistics
from combemb.learning.run_folder import RunFolder
from combemb.learning.settings import setting
from combemb.learning.tower import Tower
from combemb.system import processes
from combemb.system.errors import require
from combemb.system.machine import bfloat16_runs, limited_threads, resolved, seeded

DEFAULT_STEPS, MIN_EPOCHS = 600, 10
PRETRAINED_RATE = 0.01  # learning rate of a pretrained backbone as a share of the network's


@dataclass(kw_only=True, eq=False, repr=False)
class DeepMethod(Method):
    """A method that trains a network with the common loop: it defines `network`, `losses` and optional hooks.

    `network_` is the method's own network, `tower_` everything that is trained. All state belongs in the network, in
    buffers if it is not learned; `scratch` holds what only training needs.
    """

    # False: the network sees no components: features of a trained backbone as they are, others at unit length
    uses_feature_map: ClassVar[bool] = True
    uses_maps: ClassVar[bool] = False  # whether items of a frozen backbone are mapped features at every place
    needs_other_gradient: ClassVar[bool] = True  # whether a loss sends gradients through the second view

    finetune: str = setting(
        "none", "stages of the backbone that are trained too, for images", choices=("none", "last", "all")
    )
    backbone_rate: float | None = setting(
        None,
        "learning rate of the backbone relative to the network's; None: 0.01 if pretrained, otherwise 1; ours",
        above=0,
    )
    mixed_precision: bool | None = setting(
        None, "whether the backbone trains in bfloat16; None: on CUDA devices that have it; ours"
    )
    epochs: int | None = setting(None, "passes over the data; None: 600 steps, but at least 10 passes; ours", above=0)
    batch_size: int = setting(512, "items per step, over all processes", above=0)
    labelled_share: float = setting(0.5, "labelled part of a batch; half, as in GPQ's release", above=0, below=1)
    learning_rate: float = setting(1e-3, "peak of the schedule (warm-up, then a cosine to zero); ours", above=0)
    weight_decay: float = setting(1e-4, "weight decay of AdamW; the paper's", at_least=0)
    warmup_share: float = setting(0.05, "steps of rising learning rate, as a share; ours", at_least=0, below=1)
    clip_norm: float = setting(1.0, "largest norm of the gradient; ours", above=0)
    balanced_labels: bool = setting(
        True, "whether the labelled items of a batch are drawn evenly over the classes, in pairs; ours"
    )
    max_features: int | None = setting(
        None,
        "principal components of the input that the network sees; None: one for six labelled items, 64 to 256; ours",
        above=0,
    )
    whitening_ridge: float | None = setting(
        None,
        "added to the variances within classes before the input is whitened by them, relative to their mean; larger "
        "values whiten less; None: chosen on hidden seen classes; ours",
        above=0,
    )
    check: bool = setting(
        False,
        "whether a second fit hides some seen classes, to estimate how well novel ones will be found; takes as long as "
        "the fit",
    )
    threads: int = setting(
        1, "CPU threads in training; small networks gain nothing from more and slow down on a busy machine", above=0
    )
    view_noise: float = setting(
        0.5, "noise of the two views if items have only one, relative to the size of a feature; ours", at_least=0
    )
    view_dropout: float = setting(0.1, "share of features set to zero in such views; ours", at_least=0, below=1)

    # To be implemented

    @abstractmethod
    def network(self, n_features: int, n_seen: int, n_novel: int) -> nn.Module:
        """Return the untrained network on mapped features (B, n_features).

        n_novel is the number of novel classes that a `HeadMethod` has outputs for; 0 for other methods.
        """

    def losses(self, batch: Batch) -> Terms:
        """Return the named loss terms of a batch of mapped features; the loop minimises their sum and logs each."""
        raise NotImplementedError(f"{type(self).__name__} has neither `losses` nor a `step` of its own")

    # Optional hooks

    def check_labels(self, labels: Labels) -> None:
        """Require labels of at least two classes and, if `uses_unlabelled`, unlabelled items."""
        require_partly_labelled(labels) if self.uses_unlabelled else require_labelled(labels)

    def prepare(self, data: Batches) -> None:
        """Initialise the parts of the network that depend on the data, before the first epoch."""

    def on_epoch(self, data: Batches, epoch: int) -> None:
        """Run before each epoch; state that it changes belongs in buffers of the network, or in `kept`."""

    def on_end(self, data: Batches) -> None:
        """Run after the last epoch, such as to match the outputs of a head to the seen classes."""

    def diagnostics(self, batch: Batch, data: Batches) -> dict[str, Any]:
        """Return numbers to log after an epoch, from its last batch (not yet mapped) and the data."""
        return {}

    @property
    def wants_clean(self) -> bool:
        """Whether batches also hold the clean view; never if the whole backbone is trained, for its cost."""
        return False

    def n_epochs(self, steps_per_epoch: int) -> int:
        """Return the number of epochs."""
        return self.epochs or max(-(-DEFAULT_STEPS // steps_per_epoch), MIN_EPOCHS)

    def rate(self, step: int, n_steps: int) -> float:
        """Return the factor on the learning rates at a step: a warm-up, then a cosine to zero."""
        return schedule(step, n_steps, self.warmup_share)

    def optimisers(self) -> list[Optimizer]:
        """Return one AdamW for all parameters; methods with several players override this and `step`."""
        groups = [{"params": list(self.network_.parameters()), "lr": self.learning_rate}, *self.backbone_group()]
        return [AdamW(groups, weight_decay=self.weight_decay, fused=True)]

    def backbone_group(self) -> list[dict[str, Any]]:
        """Return the parameters of the backbone that are trained, with their learning rate; empty if it is frozen."""
        parameters = [] if self.tower_.backbone is None else list(self.tower_.backbone.parameters())
        if not parameters or self.image_input_ is None:
            return []
        rate = self.backbone_rate or (PRETRAINED_RATE if self.image_input_.is_pretrained else 1.0)
        return [{"params": parameters, "lr": self.learning_rate * rate}]

    def step(self, batch: Batch, optimisers: list[Optimizer]) -> Terms:
        """Take one gradient step on the sum of `losses`."""
        terms = self.losses(self.mapped(batch))
        descend(self.tower_.parameters(), optimisers[0], terms, self.clip_norm)
        return terms

    # For use in the methods above

    @property
    def network_(self) -> nn.Module:
        """The method's own network."""
        return self.tower_.network

    @property
    def scratch(self) -> SimpleNamespace:
        """A namespace for what only training needs, such as features of all items; deleted when a fit ends."""
        if not hasattr(self, "scratch_"):
            self.scratch_ = SimpleNamespace(kept={})
        return self.scratch_

    @property
    def kept(self) -> Terms:
        """Tensors that change during training and are stored in checkpoints only, such as targets of all items."""
        kept: Terms = self.scratch.kept
        return kept

    def mapped(self, batch: Batch) -> Batch:
        """Return the batch with mapped features; those of a frozen backbone are mapped already."""
        if self.tower_.backbone is None:
            return batch
        with torch.autocast(batch.x.device.type, torch.bfloat16, enabled=self._is_mixed(batch.x.device)):
            x = self.tower_.features(batch.x)
            with torch.set_grad_enabled(torch.is_grad_enabled() and self.needs_other_gradient):
                other = self.tower_.features(batch.other)
            with torch.no_grad():
                clean = None if batch.clean is None else self.tower_.features(batch.clean)
        return replace(batch, x=x, other=other, clean=clean)

    def played(self, batch: Batch) -> Batch:
        """Return the batch as adversarial players see it: pixels if the whole backbone is trained, else features."""
        return batch if self._trains_whole_backbone else self.mapped(batch)

    def output(self, x: Tensor, is_real: bool = True) -> Tensor:
        """Return what the network makes of items that `played` returned or that players made (is_real=False).

        x are pixels if the whole backbone is trained, otherwise mapped features.
        """
        if self._trains_whole_backbone:
            steady = nullcontext() if is_real else steady_statistics(self.tower_)
            with steady, torch.autocast(x.device.type, torch.bfloat16, enabled=self._is_mixed(x.device)):
                x = self.tower_.features(x)
        out: Tensor = self.network_(x)
        return out

    @torch.no_grad()
    def clean_features(self, items: Items, rows: Tensor) -> Tensor:
        """Return the mapped features (n, F') of the clean view of some training items, on the CPU."""
        device, parts = resolved(self.device), []
        modes = [(module, module.training) for module in self.tower_.modules()]
        self.tower_.eval()
        for some in rows.split(items.n_rows):
            parts.append(self.tower_.features_of(items.take(some).to(device)).cpu())
        for module, is_training in modes:
            module.training = is_training
        return torch.cat(parts)

    # The interface of `Method`

    def image_input(self) -> ImageInput:
        """Return the reader of images: features if the backbone is frozen, otherwise inputs of its trained part."""
        require(
            self.finetune == "none" or not self.mixed_precision or bfloat16_runs(resolved(self.device)),
            f"mixed_precision=True: bfloat16 does not run on this {resolved(self.device).type}; leave it at None",
        )
        return ImageInput(self, self.seed, self.device, self.finetune, wants_maps=self.uses_maps)

    def _begin(self, data: Loaded, progress: bool | None) -> None:
        self._batches(data.items, data.labels).require_enough()
        with limited_threads(self.threads):
            items, device = data.items, resolved(self.device)
            backbone = self._backbone_part(device)
            feature_map = self._feature_map(items, data.labels, backbone, progress)
            self.tower_ = Tower(backbone, feature_map or nn.Identity(), nn.Identity()).to(device)
            if isinstance(items, ArrayItems) and (backbone is None or isinstance(backbone, MapStage)):
                items = MappedItems(items.x, self._training_items, items.n_rows).in_memory()
            batches = self._batches(items, data.labels)
            self._count_novel(batches, progress)
            self._build_network(len(data.labels.classes))
            self.scratch.batches = batches
            with seeded(self.seed):
                self.prepare(batches)
            require_trained(self.tower_, self.optimisers())

    def _fit(self, data: Loaded, run: RunFolder | None, progress: bool | None) -> None:
        try:
            with limited_threads(self.threads):
                self.log_ = train(self, self.scratch.batches, run, progress)
        finally:
            del self.scratch_  # as large as the data, and of no use after training

    def _count_novel(self, data: Batches, progress: bool | None) -> None:
        """Set `n_novel_` if the network has outputs for novel classes."""

    @torch.no_grad()
    def _feature_map(
        self, items: Items, labels: Labels, backbone: nn.Module | None, progress: bool | None
    ) -> FeatureMap | None:
        """Fit the map on the initial features; None if the network sees features of a trained backbone as they are.

        A backbone that starts with random weights has no map: its features change too much.
        """
        if self._trains_backbone:
            assert self.image_input_ is not None
            if not (self.uses_feature_map and self.image_input_.is_pretrained):
                return None
        found = chunks(items, "reading features", progress)
        if backbone is not None:
            device = resolved(self.device)
            found = (backbone(chunk.to(device)).cpu() for chunk in found)
        if not self.uses_feature_map:
            return unit_feature_map(next(iter(found)).shape[1])
        n_labelled = int(labels.is_labelled.sum())
        max_features = self.max_features or (int(np.clip(n_labelled // 6, 64, 256)) if n_labelled else 256)
        return fit_feature_map(found, max_features, labels, self.whitening_ridge, int(self.seed))

    def _training_items(self, x: Tensor) -> Tensor:
        return self.tower_.training_items(x.to(resolved(self.device))).cpu()

    def _backbone_part(self, device: torch.device) -> nn.Module | None:
        return None if self.image_input_ is None else self.image_input_.part(device)

    def _build_network(self, n_seen: int) -> None:
        feature_map = self.tower_.feature_map
        if isinstance(feature_map, FeatureMap):
            n_features = feature_map.n_features
        else:
            assert self.image_input_ is not None
            n_features = self.image_input_.backbone.n_features
        with seeded(self.seed):
            network = self.network(n_features, n_seen, getattr(self, "n_novel_", 0))
        self.tower_.network = network.to(resolved(self.device))

    def _batches(self, items: Items, labels: Labels) -> Batches:
        return Batches(
            items,
            labels,
            int(self.batch_size),
            self.labelled_share,
            int(self.seed),
            self.view_noise,
            self.view_dropout,
            processes.rank(),
            processes.world_size(),
            self.wants_clean and not self._trains_whole_backbone,
            self.balanced_labels,
        )

    @property
    def _trains_whole_backbone(self) -> bool:
        return self._trains_backbone and self.finetune == "all"

    @property
    def _trains_backbone(self) -> bool:
        return self.image_input_ is not None and self.finetune != "none"

    def _is_mixed(self, device: torch.device) -> bool:
        if self.mixed_precision is None:
            return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return self.mixed_precision

    def _embed(self, x: Tensor) -> Tensor:
        embedding: Tensor = self.tower_(x.to(resolved(self.device)))
        return embedding

    @property
    def feature_map_(self) -> FeatureMap:
        """The map from embeddings, or features of the backbone, to the input of the network."""
        assert isinstance(self.tower_.feature_map, FeatureMap), (
            "the network sees the features of the trained backbone as they are"
        )
        return self.tower_.feature_map

    @property
    def n_inputs(self) -> int:
        """Number of features F of the data that the method was fitted on."""
        backbone = self.tower_.backbone
        if isinstance(backbone, LastStage | MapStage):
            return math.prod(backbone.shape)
        return len(self.feature_map_.mean)

    def state(self) -> dict[str, Tensor]:
        """Return the fitted tensors; of the backbone, only the part that was trained."""
        return self.tower_.state_dict()

    def restore(self, state: dict[str, Tensor]) -> None:
        """Rebuild the tower and load its tensors."""
        components = state.get("feature_map.components") if self._trains_backbone else state["feature_map.components"]
        feature_map = nn.Identity() if components is None else FeatureMap(*components.shape)
        device = resolved(self.device)
        self.tower_ = Tower(self._backbone_part(device), feature_map, nn.Identity()).to(device)
        self._build_network(len(self.classes_))
        self.tower_.load_state_dict(state)
        self.tower_.eval()
