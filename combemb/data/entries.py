"""Entries: id, path and label of indexed or discovered items."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image

from combemb.data.given import ROW_SEPARATOR, Given, item_names
from combemb.data.images import BrokenImage, Images

ENTRY_SCHEMA = pa.schema([(name, pa.large_string()) for name in ("id", "path", "label")])


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
    images = given.images
    names, paths = item_names(given, n_before)
    table = pa.table([names, paths, given.labels.texts()], schema=ENTRY_SCHEMA)
    own = np.array([*names, None], dtype=object)[:-1]
    return replace(given, ids=own, images=None if images is None else replace(images, ids=own)), table
