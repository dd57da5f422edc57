"""One cell from its data to its record: features, fit, scores, and what they took."""

import resource
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from combemb import methods
from combemb.bench import regions, scores
from combemb.bench.cells import Cell
from combemb.bench.own_data import OwnData
from combemb.bench.presets import WEIGHTS
from combemb.bench.protocol import Pile, fingerprint, hidden, limited
from combemb.bench.results import about_code
from combemb.bench.sources import SOURCES, MissingData
from combemb.bench.tables import FEATURES, N_CLASSES, N_NOVEL
from combemb.data.datasets import Dataset
from combemb.data.given import read_given
from combemb.data.images import Images
from combemb.learning.head import STAGES
from combemb.learning.input import ImageInput, ImageSettings
from combemb.learning.method import Method
from combemb.learning.pretraining import weights_after
from combemb.learning.pretraining.training import TrainedStage
from combemb.system.errors import require
from combemb.system.machine import limited_threads

CLEAR_PEAK, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")  # of Linux


@dataclass(frozen=True)
class Places:
    """Where things are on this machine, which no cell knows.

    Attributes
    ----------
    results : Path
        The folder of result files.
    data, weights : Path, optional
        The folder of data, and the weights for presets that need them.
    own : tuple
        Data sets that are no published ones: name, path, and file of labels.
    device : str
    """

    results: Path
    data: Path | None = None
    weights: Path | None = None
    own: tuple[tuple[str, Path, Path | None], ...] = ()
    device: str = "auto"


class Library:
    """The data sets of one process; the last one stays in memory."""

    def __init__(self, places: Places):
        self.places = places
        self.key: Any = None
        self.dataset: Dataset | None = None
        self.found: dict[str, Any] = {}

    def get(self, cell: Cell) -> tuple[Dataset, dict[str, Any]]:
        """Return the data set of a cell, as features unless the backbone is trained, and what is known about it."""
        settings = image_settings(cell, self.places)
        is_trained = "finetune" in dict(cell.settings) or bool(cell.stages)
        own = cell.seed if cell.dataset in {name for name, *_ in self.places.own} else None
        key = (cell.dataset, cell.per_class, cell.per_class_test, None if is_trained else repr(settings), own)
        if self.dataset is None or key != self.key:
            self.dataset = None  # two would need twice the memory
            dataset = limited(self._read(cell), cell.per_class, cell.per_class_test)
            self.found = {"name": cell.dataset, "fingerprint": fingerprint(dataset)}
            dataset = dataset if is_trained else as_features(dataset, settings)
            self.key, self.dataset = key, dataset
            self.found |= {"n_train": len(dataset.train_targets), "n_test": len(dataset.test_targets)}
        return self.dataset, self.found

    def _read(self, cell: Cell) -> Dataset:
        for name, path, labels in self.places.own:
            if name == cell.dataset:
                return OwnData.read(path, labels).divided(cell.seed)
        require(cell.dataset in SOURCES, f"there is no data set {cell.dataset!r}; choose one of {', '.join(SOURCES)}")
        return SOURCES[cell.dataset].load(self.places.data)


def image_settings(cell: Cell, places: Places) -> dict[str, Any]:
    """Return the settings of a cell that decide the features of images."""
    names = ImageSettings.__dataclass_fields__
    return {name: value for name, value in resolved(cell, places, None).items() if name in names}


def resolved(cell: Cell, places: Places, pile: Pile | None) -> dict[str, Any]:
    """Return the settings of a cell with what the data and this machine decide."""
    known: dict[Any, Any] = {WEIGHTS: None if places.weights is None else str(places.weights)}
    if pile is not None:
        known |= {N_CLASSES: pile.n_classes, N_NOVEL: pile.n_novel}
    settings = dict(cell.settings)
    if WEIGHTS in settings.values() and places.weights is None:
        raise MissingData(
            f"preset {cell.preset} needs the weights of {settings['backbone']}: give --weights FILE, a .safetensors "
            "file with torchvision's parameter names"
        )
    return {name: known.get(value, value) if isinstance(value, str) else value for name, value in settings.items()}


def as_features(dataset: Dataset, settings: dict[str, Any]) -> Dataset:
    """Return a data set whose images are features: of all views for training images, of the clean one for others."""
    if not isinstance(dataset.train_x, Images):
        return dataset
    reader = ImageInput(ImageSettings(**settings), 0, "auto")
    parts: list[Any] = []
    for x, targets, n_views in (
        (dataset.train_x, dataset.train_targets, ImageSettings(**settings).n_views),
        (dataset.test_x, dataset.test_targets, 1),
    ):
        loaded = reader.load(read_given(x), n_views, None)
        parts += [loaded.items.x, targets[loaded.rows]]  # type: ignore[attr-defined]
    x, targets, test_x, test_targets = parts
    return Dataset(dataset.name, x, targets, test_x, test_targets, dataset.class_names)


def fitted(cell: Cell, pile: Pile, places: Places) -> scores.Fitted:
    """Return the method of a cell, fitted; float features need no fit."""
    settings = resolved(cell, places, pile)
    if cell.method == FEATURES:
        if isinstance(pile.x, Images):
            return FrozenBackbone(_started(cell, settings, pile))
        return scores.Plain()
    cls: Any = methods.get(cell.method)
    make = getattr(cls, cell.constructor) if cell.constructor else cls
    bits = {} if cell.bits is None else {"bits": cell.bits}
    model: Any = make(**bits, seed=cell.seed, device=places.device, **_started(cell, settings, pile))
    found: Method = model.fit(pile.x, pile.labels, progress=False)
    return found


class FrozenBackbone(scores.Plain):
    """The features of images by a backbone that is not trained further."""

    def __init__(self, settings: dict[str, Any]):
        self.reader = ImageInput(ImageSettings(**settings), 0, "auto")

    def embed(self, x: Any) -> Any:
        """Return the clean features of images."""
        return super().embed(np.asarray(self.reader.load(read_given(x), 1, False).items.x))  # type: ignore[attr-defined]


def _started(cell: Cell, settings: dict[str, Any], pile: Pile) -> dict[str, Any]:
    """Return the settings with the weights of the first stages of the cell, which the cache keeps."""
    weights: dict[str, Any] = {}
    images = {name: value for name, value in settings.items() if name in ImageSettings.__dataclass_fields__}
    for name, own in cell.stages:
        stage = STAGES[name](**{**images, **weights, **dict(own)}, seed=cell.seed)
        given = read_given(pile.x, pile.labels)
        weights = {"backbone_weights": str(weights_after(TrainedStage(stage), stage.image_input(), given, False))}
    return {**settings, **weights}


def record_of(cell: Cell, library: Library) -> dict[str, Any]:
    """Run a cell and return its record; an error becomes a record with `failure`, missing data are raised."""
    began = time.monotonic()
    _forget_peak()
    record: dict[str, Any] = {"cell": asdict(cell), **about_code()}
    try:
        found = _measured(cell, library)
    except MissingData:
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        found = {"failure": f"{type(error).__name__}: {error}", "failed_at": where}
    seconds = time.monotonic() - began
    settings = {"settings": found.pop("settings")} if "settings" in found else {}
    return {**record, **settings, **scores.plain({**found, "seconds": seconds, "peak_memory_mb": _peak()})}


def _measured(cell: Cell, library: Library) -> dict[str, Any]:
    if cell.task == "regions":
        return _of_regions(cell, library.places)
    dataset, about = library.get(cell)  # extraction has threads of its own
    with limited_threads(1), threadpool_limits(1):
        pile = hidden(dataset, cell)
        began = time.monotonic()
        model = fitted(cell, pile, library.places)
        found: dict[str, Any] = {"fit_seconds": time.monotonic() - began}
        if cell.task in ("retrieval", "both"):
            found |= scores.retrieval(model, pile)
        if cell.task in ("discovery", "both") and not pile.is_multi:
            found |= scores.discovery(model, pile, cell.seed)
        has_map = cell.task == "discovery" and cell.seed == 0
        more = {"map": scores.tsne_map(model, pile, cell.seed)} if has_map else {}
    return {"scores": found, **more, "settings": _settings(model), "data": about}


def _of_regions(cell: Cell, places: Places) -> dict[str, Any]:
    x, targets = regions.points()
    cls: Any = methods.get(cell.method)
    model = cls(bits=cell.bits, seed=cell.seed, **{**resolved(cell, places, None), **regions.FIT})
    model.fit(regions.with_one(x), targets, progress=False)
    found = regions.regions(model)
    data = {"name": cell.dataset, "fingerprint": "", "n_train": len(x), "n_test": 0}
    return {
        "scores": {"n_regions": found.pop("n_regions")},
        "regions": found,
        "settings": _settings(model),
        "data": data,
    }


def _settings(model: Any) -> dict[str, Any]:
    """Return all settings of a method; a file is named without its folder."""
    settings = model.get_params() if isinstance(model, Method) else {}
    weights = settings.get("backbone_weights")
    return {**settings, "backbone_weights": Path(weights).name} if weights else settings


def _forget_peak() -> None:
    """Let the peak of memory start from here, where the system can do that."""
    with suppress(OSError):
        CLEAR_PEAK.write_text("5")


def _peak() -> float:
    """Return the peak of resident memory in MB; since the start of the process where it cannot be reset."""
    with suppress(OSError, StopIteration, ValueError):
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
