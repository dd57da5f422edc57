"""Toy data to try methods on, and fits of one method that many promises share."""

import copy
import dataclasses
import itertools
import os
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self
from unittest import mock

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import csv
from torch import Tensor

from combemb.backbones.resnet18 import ResNet18
from combemb.learning.method import Method
from combemb.system.files import write_tensors
from combemb.system.machine import seeded

N_SEEN, N_NOVEL, PER_CLASS, N_QUERIES, F = 5, 2, 20, 20, 24  # sizes of a `Toy`
SEEN, NOVEL = ("ant", "bee", "cat", "dog"), ("eel", "fox")  # classes of `Pictures`
SIDE, BITS = 32, 12
SMALL = {"bits": BITS, "epochs": 2, "batch_size": 64, "device": "cpu", "check": False}
BACKBONE: dict[str, Any] = {"backbone": "resnet18", "backbone_width": 8}  # few features make discovery quick
CACHE = "COMBEMB_CACHE"


@dataclass(frozen=True, eq=False)
class Toy:
    """Well separated blobs of seen and novel classes, with one or several views of each item.

    x (N, F) or (N, V, F). labels (N,): of about half of the seen items, otherwise -1. targets (N,): the truth.
    queries (Q, F), query_targets (Q,): items of novel classes that no fit has seen.
    """

    x: np.ndarray
    labels: np.ndarray
    targets: np.ndarray
    queries: np.ndarray
    query_targets: np.ndarray

    @property
    def clean(self) -> np.ndarray:
        """The clean view (N, F)."""
        return self.x if self.x.ndim == 2 else self.x[:, 0]

    @property
    def other_truth(self) -> np.ndarray:
        """Targets that agree with the labels, but are shuffled where the labels say -1."""
        targets, hidden = self.targets.copy(), np.flatnonzero(self.labels < 0)
        targets[hidden] = targets[np.random.default_rng(0).permutation(hidden)]
        return targets

    def names(self, name: str = "class {}", gap: str | None = None) -> np.ndarray:
        """Return the labels as class names, with `gap` for unlabelled items."""
        return np.array([name.format(c) if c >= 0 else gap for c in self.labels], dtype=object)


def make_toy(n_views: int) -> Toy:
    """Return toy data, the same at every call."""
    rng = np.random.default_rng(7)
    centres = rng.normal(size=(N_SEEN + N_NOVEL, F))
    targets = np.arange(len(centres) * PER_CLASS) % len(centres)
    query_targets = N_SEEN + np.arange(N_QUERIES) % N_NOVEL
    items, queries = (centres[of] + 0.25 * rng.normal(size=(len(of), F)) for of in (targets, query_targets))
    labels = np.where((targets < N_SEEN) & (rng.random(len(targets)) < 0.5), targets, -1)
    views = [items + 0.1 * rng.normal(size=items.shape) for _ in range(n_views - 1)]
    x = np.stack([items, *views], axis=1) if views else items
    return Toy(x.astype(np.float32), labels, targets, queries.astype(np.float32), query_targets)


class Pictures:
    """Small pictures of six classes: four seen ones, half of them labelled, and two novel ones."""

    def __init__(self, n_half: int = 3) -> None:
        half, novel = np.repeat(SEEN, n_half), np.repeat(NOVEL, 2 * n_half)
        self.targets = np.concatenate([half, half, novel]).astype(object)
        self.labels = self.targets.copy()
        self.labels[len(half) :] = None
        self.ids = [f"{label or 'unlabelled'}/{i:03}.png" for i, label in enumerate(self.labels)]  # sorted
        self.broken = self.ids[4], self.ids[-5]  # the pictures that are broken in `Trial.damaged`
        rng = np.random.default_rng(0)
        self.pixels = rng.integers(0, 120, (len(self.targets), SIDE, SIDE, 3), dtype=np.uint8)
        colours = dict(zip((*SEEN, *NOVEL), itertools.product((0, 110), (0, 110), (20, 90)), strict=False))
        for image, target in zip(self.pixels, self.targets, strict=True):
            row, column = rng.integers(2, 14, 2)
            image[row : row + 16, column : column + 16] += np.array(colours[target], np.uint8)

    def write(self, folder: Path, broken: tuple[str, ...] = ()) -> Path:
        """Write the pictures as files, the broken ones truncated."""
        for name, image in zip(self.ids, self.pixels, strict=True):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / name)
            if name in broken:
                (folder / name).write_bytes((folder / name).read_bytes()[:100])
        return folder

    def write_manifest(self, path: Path, folder: Path, labels: Any, **columns: Any) -> Path:
        """Write a table of the pictures in a folder."""
        paths = [str(folder / name) for name in self.ids]
        csv.write_csv(pa.table({"path": paths, "label": [label or "" for label in labels], **columns}), path)
        return path


class Trial(ExitStack):
    """A method class with toy data and fits on them, each made on first use.

    It is a context manager: temporary files, including the cache of features, are removed at the end. Shared fits must
    not be changed; `fresh` and `image_model` return copies on which `discover` may be called.
    """

    def __init__(self, cls: type[Method], settings: dict[str, Any] | None = None):
        super().__init__()
        self.cls, self.settings = cls, {**cls.trial_settings, **(settings or {})}
        self.plain, self.views = make_toy(n_views=1), make_toy(n_views=3)
        self.toys = (self.plain, self.views)
        self.pictures = Pictures()
        self._numbers = itertools.count()

    def __enter__(self) -> Self:
        self._root = Path(self.enter_context(TemporaryDirectory(prefix="combemb-testing-", ignore_cleanup_errors=True)))
        self.enter_context(mock.patch.dict(os.environ, {CACHE: str(self._root / "cache")}))
        return self

    def new_path(self, suffix: str = "") -> Path:
        """Return the path of a file or folder that does not exist yet."""
        return self._root / f"{next(self._numbers)}{suffix}"

    def stored(self, labels: np.ndarray) -> Path:
        """Write the plain items with these labels to a new file."""
        path = self.new_path(".npz")
        np.savez(path, x=self.plain.x, labels=labels)
        return path

    def small(self, **settings: Any) -> Method:
        """Return a method with these settings that is quick on the toy data.

        `cls.trial_settings` and the settings of the trial replace the small values of `SMALL`.
        """
        known = {field.name for field in dataclasses.fields(self.cls)}
        small = {name: value for name, value in SMALL.items() if name in known}
        return self.cls(**{**small, **self.settings, **settings})

    def fitted(self, toy: Toy | None = None, **settings: Any) -> Method:
        """Return a small method after a short fit."""
        toy = toy or self.plain
        return self.small(**settings).fit(toy.x, toy.labels)

    @cached_property
    def short(self) -> Method:
        """A short fit on the plain toy."""
        return self.fitted()

    def fresh(self) -> Method:
        """Return a copy of the short fit."""
        return copy.copy(self.short)

    def saved(self, method: Method | None = None) -> Path:
        """Save a method, by default the short fit, to a new run folder and return the folder."""
        folder = self.new_path()
        (method or self.short).save(folder)
        return folder

    @cached_property
    def references(self) -> dict[Toy, Tensor]:
        """The embeddings of each toy's items after a short fit on it."""
        return {self.plain: self.short.embed(self.plain.x), self.views: self.fitted(self.views).embed(self.views.x)}

    @cached_property
    def runs(self) -> dict[Toy, tuple[Method, Path]]:
        """A longer fit on each toy, whose results are good, and its run folder."""
        longer = {"epochs": 15, **self.settings} if "epochs" in self.small().get_params() else {}
        folders = {toy: self.new_path() for toy in self.toys}
        return {toy: (self.small(**longer).fit(toy.x, toy.labels, folder=to), to) for toy, to in folders.items()}

    @cached_property
    def good(self) -> dict[Toy, Method]:
        """The longer fits, after `discover` on their items."""
        found = {toy: copy.copy(method) for toy, (method, _) in self.runs.items()}
        for toy, method in found.items():
            method.discover(toy.x, toy.labels)
        return found

    @cached_property
    def photos(self) -> Path:
        """A folder of the pictures."""
        return self.pictures.write(self.new_path())

    @cached_property
    def damaged(self) -> Path:
        """A folder of the pictures, two of them broken."""
        return self.pictures.write(self.new_path(), self.pictures.broken)

    def small_for_images(self, **settings: Any) -> Method:
        """Return a method that is quick on the pictures."""
        own = {"image_size": SIDE, "n_views": 2, **BACKBONE, "backbone_weights": self._backbone_weights}
        return self.small(**{**own, **self.settings, **settings})

    @cached_property
    def _backbone_weights(self) -> str:
        path = self.new_path(".safetensors")
        with seeded(0):
            write_tensors(path, ResNet18(BACKBONE["backbone_width"]).state_dict())
        return str(path)

    @cached_property
    def image_run(self) -> tuple[Method, Path]:
        """A short fit on the folder of pictures, and its run folder."""
        folder = self.new_path()
        return self.small_for_images().fit(self.photos, folder=folder), folder

    def image_model(self) -> Method:
        """Return a copy of the short fit on pictures."""
        return copy.copy(self.image_run[0])
