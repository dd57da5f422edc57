"""The interface of all methods."""

import dataclasses
import hashlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from combemb.data.embeddings import check_finite
from combemb.data.items import ArrayItems, Items, chunks
from combemb.data.labels import Labels, read_labels
from combemb.discovery.class_number import check_count_by
from combemb.discovery.discovering import discover
from combemb.discovery.result import Discovery
from combemb.learning.image_input import FromImages, Given, as_embeddings, as_images
from combemb.learning.run_folder import Run
from combemb.learning.settings import Settings, check_type
from combemb.search.codebook import Codebook
from combemb.search.metrics import code_use
from combemb.system import processes
from combemb.system.errors import require
from combemb.system.machine import DEVICES, is_available, resolved
from combemb.system.version import __version__

MOST_FEATURES = 4_096  # that discovery looks at beside the embeddings; maps of a backbone that is fine-tuned are larger
KEPT = ("_backbone", "_backbone_digest", "_data")  # beside the fitted state, for as long as the settings stay the same
OTHER = {"images": "the images", "labels": "the labels", "backbone_digest": "the weights of the backbone"}  # by digest
DIAGNOSED_ITEMS = 20_000  # items whose codes are counted at the end of a fit, at most


@dataclass(kw_only=True, eq=False, repr=False)
class Method(FromImages, Settings, ABC):
    """One way to learn from a partly labelled pile. The fields are the hyper-parameters; the constructor only stores.

    scikit-learn's conventions hold: `fit` returns self, fitted state ends in `_`, `get_params` and `clone` work.
    """

    task: ClassVar[Literal["retrieval", "discovery", "both"]]
    paper: ClassVar[str]

    def check(self, labels: Labels, n_features: int | None) -> None:
        """ValueError if the fields and the data do not fit together; called before anything is computed or written.

        n_features: F, or None while images have not been turned into features yet.
        """
        for field in dataclasses.fields(self):
            check_type(field.name, getattr(self, field.name), field.type)
        require(0 <= self.seed < 2**31, f"seed={self.seed} must be at least 0 and below 2**31")
        require(self.device in DEVICES, f"device={self.device!r}; choose one of {', '.join(DEVICES)}")
        require(is_available(self.device), f"device={self.device!r} is not available on this machine; use auto")
        self.check_images()

    def _begin(self, items: Items, labels: Labels, progress: bool | None) -> None:
        """The part of a fit that can still find fault with the data; nothing has been written then."""

    @abstractmethod
    def _fit(self, items: Items, labels: Labels, run: Run | None, progress: bool | None) -> None:
        """Set the fitted state."""

    @abstractmethod
    def _embed(self, x: Tensor) -> Tensor:
        """Embed one chunk (n, F) -> (n, D)."""

    @property
    @abstractmethod
    def n_inputs(self) -> int:
        """F of the data that the method was fitted on."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """The fitted state as named tensors."""

    @abstractmethod
    def restore(self, state: dict[str, Tensor]) -> None:
        """Take over what `state` gave."""

    @property
    def codebook(self) -> Codebook:
        """The words that the codes of a retrieval method stand for."""
        raise ValueError(f"{type(self).__name__} gives no codes; it is a method for {self.task}")

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
        """Learn from x, images or embeddings, and from labels.

        x: an image folder, a manifest, images (N, H, W, 3) of uint8; or embeddings (N, F), or (N, V, F) with views, or
        a file of them. labels: ints with -1, strings with None or "", or (N, C) of 0/1 with rows of -1; left out, those
        that lie beside x are taken. With `folder` the run is written there as it goes on; `resume` continues one that
        was stopped. `progress`: None shows it on a terminal, True always, False never.
        """
        progress = progress if processes.is_first() else False
        run = Run(folder) if folder is not None else None
        if run:
            run.check_free(overwrite, resume)
        for name in [name for name in vars(self) if name.endswith("_") or name in KEPT]:
            delattr(self, name)  # not fitted until the data have passed
        self.source_ = str(Path(x).absolute()) if isinstance(x, str | Path) else None
        given, read = self._read(x, labels, progress)
        if isinstance(given.items, ArrayItems):
            check_finite(given.items.x, progress=progress)
        data = {**given.items.fingerprint(), "images": given.images_key, "labels": _digest(read.values)}
        config = {**self._config(read.classes), "data": data}
        is_resumed = run is not None and resume and run.has_config()
        if run and is_resumed:
            _require_same(run, config)
        with processes.joined(resolved(self.device)):
            if run and is_resumed and run.is_complete():
                self.classes_, self.broken_, self.log_ = read.classes, given.broken, run.log()
                self.restore(run.weights())
                self._load_discovery(run)
                return self
            self._begin(given.items, read, progress)
            processes.wait_for_all()
            if run and processes.is_first():
                if not is_resumed:
                    run.start(config)
                run.write_broken(given.broken)
            processes.wait_for_all()
            self.classes_, self.broken_ = read.classes, given.broken
            self._fit(given.items, read, run, progress)
            if run and processes.is_first():
                run.write_report(self._diagnosis(given.items), getattr(self, "log_", []))
                run.write_weights(self.state())
            processes.wait_for_all()  # the run is whole for everyone, and gloo's threads have let go of their tensors
        return self

    def _read(self, x: Any, labels: Any, progress: bool | None) -> tuple[Given, Labels]:
        """Items to learn from and their labels, checked; of images, what can be checked is so before the long part."""
        images = as_images(x)
        if images is None:
            given = as_embeddings(x)
            read = _labels(given.labels if labels is None else labels, len(given.items))
        else:
            read = _labels(images.labels if labels is None else labels, len(images))
            if labels is None and images.class_names is not None and read.is_multi:
                read = replace(read, classes=images.class_names)
            if images.is_test is not None:
                train = np.flatnonzero(~images.is_test)
                images, read = images.take(train), read.take(train)
                if labels is None and read.is_multi:
                    read = read.without_empty_classes()
            self.check(read, None)
            self.image_size_ = self._size(images)
            given = self._image_items(images, self.n_views, progress)
            read = read if given.rows is None else read.take(given.rows)
        self.check(read, given.items.n_features if isinstance(given.items, ArrayItems) else None)
        return given, read

    def _diagnosis(self, items: Items) -> dict[str, Any]:
        """What one should look at before believing a fit: here the use of the codes of (some of) the items."""
        if self.task == "discovery":
            return {}
        some = torch.arange(0, len(items), -(-len(items) // DIAGNOSED_ITEMS))
        with torch.no_grad():
            z = torch.cat([self._embed(items.take(rows)).cpu() for rows in some.split(items.n_rows)])
        return code_use(self.codebook.encode(z), self.codebook.sizes)

    def embed(self, x: Any, *, progress: bool | None = None) -> Tensor:
        """Embed every item, of those with several views the clean one: (N, D) float32.

        x: as for `fit`, or what `read` made of it.
        """
        return torch.cat(list(self._embedded(x, progress)))

    def _embedded(self, x: Any, progress: bool | None) -> Iterator[Tensor]:
        """The embeddings some rows at a time."""
        self._require_fitted()
        items = self._readable(x, progress).items
        require(
            isinstance(items, ArrayItems) != self._takes_pixels,
            "this model was fitted on images with finetune='all'; give it images",
        )
        if isinstance(items, ArrayItems):
            if items.n_features != self.n_inputs:
                raise ValueError(f"x has {items.n_features} features; this model was fitted on {self.n_inputs}")
            check_finite(items.x[:, 0], allow_constant=True, progress=progress)
        for chunk in chunks(items, "embedding", progress):
            with torch.no_grad():
                z = self._embed(chunk).cpu()
            yield z

    def _readable(self, x: Any, progress: bool | None) -> Given:
        """What was read already, or can be read whole: ValueError if an image would have no row."""
        given = x if isinstance(x, Given) else self.read(x, progress=progress)
        if given.broken and given is not x:
            name, reason = next(iter(given.broken.items()))
            raise ValueError(
                f"{len(given.broken)} images cannot be read, such as {name}: {reason}; leave them out, or embed what "
                "`read` gives: the rows are then those of its ids"
            )
        return given

    def encode(self, x: Any, *, progress: bool | None = None) -> Tensor:
        """Codes (N, M) uint8 of the clean view of every item."""
        return torch.cat([self.codebook.encode(z) for z in self._embedded(x, progress)])

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
        """Put every item of x into a seen class or a novel one, and say how many novel ones there are.

        x: best the items of the fit, in any form that `fit` takes, without a part to test on; or what `read` made of
        them. labels left out, those that lie beside x are taken. n_novel and count_by: see `combemb.discover`. z: what
        `embed` gave for x, if it is known. The result is kept as `discovery_`, for `predict` and `novelty`.
        """
        self._require_fitted()
        codebook = self.codebook if self.task != "discovery" else None
        check_count_by(count_by, codebook)
        given, values = self._labelled(x, labels, progress)
        self.discovery_ = discover(
            self.embed(given, progress=progress) if z is None else z,
            values,
            n_novel,
            count_by=count_by,
            codebook=codebook,
            features=_features(given.items),
            seed=self.seed,
            progress=progress,
        )
        return self.discovery_

    def _labelled(self, x: Any, labels: Any, progress: bool | None) -> tuple[Given, Any]:
        """Items to discover classes in, and a label of each; of images those to train on that can be read."""
        images = None if isinstance(x, Given) else as_images(x)
        if images is None:
            given = x if isinstance(x, Given) else as_embeddings(x)
            return given, given.labels if labels is None else labels
        read = _labels(images.labels if labels is None else labels, len(images))
        if images.is_test is not None:
            train = np.flatnonzero(~images.is_test)
            images, read = images.take(train), read.take(train)
        given = self.read(images, progress=progress)
        read = read if given.rows is None else read.take(given.rows)
        return given, read.names(read.values)

    def predict(self, x: Any, *, progress: bool | None = None) -> np.ndarray:
        """The seen class or the novel cluster of `discovery_` of each item, or "neither"; see `Discovery.predict`."""
        found, given = self._found(), self._readable(x, progress)
        return found.predict(self.embed(given, progress=progress), _features(given.items))

    def novelty(self, x: Any, *, progress: bool | None = None) -> np.ndarray:
        """How much each item seems to belong to no seen class, (n,), larger = more; see `Discovery.novelty`."""
        found, given = self._found(), self._readable(x, progress)
        return found.novelty(self.embed(given, progress=progress), _features(given.items))

    def was_fitted_with(self, labels: Any, folder: str | Path) -> bool:
        """Whether these are the labels of the fit that a run folder holds; True if that is not known."""
        config, read = Run(folder).config(), read_labels(labels, len(labels))
        known = config.get("data", {}).get("labels")
        return known is None or (known == _digest(read.values) and config["classes"] == read.classes.tolist())

    def _found(self) -> Discovery:
        require(hasattr(self, "discovery_"), "nothing was discovered yet; call discover(x, labels) first")
        return self.discovery_

    def summary(self) -> list[str]:
        """What the fit learned, in a few lines for a reader."""
        lines = [f"{type(self).__name__}: {self.codebook!r}"] if self.task != "discovery" else []
        broken = getattr(self, "broken_", {})
        return lines + ([f"unreadable images left out: {len(broken)}"] if broken else [])

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write a run folder: the configuration as JSON, the fitted state as safetensors."""
        self._require_fitted()
        run = Run(folder)
        run.check_free(overwrite, resume=False)
        run.start(self._config(self.classes_))
        run.write_broken(getattr(self, "broken_", {}))
        run.write_weights(self.state())
        if hasattr(self, "discovery_"):
            self.discovery_.save(run.discovery)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """A fitted method from its run folder."""
        run = Run(folder)
        config = run.config()
        require(
            config["method"] == cls._name(), f"{folder} holds a run of {config['method']!r}, not of {cls._name()!r}"
        )
        fields: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in config["fields"].items()}
        unknown = set(fields) - {f.name for f in dataclasses.fields(cls)}
        require(not unknown, f"{folder} has settings unknown to this combemb: {', '.join(sorted(unknown))}; fit again")
        method = cls(**fields)
        kinds = {isinstance(name, str) for name in config["classes"]}
        method.classes_ = np.array(config["classes"], dtype=object if True in kinds else np.int64)
        if config.get("image_size") is not None:
            method.__dict__ |= {"image_size_": config["image_size"], "backbone_digest_": config["backbone_digest"]}
        method.source_ = config.get("source")
        if not is_available(method.device):
            method.device = "auto"  # it was fitted on another machine
        try:
            method.restore(run.weights())
        except (KeyError, RuntimeError) as error:
            raise ValueError(f"{folder} is damaged, its weights do not fit: {error}; fit again") from error
        method._load_discovery(run)
        return method

    def _load_discovery(self, run: Run) -> None:
        """What was discovered in the folder of a run, if anything; a damaged file costs that, not the run."""
        if run.discovery.exists():
            try:
                self.discovery_ = Discovery.load(run.discovery)
            except ValueError as error:
                warnings.warn(str(error), stacklevel=4)

    @classmethod
    def _name(cls) -> str:
        return cls.__module__.rpartition(".")[2]

    def _config(self, classes: np.ndarray) -> dict[str, Any]:
        chosen = {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        if chosen["backbone_weights"] is not None:
            chosen["backbone_weights"] = str(Path(chosen["backbone_weights"]).absolute())  # a run is read from anywhere
        if chosen["backbone"].startswith("hf:") and (local := Path(chosen["backbone"][3:])).is_dir():
            chosen["backbone"] = f"hf:{local.absolute()}"
        size = getattr(self, "image_size_", None)
        return {
            "combemb": __version__,
            "method": self._name(),
            "fields": chosen,
            "image_size": size,
            "backbone_digest": None if size is None else self._backbone_digest,
            "classes": classes.tolist(),
            "source": getattr(self, "source_", None),  # where the data lay, to index them without being told again
        }

    def _require_fitted(self) -> None:
        if not hasattr(self, "classes_"):
            raise ValueError(f"this {type(self).__name__} is not fitted; call fit(x, labels) or load a run folder")


def _features(items: Items) -> np.ndarray | None:
    """The clean features of items, if they are such and not larger than what helps discovery."""
    return items.x[:, 0] if isinstance(items, ArrayItems) and items.n_features <= MOST_FEATURES else None


def _labels(labels: Any, n_items: int) -> Labels:
    return read_labels(np.full(n_items, -1) if labels is None else labels, n_items)


def _require_same(run: Run, config: dict[str, Any]) -> None:
    """ValueError if a run to be resumed was started with other settings or other data."""
    stored = {"data": {}, **run.config()}
    names = ("method", "classes", "backbone_digest")
    parts = {**{name: stored.get(name) for name in names}, **stored["fields"], **stored["data"]}
    now = {**{name: config[name] for name in names}, **config["fields"], **config["data"]}
    changed = [name for name in {**parts, **now} if parts.get(name) != now.get(name)]
    others = [f"{OTHER[name]} are others now" for name in changed if name in OTHER]
    others += [f"{name} was {parts.get(name)}, now it is {now.get(name)}" for name in changed if name not in OTHER]
    require(not changed, f"cannot resume {run.folder}: {'; '.join(others)}; undo that, or begin anew with overwrite")


def _plain(value: Any) -> Any:
    """A field's value as JSON has it."""
    if isinstance(value, np.generic):
        return value.item()
    return list(value) if isinstance(value, tuple) else value


def _digest(values: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:16]
