"""What the cache of features holds, and the removal of what was not used for some time."""

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from combemb.backbones.feature_cache import Folder, cache_root

SECONDS_PER_DAY = 24 * 60 * 60


@dataclass(frozen=True)
class CachedFeatures:
    """Features of some images by one backbone, in a folder of the cache.

    Attributes
    ----------
    path : Path
        The folder; its name begins with that of the backbone.
    n_images, n_views : int
        Number of images, and of views of each in the largest file; 0 if the records cannot be read.
    n_bytes : int
        Size on disk.
    is_finished : bool
        False if an extraction was interrupted, which a call with the same images resumes.
    used : float
        Time of the last use, in seconds since 1970.
    """

    path: Path
    n_images: int
    n_views: int
    n_bytes: int
    is_finished: bool
    used: float


def cached_features(cache: Path | None = None) -> list[CachedFeatures]:
    """Return what the cache holds, the last used first.

    Parameters
    ----------
    cache : Path, optional
        Root of the cache; by default COMBEMB_CACHE or the user's cache folder.

    Returns
    -------
    list of CachedFeatures
    """
    folders = [path for path in (cache_root(cache) / "features").glob("*") if path.is_dir()]
    return sorted(filter(None, map(_looked_at, folders)), key=lambda found: -found.used)


def prune_features(days: float, cache: Path | None = None) -> list[CachedFeatures]:
    """Delete features that were not used for so many days, except where another process is writing.

    They are extracted again when they are needed.

    Parameters
    ----------
    days : float
        0 deletes all.
    cache : Path, optional
        As for `cached_features`.

    Returns
    -------
    list of CachedFeatures
        What was deleted.
    """
    deleted = []
    for found in cached_features(cache):
        if time.time() - found.used < days * SECONDS_PER_DAY:
            continue
        with suppress(Timeout), FileLock(found.path / ".lock", timeout=0):
            Folder(found.path, {}, 0).clear()  # the lock stays, since another process may be waiting for it
            deleted.append(found)
    return deleted


def _looked_at(path: Path) -> CachedFeatures | None:
    """Return what a folder holds, None if it is empty; files may vanish meanwhile."""
    try:
        files = [(file, file.stat()) for file in path.glob("[!.]*")]
        used = path.stat().st_mtime  # see `Folder.mark_used`
    except OSError:
        return None
    if not files:
        return None
    n_images = n_views = 0
    for file, _ in files:
        with suppress(OSError, ValueError, KeyError, TypeError):
            record = json.loads(file.read_text()) if file.suffix == ".json" else {"n_images": 0, "n_views": 0}
            n_images, n_views = max(n_images, record["n_images"]), max(n_views, record["n_views"])
    is_finished = all(file.suffix != ".part" for file, _ in files)
    n_bytes = sum(512 * found.st_blocks if hasattr(found, "st_blocks") else found.st_size for _, found in files)
    return CachedFeatures(path, n_images, n_views, n_bytes, is_finished, used)
