"""Features of images by a frozen backbone, computed once and kept in a cache."""

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
from combemb.system.errors import require
from combemb.system.machine import memory_kept, n_cores
from combemb.system.progress import Display

SECONDS_BETWEEN_RECORDS = 5.0  # a killed process loses at most this much work
FEW_FILES = 256  # fewer are decoded before worker processes would have started
CPU = torch.device("cpu")
Network = Callable[[Tensor], Tensor]  # pixels (B, 3, size, size) -> features (B, F)


@dataclass(frozen=True, eq=False)
class Features:
    """Features of the N' images, of N, that could be read.

    Attributes
    ----------
    x : array (N', V, F) of float16
        A read-only memory map if cached; view 0 is the clean one.
    rows : array (N',)
        Positions of these images among the N.
    broken : dict
        Position of each image that could not be read -> reason.
    folder, is_hit : Path or None, bool
        Where the features are stored, and whether they were there before.
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
) -> Features:
    """Return the features of `n_views` views of every image, from the cache or computed and added to it.

    A call resumes where a killed one stopped, and waits for another process that computes the same. Images that cannot
    be read are left out; more than a tenth of them raise a ValueError.

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
        False writes nothing: for a few images, such as queries.
    device, batch_size, n_workers, progress
        Where and how to compute; 0 workers decode in threads, None chooses a number.

    Returns
    -------
    Features
    """
    require(min(n_views, batch_size) > 0, f"n_views={n_views} and batch_size={batch_size} must be 1 or more")
    smallest = backbone.min_size
    require(size >= smallest, f"size={size} is too small for {backbone.name}; give {smallest} or more")
    views = Views(images, size, augmentation, seed)
    recipe = Recipe(n_views, {"augmentation": asdict(augmentation), "seed": seed} if n_views > 1 else {})
    holds = {"images": images.key, "backbone": about, "size": size, "last_stage": last_stage}
    folder = Folder.of(cache, f"{backbone.name}-{size}px", holds, len(images))
    stored = folder.find(recipe)
    if stored is not None and not _is_fixed(stored, images):
        return _features(folder, stored, n_views, is_hit=True)
    if not keep:
        network = _network(backbone, last_stage, device)
        backbone.n_outputs(size, network, device)
        with torch.inference_mode(), memory_kept():
            return _in_memory(_Decoder(views, range(n_views), 0, batch_size), network, device)
    with folder.alone(progress):
        known = folder.best(recipe)
        if known is not None and _is_fixed(known, images):
            folder.clear()
        stored = folder.find(recipe)  # another process may have added it
        if stored is not None:
            return _features(folder, stored, n_views, is_hit=True)
        with torch.inference_mode(), memory_kept():
            network = _network(backbone, last_stage, device)
            n_features = backbone.n_outputs(size, network, device)
            with Writer(folder, recipe, n_features) as writer:
                decoder = _Decoder(views, range(writer.first_view, n_views), writer.done, batch_size)
                _fill(writer, decoder, network, device, n_workers=n_workers, progress=progress)
        stored = folder.find(recipe)
        assert stored is not None, "the features were written but are not found"
        return _features(folder, stored, n_views, is_hit=False)


def _is_fixed(stored: Stored, images: Images) -> bool:
    """Return whether a broken image can be read now; its size and time need not have changed."""
    return any(images.reason(row) is None for row in stored.broken)


def _in_memory(decoder: "_Decoder", network: Network, device: torch.device) -> Features:
    """Compute features without storing them."""
    images, broken = decoder.views.images, dict[int, str]()
    parts = []
    for decoded in _decoded(decoder, n_workers=0):
        broken.update(decoded.broken)
        refuse_many_broken(broken, images)
        parts.append(np.stack([network(pixels).half().cpu().numpy() for pixels in decoded.pixels(device)], axis=1))
    rows = np.delete(np.arange(len(images)), list(broken))
    return Features(np.concatenate(parts)[rows], rows, broken, None, is_hit=False)


def _features(folder: Folder, stored: Stored, n_views: int, is_hit: bool) -> Features:
    folder.mark_used()
    x = stored.x[:n_views].transpose(1, 0, 2)
    return Features(x, stored.rows, stored.broken, folder.path, is_hit)


def _network(backbone: Backbone, last_stage: bool, device: torch.device) -> Network:
    frozen = backbone.for_inference().to(device)
    return (lambda pixels: frozen.before_last(pixels).flatten(1)) if last_stage else frozen


def _fill(
    writer: Writer,
    decoder: "_Decoder",
    network: Network,
    device: torch.device,
    *,
    n_workers: int | None,
    progress: bool | None,
) -> None:
    """Write the features of all images that are not done yet."""
    images, saved = decoder.views.images, time.monotonic()
    with Display("extracting features", len(images), "images", progress, done=writer.done) as display:
        for decoded in _decoded(decoder, n_workers):
            writer.broken.update(decoded.broken)
            try:
                refuse_many_broken(writer.broken, images)
            except ValueError:
                writer.discard()  # once the images are fixed, a call starts afresh
                raise
            for view, pixels in enumerate(decoded.pixels(device), start=writer.first_view):
                x = network(pixels).half().cpu().numpy()
                _require_finite(x, writer, images, view)
                writer.write(view, writer.done, x)
            writer.done += decoded.windows.shape[1]
            display.advance(decoded.windows.shape[1])
            if time.monotonic() - saved >= SECONDS_BETWEEN_RECORDS:
                writer.save()
                saved = time.monotonic()
    writer.finish()


def _require_finite(x: np.ndarray, writer: Writer, images: Images, view: int) -> None:
    bad = np.flatnonzero(~np.isfinite(x).all(axis=1)) + writer.done
    bad = np.setdiff1d(bad, list(writer.broken))
    if len(bad) > 0:
        why = "not finite in float16 (they hold NaN or exceed ±65,504); check the weights of the backbone"
        raise ValueError(f"the features of view {view} of {images.name(int(bad[0]))} are {why}")


class _Decoded(NamedTuple):
    """Some views of consecutive images; those of broken images are black."""

    windows: np.ndarray  # (V, B, size, size, 3) uint8
    steps: np.ndarray  # (V, B, 6) float32
    broken: dict[int, str]  # position -> reason

    def pixels(self, device: torch.device) -> Iterator[Tensor]:
        """Yield each view, (B, 3, size, size)."""
        for windows, steps in zip(self.windows, self.steps, strict=True):
            yield coloured(torch.from_numpy(windows).to(device), torch.from_numpy(steps).to(device))


@dataclass(frozen=True, eq=False)
class _Decoder(Dataset[_Decoded]):
    """Decodes images in order, from image `start` on, `batch_size` at a time."""

    views: Views
    numbers: range
    start: int
    batch_size: int
    n_threads: int = 1  # threads suffice, because Pillow releases Python's lock

    def __len__(self) -> int:
        return math.ceil((len(self.views.images) - self.start) / self.batch_size)

    def __getitem__(self, number: int) -> _Decoded:
        first = self.start + number * self.batch_size
        rows = range(first, min(first + self.batch_size, len(self.views.images)))
        with ThreadPoolExecutor(self.n_threads) as pool:
            made = list(map(self._read, rows) if self.n_threads == 1 else pool.map(self._read, rows))
        windows, steps, reasons = zip(*made, strict=True)
        broken = {row: reason for row, reason in zip(rows, reasons, strict=True) if reason is not None}
        return _Decoded(np.stack(windows, axis=1), np.stack(steps, axis=1), broken)

    def _read(self, row: int) -> tuple[np.ndarray, np.ndarray, str | None]:
        try:
            return *self.views.read(row, self.numbers), None
        except BrokenImage as error:
            V, size = len(self.numbers), self.views.size
            return np.zeros((V, size, size, 3), np.uint8), np.tile(NO_STEPS, (V, 1)), str(error)


def _default_workers(images: Images) -> int:
    """Return how many processes decode: none for pixels, for few files, and where a process cannot be forked safely.

    A process that is not forked imports the main script again, which must be written for that.
    """
    cannot_fork = sys.platform != "linux" or multiprocessing.current_process().daemon
    if images.files is None or len(images) < FEW_FILES or cannot_fork:
        return 0
    return max(1, min(4, n_cores() - 1))


def _decoded(decoder: _Decoder, n_workers: int | None) -> Iterator[_Decoded]:
    """Decode in other processes, or in threads of this one if n_workers is 0."""
    n_workers = _default_workers(decoder.views.images) if n_workers is None else n_workers
    if n_workers == 0:
        decoder = replace(decoder, n_threads=min(4, n_cores()))
    loader = DataLoader(
        decoder,
        batch_size=None,
        num_workers=n_workers,
        collate_fn=_unchanged,
        worker_init_fn=_end_with_parent,
        multiprocessing_context=None if n_workers == 0 else "fork" if sys.platform == "linux" else "spawn",
        generator=torch.Generator(),  # otherwise a loader draws from the global one
    )
    with warnings.catch_warnings():
        # Python 3.12 warns of forks in a process with threads; the workers run only Pillow and numpy.
        warnings.simplefilter("ignore", DeprecationWarning)
        return iter(loader)


def _end_with_parent(_: int) -> None:
    """Let Linux kill this worker when its parent is killed; it would wait forever on a full pipe."""
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _unchanged(batch: Any) -> Any:
    """Keep arrays, which go through a pipe; tensors would go through /dev/shm, which is small in containers."""
    return batch
