"""The interface of all methods."""

import dataclasses
import hashlib
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from combemb import processes
from combemb._version import __version__
from combemb.codes import Codebook
from combemb.data.embeddings import Embeddings, as_array, check_finite, read_embeddings
from combemb.data.labels import Labels, read_labels
from combemb.data.partly_labelled import CHUNK, ArrayItems
from combemb.machine import DEVICES, is_available, resolved
from combemb.metrics import code_use
from combemb.progress import tracked
from combemb.runs import Run

DIAGNOSED_ITEMS = 20_000  # items whose codes are counted at the end of a fit, at most


def setting(default: Any, about: str) -> Any:
    """A hyper-parameter: a dataclass field with one line of what it is and where its default comes from."""
    return dataclasses.field(default=default, metadata={"about": about})


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
        for field in dataclasses.fields(self):
            _check_type(field.name, getattr(self, field.name), field.type)
        require(0 <= self.seed < 2**31, f"seed={self.seed} must be at least 0 and below 2**31")
        require(self.device in DEVICES, f"device={self.device!r}; choose one of {', '.join(DEVICES)}")
        require(is_available(self.device), f"device={self.device!r} is not available on this machine; use auto")

    def _begin(self, x: np.ndarray, labels: Labels, progress: bool | None) -> None:
        """The part of a fit that can still find fault with the data; nothing has been written then."""

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
        progress = progress if processes.is_first() else False
        run = Run(folder) if folder is not None else None
        if run:
            run.check_free(overwrite, resume)
        given = _read(x)
        labels = given.labels if labels is None else labels
        labels = read_labels(np.full(len(given.x), -1) if labels is None else labels, len(given.x))
        self.check(given.x, labels)
        check_finite(given.x, progress=progress)
        config = {**self._config(labels.classes), "data": _fingerprint(given.x, labels)}
        is_resumed = run is not None and resume and run.has_config()
        if run and is_resumed:
            _require_same(run, config)
        self.__dict__.pop("classes_", None)  # not fitted until the data have passed
        with processes.joined(resolved(self.device)):
            if run and is_resumed and run.is_complete():
                self.classes_, self.log_ = labels.classes, run.log()
                self.restore(run.weights())
                return self
            self._begin(given.x, labels, progress)
            processes.wait_for_all()
            if run and not is_resumed and processes.is_first():
                run.start(config)
            processes.wait_for_all()
            self.classes_ = labels.classes
            self._fit(given.x, labels, run, progress)
            if run and processes.is_first():
                run.write_report(self.diagnosis(given.x), getattr(self, "log_", []))
                run.write_weights(self.state())
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
        require(
            config["method"] == cls._name(), f"{folder} holds a run of {config['method']!r}, not of {cls._name()!r}"
        )
        fields: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in config["fields"].items()}
        unknown = set(fields) - {f.name for f in dataclasses.fields(cls)}
        require(not unknown, f"{folder} has settings unknown to this combemb: {', '.join(sorted(unknown))}; fit again")
        method = cls(**fields)
        kinds = {isinstance(name, str) for name in config["classes"]}
        method.classes_ = np.array(config["classes"], dtype=object if True in kinds else np.int64)
        if not is_available(method.device):
            method.device = "auto"  # it was fitted on another machine
        try:
            method.restore(run.weights())
        except (KeyError, RuntimeError) as error:
            raise ValueError(f"{folder} is damaged, its weights do not fit: {error}; fit again") from error
        return method

    @classmethod
    def _name(cls) -> str:
        return cls.__module__.rpartition(".")[2]

    def _config(self, classes: np.ndarray) -> dict[str, Any]:
        fields = {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return {"combemb": __version__, "method": self._name(), "fields": fields, "classes": classes.tolist()}

    def _require_fitted(self) -> None:
        if not hasattr(self, "classes_"):
            raise ValueError(f"this {type(self).__name__} is not fitted; call fit(x, labels) or load a run folder")


def _check_type(name: str, value: Any, hint: Any) -> None:
    """ValueError if a field does not hold what its annotation says; numbers must be finite."""
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    is_number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    fits = {
        int: is_number and isinstance(value, Integral),
        float: is_number,
        bool: isinstance(value, bool),
        str: isinstance(value, str),
        NoneType: value is None,
    }
    wanted = {int: "a whole number", float: "a finite number", bool: "True or False", str: "text", NoneType: "None"}
    known = [kind for kind in kinds if kind in fits]
    require(
        not known or any(fits[kind] for kind in known),
        f"{name}={value!r} must be {' or '.join(wanted[kind] for kind in known)}",
    )


def _require_same(run: Run, config: dict[str, Any]) -> None:
    """ValueError if a run to be resumed was started with other settings or other data."""
    stored = {"data": {}, **run.config()}
    parts = {"method": stored["method"], "classes": stored["classes"], **stored["fields"], **stored["data"]}
    now = {"method": config["method"], "classes": config["classes"], **config["fields"], **config["data"]}
    changed = [name for name in {**parts, **now} if parts.get(name) != now.get(name)]
    differences = "; ".join(f"{name} was {parts.get(name)}, now it is {now.get(name)}" for name in changed)
    require(not changed, f"cannot resume {run.folder}: {differences}")


def _plain(value: Any) -> Any:
    """A field's value as JSON has it."""
    if isinstance(value, np.generic):
        return value.item()
    return list(value) if isinstance(value, tuple) else value


def _read(x: Any) -> Embeddings:
    if isinstance(x, str | Path):
        return read_embeddings(x)
    return Embeddings(as_array(x), None, None)


def _fingerprint(x: np.ndarray, labels: Labels) -> dict[str, Any]:
    """What tells a resumed run that its data are the same, without reading all of it."""
    some = np.ascontiguousarray(x[:: max(len(x) // 1000, 1)])
    digests = [hashlib.sha256(a.tobytes()).hexdigest()[:16] for a in (some, np.ascontiguousarray(labels.values))]
    return {"shape": list(x.shape), "x": digests[0], "labels": digests[1]}
