"""Features of images by a frozen backbone, computed once and kept in a cache."""

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from combemb.backbones.base import Backbone
from combemb.backbones.computing import Computed, Work
from combemb.backbones.feature_cache import FEATURE_DTYPE, Found, Store, Writer, view_keys
from combemb.data.augmentation import Augmentation, Views
from combemb.data.image_items import ImageItems
from combemb.data.images import Images, refuse_many_broken
from combemb.system.errors import require
from combemb.system.machine import memory_kept
from combemb.system.progress import Display
from combemb.system.team import ALONE, Team

SECONDS_BETWEEN_SAVES = 5.0  # a killed process loses at most this much work
MAX_VIEWS = ImageItems.n_views
CPU = torch.device("cpu")
Keys = tuple[np.ndarray, np.ndarray]  # of images (N, 2) and views (V,)


@dataclass(frozen=True, eq=False)
class Features:
    """Features of the N' images, of N, that could be read.

    Attributes
    ----------
    x : array (N', V, F) of float16
        Read-only, and a memory map if it is large; view 0 is the clean one.
    rows : array (N',)
        Positions of these images among the N.
    broken : dict
        Position of each image that could not be read -> reason.
    folder, is_hit : Path or None, bool
        Where the features are stored, and whether all of them were there before.
    """

    x: np.ndarray
    rows: np.ndarray
    broken: dict[int, str]
    folder: Path | None
    is_hit: bool


def extract(
    images: Images,
    backbone: Backbone,
    *,
    about: dict[str, Any],
    size: int,
    n_views: int,
    augmentation: Augmentation,
    seed: int = 0,
    last_stage: bool = False,
    cache: Path | None = None,
    keep: bool = True,
    device: torch.device = CPU,
    batch_size: int = 64,
    n_workers: int | None = None,
    progress: bool | None = None,
    team: Team = ALONE,
) -> Features:
    """Return the features of `n_views` views of every image, from the cache or computed and added to it.

    The cache has every view of an image by itself, so only what is not there is computed: new and changed images, views
    that were not asked for before, and what a killed call left. A call waits for another process that extracts by the
    same backbone. Images that cannot be read are left out; more than a tenth of them raise a ValueError.

    Parameters
    ----------
    images : Images
    backbone : Backbone
    about : dict
        Identifies the weights of the backbone, as JSON.
    size, n_views, augmentation, seed
        Side of a view in pixels, and the views: the clean one and `n_views - 1` augmented ones.
    last_stage : bool
        Store the input of the last stage, flattened, instead of the features.
    cache : Path, optional
        Root of the cache; by default COMBEMB_CACHE or the user's cache folder.
    keep : bool
        False stores nothing: for a few images, such as queries.
    device, batch_size, n_workers, progress
        Where and how to compute; 0 workers decode in threads, None chooses a number.
    team : Team, optional
        Processes that all call this for the same images and share the work. Batches are those of one process, and one
        process of each cache writes them in the same order, so that features and files are also the same.

    Returns
    -------
    Features
    """
    require(min(n_views, batch_size) > 0, f"n_views={n_views} and batch_size={batch_size} must be 1 or more")
    require(n_views <= MAX_VIEWS, f"n_views={n_views:,} is more than the {MAX_VIEWS:,} that there are; use fewer")
    smallest = backbone.min_size
    require(size >= smallest, f"size={size} is too small for {backbone.name}; give {smallest} or more")
    views = Views(images, size, augmentation, seed)
    holds = {"backbone": about, "size": size, "last_stage": last_stage}
    store = Store.of(cache, f"{backbone.name}-{size}px", holds)
    keys = images.image_keys, view_keys(n_views, {"augmentation": asdict(augmentation), "seed": seed})
    how: dict[str, Any] = {"batch_size": batch_size, "device": device, "team": team}
    with team.bound(), torch.inference_mode(), memory_kept():
        if team.size > 1:  # one process may store what another has computed
            names = {"number of images": len(images), "digest of their names and sizes": images.key_of_copies}
            team.require_same({**names, "views": keys[1].tolist(), "features": store.path.name})
        lookup = _looked_up(store, keys, images, team)
        if lookup.broken is not None:
            return _features(store, lookup.found, lookup.broken, is_hit=True)
        if not keep:
            work = Work(views, lookup.is_missing, n_workers=0, **how)
            network = work.network(backbone, size, last_stage)
            return _in_memory(team.in_turns(work.computed(network)), lookup.found, network.n_features, images)
        with store.alone(progress, team) as is_writer:
            lookup = _looked_up(store, keys, images, team)  # another process may have added some
            if lookup.broken is not None:
                return _features(store, lookup.found, lookup.broken, is_hit=True)
            work = Work(views, lookup.is_missing, n_workers=n_workers, **how)
            network = work.network(backbone, size, last_stage)
            is_stored_here = ~lookup.found.is_there & is_writer
            done = int((~lookup.is_missing).all(axis=1).sum())
            with (
                Display("extracting features", len(images), "images", progress, done=done) as display,
                Writer(store, network.n_features, int(is_stored_here.sum()), network.name) as writer,
            ):
                batches = team.in_turns(work.computed(network))
                broken = _fill(writer, batches, images, is_stored_here=is_stored_here, keys=keys, display=display)
            team.exchange(None)  # the writers have stored all
            rows = np.delete(np.arange(len(images)), list(broken))
            return _features(store, store.find_stored(*keys, rows), broken, is_hit=False)


class _Lookup(NamedTuple):
    """What the cache has: `found` in that of this process, `is_missing` (N, V) in that of any process of the team.

    `broken` has the reasons if no other image can be read, otherwise it is None.
    """

    found: Found
    is_missing: np.ndarray
    broken: dict[int, str] | None


def _looked_up(store: Store, keys: Keys, images: Images, team: Team) -> _Lookup:
    found = store.find(*keys)
    everyone = team.exchange((np.packbits(~found.is_there), _all_broken(found, images)))
    bits = np.bitwise_or.reduce([bits for bits, _ in everyone])
    is_missing = np.unpackbits(bits, count=found.row.size).astype(bool).reshape(found.row.shape)
    if any(broken is None for _, broken in everyone):
        return _Lookup(found, is_missing, None)
    broken = {row: reason for _, own in everyone for row, reason in (own or {}).items()}
    refuse_many_broken(broken, images)
    return _Lookup(found, is_missing, broken)


def _all_broken(found: Found, images: Images) -> dict[int, str] | None:
    """Return why the images that are not in the cache cannot be read, None if one of them can.

    They are tried every time: a disk may be back.
    """
    broken: dict[int, str] = {}
    for row in np.flatnonzero(~found.is_there.all(axis=1)).tolist():
        reason = images.reason(row)
        if reason is None:
            return None
        broken[row] = reason
        refuse_many_broken(broken, images)
    return broken


def _features(store: Store, found: Found, broken: dict[int, str], is_hit: bool) -> Features:
    rows = np.delete(np.arange(len(found.row)), list(broken))
    return Features(found.take(rows, store.path), rows, broken, store.path, is_hit)


def _fill(
    writer: Writer,
    batches: Iterable[Computed],
    images: Images,
    *,
    is_stored_here: np.ndarray,
    keys: Keys,
    display: Display,
) -> dict[int, str]:
    """Store the features that this process is to write; return the reasons why images cannot be read."""
    image_keys, keys_of_views = keys
    broken: dict[int, str] = {}
    saved = time.monotonic()
    for rows, numbers, x, reasons in batches:
        broken.update(reasons)
        refuse_many_broken(broken, images)
        _require_finite(x, rows, numbers, images)
        own = is_stored_here[rows][:, numbers].any(axis=1)
        writer.add(image_keys[rows[own]], keys_of_views[numbers], x[own])
        display.advance(len(rows) + len(reasons))
        if time.monotonic() - saved >= SECONDS_BETWEEN_SAVES:
            writer.save()
            saved = time.monotonic()
    return broken


def _in_memory(batches: Iterable[Computed], found: Found, n_features: int, images: Images) -> Features:
    """Compute features without storing them; those in the cache are used."""
    x = np.empty((*found.row.shape, n_features), FEATURE_DTYPE)
    for number, segment in enumerate(found.segments):
        x[found.segment == number] = segment.x[found.row[found.segment == number]]
    broken: dict[int, str] = {}
    for rows, numbers, part, reasons in batches:
        broken.update(reasons)
        refuse_many_broken(broken, images)
        x[rows[:, None], numbers] = part
    rows = np.delete(np.arange(len(x)), list(broken))
    return Features(x[rows], rows, broken, None, is_hit=False)


def _require_finite(x: np.ndarray, rows: np.ndarray, numbers: list[int], images: Images) -> None:
    for at, view in enumerate(numbers):
        bad = np.flatnonzero(~np.isfinite(x[:, at]).all(axis=1))
        if len(bad) > 0:
            why = "not finite in float16 (they hold NaN or exceed ±65,504); check the weights of the backbone"
            raise ValueError(f"the features of view {view} of {images.name(int(rows[bad[0]]))} are {why}")
