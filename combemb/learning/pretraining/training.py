"""Training of a whole backbone on pixels, as a first stage of other methods."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from combemb.data.given import Given
from combemb.data.labels import Labels
from combemb.learning.batches import Batch, Batches
from combemb.learning.curves import Panel
from combemb.learning.deep import DeepMethod
from combemb.learning.input import ImageInput, ImageSettings
from combemb.learning.pretraining.stage import RUN
from combemb.learning.run_folder import RunFolder
from combemb.learning.settings import setting
from combemb.system.arrays import unit
from combemb.system.files import write_tensors
from combemb.system.machine import n_cores

START = "start.safetensors"  # in the folder of a stage
N_NEIGHBOURS, MAX_CHECKED = 20, 2_000  # at most, of the check on the labels


@dataclass(kw_only=True, eq=False, repr=False)
class BackboneTraining(DeepMethod):
    """A method that trains a backbone from its first layer on; its network is thrown away, the backbone stays.

    It is a `DeepMethod` for the sake of the common loop: batches, logs, checkpoints and resuming. Every few epochs and
    at the end, the labelled items vote for the class of each other by their nearest neighbours, which shows whether
    features improve.
    """

    stage: ClassVar[str]  # its name as a first stage
    uses_labels: ClassVar[bool]

    finetune: str = setting("all", "a first stage trains the whole backbone", choices=("all",))
    backbone_rate: float | None = setting(1.0, "a first stage trains the backbone as fast as its network", above=0)
    check_every: int = setting(5, "epochs between two checks of the features on the labelled items; ours", above=0)

    def _feature_map(self, *_: Any) -> None:
        """Return None: the network sees the features of the backbone as they are."""

    def prepare(self, data: Batches) -> None:
        """Store convolutions with their channels last, in which they run faster on CPUs and GPUs."""
        assert self.tower_.backbone is not None
        self.tower_.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def _labels(self, data: Batches) -> Labels:
        """Return the labels that the check uses."""
        return data.labels

    @torch.no_grad()
    def diagnostics(self, batch: Batch, data: Batches) -> dict[str, Any]:
        """Return the share of labelled items that their nearest labelled neighbours put into their class."""
        labels, n_done = self._labels(data), batch.step // len(data) + 1  # the loop asks at multiples of 10 at least
        is_checked = n_done % self.check_every == 0 or n_done == self.n_epochs(len(data))
        if not is_checked or labels.is_multi or labels.n_seen < 2:
            return {}
        rows = labels.labelled_rows(MAX_CHECKED, np.random.default_rng(self.seed))
        features = self.clean_features(data.items, torch.from_numpy(rows))
        k = min(N_NEIGHBOURS, max(len(rows) // labels.n_seen // 2, 1))  # so that its own class can win the vote
        return {"neighbours_right": share_right(features, torch.from_numpy(labels.values[rows]), k)}

    @property
    def panels(self) -> tuple[Panel, ...]:
        """The check on the labelled items."""
        return (Panel("labels right by neighbours", ("neighbours_right",), is_share=True),)


def share_right(features: Tensor, classes: Tensor, k: int) -> float:
    """Return the share of items whose k nearest others by cosine have its class most often.

    features (n, F), classes (n,). Of classes that occur equally often among the neighbours, the first counts.
    """
    cosines = unit(features) @ unit(features).T
    nearest = cosines.fill_diagonal_(-torch.inf).topk(min(k, len(features) - 1), dim=1).indices
    votes = torch.nn.functional.one_hot(classes[nearest], int(classes.max()) + 1).sum(dim=1)
    return float((votes.argmax(dim=1) == classes).float().mean())


@dataclass(frozen=True)
class TrainedStage:
    """A `BackboneTraining` as a first stage: it has the recipe, the images and the backbone come from a method."""

    training: BackboneTraining

    @property
    def uses_labels(self) -> bool:
        """Whether the result depends on the labels."""
        return self.training.uses_labels

    @property
    def recipe(self) -> dict[str, Any]:
        """Its name and all settings that determine its result."""
        given = {"backbone", "backbone_weights", "backbone_width", "image_size", "device", "threads", "seed", "n_views"}
        names = sorted({field.name for field in fields(self.training)} - given)
        return {"name": self.training.stage, **{name: getattr(self.training, name) for name in names}}

    def train(self, images: ImageInput, given: Given, folder: Path, progress: bool | None) -> None:
        """Train the backbone in place; an interrupted training in the folder continues."""
        start = folder / START
        if not start.exists():
            write_tensors(start, images.backbone.state_dict())
        own = ImageSettings(
            backbone=images.name,
            backbone_width=images.width,
            backbone_weights=str(start),
            image_size=images.size,
            **{
                name: getattr(self.training, name)
                for name in ("n_views", "crop_area", "flip", "colour", "grey", "blur")
            },
        )
        run = RunFolder(folder / RUN)
        # a training that was stopped continues with as many threads, also if there are fewer cores now
        threads = run.config()["settings"]["threads"] if run.has_config() else n_cores()
        training = replace(self.training, **vars(own), seed=images.seed, device=images.device, threads=threads).fit(
            given, folder=run.folder, resume=run.has_config(), progress=progress
        )
        assert training.tower_.backbone is not None
        images.backbone.load_state_dict(training.tower_.backbone.state_dict())
