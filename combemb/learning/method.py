"""The interface of all methods: what a method implements, and what it can do once it is fitted."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from combemb.data.given import Loaded, read_given
from combemb.data.labels import Labels, read_labels
from combemb.discovery.class_number import check_count_by
from combemb.discovery.discovering import discover
from combemb.discovery.result import Discovery
from combemb.learning import saving
from combemb.learning.curves import Panel
from combemb.learning.input import ImageInput, ImageSettings, embeddable, load_all, load_items, training_data
from combemb.learning.pretraining import FirstStage
from combemb.learning.run_folder import RunFolder
from combemb.learning.settings import Settings, check_settings, setting
from combemb.search.codebook import Codebook
from combemb.system import processes
from combemb.system.errors import require
from combemb.system.machine import DEVICES, is_available, resolved


class FittedState:
    """The attributes that a fit sets. They are not fields of the dataclass, which are settings."""

    classes_: np.ndarray  # the seen classes
    image_input_: ImageInput | None  # the reader of images; None after a fit on embeddings
    path_: str | None  # path that the data were read from
    broken_: dict[str, str]  # images that could not be read, with the reasons
    log_: list[dict[str, Any]]  # one record per epoch of a DeepMethod
    n_novel_: int  # novel classes of a HeadMethod
    discovery_: Discovery  # after `discover`


@dataclass(kw_only=True, eq=False, repr=False)
class Method(ImageSettings, Settings, FittedState, ABC):
    """Base class of methods, which learn from partly labelled data. The fields are the settings.

    scikit-learn's conventions hold: the constructor only stores, `fit` returns self, fitted attributes end in `_`,
    `get_params` and `clone` work. A method with codes is a `CodeMethod`, one that trains a network a `DeepMethod`, one
    with a head over all classes a `HeadMethod`.
    """

    paper: ClassVar[str]
    trial_settings: ClassVar[dict[str, Any]] = {}  # for `combemb.testing`, if its own small values do not suit
    uses_unlabelled: ClassVar[bool] = True  # False: `fit` ignores unlabelled items

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

    def check_settings(self) -> None:
        """Raise a ValueError that names the setting if one is invalid for any data."""
        check_settings(self)

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
        """Return lines for `summary` about what the fit learned."""
        return []

    def facts(self) -> dict[str, Any]:
        """Return entries for diagnosis.json besides the numbers of the last epoch and the use of the codes."""
        return {}

    @property
    def panels(self) -> tuple[Panel, ...]:
        """Plots of the log in addition to the loss terms."""
        return ()

    @property
    def _codebook(self) -> Codebook | None:
        """The codebook of a `CodeMethod`, None for other methods."""
        return None

    # What every method can do

    def fit(
        self,
        x: Any,
        labels: Any = None,
        *,
        folder: str | Path | None = None,
        overwrite: bool = False,
        resume: bool = False,
        progress: bool | None = None,
    ) -> Self:
        """Learn from partly labelled images or embeddings.

        Parameters
        ----------
        x : path or array
            An image folder, a manifest, images (N, H, W, 3) of uint8; or embeddings (N, F), or (N, V, F) with views,
            or a file of them.
        labels : array-like, optional
            Ints with -1, strings with None or "", or (N, C) of 0/1 with rows of -1. Without it, the labels stored
            with x are used.
        folder : path, optional
            Run folder to write; it is updated during training.
        overwrite, resume : bool
            Replace the run in the folder, or continue one that was interrupted.
        progress : bool, optional
            None shows it on a terminal only.

        Returns
        -------
        Self
        """
        progress = progress if processes.is_first() else False
        run = RunFolder(folder) if folder is not None else None
        if run:
            run.check_free(overwrite, resume)
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)  # not fitted until the data have been checked
        stored = run.config() if run and resume and run.has_config() else None
        self.check_settings()
        if run and stored:
            saving.require_same_settings(self, run.folder, stored)
        require(is_available(self.device), f"device={self.device!r} is not available on this machine; use auto")
        given = read_given(x, labels).training_part()
        self.path_ = None if given.path is None else str(given.path)
        data = training_data(self, given, progress)
        config = saving.config_of(self, data.labels.classes, saving.data_of(given, data))
        if run and stored:
            saving.require_same_data(run.folder, stored, config)
        with processes.process_group(resolved(self.device)):
            if run and stored and run.is_complete():
                self.classes_, self.broken_, self.log_ = data.labels.classes, data.broken, run.log()
                saving.restore(self, run, stored)
                return self
            if stored and stored["n_novel"] is not None:
                self.n_novel_ = stored["n_novel"]
            self._begin(data, progress)
            processes.wait_for_all()
            if run and processes.is_first():
                if not stored:
                    run.start({**config, "n_novel": getattr(self, "n_novel_", None)})
                run.write_broken(data.broken)
            processes.wait_for_all()
            self.classes_, self.broken_ = data.labels.classes, data.broken
            self._fit(data, run, progress)
            if run and processes.is_first():
                run.write_report(saving.diagnosis(self, data.items), getattr(self, "log_", []), self.panels)
                saving.write_state(self, run)
            processes.wait_for_all()  # all find the run complete, and gloo's threads have released their tensors
        return self

    def read(self, x: Any, *, progress: bool | None = None) -> Loaded:
        """Read x as items to embed, without images that cannot be read.

        Parameters
        ----------
        x
            As for `fit`.
        progress : bool, optional
            None shows it on a terminal only.

        Returns
        -------
        Loaded
            `.ids` has the ids of the items, `.broken` those of images that cannot be read, with the reasons.
        """
        return x if isinstance(x, Loaded) else load_items(self, read_given(x), 1, progress)

    def embed(self, x: Any, *, progress: bool | None = None) -> Tensor:
        """Embed the clean view of every item.

        Parameters
        ----------
        x
            As for `fit`, or what `read` returns.
        progress : bool, optional
            None shows it on a terminal only.

        Returns
        -------
        Tensor (N, D), float32
        """
        return torch.cat(list(self._embedded(x, progress)))

    def _embedded(self, x: Any, progress: bool | None) -> Iterator[Tensor]:
        """Yield the embeddings in chunks of rows."""
        for chunk in embeddable(self, x, progress):
            with torch.no_grad():
                z = self._embed(chunk).cpu()
            yield z

    def discover(
        self,
        x: Any,
        labels: Any = None,
        n_novel: int | None = None,
        *,
        count_by: str = "sizes",
        z: Tensor | None = None,
        progress: bool | None = None,
    ) -> Discovery:
        """Assign every item of x to a seen or a novel class; `predict` uses the result, which is kept as `discovery_`.

        Parameters
        ----------
        x, labels
            As for `fit`, or what `read` returns; preferably the items of the fit. A test split is left out.
        n_novel, count_by
            The number of novel classes, or how it is estimated; see `combemb.discover`.
        z : Tensor, optional
            What `embed` returned for x, if you have it.

        Returns
        -------
        Discovery
        """
        self._require_fitted()
        check_count_by(count_by, self._codebook)
        is_read = isinstance(x, Loaded)
        data = x if is_read else load_items(self, read_given(x, labels).training_part(), 1, progress)
        self.discovery_ = discover(
            self.embed(data, progress=progress) if z is None else z,
            read_labels(labels, len(data.items)) if is_read and labels is not None else data.labels,
            n_novel,
            count_by=count_by,
            codebook=self._codebook,
            features=data.discovery_features,
            seed=self.seed,
            progress=progress,
        )
        return self.discovery_

    def predict(self, x: Any, *, by: Literal["clusters"] | None = None, progress: bool | None = None) -> np.ndarray:
        """Return the class of each item: a seen class by its name, a novel one as "novel-1", ..., or "neither".

        Parameters
        ----------
        x
            As for `fit`, or what `read` returns.
        by : {"clusters", "head"}, optional
            Whether to use the clusters that `discover` found, or the head of a `HeadMethod` over all classes. None:
            `predicts_by`, the head if there is one.

        Returns
        -------
        ndarray (n,) of object
        """
        require(by in {None, "clusters"}, f"by={by!r}: {type(self).__name__} has no head of its own; use 'clusters'")
        found, data = self._found(), load_all(self, x, progress)
        return found.predict(self.embed(data, progress=progress), data.discovery_features)

    @property
    def predicts_by(self) -> str:
        """What `predict` uses by default: "clusters" or "head"."""
        return "clusters"

    def novelty(self, x: Any, *, progress: bool | None = None) -> np.ndarray:
        """Return a score (n,) that is larger for items of novel classes; see `Discovery.novelty`."""
        found, data = self._found(), load_all(self, x, progress)
        return found.novelty(self.embed(data, progress=progress), data.discovery_features)

    def summary(self) -> list[str]:
        """Return a few lines of text about what the fit learned."""
        codes = [] if self._codebook is None else [f"{type(self).__name__}: {self._codebook!r}"]
        broken = getattr(self, "broken_", {})
        return [*codes, *self.report(), *([f"images that could not be read: {len(broken)}"] if broken else [])]

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write a run folder: the configuration as JSON, the fitted state as safetensors."""
        self._require_fitted()
        saving.save(self, RunFolder(folder), overwrite)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return the fitted method of a run folder."""
        return saving.load(cls, RunFolder(folder))

    def _found(self) -> Discovery:
        self._require_fitted()
        require(hasattr(self, "discovery_"), "nothing was discovered yet; call discover(x, labels) first")
        return self.discovery_

    def _require_fitted(self) -> None:
        require(
            hasattr(self, "classes_"),
            f"this {type(self).__name__} is not fitted; call fit(x, labels) or load a run folder",
        )
