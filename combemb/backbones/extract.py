"""Features of images by a frozen backbone, made once and kept in a cache."""

import ctypes
import math
import multiprocessing
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from combemb.backbones.base import Backbone
from combemb.backbones.feature_cache import Folder, Recipe, Stored, Writer
from combemb.data.augmentation import NO_STEPS, Augmentation, Views
from combemb.data.colour import coloured
from combemb.data.images import BrokenImage, Images, refuse_many_broken
from combemb.system.machine import memory_kept, n_cores
from combemb.system.progress import Display

SECONDS_BETWEEN_RECORDS = 5.0  # what a killed process loses at most
FEW_FILES = 256  # are decoded before worker processes would have started
CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Features:
    """Features of those of N images that could be read, N' of them.

    x: (N', V, F) float16, a read-only memory map, view 0 the clean one.
    rows: (N',) positions of these images among the N. broken: position of an image without features -> the reason.
    """

    x: np.ndarray
    rows: np.ndarray
    broken: dict[int, str]
    folder: Path | None  # where they are kept
    is_hit: bool  # whether they were in the cache


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
) -> Features:
    """Features of `n_views` views of every image, from the cache where they are there, else made and put into it.

    about: what identifies the backbone's weights, as JSON. last_stage: keep what the last stage gets, flattened,
    instead of the features. A call goes on where a killed one stopped, and waits for one that runs; several processes
    may ask at once. Images that cannot be read are left out; ValueError if they are more than a tenth. Without `keep`
    nothing is written: for a few images, such as queries.
    """
    if min(n_views, batch_size) < 1:
        raise ValueError(f"n_views={n_views} and batch_size={batch_size} must be 1 or more")
    if size < backbone.min_size:
        raise ValueError(f"size={size} is too small for {backbone.name}; give {backbone.min_size} or more")
    views = Views(images, size, augmentation, seed)
    recipe = Recipe(n_views, {"augmentation": asdict(augmentation), "seed": seed} if n_views > 1 else {})
    holds = {"images": images.key, "backbone": about, "size": size, "last_stage": last_stage}
    folder = Folder.of(cache, f"{backbone.name}-{size}px", holds, len(images))
    stored = folder.find(recipe)
    if stored is not None and not _is_mended(stored, images):
        return _features(folder, stored, n_views, is_hit=True)
    if not keep:
        network = _network(backbone, last_stage, device)
        backbone.n_outputs(size, network, device)
        with torch.inference_mode(), memory_kept():
            return _in_memory(_Batches(views, range(n_views), 0, batch_size), network, device)
    with folder.alone(progress):
        known = folder.best(recipe)
        if known is not None and _is_mended(known, images):
            folder.clear()
        stored = folder.find(recipe)  # another process may have made it
        if stored is not None:
            return _features(folder, stored, n_views, is_hit=True)
        with torch.inference_mode(), memory_kept():
            network = _network(backbone, last_stage, device)
            n_features = backbone.n_outputs(size, network, device)
            with Writer(folder, recipe, n_features) as writer:
                batches = _Batches(views, range(writer.first_view, n_views), writer.done, batch_size)
                _fill(writer, batches, network, device=device, n_workers=n_workers, progress=progress)
        stored = folder.find(recipe)
        assert stored is not None, "the features were written but are not found"
        return _features(folder, stored, n_views, is_hit=False)


def _is_mended(stored: Stored, images: Images) -> bool:
    """Whether an image can be read now that could not be; its size and time need not have changed."""
    for row in stored.broken:
        try:
            images.read(row, at_least=1)
        except BrokenImage:
            continue
        return True
    return False


def _in_memory(batches: "_Batches", network: Callable[[Tensor], Tensor], device: torch.device) -> Features:
    """Features that are not kept."""
    images, broken = batches.views.images, dict[int, str]()
    parts = []
    for batch in _loaded(batches, n_workers=0):
        broken.update(batch.broken)
        refuse_many_broken(broken, images)
        views = zip(batch.windows, batch.steps, strict=True)
        pixels = [coloured(torch.from_numpy(w).to(device), torch.from_numpy(s).to(device)) for w, s in views]
        parts.append(torch.stack([network(view) for view in pixels], dim=1).half().cpu().numpy())  # (B, V, F)
    rows = np.delete(np.arange(len(images)), list(broken))
    return Features(np.concatenate(parts)[rows], rows, broken, None, is_hit=False)


def _features(folder: Folder, stored: Stored, n_views: int, is_hit: bool) -> Features:
    x = stored.x[:n_views].transpose(1, 0, 2)
    return Features(x, stored.rows, stored.broken, folder.path, is_hit)


def _network(backbone: Backbone, last_stage: bool, device: torch.device) -> Callable[[Tensor], Tensor]:
    frozen = backbone.for_inference().to(device)
    return (lambda pixels: frozen.before_last(pixels).flatten(1)) if last_stage else frozen


def _fill(
    writer: Writer,
    batches: "_Batches",
    network: Callable[[Tensor], Tensor],
    *,
    device: torch.device,
    n_workers: int | None,
    progress: bool | None,
) -> None:
    """Write the features of all images that are not yet done."""
    views, numbers, saved = batches.views, batches.numbers, time.monotonic()
    with Display("extracting features", len(views.images), "images", progress, done=writer.done) as display:
        for batch in _loaded(batches, n_workers):
            writer.broken.update(batch.broken)
            _refuse_many_broken(writer, views.images)
            for number, windows, steps in zip(numbers, batch.windows, batch.steps, strict=True):
                pixels = coloured(torch.from_numpy(windows).to(device), torch.from_numpy(steps).to(device))
                x = network(pixels).half().cpu().numpy()
                _require_finite(x, writer, views, number)
                writer.write(number, writer.done, x)
            writer.done += batch.windows.shape[1]
            display.advance(batch.windows.shape[1])
            if time.monotonic() - saved >= SECONDS_BETWEEN_RECORDS:
                writer.save()
                saved = time.monotonic()
    writer.finish()


def _refuse_many_broken(writer: Writer, images: Images) -> None:
    try:
        refuse_many_broken(writer.broken, images)
    except ValueError:
        writer.discard()  # whoever mends them starts afresh
        raise


def _require_finite(x: np.ndarray, writer: Writer, views: Views, number: int) -> None:
    bad = np.flatnonzero(~np.isfinite(x).all(axis=1)) + writer.done
    bad = np.setdiff1d(bad, list(writer.broken))
    if len(bad) > 0:
        name = views.images.name(int(bad[0]))
        raise ValueError(
            f"the features of view {number} of {name} are not finite in float16 (they hold NaN or go beyond ±65,504); "
            "check the weights of the backbone"
        )


class _Batch(NamedTuple):
    windows: np.ndarray  # (V, B, size, size, 3) uint8
    steps: np.ndarray  # (V, B, 6) float32
    broken: dict[int, str]  # position -> reason; its windows are black


@dataclass(frozen=True, eq=False)
class _Batches(Dataset[_Batch]):
    """Batches of images in their order, from image `start` on."""

    views: Views
    numbers: range
    start: int
    batch_size: int
    n_threads: int = 1  # that decode; Pillow works outside Python's lock

    def __len__(self) -> int:
        return math.ceil((len(self.views.images) - self.start) / self.batch_size)

    def __getitem__(self, number: int) -> _Batch:
        first = self.start + number * self.batch_size
        rows = range(first, min(first + self.batch_size, len(self.views.images)))
        if self.n_threads == 1:
            made = [self._read(row) for row in rows]
        else:
            with ThreadPoolExecutor(self.n_threads) as pool:
                made = list(pool.map(self._read, rows))
        windows, steps, reasons = zip(*made, strict=True)
        broken = {row: reason for row, reason in zip(rows, reasons, strict=True) if reason is not None}
        return _Batch(np.stack(windows, axis=1), np.stack(steps, axis=1), broken)

    def _read(self, row: int) -> tuple[np.ndarray, np.ndarray, str | None]:
        try:
            return *self.views.read(row, self.numbers), None
        except BrokenImage as error:
            V, size = len(self.numbers), self.views.size
            return np.zeros((V, size, size, 3), np.uint8), np.tile(NO_STEPS, (V, 1)), str(error)


def _default_workers(images: Images) -> int:
    """Processes that decode: none for pixels and few files, nor where a process cannot (safely) be forked.

    A process that is not forked imports the main script again, which must then be written for that.
    """
    cannot_fork = sys.platform != "linux" or multiprocessing.current_process().daemon
    if images.files is None or len(images) < FEW_FILES or cannot_fork:
        return 0
    return max(1, min(4, n_cores() - 1))


def _loaded(batches: _Batches, n_workers: int | None) -> Iterator[_Batch]:
    """The batches, made by other processes, or by threads of this one if n_workers is 0."""
    n_workers = _default_workers(batches.views.images) if n_workers is None else n_workers
    if n_workers == 0:
        batches = replace(batches, n_threads=min(4, n_cores()))
    loader = DataLoader(
        batches,
        batch_size=None,
        num_workers=n_workers,
        collate_fn=_unchanged,
        worker_init_fn=_end_with_parent,
        multiprocessing_context=None if n_workers == 0 else "fork" if sys.platform == "linux" else "spawn",
        generator=torch.Generator(),  # else a loader draws from the global one
    )
    with warnings.catch_warnings():
        # Python 3.12 warns of forks beside threads; the workers run nothing but Pillow and numpy.
        warnings.simplefilter("ignore", DeprecationWarning)
        return iter(loader)


def _end_with_parent(_: int) -> None:
    """Let Linux kill this worker when its parent is killed; a full pipe, which nobody reads, would keep it for ever."""
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _unchanged(batch: Any) -> Any:
    """Arrays come through a pipe; tensors would go through /dev/shm, which containers keep small."""
    return batch
