"""What the cache holds, and the removal of what was not used for some time."""

import json
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from combemb.backbones.feature_cache import RECORD, Segment, cache_root
from combemb.system.files import read_about

FEATURES, PRETRAINING = "features", "pretraining"  # folders of the cache
WEIGHTS = "backbone.safetensors"  # in a folder of the latter
SECONDS_PER_DAY = 24 * 60 * 60


@dataclass(frozen=True)
class Cached:
    """A folder of the cache: features by one backbone at one size, or weights of a backbone after a first stage.

    Attributes
    ----------
    path : Path
        The folder; its name begins with that of the backbone or of the stage.
    n_bytes : int
        Size on disk.
    used : float
        Time of the last use, in seconds since 1970.
    n_images, n_views : int
        Number of images with features, and of their views in total; 0 for weights and for files of older versions.
    networks : tuple of str
        What computed the features, such as "torch 2.13.0"; the backbone that weights belong to, such as "resnet18 of
        width 16 at 32 px", none if its training is not finished.
    """

    path: Path
    n_bytes: int
    used: float
    n_images: int = 0
    n_views: int = 0
    networks: tuple[str, ...] = ()

    @property
    def has_features(self) -> bool:
        """Whether it holds features, not weights."""
        return self.path.parent.name == FEATURES


def cached(cache: Path | None = None) -> list[Cached]:
    """Return what the cache holds, the last used first.

    Parameters
    ----------
    cache : Path, optional
        Root of the cache; by default COMBEMB_CACHE or the user's cache folder.

    Returns
    -------
    list of Cached
    """
    folders = [path for kind in (FEATURES, PRETRAINING) for path in (cache_root(cache) / kind).glob("*")]
    return sorted(filter(None, map(_looked_at, folders)), key=lambda found: -found.used)


def prune(days: float, cache: Path | None = None) -> list[Cached]:
    """Delete what was not used for so many days, except where another process is writing.

    Of features, those that were extracted together are kept or deleted together. What is deleted is computed again when
    it is needed.

    Parameters
    ----------
    days : float
        0 deletes all.
    cache : Path, optional
        As for `cached`.

    Returns
    -------
    list of Cached
        What was deleted of each folder.
    """
    until = time.time() - days * SECONDS_PER_DAY
    deleted = []
    for found in cached(cache):
        with suppress(Timeout), FileLock(found.path / ".lock", timeout=0):
            units = _units(found.path) if found.has_features else [list(found.path.glob("[!.]*"))]
            old = [files for files in units if (_used(files) if found.has_features else found.used) <= until]
            n_bytes = sum(map(_n_bytes, old))
            for path in (path for files in old for path in files):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            if old:  # the lock stays, since another process may be waiting for it
                deleted.append(replace(found, n_bytes=n_bytes))
    return deleted


def _units(folder: Path) -> list[list[Path]]:
    """Return the files of each segment, its record first, because the others mean nothing without it."""
    units: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("[!.]*"), key=lambda path: path.suffix != RECORD):
        units.setdefault(path.stem, []).append(path)
    return list(units.values())


def _used(files: list[Path]) -> float:
    return files[0].stat().st_mtime  # see `Segment.mark_used`


def _n_bytes(paths: Iterable[Path]) -> int:
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*"))]
    sizes = [file.stat() for file in files]
    return sum(512 * found.st_blocks if hasattr(found, "st_blocks") else found.st_size for found in sizes)


def _backbones(folder: Path) -> tuple[str, ...]:
    """Return what the weights in the folder of a first stage belong to."""
    path = folder / WEIGHTS
    if not path.exists():
        return ()
    try:
        holds = json.loads(read_about(path)["holds"])
        name, width, _ = holds["backbone"]
        return (f"{name}{f' of width {width}' if name == 'resnet18' else ''} at {holds['size']} px",)
    except (KeyError, ValueError, TypeError):
        return ("a backbone",)


def _looked_at(path: Path) -> Cached | None:
    """Return what a folder holds, None if it is empty; files may vanish meanwhile."""
    try:
        files = list(path.glob("[!.]*"))
        if not files:
            return None
        if path.parent.name == PRETRAINING:
            return Cached(path, _n_bytes(files), path.stat().st_mtime, networks=_backbones(path))
        used = max(map(_used, _units(path)))
        segments = [segment for file in files if (segment := Segment.opened(file)) is not None]
        n_images = n_views = 0
        if segments:
            keys = np.concatenate([segment.keys for segment in segments])
            views = np.unique(np.column_stack([keys["image"], keys["view"]]), axis=0)
            n_images, n_views = len(np.unique(views[:, :2], axis=0)), len(views)
        networks = tuple(sorted({segment.network for segment in segments}))
        return Cached(path, _n_bytes(files), used, n_images, n_views, networks)
    except OSError:
        return None
