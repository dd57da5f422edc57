"""Features on disk: found by what they were computed from, and written so that a killed process can be resumed."""

import hashlib
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from filelock import FileLock, Timeout

from combemb.system.errors import require
from combemb.system.files import write_json
from combemb.system.progress import is_wanted
from combemb.system.version import __version__

CACHE_FORMAT = 1  # raise it when the same recipe gives other pixels, so that older files are ignored
FEATURE_DTYPE = np.dtype("<f2")
COPY_BYTES = 16 * 2**20  # size of one copy


def cache_root(given: Path | None) -> Path:
    """Return the folder of caches: as given, COMBEMB_CACHE, or `combemb` in XDG_CACHE_HOME or ~/.cache."""
    own, users = os.environ.get("COMBEMB_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if given or own:
        return Path(given or str(own)).expanduser()
    return (Path(users) if users else Path.home() / ".cache") / "combemb"


@dataclass(frozen=True)
class Recipe:
    """The views in a file: the clean one, then those of `random` (augmentation and seed)."""

    n_views: int
    random: dict[str, Any]

    @property
    def name(self) -> str:
        """Start of the names of its files."""
        return "clean" if self.n_views == 1 else f"{self.n_views}-views-{_digest(self.random)}"

    def n_shared(self, other: "Recipe") -> int:
        """Return how many leading views are the same in both; the clean one always is."""
        return min(self.n_views, other.n_views) if self.random == other.random else 1


@dataclass(frozen=True, eq=False)
class Stored:
    """A finished file: x (V, N', F), a read-only memory map, of the N' images, of N, that could be read."""

    x: np.ndarray
    recipe: Recipe
    n_images: int
    broken: dict[int, str]  # position -> reason

    @property
    def rows(self) -> np.ndarray:
        """Positions (N',) of the images among the N."""
        return np.delete(np.arange(self.n_images), list(self.broken))


@dataclass(frozen=True)
class Folder:
    """The files of the same images, network and size, which `holds` identifies as JSON."""

    path: Path
    holds: dict[str, Any]
    n_images: int

    @classmethod
    def of(cls, cache: Path | None, name: str, holds: dict[str, Any], n_images: int) -> Self:
        """Return the folder in the cache; `name` helps a human to find it."""
        holds = json.loads(json.dumps({"format": CACHE_FORMAT, **holds}))  # as it is read back: tuples become lists
        plain = re.sub(r"[^\w.-]+", "-", name)[:80]
        return cls(cache_root(cache) / "features" / f"{plain}-{_digest(holds)}", holds, n_images)

    def best(self, recipe: Recipe) -> Stored | None:
        """Return the finished file that shares most views with the recipe; damaged files are skipped."""
        there = filter(None, map(self._opened, sorted(self.path.glob("*.json"))))
        return max(there, key=lambda stored: stored.recipe.n_shared(recipe), default=None)

    def find(self, recipe: Recipe) -> Stored | None:
        """Return a finished file that has all views of the recipe, if there is one."""
        stored = self.best(recipe)
        return stored if stored and stored.recipe.n_shared(recipe) == recipe.n_views else None

    def clear(self) -> None:
        """Delete all files, finished or not; the records first, because the others mean nothing without them."""
        for path in sorted(self.path.glob("[!.]*"), key=lambda path: path.suffix != ".json"):
            path.unlink(missing_ok=True)

    def mark_used(self) -> None:
        """Record the time of this use, by which the cache is pruned, as that of the folder."""
        with suppress(OSError):  # a cache that cannot be written can still be read
            os.utime(self.path)

    @contextmanager
    def alone(self, progress: bool | None) -> Iterator[None]:
        """Lock the folder against other processes, after they are done."""
        lock = FileLock(self.path / ".lock")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                if is_wanted(progress):
                    print(f"waiting for another process that extracts features in {self.path}", file=sys.stderr)
                lock.acquire()
            yield
        except OSError as error:
            found = f"cannot store features in {self.path}: {error.strerror or error}"
            raise ValueError(f"{found}; free some space there, or set COMBEMB_CACHE to another folder") from error
        finally:
            lock.release()

    def _opened(self, path: Path) -> Stored | None:
        try:
            record = json.loads(path.read_text())
            data = path.with_suffix(".npy")
            x = np.lib.format.open_memmap(data, mode="r")
            recipe = Recipe(record["n_views"], record["random"])
            broken = {int(row): str(reason) for row, reason in record["broken"].items()}
            shape = (recipe.n_views, self.n_images - len(broken), record["n_features"])
            is_whole = data.stat().st_size == record["bytes"] and x.shape == shape and x.dtype == FEATURE_DTYPE
            return Stored(x, recipe, self.n_images, broken) if is_whole and record["holds"] == self.holds else None
        except Exception:  # damaged files make json and numpy raise nearly anything
            return None


@dataclass
class Writer:
    """An unfinished file, written view by view, with a record of what is done so far.

    It resumes where an earlier one stopped. The `.part` file has a row for every image; `finish` removes those of
    broken images and renames it to `.npy`. Writing through a memory map would kill the process on a full disk.
    """

    folder: Folder
    recipe: Recipe
    n_features: int
    done: int = 0  # number of images, including broken ones
    first_view: int = 0  # the views before it were copied from another file
    broken: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.part = self.folder.path / f"{self.recipe.name}.part"
        self._record_path = self.part.with_suffix(".json")
        self._row_bytes = self.n_features * FEATURE_DTYPE.itemsize

    def __enter__(self) -> Self:
        if not self._resume():
            self._start()
        self.file: BinaryIO = self.part.open("rb+")
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, view: int, start: int, block: np.ndarray) -> None:
        """Write the features (n, F) of a view of the images from `start` on."""
        N = self.folder.n_images
        self.file.seek(len(self._header(N)) + (view * N + start) * self._row_bytes)
        self.file.write(np.ascontiguousarray(block, FEATURE_DTYPE).data)

    def save(self) -> None:
        """Flush the data, then record that they are there."""
        self.file.flush()
        os.fsync(self.file.fileno())
        write_json(self._record_path, self._record())

    def finish(self) -> None:
        """Make the file that `find` returns. May be interrupted and called again at any point."""
        self.save()
        self.file.close()  # Windows cannot rename open files
        kept = np.delete(np.arange(self.folder.n_images), list(self.broken))
        if self.part.stat().st_size != self._bytes(len(kept)):
            self._squeeze(kept)
        write_json(self._record_path, {**self._record(), "bytes": self._bytes(len(kept))})
        self.part.replace(self.part.with_suffix(".npy"))

    def discard(self) -> None:
        """Delete what is done."""
        if hasattr(self, "file"):
            self.file.close()
        for path in (self._record_path, self.part, self.part.with_suffix(".npy")):  # the record first, as in `clear`
            path.unlink(missing_ok=True)

    def _bytes(self, n_rows: int) -> int:
        return len(self._header(n_rows)) + self.recipe.n_views * n_rows * self._row_bytes

    def _header(self, n_rows: int) -> bytes:
        buffer, shape = io.BytesIO(), (self.recipe.n_views, n_rows, self.n_features)
        header = {"descr": FEATURE_DTYPE.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(buffer, header)
        return buffer.getvalue()

    def _record(self) -> dict[str, Any]:
        return {
            "combemb": __version__,
            "holds": self.folder.holds,
            "n_images": self.folder.n_images,
            "n_views": self.recipe.n_views,
            "n_features": self.n_features,
            "random": self.recipe.random,
            "first_view": self.first_view,
            "done": self.done,
            "broken": {str(row): reason for row, reason in sorted(self.broken.items())},
        }

    def _resume(self) -> bool:
        try:
            record = json.loads(self._record_path.read_text())
            self.done, self.first_view = int(record["done"]), int(record["first_view"])
            self.broken = {int(row): str(reason) for row, reason in record["broken"].items()}
            size = self.part.stat().st_size
        except Exception:  # a damaged record makes json and the rest raise nearly anything
            return False
        N = self.folder.n_images
        is_squeezed = self.done == N and size == self._bytes(N - len(self.broken))
        is_ours = {**record, **self._record()} == record and 0 <= self.done <= N
        return is_ours and (is_squeezed or size == self._bytes(N))

    def _start(self) -> None:
        """Start a part without rows, or with the leading views of a finished file that has them too."""
        self.discard()
        n_bytes, free = self._bytes(self.folder.n_images), shutil.disk_usage(self.folder.path).free
        require(
            n_bytes <= free,
            f"the features take {n_bytes / 1e6:,.0f} MB, but {self.folder.path} has {free / 1e6:,.0f} MB left; "
            "free some space, set COMBEMB_CACHE to a folder on another disk, or use fewer views",
        )
        stored = self.folder.best(self.recipe)
        self.done, self.first_view = 0, stored.recipe.n_shared(self.recipe) if stored else 0
        self.broken = dict(stored.broken) if stored else {}
        with self.part.open("wb") as self.file:
            self.file.write(self._header(self.folder.n_images))
            self.file.truncate(n_bytes)
            if stored:
                for view in range(self.first_view):
                    self._copy(stored, view)
            self.save()

    def _copy(self, stored: Stored, view: int) -> None:
        rows, step = stored.rows, max(1, COPY_BYTES // self._row_bytes)
        for start in range(0, self.folder.n_images, step):
            block = np.zeros((min(step, self.folder.n_images - start), self.n_features), FEATURE_DTYPE)
            low, high = np.searchsorted(rows, (start, start + len(block)))
            block[rows[low:high] - start] = stored.x[view, low:high]
            self.write(view, start, block)

    def _squeeze(self, kept: np.ndarray) -> None:
        """Remove the rows of broken images."""
        x = np.lib.format.open_memmap(self.part, mode="r")
        squeezed = self.part.with_suffix(".squeezed")
        with squeezed.open("wb") as file:
            file.write(self._header(len(kept)))
            for view in range(len(x)):
                for rows in np.array_split(kept, 1 + len(kept) * self._row_bytes // COPY_BYTES):
                    file.write(x[view][rows].data)
            file.flush()
            os.fsync(file.fileno())
        del x
        squeezed.replace(self.part)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
