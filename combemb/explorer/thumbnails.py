"""Small pictures that are stored inside a page, and names relative to the folder of all files."""

import base64
import io
import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from combemb.data.entries import Entry
from combemb.data.images import BrokenImage

JPEG_QUALITY = 85
CACHE_SIZE = 4_096  # thumbnails; one item may be found by many queries


class Thumbnails:
    """The pictures of one page, at most `side` pixels high and wide; `folder` contains all `paths`, "" for the root."""

    def __init__(self, side: int, paths: Iterable[str | None]):
        folders = {str(Path(path).parent) for path in paths if path is not None}
        folder = os.path.commonpath(folders) if folders else ""
        self.folder = folder if len(Path(folder).parts) > 1 else ""
        self._jpeg = lru_cache(CACHE_SIZE)(lambda entry: _jpeg(entry, side))

    def jpeg(self, entry: Entry) -> str | None:
        """Return a small JPEG in base64, None if the picture cannot be read."""
        return self._jpeg(Entry(entry.id, entry.path))  # hits of several queries differ in their scores

    def is_gone(self, entry: Entry) -> bool:
        """Return whether the file of a picture does not exist."""
        return entry.path is not None and not Path(entry.path).exists()

    def short_name(self, name: str) -> str:
        """Return a name relative to the folder."""
        return name.removeprefix(f"{self.folder}{os.sep}") if self.folder else name


def _jpeg(entry: Entry, side: int) -> str | None:
    try:
        return base64.b64encode(small_jpeg(entry, side)).decode("ascii")
    except BrokenImage:
        return None


def small_jpeg(entry: Entry, side: int) -> bytes:
    """Return the picture of an entry as a JPEG of at most `side` pixels; raise BrokenImage if it cannot be read."""
    image = entry.image(at_least=2 * side)
    image.thumbnail((side, side))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling="4:4:4", optimize=True)
    return buffer.getvalue()
