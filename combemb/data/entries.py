"""Entries: id, path and label of indexed or discovered items."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from combemb.data.folders import readable_name
from combemb.data.given import Given
from combemb.data.images import BrokenImage, Images

ENTRY_SCHEMA = pa.schema([(name, pa.large_string()) for name in ("id", "path", "label")])
ROW_SEPARATOR = "#"  # between the path of an array file and the row of an image


@dataclass(frozen=True)
class Entry:
    """An item by its id, its file if it is an image, and its label; several labels are joined by `|`.

    The id of an image is its absolute path; for an image in an array file, `#` and the row follow the path.
    """

    id: str
    path: str | None = None
    label: str | None = None

    def image(self, at_least: int = 0) -> Image.Image:
        """Return the picture as `Images.read` does; raise BrokenImage if there is none."""
        if self.path is None:
            raise BrokenImage("not an image")
        if self.id == self.path:
            return Images(files=[Path(self.path)]).read(0, at_least)
        try:
            return Images(pixels=np.load(self.path, mmap_mode="r")).read(int(self.id.rpartition(ROW_SEPARATOR)[2]))
        except (OSError, ValueError, IndexError) as error:
            raise BrokenImage(str(error)) from error


def listed(given: Given, n_before: int = 0) -> tuple[Given, pa.Table]:
    """Return the items with the ids of their entries, and the entries.

    Parameters
    ----------
    given : Given
        The items.
    n_before : int
        Items without ids are numbered, starting from here.

    Returns
    -------
    Given
        The same items with ids as text.
    pyarrow.Table
        Their id, path and label.
    """
    images, n = given.images, len(given)
    ids: Iterable[Any] = np.arange(n_before, n_before + n) if given.ids is None else given.ids
    paths: list[str | None] = [None] * n
    if images is not None and images.files is not None:
        ids = paths = [readable_name(os.path.abspath(file)) for file in images.files]  # noqa: PTH100 - links stay
    elif images is not None and given.path is not None:
        paths = [readable_name(os.path.abspath(given.path))] * n  # noqa: PTH100
        ids = [f"{paths[0]}{ROW_SEPARATOR}{row}" for row in ids]
    elif images is not None and images.ids is None:
        ids = np.arange(n_before, n_before + n)
    names = [str(name) for name in ids]
    table = pa.table([names, paths, given.labels.texts()], schema=ENTRY_SCHEMA)
    own = np.array([*names, None], dtype=object)[:-1]
    return replace(given, ids=own, images=None if images is None else replace(images, ids=own)), table
