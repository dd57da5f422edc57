"""The base class of all methods: what a method can do, in terms of what it implements (`interface.py`)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from combemb.data.given import Loaded, read_given
from combemb.data.labels import read_labels
from combemb.discovery.result import Discovery
from combemb.learning import saving
from combemb.learning.fitting import fit
from combemb.learning.input import embeddable, load_items
from combemb.learning.interface import Interface
from combemb.learning.run_folder import RunFolder
from combemb.system.errors import require
from combemb.system.machine import threads_for


@dataclass(kw_only=True, eq=False, repr=False)
class Method(Interface):
    """Base class of methods, which learn from partly labelled data. The fields are the settings.

    scikit-learn's conventions hold: the constructor only stores, `fit` returns self, fitted attributes end in `_`,
    `get_params` and `clone` work. A method with codes is a `CodeMethod`, one that trains a network a `DeepMethod`, one
    with a head over all classes a `HeadMethod`.
    """

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
        fit(self, x, labels, folder=folder, overwrite=overwrite, resume=resume, progress=progress)
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
        if isinstance(x, Loaded):
            return x
        given, images = read_given(x), getattr(self, "image_input_", None)
        if given.images is not None and not hasattr(self, "classes_"):
            images = images or self.image_input()
        return load_items(given, images, 1, progress)

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
        for chunk in self._chunks(x, progress):
            with torch.no_grad():
                z = self._embed(chunk).cpu()
            yield z

    def _chunks(self, x: Any, progress: bool | None) -> Iterator[Tensor]:
        """Return the items to embed in chunks of rows."""
        self._require_fitted()
        takes_pixels = self.image_input_ is not None and self.image_input_.trained == "all"
        items = self._read_all(x, progress).items
        return embeddable(items, None if takes_pixels else self.n_inputs, progress)

    def _read_all(self, x: Any, progress: bool | None) -> Loaded:
        """Read x; a broken image is an error, unless x is what `read` returned."""
        data = self.read(x, progress=progress)
        if data.broken and data is not x:
            name, reason = next(iter(data.broken.items()))
            raise ValueError(
                f"{len(data.broken)} images cannot be read, such as {name}: {reason}; remove them, or embed what "
                "`read` returns, whose rows are those of its ids"
            )
        return data

    def discover(
        self,
        x: Any,
        labels: Any = None,
        n_novel: int | None = None,
        *,
        count_by: str = "merging",
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
        from combemb.discovery.class_number import check_count_by  # noqa: PLC0415 - a search needs neither
        from combemb.discovery.discovering import discover  # noqa: PLC0415

        self._require_fitted()
        check_count_by(count_by, self.codebook)
        is_read = isinstance(x, Loaded)
        data = x if is_read else self.read(read_given(x, labels).training_part(), progress=progress)
        z = self.embed(data, progress=progress) if z is None else z
        with threads_for(len(data.items)):
            self.discovery_ = discover(
                z,
                read_labels(labels, len(data.items)) if is_read and labels is not None else data.labels,
                n_novel,
                count_by=count_by,
                codebook=self.codebook,
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
        found, data = self._found(), self._read_all(x, progress)
        return found.predict(self.embed(data, progress=progress), data.discovery_features)

    def novelty(self, x: Any, *, progress: bool | None = None) -> np.ndarray:
        """Return a score (n,) that is larger for items of novel classes; see `Discovery.novelty`."""
        found, data = self._found(), self._read_all(x, progress)
        return found.novelty(self.embed(data, progress=progress), data.discovery_features)

    def summary(self) -> list[str]:
        """Return a few lines of text about what the fit learned."""
        codes = [] if self.codebook is None else [f"{type(self).__name__}: {self.codebook!r}"]
        check, broken = getattr(self, "check_", None), getattr(self, "broken_", {})
        lines = [*codes, *self.report(), *([str(check)] if check else [])]
        return [*lines, *([f"images that could not be read: {len(broken)}"] if broken else [])]

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
