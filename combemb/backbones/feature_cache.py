"""Features on disk: a row for each view of an image, found by what it was computed from."""

import hashlib
import json
import os
import re
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from combemb.system.errors import require
from combemb.system.files import write_json
from combemb.system.progress import is_wanted
from combemb.system.team import ALONE, Team, sole_writer
from combemb.system.version import __version__

CACHE_FORMAT = 2  # raise it when the same views get other pixels, so that older files are ignored
FEATURE_DTYPE = np.dtype("<f2")
KEY = np.dtype([("image", "<u8", (2,)), ("view", "<u8"), ("check", "<u8")])  # of a row
PRIMES = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)  # those of xxHash
RECORD, ROWS, KEYS = ".json", ".rows", ".keys"  # the files of a segment
COPY_ROWS = 4096  # rows of one copy
MAX_BYTES_IN_MEMORY = 256 * 2**20  # more features from several places are copied to a temporary file
SECONDS_TO_APPEAR = 90.0  # the longest that a network file system hides new files from another machine


def cache_root(given: Path | None) -> Path:
    """Return the folder of caches: as given, COMBEMB_CACHE, or `combemb` in XDG_CACHE_HOME or ~/.cache."""
    own, users = os.environ.get("COMBEMB_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if given or own:
        return Path(given or str(own)).expanduser()
    return (Path(users) if users else Path.home() / ".cache") / "combemb"


def view_keys(n_views: int, random: dict[str, Any]) -> np.ndarray:
    """Return a key of each view, (V,) uint64: the clean one, then those of `random` (augmentation and seed)."""
    recipes = [{}, *({**random, "view": number} for number in range(1, n_views))]
    return np.array([int(_digest(recipe), 16) for recipe in recipes], "<u8")


@dataclass(frozen=True, eq=False)
class Segment:
    """The rows that one call of `extract` added. A process that is killed leaves those that it had recorded."""

    path: Path  # of its record
    keys: np.ndarray  # (R,) of KEY
    x: np.ndarray  # (R, F), a read-only memory map
    network: str  # what computed the features, such as "torch 2.13.0"

    @classmethod
    def opened(cls, path: Path, holds: dict[str, Any] | None = None) -> Self | None:
        """Return a segment as far as it is whole; None if it is damaged, empty, or `holds` something else."""
        try:
            record = json.loads(path.read_text())
            n_features, rows = int(record["n_features"]), path.with_suffix(ROWS)
            content = path.with_suffix(KEYS).read_bytes()
            n = min(len(content) // KEY.itemsize, rows.stat().st_size // (n_features * FEATURE_DTYPE.itemsize))
            keys = np.frombuffer(content, KEY, n)
            n = int(np.append(keys["check"] == _check(keys), False).argmin())  # up to the first damaged key
            if n == 0 or (holds is not None and holds != record["holds"]):
                return None
            x = np.memmap(rows, FEATURE_DTYPE, "r", shape=(n, n_features))
            return cls(path, keys[:n], x, str(record["network"]))
        except Exception:  # damaged files make json and numpy raise nearly anything
            return None

    def find(self, images: np.ndarray, views: np.ndarray) -> np.ndarray:
        """Return the row of each view (V,) of each image (N, 2), or -1 -> (N, V)."""
        own = self.keys["image"][:, 0] ^ self.keys["view"]
        order = np.argsort(own, kind="stable")
        wanted = images[:, None, 0] ^ views[None]
        rows = order[np.searchsorted(own, wanted, sorter=order).clip(max=len(order) - 1)]
        found = self.keys[rows]
        is_same = (found["image"] == images[:, None]).all(axis=2) & (found["view"] == views[None])
        return np.where(is_same, rows, -1)

    def mark_used(self) -> None:
        """Record the time of this use, by which the cache is pruned, as that of the record."""
        with suppress(OSError):  # a cache that cannot be written can still be read
            os.utime(self.path)


@dataclass(frozen=True, eq=False)
class Found:
    """Where the views of images are: segment and row, (N, V) each; -1 for those that are not in the cache."""

    segments: list[Segment]
    segment: np.ndarray
    row: np.ndarray

    @property
    def is_there(self) -> np.ndarray:
        """Which views of which images are in the cache, (N, V)."""
        return self.segment >= 0

    def take(self, rows: np.ndarray, folder: Path) -> np.ndarray:
        """Return the features of images whose views are all there, (n, V, F), read-only.

        Rows that follow each other on disk are a memory map; others are copied, many of them to a file in the folder
        that vanishes with the array.
        """
        segment, row = self.segment[rows], self.row[rows]
        used = [self.segments[number] for number in np.unique(segment)]
        for one in used:
            one.mark_used()
        n, V = row.shape
        step = int(row[1, 0] - row[0, 0]) if n > 1 else V
        if len(used) == 1 and step > 0 and (row == row[0, 0] + step * np.arange(n)[:, None] + np.arange(V)).all():
            x = used[0].x[row[0, 0] :]
            strides = (step * x.strides[0], *x.strides)
            return np.lib.stride_tricks.as_strided(x, (n, V, x.shape[1]), strides, subok=True, writeable=False)
        copied = _empty((n, V, used[0].x.shape[1]), folder)
        for start in range(0, n, COPY_ROWS):
            part = slice(start, start + COPY_ROWS)
            for number in np.unique(segment[part]):
                there = segment[part] == number
                copied[part][there] = self.segments[number].x[row[part][there]]
        copied.flags.writeable = False
        return copied


@dataclass(frozen=True)
class Store:
    """The segments of one network and image size, which `holds` identifies as JSON."""

    path: Path
    holds: dict[str, Any]

    @classmethod
    def of(cls, cache: Path | None, name: str, holds: dict[str, Any]) -> Self:
        """Return the store in the cache; `name` helps a human to find it."""
        holds = json.loads(json.dumps({"format": CACHE_FORMAT, **holds}))  # as it is read back: tuples become lists
        plain = re.sub(r"[^\w.-]+", "-", name)[:80]
        return cls(cache_root(cache) / "features" / f"{plain}-{_digest(holds)}", holds)

    def find(self, images: np.ndarray, views: np.ndarray) -> Found:
        """Look for views (V,) of images (N, 2), given by their keys; damaged segments are skipped."""
        opened = (Segment.opened(path, self.holds) for path in sorted(self.path.glob(f"*{RECORD}")))
        segments = [segment for segment in opened if segment is not None]
        found = Found(segments, *np.full((2, len(images), len(views)), -1))
        for number, segment in enumerate(segments):
            row = segment.find(images, views)
            found.segment[row >= 0] = number
            found.row[row >= 0] = row[row >= 0]
        return found

    def find_stored(self, images: np.ndarray, views: np.ndarray, rows: np.ndarray) -> Found:
        """Look for views of images as `find` does when those of the images at `rows` have all been stored."""
        deadline = time.monotonic() + SECONDS_TO_APPEAR
        while not (found := self.find(images, views)).is_there[rows].all():
            is_late = time.monotonic() > deadline
            require(not is_late, f"features that were just stored in {self.path} are not there; run this again")
            time.sleep(0.5)
        return found

    @contextmanager
    def alone(self, progress: bool | None, team: Team = ALONE) -> Iterator[bool]:
        """Lock the store against other processes that extract, after they are done.

        Yields whether this process is the one of the team that writes into the store.
        """
        where = f"waiting for another process that extracts features in {self.path}"
        try:
            with sole_writer(
                self.path, team, lambda: is_wanted(progress) and print(where, file=sys.stderr)
            ) as is_writer:
                yield is_writer
        except OSError as error:
            found = f"cannot store features in {self.path}: {error.strerror or error}"
            raise ValueError(f"{found}; free some space there, or set COMBEMB_CACHE to another folder") from error


class Writer:
    """A new segment. Its rows are there for others after `save`, which also runs at the end of a `with` block.

    Without rows there is no file. Writing through a memory map would kill the process on a full disk.
    """

    def __init__(self, store: Store, n_features: int, n_rows: int, network: str):
        n_bytes, free = n_rows * n_features * FEATURE_DTYPE.itemsize, shutil.disk_usage(store.path).free
        require(
            n_bytes <= free,
            f"the features take {n_bytes / 1e6:,.0f} MB, but {store.path} has {free / 1e6:,.0f} MB left; "
            "free some space, set COMBEMB_CACHE to a folder on another disk, or use fewer views",
        )
        self.path = store.path / f"{secrets.token_hex(8)}{RECORD}"
        self.record = {"combemb": __version__, "holds": store.holds, "n_features": n_features, "network": network}
        self._unsaved: list[np.ndarray] = []
        self._files: tuple[BinaryIO, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.save()
        finally:
            for file in self._files:
                with suppress(OSError):  # what could not be written has no key
                    file.close()

    def add(self, images: np.ndarray, views: np.ndarray, x: np.ndarray) -> None:
        """Add the features (n, V, F) of views (V,) of images (n, 2), which are given by their keys."""
        if len(images) == 0:
            return
        if not self._files:
            self._files = tuple(self.path.with_suffix(suffix).open("xb") for suffix in (ROWS, KEYS))
            write_json(self.path, self.record)
        keys = np.empty((len(images), len(views)), KEY)
        keys["image"], keys["view"] = images[:, None], views[None]
        keys["check"] = _check(keys)
        self._files[0].write(np.ascontiguousarray(x, FEATURE_DTYPE).data)
        self._unsaved.append(keys)

    def save(self) -> None:
        """Write the rows, then their keys: a key without its row would be a wrong result."""
        keys = b"".join(part.tobytes() for part in self._unsaved)
        if not keys:
            return
        self._unsaved.clear()
        for file, content in zip(self._files, (b"", keys), strict=True):
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def _empty(shape: tuple[int, int, int], folder: Path) -> np.ndarray:
    if np.prod(shape, dtype=np.int64) * FEATURE_DTYPE.itemsize <= MAX_BYTES_IN_MEMORY:
        return np.empty(shape, FEATURE_DTYPE)
    with tempfile.TemporaryFile(dir=folder) as file:
        return np.memmap(file, FEATURE_DTYPE, "w+", shape=shape)


def _check(keys: np.ndarray) -> np.ndarray:
    """Return a checksum of each key, which is not zero for zeros: these are what a power failure leaves."""
    first, second = np.moveaxis(keys["image"], -1, 0)
    a, b, c = map(np.uint64, PRIMES)
    return np.asarray(first * a + second * b + keys["view"] * c + a)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
