"""Pictures of items as JPEGs, only of files below the folder of the data; their bytes never leave as they are."""

import threading
from collections import OrderedDict
from pathlib import Path

from PIL import Image

from combemb.data.entries import Entry
from combemb.data.images import BrokenImage, readable_formats
from combemb.explorer.server.problems import Refused
from combemb.explorer.thumbnails import small_jpeg

SIDES = (64, 128, 192, 256, 384)  # of thumbnails, in pixels
PICTURE_SIDE = 1_600
MAX_PIXELS = 100_000_000  # of a file that is decoded: 300 MB
CACHED_BYTES = 64 * 2**20
DECODED_AT_ONCE = 2


class Pictures:
    """The pictures below the folder of the data, or of other folders that the user allows.

    Parameters
    ----------
    data : str, optional
        Path of the data: a folder of images, or a file beside or above them.
    roots : sequence of Path
        Other folders.
    """

    def __init__(self, data: str | None, roots: tuple[Path, ...] = ()):
        own = [] if data is None else [Path(data) if Path(data).is_dir() else Path(data).parent]
        self.roots = tuple(root.resolve() for root in (*own, *roots))
        self._slots = threading.BoundedSemaphore(DECODED_AT_ONCE)
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._n_bytes = 0

    def may_show(self, path: str | None) -> bool:
        """Return whether a file is below one of the folders, after all links were followed."""
        if path is None:
            return False
        real = Path(path).resolve()
        return any(real.is_relative_to(root) for root in self.roots)

    def jpeg(self, entry: Entry, side: int) -> bytes:
        """Return the picture of an item, at most `side` pixels high and wide; refuse if there is none to show."""
        key = (entry.id, side)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        if entry.path is None:
            raise Refused(404, "missing", "this item is not an image")
        if not self.may_show(entry.path):
            raise Refused(404, "missing", "the file is outside the folder of the data", "allow it with --image-root")
        with self._slots:
            try:
                _check_size(entry)
                found = small_jpeg(entry, side)
            except BrokenImage as error:
                raise Refused(404, "missing", f"the picture cannot be read: {error}") from error
        if side in SIDES:
            self._keep(key, found)
        return found

    def _keep(self, key: tuple[str, int], jpeg: bytes) -> None:
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = jpeg
            self._n_bytes += len(jpeg)
            while self._n_bytes > CACHED_BYTES:
                self._n_bytes -= len(self._kept.popitem(last=False)[1])


def _check_size(entry: Entry) -> None:
    """Raise BrokenImage if a file has more pixels than are decoded; other errors are found by who decodes it."""
    if entry.path is None or entry.id != entry.path:  # an image of an array
        return
    if not Path(entry.path).is_file():  # opening a named pipe would wait forever
        return
    try:
        with Image.open(entry.path, formats=readable_formats()) as image:
            n_pixels = image.width * image.height
    except Exception:  # damaged files make Pillow raise nearly anything
        return
    if n_pixels > MAX_PIXELS:
        raise BrokenImage(f"it has {n_pixels:,} pixels, at most {MAX_PIXELS:,} are shown")
