"""The interface of all methods, and the part that the deep ones share."""

import dataclasses
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from combemb import __version__, processes
from combemb.backbones.feature_map import FeatureMap, fit_feature_map
from combemb.codes import Codebook
from combemb.data.embeddings import Embeddings, as_array, check_finite, read_embeddings
from combemb.data.labels import Labels, read_labels
from combemb.data.partly_labelled import ArrayItems, Batch, PartlyLabelled
from combemb.metrics import code_use
from combemb.progress import tracked
from combemb.runs import Run
from combemb.training import Terms, descend, train

CHUNK = 16_384  # rows embedded at a time
DIAGNOSED_ITEMS = 20_000  # items whose codes are counted at the end of a fit, at most
DEFAULT_STEPS = 1_200
DEVICES = ("auto", "cpu", "cuda", "mps")


def setting(default: Any, about: str) -> Any:
    """A hyper-parameter: a dataclass field with one line of what it is and where its default comes from."""
    return field(default=default, metadata={"about": about})


def require(condition: bool, message: str) -> None:
    """ValueError with this message unless the condition holds."""
    if not condition:
        raise ValueError(message)


@dataclass(kw_only=True, eq=False, repr=False)
class Method(BaseEstimator, ABC):  # type: ignore[misc]
    """One way to learn from a partly labelled pile. The fields are the hyper-parameters; the constructor only stores.

    scikit-learn's conventions hold: `fit` returns self, fitted state ends in `_`, `get_params` and `clone` work.
    """

    task: ClassVar[Literal["retrieval", "discovery", "both"]]
    paper: ClassVar[str]

    seed: int = setting(0, "everything random follows from it; the global random state is never touched")
    device: str = setting("auto", "auto takes CUDA, then MPS, then the CPU")

    def check(self, x: np.ndarray, labels: Labels) -> None:
        """ValueError if the fields and the data do not fit together; called before anything is computed or written."""
        require(self.device in DEVICES, f"device={self.device!r}; choose one of {', '.join(DEVICES)}")

    @abstractmethod
    def _fit(self, x: np.ndarray, labels: Labels, run: Run | None, progress: bool | None) -> None:
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
        """Learn from x, embeddings (N, F), or (N, V, F) with views, or a file of them, and from labels.

        labels: ints with -1, strings with None or "", or (N, C) of 0/1 with rows of -1; left out, the file's are taken.
        With `folder` the run is written there as it goes on; `resume` continues one that was stopped. `progress`: None
        shows it on a terminal, True always, False never.
        """
        run = Run(folder) if folder is not None else None
        if run:
            run.check_free(overwrite, resume)
        given = _read(x)
        labels = given.labels if labels is None else labels
        labels = read_labels(np.full(len(given.x), -1) if labels is None else labels, len(given.x))
        self.check(given.x, labels)
        check_finite(given.x, progress=progress)
        with processes.joined():
            if run:
                config = {**self._config(labels.classes), "data": _fingerprint(given.x, labels)}
                self._open(run, config, resume)
            self.classes_ = labels.classes
            if run and run.is_complete():
                self.restore(run.weights())
                self.log_ = run.log()
                return self
            self._fit(given.x, labels, run, progress)
            if run and processes.rank() == 0:
                run.write_weights(self.state())
                run.write_report(self.diagnosis(given.x), getattr(self, "log_", []))
        return self

    def diagnosis(self, x: Any) -> dict[str, Any]:
        """What one should look at before believing a fit: here the use of the codes of (some of) the items x."""
        if self.task == "discovery":
            return {}
        x = _read(x).x
        return code_use(self.encode(x[:: -(-len(x) // DIAGNOSED_ITEMS)]), self.codebook.sizes)

    def embed(self, x: Any, *, progress: bool | None = None) -> Tensor:
        """Embed the clean view of every item: (N, D) float32."""
        self._require_fitted()
        items = ArrayItems(_read(x).x)
        if items.x.shape[2] != self.n_inputs:
            raise ValueError(f"x has {items.x.shape[2]} features; this model was fitted on {self.n_inputs}")
        check_finite(items.x[:, 0], allow_constant=True, progress=progress)
        chunks = tracked(items.chunks(CHUNK), "embedding", -(-len(items) // CHUNK), progress)
        with torch.no_grad():
            return torch.cat([self._embed(chunk).cpu() for chunk in chunks])

    def summary(self) -> list[str]:
        """What the fit learned, in a few lines for a reader."""
        return [f"{type(self).__name__}: {self.codebook!r}"] if self.task != "discovery" else []

    def encode(self, x: Any, *, progress: bool | None = None) -> Tensor:
        """Codes (N, M) uint8 of the clean view of every item."""
        return self.codebook.encode(self.embed(x, progress=progress))

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write a run folder: the configuration as JSON, the fitted state as safetensors."""
        self._require_fitted()
        run = Run(folder)
        run.check_free(overwrite, resume=False)
        run.start(self._config(self.classes_))
        run.write_weights(self.state())

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """A fitted method from its run folder."""
        run = Run(folder)
        config = run.config()
        if config["method"] != cls._name():
            raise ValueError(f"{folder} holds a run of {config['method']!r}, not of {cls._name()!r}")
        fields: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in config["fields"].items()}
        method = cls(**fields)
        kinds = {isinstance(name, str) for name in config["classes"]}
        method.classes_ = np.array(config["classes"], dtype=object if True in kinds else np.int64)
        method.restore(run.weights())
        return method

    @classmethod
    def _name(cls) -> str:
        return cls.__module__.rpartition(".")[2]

    def _config(self, classes: np.ndarray) -> dict[str, Any]:
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        fields = {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
        return {"combemb": __version__, "method": self._name(), "fields": fields, "classes": classes.tolist()}

    def _open(self, run: Run, config: dict[str, Any], resume: bool) -> None:
        processes.wait_for_all()
        if resume and run.has_config():
            stored = run.config()
            for key in ("method", "fields", "data"):
                if stored.get(key) != config[key]:
                    raise ValueError(f"cannot resume {run.folder}: its {key} is {stored.get(key)}, now {config[key]}")
        elif processes.rank() == 0:
            run.start(config)
        processes.wait_for_all()

    def _require_fitted(self) -> None:
        if not hasattr(self, "classes_"):
            raise ValueError(f"this {type(self).__name__} is not fitted; call fit(x, labels) or load a run folder")


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
        for name in ("labelled_share", "view_dropout"):
            require(0 < getattr(self, name) < 1, f"{name}={getattr(self, name)} must lie between 0 and 1")
        for name in ("weight_decay", "view_noise"):
            require(getattr(self, name) >= 0, f"{name}={getattr(self, name)} must not be negative")
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
        return {**self.log_[-1], **super().diagnosis(x)}

    def optimisers(self) -> list[Optimizer]:
        """One AdamW over everything; methods with several players override this and `step`."""
        return [AdamW(self.module_.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay, fused=True)]

    def step(self, batch: Batch, optimisers: list[Optimizer]) -> Terms:
        """One step down the sum of `losses`."""
        terms = self.losses(batch)
        descend(self.module_.parameters(), optimisers[0], terms, self.clip_norm)
        return terms

    def _fit(self, x: np.ndarray, labels: Labels, run: Run | None, progress: bool | None) -> None:
        with limited_threads(self.threads):
            self._train(x, labels, run, progress)

    def _train(self, x: np.ndarray, labels: Labels, run: Run | None, progress: bool | None) -> None:
        items = ArrayItems(x)
        chunks = tracked(items.chunks(), "reading features", -(-len(items) // CHUNK), progress)
        self.feature_map_ = fit_feature_map(chunks, self.max_features)
        data = PartlyLabelled(
            ArrayItems(x, self.feature_map_).in_memory(),
            labels,
            self.batch_size,
            self.labelled_share,
            self.seed,
            self.view_noise,
            self.view_dropout,
            processes.rank(),
            processes.world_size(),
        )
        with seeded(self.seed):
            self.module_ = self.network(self.feature_map_.n_features, len(labels.classes)).to(self._device())
        self.prepare(data)
        self.log_ = train(self, data, run, progress)

    def _embed(self, x: Tensor) -> Tensor:
        embedding: Tensor = self.module_(self.feature_map_(x).to(self._device()))
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
            self.module_ = self.network(self.feature_map_.n_features, len(self.classes_)).to(self._device())
        for part, module in (("feature_map.", self.feature_map_), ("module.", self.module_)):
            module.load_state_dict({n.removeprefix(part): t for n, t in state.items() if n.startswith(part)})
            module.eval()

    def _device(self) -> torch.device:
        if self.device != "auto":
            return torch.device(self.device)
        accelerators = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        return torch.device(next((name for name, there in accelerators.items() if there), "cpu"))


@contextmanager
def limited_threads(n: int) -> Iterator[None]:
    """Let torch use n threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Modules start from the global generator: seed it inside, and put it back as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _read(x: Any) -> Embeddings:
    if isinstance(x, str | Path):
        return read_embeddings(x)
    return Embeddings(as_array(x), None, None)


def _fingerprint(x: np.ndarray, labels: Labels) -> dict[str, Any]:
    """What tells a resumed run that its data are the same, without reading all of it."""
    some = np.ascontiguousarray(x[:: max(len(x) // 1000, 1)])
    digests = [hashlib.sha256(a.tobytes()).hexdigest()[:16] for a in (some, np.ascontiguousarray(labels.values))]
    return {"shape": list(x.shape), "x": digests[0], "labels": digests[1]}
