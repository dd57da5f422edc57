"""Toy data on which methods are tried, and fits of one method that many promises share."""

import copy
import dataclasses
import itertools
import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import csv
from torch import Tensor

from combemb.learning.method import Method

SEEN, NOVEL = ("ant", "bee", "cat", "dog"), ("eel", "fox")  # classes of the pictures
N_SEEN, N_NOVEL, PER_CLASS, N_QUERIES, F = 5, 2, 20, 20, 24  # of the toys
SIDE, PER_PICTURE_CLASS = 32, 6
BITS = 12
SMALL = {"bits": BITS, "epochs": 2, "batch_size": 64, "device": "cpu"}
CACHE = "COMBEMB_CACHE"

OwnMethod = TypeVar("OwnMethod", bound=Method)


@dataclass(frozen=True, eq=False)
class Toy:
    """Well separated blobs of seen and novel classes, with one view of each item or several.

    x (N, F) or (N, V, F). labels (N,): about half of the items of seen classes, -1 elsewhere. targets (N,): the truth.
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
    def is_novel(self) -> np.ndarray:
        """Which items are of novel classes."""
        return np.asarray(self.targets >= N_SEEN)

    @property
    def other_truth(self) -> np.ndarray:
        """Targets that agree with the labels, but are shuffled where the labels say -1."""
        targets, hidden = self.targets.copy(), np.flatnonzero(self.labels < 0)
        targets[hidden] = targets[np.random.default_rng(0).permutation(hidden)]
        return targets

    def names(self, name: str = "class {}", gap: str | None = None) -> np.ndarray:
        """Return the labels as names of classes, with this gap."""
        return np.array([name.format(c) if c >= 0 else gap for c in self.labels], dtype=object)


def make_toy(n_views: int) -> Toy:
    """Make the same items at every call."""
    rng = np.random.default_rng(7)
    n_classes = N_SEEN + N_NOVEL
    centres = rng.normal(size=(n_classes, F))
    targets = np.arange(n_classes * PER_CLASS) % n_classes
    query_targets = N_SEEN + np.arange(N_QUERIES) % N_NOVEL
    items = centres[targets] + 0.25 * rng.normal(size=(len(targets), F))
    queries = centres[query_targets] + 0.25 * rng.normal(size=(N_QUERIES, F))
    labels = np.where((targets < N_SEEN) & (rng.random(len(targets)) < 0.5), targets, -1)
    x = items[:, None] + 0.1 * rng.normal(size=(len(items), n_views, F))
    x[:, 0] = items
    x = x if n_views > 1 else items
    return Toy(x.astype(np.float32), labels, targets, queries.astype(np.float32), query_targets)


class Pictures:
    """Small pictures of six classes: four seen ones, half of them labelled, and two novel ones."""

    def __init__(self) -> None:
        half = np.repeat(np.arange(len(SEEN)), PER_PICTURE_CLASS // 2)
        novel = np.repeat(len(SEEN) + np.arange(len(NOVEL)), PER_PICTURE_CLASS)
        place = np.concatenate([half, half, novel])
        self.targets = np.array([*SEEN, *NOVEL], dtype=object)[place]
        self.labels = np.where(np.arange(len(place)) < len(half), self.targets, None)
        self.ids = [f"{label or 'unlabelled'}/{i:03}.png" for i, label in enumerate(self.labels)]  # sorted
        rng = np.random.default_rng(0)
        pixels = rng.integers(0, 120, (len(place), SIDE, SIDE, 3))
        colours = rng.permutation(
            np.array([[30, 100, 30], [100, 30, 30]])[:, rng.permuted([[0, 1, 2]] * 3, axis=1)].reshape(-1, 3)
        )
        for image, kind in zip(pixels, place, strict=True):
            row, column = rng.integers(4, 12, 2)
            image[row : row + 16, column : column + 16 - 2 * kind] += colours[kind]
        self.pixels = pixels.astype(np.uint8)

    def write(self, folder: Path, broken: tuple[str, ...] = ()) -> Path:
        """Write the pictures as files, the broken ones cut short."""
        for name, image in zip(self.ids, self.pixels, strict=True):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
            if name in broken:
                path.write_bytes(path.read_bytes()[:100])
        return folder

    def write_manifest(self, path: Path, folder: Path, labels: Any, **columns: Any) -> Path:
        """Write a table of the pictures in a folder."""
        paths = [str(folder / name) for name in self.ids]
        csv.write_csv(pa.table({"path": paths, "label": [label or "" for label in labels], **columns}), path)
        return path


class Trial(Generic[OwnMethod]):
    """A class of methods with toy data and fits on them, each made when it is first asked for.

    Used as a context manager: temporary files are removed at the end, and features of images are cached among them.
    Shared fits must not be changed; `fresh` returns one that may be asked for classes.
    """

    def __init__(self, cls: type[OwnMethod]):
        self.cls = cls
        self.plain, self.views = make_toy(n_views=1), make_toy(n_views=3)
        self.toys = {"one view": self.plain, "three views": self.views}
        self._numbers = itertools.count()
        self._shared: dict[Any, Any] = {}

    def __enter__(self) -> Self:
        self._root = Path(tempfile.mkdtemp(prefix="combemb-testing-"))
        self._cache_before = os.environ.get(CACHE)
        os.environ[CACHE] = str(self._root / "cache")
        return self

    def __exit__(self, *_: object) -> None:
        os.environ.pop(CACHE)
        if self._cache_before is not None:
            os.environ[CACHE] = self._cache_before
        shutil.rmtree(self._root, ignore_errors=True)

    def new_folder(self) -> Path:
        """Return a place for a folder that does not exist yet."""
        return self._root / f"folder-{next(self._numbers)}"

    def new_file(self, name: str) -> Path:
        """Return a place for a file in a new folder."""
        folder = self.new_folder()
        folder.mkdir()
        return folder / name

    def small(self, **settings: Any) -> OwnMethod:
        """Return a method that is quick on the toy data: small values of the settings that it has, and those given."""
        known = {field.name for field in dataclasses.fields(self.cls)}
        return self.cls(**{**{name: value for name, value in SMALL.items() if name in known}, **settings})

    def fitted(self, **settings: Any) -> OwnMethod:
        """Return a small method after a short fit on the plain toy."""
        return self.small(**settings).fit(self.plain.x, self.plain.labels)

    @cached_property
    def short(self) -> OwnMethod:
        """A short fit on the plain toy, to be shared."""
        return self.fitted()

    def fresh(self) -> OwnMethod:
        """Return a copy of the short fit."""
        return copy.copy(self.short)

    def reference(self, toy: Toy) -> Tensor:
        """Return what a short fit on a toy embeds its items as."""
        if toy not in self._shared:
            fitted = self.short if toy is self.plain else self.small().fit(toy.x, toy.labels)
            self._shared[toy] = fitted.embed(toy.x)
        found: Tensor = self._shared[toy]
        return found

    def saved(self) -> Path:
        """Return a new run folder of the short fit."""
        folder = self.new_folder()
        self.short.save(folder)
        return folder

    def run(self, toy: Toy) -> tuple[OwnMethod, Path]:
        """Return a fit that is long enough to be good, and its run folder."""
        if ("run", toy) not in self._shared:
            folder = self.new_folder()
            longer = {"epochs": 15} if "epochs" in self.small().get_params() else {}
            self._shared["run", toy] = self.small(**longer).fit(toy.x, toy.labels, folder=folder), folder
        found: tuple[OwnMethod, Path] = self._shared["run", toy]
        return found

    def good(self, toy: Toy) -> OwnMethod:
        """Return a fit that is long enough to be good."""
        return self.run(toy)[0]

    def discovered(self, toy: Toy) -> OwnMethod:
        """Return a good fit that was asked for the classes of its items."""
        if ("discovered", toy) not in self._shared:
            model = copy.copy(self.good(toy))
            model.discover(toy.x, toy.labels)
            self._shared["discovered", toy] = model
        found: OwnMethod = self._shared["discovered", toy]
        return found

    @cached_property
    def pictures(self) -> Pictures:
        """Small pictures."""
        return Pictures()

    @cached_property
    def photos(self) -> Path:
        """A folder of the pictures."""
        return self.pictures.write(self.new_folder())

    @property
    def broken(self) -> tuple[str, ...]:
        """The pictures in `damaged` that cannot be read."""
        return self.pictures.ids[4], self.pictures.ids[-5]

    @cached_property
    def damaged(self) -> Path:
        """A folder of the pictures of which two are broken."""
        return self.pictures.write(self.new_folder(), self.broken)

    def small_for_images(self) -> OwnMethod:
        """Return a method that is quick on the pictures."""
        return self.small(image_size=SIDE, n_views=2)

    @cached_property
    def image_run(self) -> tuple[OwnMethod, Path]:
        """A short fit on the folder of pictures, and its run folder."""
        folder = self.new_folder()
        return self.small_for_images().fit(self.photos, folder=folder), folder

    def image_model(self) -> OwnMethod:
        """Return a copy of the short fit on pictures."""
        return copy.copy(self.image_run[0])
