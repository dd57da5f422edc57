"""Images as items: the pixels of any view, made on demand."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from combemb.data.augmentation import Views
from combemb.data.colour import coloured
from combemb.data.images import BrokenImage, Images, refuse_many_broken
from combemb.system.machine import n_cores
from combemb.system.progress import Display
from combemb.system.team import ALONE, Team


class ImageItems:
    """The images of `rows` (by default all), with a new view for every view number.

    With equal seeds, view v of an item has the pixels from which `combemb.backbones.extract.extract` makes features.
    """

    n_views = 2**16
    n_rows = 64
    is_slow = True

    def __init__(self, views: Views, rows: np.ndarray | None = None, n_threads: int | None = None):
        self.views = views
        self.rows = np.arange(len(views.images)) if rows is None else rows  # positions among the images
        self.n_threads = n_threads or n_cores()  # for decoding; Pillow releases the GIL

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Tensor, views: Tensor | int = 0) -> Tensor:
        """Return one view of each row. rows (n,), views (n,) or one for all -> (n, 3, size, size) float32 in 0..255.

        Raises BrokenImage, which names an image that cannot be read.
        """
        positions = self.rows[rows.numpy()].tolist()
        numbers = torch.as_tensor(views).expand(len(positions)).tolist()
        with ThreadPoolExecutor(self.n_threads) as pool:
            made = list(pool.map(self._read, positions, numbers))
        windows, steps = (torch.from_numpy(np.concatenate(part)) for part in zip(*made, strict=True))
        return coloured(windows, steps)

    def _read(self, position: int, number: int) -> tuple[np.ndarray, np.ndarray]:
        try:
            return self.views.read(position, [number])
        except BrokenImage as error:
            raise BrokenImage(f"{self.views.images.name(position)}: {error}") from error

    def fingerprint(self) -> dict[str, Any]:
        """Return the number of items; the key of the images identifies them."""
        return {"shape": [len(self)]}


def readable(
    images: Images, progress: bool | None = None, team: Team = ALONE, n_threads: int = 2
) -> tuple[np.ndarray, dict[int, str]]:
    """Return the positions of images that all processes of the team can read, and reasons for the others.

    Raises a ValueError if too many are broken.
    """
    if images.pixels is not None:
        return np.arange(len(images)), {}
    own: dict[int, str] = {}
    with (
        team.bound(),
        ThreadPoolExecutor(n_threads) as pool,
        Display("looking at images", len(images), "images", progress) as shown,
    ):
        for i, why in enumerate(pool.map(images.reason, range(len(images)))):
            if why is not None:
                own[i] = why
                refuse_many_broken(own, images)
            shown.advance(1)
        broken = {row: why for found in team.exchange(own) for row, why in found.items()}
        refuse_many_broken(broken, images)
    return np.delete(np.arange(len(images)), list(broken)), dict(sorted(broken.items()))
