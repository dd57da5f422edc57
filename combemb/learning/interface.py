"""What a method implements: settings, abstract methods, optional hooks, and the attributes that a fit sets."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from combemb.data.given import Loaded
from combemb.data.labels import Labels
from combemb.discovery.result import Discovery
from combemb.learning.curves import Panel
from combemb.learning.input import ImageInput, ImageSettings
from combemb.learning.pretraining import FirstStage
from combemb.learning.run_folder import RunFolder
from combemb.learning.settings import Settings, setting
from combemb.search.codebook import Codebook
from combemb.system.errors import require
from combemb.system.machine import DEVICES


class FittedState:
    """The attributes that a fit sets. They are not fields of the dataclass, which are settings."""

    classes_: np.ndarray  # the seen classes
    image_input_: ImageInput | None  # the reader of images; None after a fit on embeddings
    path_: str | None  # path that the data were read from
    broken_: dict[str, str]  # images that could not be read, with the reasons
    log_: list[dict[str, Any]]  # one record per epoch of a DeepMethod
    check_: Any  # the HiddenCheck of a DeepMethod; None if it was not made
    n_novel_: int  # novel classes of a HeadMethod
    discovery_: Discovery  # after `discover`


@dataclass(kw_only=True, eq=False, repr=False)
class Interface(ImageSettings, Settings, FittedState, ABC):
    """What `fit`, `save` and `load` need from a method; `Method` has what users call."""

    paper: ClassVar[str]
    departs: ClassVar[str] = "see its docstring"  # where it departs from the paper, for the table of methods
    trial_settings: ClassVar[dict[str, Any]] = {}  # for `combemb.testing`, if its own small values do not suit
    uses_unlabelled: ClassVar[bool] = True  # False: `fit` ignores unlabelled items
    activity = "training"  # what the progress of a fit is called; a copy may have another one
    predicts_by: ClassVar[str] = "clusters"  # what `predict` uses by default; "head" for a `HeadMethod`

    seed: int = setting(
        0, "determines all random choices of a fit; the global random state is never touched", at_least=0, below=2**31
    )
    device: str = setting("auto", "auto uses CUDA, then MPS, then the CPU", choices=DEVICES)

    # To be implemented

    @abstractmethod
    def _fit(self, data: Loaded, run: RunFolder | None, progress: bool | None) -> None:
        """Learn from the data and set the fitted attributes."""

    @abstractmethod
    def _embed(self, x: Tensor) -> Tensor:
        """Embed one chunk (n, F) -> (n, D)."""

    @property
    @abstractmethod
    def n_inputs(self) -> int:
        """Number of features F of the data that the method was fitted on."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return the fitted state as named tensors."""

    @abstractmethod
    def restore(self, state: dict[str, Tensor]) -> None:
        """Set the fitted state from what `state` returned."""

    # Optional hooks

    def check_labels(self, labels: Labels) -> None:
        """Raise a ValueError if the method cannot learn from such labels; nothing is loaded or written before."""

    def check_features(self, n_items: int, n_features: int) -> None:
        """Raise a ValueError if the method cannot learn from so many items and features; nothing is written before."""

    def image_input(self) -> ImageInput:
        """Return the reader of images."""
        return ImageInput(self, self.seed, self.device)

    def first_stages(self) -> Sequence[FirstStage]:
        """Return what trains the backbone before the method does, one after the other."""
        return ()

    def _begin(self, data: Loaded, progress: bool | None) -> None:
        """Do the part of a fit that may still reject the data; nothing has been written yet."""

    def report(self) -> list[str]:
        """Return lines for `summary` and diagnosis.json about what the fit learned."""
        return []

    def facts(self) -> dict[str, Any]:
        """Return entries for diagnosis.json besides the numbers of the last epoch and the use of the codes."""
        return {}

    @property
    def panels(self) -> tuple[Panel, ...]:
        """Plots of the log in addition to the loss terms."""
        return ()

    @property
    def codebook(self) -> Codebook | None:
        """The codebook of a `CodeMethod`; None for other methods."""
        return None

    @property
    def can_keep_to_features(self) -> bool:
        """Whether it can learn from plain features alone, where the check on hidden classes finds these better."""
        return False

    # For the table of methods

    @classmethod
    def supervision(cls) -> str:
        """Say what it learns from; a method that requires no labels in `check_labels` uses none."""
        if not cls.uses_unlabelled:
            return "supervised"
        uses_labels = cls.check_labels is not Interface.check_labels
        return "supervised with unlabelled data" if uses_labels else "unsupervised"

    @classmethod
    def query_side(cls) -> str:
        """Say how queries are compared with codes."""
        return "no codes"

    # For use in methods

    def _require_fitted(self) -> None:
        what_to_do = "call fit(x, labels) or load a run folder"
        require(hasattr(self, "classes_"), f"this {type(self).__name__} is not fitted; {what_to_do}")
