"""Decoding of images into views, in other processes or in threads, a batch at a time."""

import math
import multiprocessing
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from combemb.data.augmentation import Views
from combemb.data.colour import coloured
from combemb.data.images import BrokenImage, Images
from combemb.system.machine import n_cores
from combemb.system.parent import end_with_parent

FEW_FILES = 256  # fewer are decoded before worker processes would have started


class Decoded(NamedTuple):
    """Some views of the images of a batch that can be read, none if none can, and why the others cannot."""

    rows: np.ndarray  # (B,) positions of the images
    windows: np.ndarray  # (V, B, size, size, 3) uint8
    steps: np.ndarray  # (V, B, 6) float32
    broken: dict[int, str]  # position -> reason

    def pixels(self, device: torch.device) -> Iterator[Tensor]:
        """Yield each view, (B, 3, size, size)."""
        for windows, steps in zip(self.windows, self.steps, strict=True):
            yield coloured(torch.from_numpy(windows).to(device), torch.from_numpy(steps).to(device))


@dataclass(frozen=True, eq=False)
class Decoder(Dataset[Decoded]):
    """Decodes the images at `rows` in this order, `batch_size` at a time."""

    views: Views
    numbers: list[int]  # of the views
    rows: np.ndarray
    batch_size: int
    n_threads: int = 1  # threads suffice, because Pillow releases Python's lock

    def __len__(self) -> int:
        return math.ceil(len(self.rows) / self.batch_size)

    def __getitem__(self, number: int) -> Decoded:
        rows = self.rows[number * self.batch_size : (number + 1) * self.batch_size].tolist()
        with ThreadPoolExecutor(self.n_threads) as pool:
            read = list(map(self._read, rows) if self.n_threads == 1 else pool.map(self._read, rows))
        broken = {row: views for row, views in zip(rows, read, strict=True) if isinstance(views, str)}
        made = [views for views in read if not isinstance(views, str)]
        windows, steps = ([views[part] for views in made] for part in (0, 1))
        whole = np.array([row for row in rows if row not in broken], np.int64)
        return Decoded(whole, _joined(windows), _joined(steps), broken)

    def _read(self, row: int) -> tuple[np.ndarray, np.ndarray] | str:
        try:
            return self.views.read(row, self.numbers)
        except BrokenImage as error:
            return str(error)

    def decoded(self, n_workers: int | None) -> Iterator[Decoded]:
        """Decode in other processes, which start now, or in threads of this one if n_workers is 0."""
        n_workers = default_workers(self.views.images, len(self.rows)) if n_workers is None else n_workers
        loader = DataLoader(
            replace(self, n_threads=min(4, n_cores())) if n_workers == 0 else self,
            batch_size=None,
            num_workers=n_workers,
            collate_fn=_unchanged,
            worker_init_fn=end_with_parent,
            multiprocessing_context=None if n_workers == 0 else "fork" if sys.platform == "linux" else "spawn",
            generator=torch.Generator(),  # otherwise a loader draws from the global one
        )
        with warnings.catch_warnings():
            # Python 3.12 warns of forks in a process with threads; the workers run only Pillow and numpy.
            warnings.simplefilter("ignore", DeprecationWarning)
            return iter(loader)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """Return arrays of images, (V, ...) each, as one (V, B, ...); of no images, as one without views."""
    return np.stack(parts, axis=1) if parts else np.empty(0)


def default_workers(images: Images, n: int) -> int:
    """Return how many processes decode: none for pixels, for few files, and where a process cannot be forked safely.

    A process that is not forked imports the main script again, which must be written for that.
    """
    cannot_fork = sys.platform != "linux" or multiprocessing.current_process().daemon
    if images.files is None or n < FEW_FILES or cannot_fork:
        return 0
    return max(1, min(4, n_cores() - 1))


def _unchanged(batch: Any) -> Any:
    """Keep arrays, which go through a pipe; tensors would go through /dev/shm, which is small in containers."""
    return batch
