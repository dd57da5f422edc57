"""Pictures on a page: small, inside the page and linked to their files."""

import base64
import io
import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from combemb.collection.indexed import Entry
from combemb.data.images import BrokenImage

JPEG_QUALITY = 85
CACHE_SIZE = 4_096  # thumbnails; one item may be found by many queries


class Picture(NamedTuple):
    """A name, a small JPEG in base64 if the picture can be read, and the address of its file if it has one."""

    name: str
    jpeg: str | None = None
    link: str | None = None


class Thumbnails:
    """The pictures of one page, at most `side` pixels high and wide; names are shown relative to `folder`."""

    def __init__(self, side: int, folder: str = ""):
        self.folder = folder
        self._jpeg = lru_cache(CACHE_SIZE)(lambda entry: _jpeg(entry, side))

    def picture(self, entry: Entry) -> Picture:
        """Return the picture of an entry; without a JPEG if it cannot be read."""
        jpeg = self._jpeg(Entry(entry.id, entry.path))
        if jpeg is None:
            return Picture(entry.id if entry.path is None else Path(entry.id).name)
        is_file = entry.path is not None and entry.id == entry.path
        return Picture(self.short_name(entry.id), jpeg, Path(entry.id).as_uri() if is_file else None)

    def short_name(self, name: str) -> str:
        """Return a name without the folder that all files have in common."""
        return name.removeprefix(f"{self.folder}{os.sep}") if self.folder else name


def _jpeg(entry: Entry, side: int) -> str | None:
    try:
        image = entry.image(at_least=2 * side)
    except BrokenImage:
        return None
    image.thumbnail((side, side))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling="4:4:4", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def common_folder(paths: Iterable[str | None]) -> str:
    """Return the folder that contains all files, "" if there is none below the root."""
    folders = {str(Path(path).parent) for path in paths if path is not None}
    common = os.path.commonpath(folders) if folders else ""
    return common if len(Path(common).parts) > 1 else ""
