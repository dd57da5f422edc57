"""A cell: one fit, with everything that decides its result; the path of its result file is a function of it."""

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

from combemb import methods
from combemb.bench.presets import Preset
from combemb.bench.recipes import TUNED
from combemb.bench.tables import FEATURES, N_NOVEL, Fields, Row, Table
from combemb.data.splits import SPLITS
from combemb.learning.deep import DeepMethod
from combemb.learning.input import ImageSettings
from combemb.system.errors import require

Run = tuple[str, int]  # split and seed


@dataclass(frozen=True)
class Cell:
    """One fit and its scores.

    Attributes
    ----------
    preset, dataset, task, method : str
    settings : Fields
        All settings that differ from the defaults of the method, except its bits and its seed.
    bits : int, optional
        None for methods without codes.
    split, seed : str, int
    seen_share, labelled_share : float
    per_class, per_class_test : int, optional
        The first so many images of each class.
    stages : tuple
        First stages of the backbone.
    constructor : str
        A class method that makes the method, if not its class.
    """

    preset: str
    dataset: str
    task: str
    method: str
    settings: Fields
    bits: int | None
    split: str
    seed: int
    seen_share: float = 0.75
    labelled_share: float = 0.5
    per_class: int | None = None
    per_class_test: int | None = None
    stages: tuple[tuple[str, Fields], ...] = ()
    constructor: str = ""

    @property
    def digest(self) -> str:
        """Start of the SHA-256 of everything in the cell."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:10]

    @property
    def path(self) -> Path:
        """The result file, relative to the folder of results."""
        method = self.method.replace(":", ".").replace("/", ".")
        bits = "" if self.bits is None else f"-{self.bits}bits"
        name = f"{self.task}-{method}{bits}-split{self.split}-seed{self.seed}-{self.digest}.json"
        return Path(self.preset, self.dataset, name)

    def __str__(self) -> str:
        bits = "" if self.bits is None else f", {self.bits} bits"
        return f"{self.dataset}, {self.method}{bits}, split {self.split}, seed {self.seed}"


def cells_of(
    table: Table, preset: Preset, splits: tuple[str, ...] | None = None, seeds: tuple[int, ...] | None = None
) -> list[Cell]:
    """Return the cells of a table, whole splits first, each once; none if the preset is not for its task."""
    if table.task not in preset.tasks:
        return []
    splits = splits or _among(table.splits, preset.splits)
    seeds = seeds or _among(table.seeds, preset.seeds)
    unknown = sorted(set(splits) - set(SPLITS))
    require(not unknown, f"split {unknown[0] if unknown else ''!r} is unknown; choose of {', '.join(SPLITS)}")
    wanted = product(product(splits, seeds), table.all_rows, table.bits)
    return list(dict.fromkeys(cell_of(table, preset, row, bits, run) for run, row, bits in wanted))


def cell_of(table: Table, preset: Preset, row: Row, bits: int | None, run: Run) -> Cell:
    """Return the cell of a row, the bits of a column, and a split and seed."""
    own = settings_of(table, preset, row)
    bits = own.pop("bits", bits)
    needs_stages = table.task == "discovery" and not _has(row.method, "pretraining")
    return Cell(
        *(preset.name, table.dataset, table.task, row.method, tuple(sorted(own.items()))),
        bits=bits if _has(row.method, "bits") else None,
        split=run[0],
        seed=run[1],
        seen_share=table.seen_share,
        labelled_share=row.labelled_share or table.labelled_share,
        per_class=preset.per_class.get(table.dataset, preset.per_class.get("*")),
        per_class_test=preset.per_class_test.get(table.dataset, preset.per_class_test.get("*")),
        stages=tuple((n, tuple(sorted(s.items()))) for n, s in preset.stages) if needs_stages else (),
        constructor=row.constructor,
    )


def settings_of(table: Table, preset: Preset, row: Row) -> dict[str, Any]:
    """Return the settings of a row: those of the preset and of the recipe as far as the method has them, then its own.

    Later ones replace earlier ones.
    """
    is_deep = row.method != FEATURES and issubclass(methods.get(row.method), DeepMethod)
    layers = [preset.all, preset.deep if is_deep else {}]
    layers += [preset.of_task.get(table.task, {}), preset.of_dataset.get(table.dataset, {})]
    layers.append(preset.of_method.get(row.method, {}))
    layers.append(TUNED.get(table.task, {}).get(row.method, {}) if preset.is_tuned and not row.constructor else {})
    layers.append({"n_novel": N_NOVEL})
    found = {name: value for layer in layers for name, value in layer.items() if _has(row.method, name)}
    return found | dict(row.fields)


def _has(method: str, name: str) -> bool:
    """Return whether a method has a setting; plain features have those of images."""
    kind: Any = ImageSettings if method == FEATURES else methods.get(method)
    return any(field.name == name for field in fields(kind))


def _among(wanted: tuple[Any, ...], limit: tuple[Any, ...] | None) -> tuple[Any, ...]:
    return wanted if limit is None else tuple(w for w in wanted if w in limit)
