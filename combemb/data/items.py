"""Items to learn from: rows of an array, or anything that returns tensors of rows and views."""

import hashlib
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from combemb.system.progress import Display


class Items(Protocol):
    """What training needs from items."""

    n_rows: int  # rows per chunk
    is_slow: bool  # whether `take` is worth doing ahead, while a step runs

    def __len__(self) -> int: ...

    @property
    def n_views(self) -> int:
        """V, 1 when there is only the clean view."""

    def take(self, rows: Tensor, views: Tensor | int = 0) -> Tensor:
        """Return one view of each row, float32. rows (n,), views (n,) or one for all -> (n, ...)."""

    def fingerprint(self) -> dict[str, Any]:
        """Return what identifies the data, to compare them in a resumed run."""


def chunks(items: Items, title: str = "", progress: bool | None = False) -> Iterator[Tensor]:
    """Yield the clean view of all items in chunks of rows."""
    with Display(title, len(items), "items", progress) as display:
        for rows in torch.arange(len(items)).split(items.n_rows):
            yield items.take(rows)
            display.advance(len(rows))


class ArrayItems:
    """Items as rows of an (N, V, F) array, which may be a memory map; rows are read on demand."""

    n_rows = 16_384
    is_slow = False

    def __init__(self, x: np.ndarray):
        self.x = x if x.ndim == 3 else x[:, None]

    def __len__(self) -> int:
        return len(self.x)

    @property
    def n_features(self) -> int:
        """F of the array."""
        return int(self.x.shape[2])

    @property
    def n_views(self) -> int:
        """V, 1 when there is only the clean view."""
        return int(self.x.shape[1])

    def take(self, rows: Tensor, views: Tensor | int = 0) -> Tensor:
        """Return one view of each row, float32. rows (n,), views (n,) or one for all -> (n, F)."""
        picked = self.x[rows.numpy(), views.numpy() if isinstance(views, Tensor) else views]
        return torch.from_numpy(np.ascontiguousarray(picked, dtype=np.float32))

    def fingerprint(self) -> dict[str, Any]:
        """Return what identifies the data, without reading all of them."""
        some = np.ascontiguousarray(self.x[:: max(len(self) // 1000, 1)])
        return {"shape": list(self.x.shape), "x": hashlib.sha256(some.tobytes()).hexdigest()[:16]}
