"""Store a method in a run folder and load it, and check that a resumed fit has the same settings and data."""

import dataclasses
import warnings
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from combemb.data.labels import Labels
from combemb.discovery.result import Discovery
from combemb.learning.interface import Interface
from combemb.learning.replacing import publish
from combemb.learning.run_folder import CONFIG, RunFolder
from combemb.system.errors import require
from combemb.system.machine import is_available
from combemb.system.version import __version__

OwnMethod = TypeVar("OwnMethod", bound=Interface)

BUILT_IN = "combemb.methods."
DIGESTS = {"key": "the images", "labels": "the labels", "backbone_digest": "the weights of the backbone"}


def method_name(cls: type[Interface]) -> str:
    """Return the name by which `combemb.methods.get` finds a class: that of its file, or `package.module:Class`."""
    module = cls.__module__
    return module.removeprefix(BUILT_IN) if module.startswith(BUILT_IN) else f"{module}:{cls.__qualname__}"


def settings_of(method: Interface) -> dict[str, Any]:
    """Return the settings of a method as JSON, with absolute paths."""
    chosen = {name: _plain(value) for name, value in method.get_params().items()}
    if chosen["backbone_weights"] is not None:
        chosen["backbone_weights"] = str(Path(chosen["backbone_weights"]).absolute())  # for any working directory
    if chosen["backbone"].startswith("hf:") and (local := Path(chosen["backbone"][3:])).is_dir():
        chosen["backbone"] = f"hf:{local.absolute()}"
    return chosen


def config_of(method: Interface, classes: np.ndarray, data: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return everything that restores the method except its tensors, as JSON."""
    images = method.image_input_
    return {
        "combemb": __version__,
        "method": method_name(type(method)),
        "settings": settings_of(method),
        "classes": classes.tolist(),
        "n_novel": getattr(method, "n_novel_", None),
        "images": None if images is None else {"size": images.size, "backbone_digest": images.digest},
        "path": method.path_,  # of the data, the default of `index` and `discover`
        **({} if data is None else {"data": data}),
    }


def require_same_settings(method: Interface, folder: Path, stored: dict[str, Any]) -> None:
    """Raise a ValueError if a run to be resumed was started with other settings, before any data are read."""
    _require_same(folder, changed_settings(method, stored))


def changed_settings(method: Interface, stored: dict[str, Any]) -> list[str]:
    """Return what differs between the settings of a method and those of a configuration, as texts."""
    by_method = differences({"method": stored["method"]}, {"method": method_name(type(method))})
    return by_method or differences(stored["settings"], settings_of(method))


def require_same_data(folder: Path, stored: dict[str, Any], config: dict[str, Any]) -> None:
    """Raise a ValueError if a run to be resumed was started with other data or another backbone."""

    def parts(of: dict[str, Any]) -> dict[str, Any]:
        digest = {"backbone_digest": (of["images"] or {}).get("backbone_digest")}
        return {"classes": of["classes"], **digest, **of.get("data", {})}

    _require_same(folder, differences(parts(stored), parts(config)))


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return what differs between two parts of a configuration, as texts."""
    changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    others = [f"{DIGESTS[name]} have changed" for name in changed if name in DIGESTS]
    return others + [
        f"{name} was {before.get(name)}, now it is {now.get(name)}" for name in changed if name not in DIGESTS
    ]


def _require_same(folder: Path, changed: list[str]) -> None:
    require(not changed, f"cannot resume {folder}: {'; '.join(changed)}; undo this, or start again with overwrite")


def was_fitted_with(folder: str | Path, labels: Labels) -> bool:
    """Return whether a run was fitted with these labels of all items; True if that is not known.

    Classes whose images could not be read may be missing in the run.
    """
    config = RunFolder(folder).config()
    known = config.get("data", {}).get("labels")
    return known is None or (known == labels.digest and set(config["classes"]) <= set(labels.classes.tolist()))


def save(method: Interface, run: RunFolder, overwrite: bool) -> None:
    """Write a run folder; names of classes are kept if the run in it has the same data."""
    run.check_free(overwrite, resume=False)
    with run.written():
        run.check_free(overwrite, resume=False)
        part = run.to_fill(overwrite, resume=False)
        is_same = part is run or _has_path(run, method.path_)
        part.start(config_of(method, method.classes_))
        part.write_broken(getattr(method, "broken_", {}))
        images = method.image_input_
        if hasattr(method, "discovery_"):
            method.discovery_.save(part.discovery)
        part.write_weights(method.state(), images.own_weights if images else None)
        publish(part, keeps_classes=is_same)


def _has_path(run: RunFolder, path: str | None) -> bool:
    """Return whether the data of a run were read from this path."""
    try:
        return path is not None and path == run.config()["path"]
    except ValueError:  # damaged, or of another version
        return False


def load(cls: type[OwnMethod], run: RunFolder) -> OwnMethod:
    """Return the fitted method of a run folder; an error names what was edited or damaged."""
    return run.read_unchanged(lambda: _load(cls, run))


def _load(cls: type[OwnMethod], run: RunFolder) -> OwnMethod:
    config, own = run.config(), method_name(cls)
    require(config["method"] == own, f"{run.folder} holds a run of {config['method']!r}, not of {own!r}")
    stored: dict[str, Any] = config["settings"]
    chosen: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()
    }
    unknown = set(chosen) - {field.name for field in dataclasses.fields(cls)}
    require(
        not unknown,
        f"{run.folder / CONFIG} has settings unknown to this combemb: {', '.join(sorted(unknown))}; fit again",
    )
    method = cls(**chosen)
    try:
        method.check_settings()
    except ValueError as error:
        raise ValueError(f"{run.folder / CONFIG} is damaged: {error}; fit again") from error
    run.require_unchanged_config()
    if not is_available(method.device):
        method.device = "auto"  # fitted on another machine
    kinds = {isinstance(name, str) for name in config["classes"]}
    method.classes_ = np.array(config["classes"], dtype=object if True in kinds else np.int64)
    method.path_ = config["path"]
    restore(method, run, config)
    return method


def restore(method: Interface, run: RunFolder, config: dict[str, Any]) -> None:
    """Set the fitted state of a method from a run folder."""
    images = method.image_input_ = None if config["images"] is None else method.image_input()
    if images is not None:
        images.size, images.known_digest = config["images"]["size"], config["images"]["backbone_digest"]
        if trained := run.backbone():
            images.start_from(trained)
    if config["n_novel"] is not None:
        method.n_novel_ = config["n_novel"]
    try:
        method.restore(run.weights())
    except (KeyError, RuntimeError, TypeError, OverflowError) as error:
        raise ValueError(f"{run.folder} is damaged, its weights do not match: {error}; fit again") from error
    if run.discovery.exists():
        try:
            method.discovery_ = Discovery.load(run.discovery)
        except ValueError as error:  # the rest of the run can still be used
            warnings.warn(str(error), stacklevel=8)


def _plain(value: Any) -> Any:
    """Return the value of a setting as a JSON type."""
    if isinstance(value, np.generic):
        return value.item()
    return list(value) if isinstance(value, tuple) else value
