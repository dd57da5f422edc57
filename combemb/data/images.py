"""Images as files of any size or as an array, read one at a time, upright and in RGB."""

import hashlib
import os
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from combemb.system.errors import require

# Pillow lists these formats but cannot decode them, or calls another program to do it (EPS).
SKIPPED_FORMATS = ("BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF")
FREQUENT_FORMATS = ("JPEG", "PNG")
# Photos of phones and cameras that Pillow cannot read: they count as broken, so that no class vanishes silently.
UNREADABLE_PHOTOS = {".heic", ".heif", ".jxl", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf"}
MAX_BROKEN_SHARE = 0.1  # more broken images mean a wrong folder or a failing disk
HASH_BYTES = 16 * 2**20  # pixels are hashed in chunks of this size


class BrokenImage(ValueError):
    """An image that cannot be decoded; the message is the reason."""


class ManyBroken(ValueError):
    """So many images cannot be read that leaving them out would hide a mistake."""


@dataclass(frozen=True, eq=False)
class Images:
    """N images, either `pixels` or `files`, with their ids, labels and split.

    Parameters
    ----------
    pixels : array or memory map (N, H, W, 3) of uint8, optional
    files : sequence of N paths, optional
    ids : array (N,) of str or int, optional
        Names by which the user finds an image again; for files the path as it was given.
    labels : array, optional
        (N,) str with None if unlabelled, or (N, C) of 0/1 with rows of -1.
    class_names : array (C,), optional
        The sorted classes, or the names of the columns of `labels`.
    is_test : array (N,) of bool, optional

    Examples
    --------
    >>> images = Images(pixels=np.zeros((5, 32, 48, 3), np.uint8), ids=np.array(list("abcde")))
    >>> images.read(0).size, images.take([3, 1]).ids.tolist()
    ((48, 32), ['d', 'b'])
    """

    pixels: np.ndarray | None = None
    files: Sequence[Path] | None = None
    ids: np.ndarray | None = None
    labels: np.ndarray | None = None
    class_names: np.ndarray | None = None
    is_test: np.ndarray | None = None

    def __post_init__(self) -> None:
        is_one = (self.pixels is None) != (self.files is None)
        require(is_one, "give either pixels (N, H, W, 3) or files, exactly one of the two")
        if self.pixels is not None:
            _check_pixels(self.pixels)
        is_path = isinstance(self.files, str | Path)
        require(not is_path, f"files is the one path {str(self.files)!r}; give a list of paths")
        require(len(self) > 0, "there are no images; give at least one")
        for name in ("ids", "labels", "is_test"):
            rows = getattr(self, name)
            if rows is not None and np.shape(rows)[:1] != (len(self),):
                raise ValueError(f"{name} have shape {np.shape(rows)} for {len(self)} images; give one per image")
        if self.is_test is not None:
            require(self.is_test.dtype == bool, f"is_test has dtype {self.is_test.dtype}; give bool")
        if self.labels is not None and self.labels.ndim == 2:
            n, shape = 0 if self.class_names is None else len(self.class_names), self.labels.shape
            require(n == shape[1], f"there are {n} class_names for labels of shape {shape}")

    def __len__(self) -> int:
        return len(self.pixels if self.pixels is not None else self.files or ())

    def read(self, i: int, at_least: int = 0) -> Image.Image:
        """Decode image i, or raise `BrokenImage` if that fails.

        Parameters
        ----------
        i : int
            Position of the image.
        at_least : int
            If above 0, a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size while both sides keep this many pixels.

        Returns
        -------
        PIL.Image.Image
            RGB, upright, with transparent parts white.
        """
        if self.pixels is not None:
            return Image.fromarray(np.asarray(self.pixels[i]))
        assert self.files is not None
        return _read_file(Path(self.files[i]), at_least)

    def reason(self, i: int) -> str | None:
        """Return why image i cannot be read, None if it can."""
        try:
            self.read(i, at_least=1)
        except BrokenImage as error:
            return str(error)
        return None

    def name(self, i: int) -> str:
        """Return the id of image i, for messages."""
        ids = self.files if self.ids is None else self.ids
        return f"image {i}" if ids is None else str(ids[i])

    def take(self, rows: np.ndarray) -> "Images":
        """Return some of the images, with their ids, labels and split.

        Parameters
        ----------
        rows : array of int, or mask (N,) of bool

        Returns
        -------
        Images
        """
        rows = np.asarray(rows)
        if rows.dtype == bool and rows.shape == (len(self),):
            rows = np.flatnonzero(rows)
        found = f"rows have shape {rows.shape} and dtype {rows.dtype}; give ints, or bool of shape ({len(self)},)"
        require(rows.ndim == 1 and (rows.dtype.kind in "iu" or len(rows) == 0), found)
        rows = rows.astype(np.int64)
        names = [name for name in ("pixels", "ids", "labels", "is_test") if getattr(self, name) is not None]
        files = None if self.files is None else [self.files[row] for row in rows.tolist()]
        return replace(self, files=files, **{name: getattr(self, name)[rows] for name in names})

    @property
    def key(self) -> str:
        """Hex digest of all pixels of an array, or of the path, size and times of each file; labels do not count."""
        if self.files is None:
            return self._key_of_pixels
        digest = hashlib.blake2b(digest_size=16)
        for file in self.files:
            digest.update(os.fsencode(Path(file).absolute()) + repr(_size_and_times(file)).encode())
        return digest.hexdigest()

    @property
    def key_of_copies(self) -> str:
        """Hex digest of all pixels of an array, or of the name and size of each file, which copies have in common."""
        if self.files is None:
            return self._key_of_pixels
        digest = hashlib.blake2b(digest_size=16)
        for i, file in enumerate(self.files):
            name = self.name(i).encode("utf-8", "surrogateescape")
            digest.update(name + repr(_size_and_times(Path(file))[:1]).encode())
        return digest.hexdigest()

    @property
    def image_keys(self) -> np.ndarray:
        """A digest of each image, (N, 2) uint64: of its pixels, or of the path, size and times of its file."""
        if self.files is None:
            return self._keys_of_pixels
        return _as_keys(_of_file(Path(file)) for file in self.files)

    @cached_property
    def _keys_of_pixels(self) -> np.ndarray:
        assert self.pixels is not None
        shape = repr(self.pixels.shape[1:]).encode()
        return _as_keys(shape + np.ascontiguousarray(image).tobytes() for image in self.pixels)

    @cached_property
    def _key_of_pixels(self) -> str:
        """Computed once: arrays may be large, and unlike files they seldom change in between."""
        assert self.pixels is not None
        digest = hashlib.blake2b(repr(self.pixels.shape).encode(), digest_size=16)
        step = max(1, HASH_BYTES // self.pixels[0].nbytes)
        for start in range(0, len(self), step):
            digest.update(np.ascontiguousarray(self.pixels[start : start + step]).data)
        return digest.hexdigest()


def _as_keys(contents: Iterable[bytes]) -> np.ndarray:
    digests = b"".join(hashlib.blake2b(content, digest_size=16).digest() for content in contents)
    return np.frombuffer(digests, "<u8").reshape(-1, 2)


def _of_file(file: Path) -> bytes:
    """Return what tells a file from others; a missing one may come back with any content, so it equals none."""
    found = _size_and_times(file)
    return os.fsencode(file.absolute()) + (os.urandom(16) if found[0] < 0 else repr(found).encode())


def refuse_many_broken(broken: dict[int, str], images: Images, n: int | None = None) -> None:
    """Raise ManyBroken if several images and more than a tenth are broken, or the only one is.

    Parameters
    ----------
    broken : dict
        Position of each broken image -> reason.
    images : Images
    n : int, optional
        Number of images that the tenth is taken of; by default that of `images`.
    """
    n = len(images) if n is None else n
    first = "; ".join(f"{images.name(row)}: {reason}" for row, reason in list(broken.items())[:3])
    if broken and n == 1:
        raise ManyBroken(f"cannot read {first}; fix it or give another image")
    if len(broken) > max(1, MAX_BROKEN_SHARE * n):
        found = f"at least {len(broken)} of {n} images cannot be read, more than {MAX_BROKEN_SHARE:.0%}"
        raise ManyBroken(f"{found}, such as {first}; fix them or leave them out")


@cache
def image_suffixes() -> frozenset[str]:
    """Return the lower-case suffixes of image files, such as `.jpg`, including photos that Pillow cannot read."""
    known = {suffix for suffix, name in Image.registered_extensions().items() if name in readable_formats()}
    return frozenset(UNREADABLE_PHOTOS | known)


def looks_like_image(file: Path) -> bool:
    """Return whether a file starts like an image; it may still be broken."""
    try:
        with _silence(), Image.open(file, formats=readable_formats()):
            return True
    except Exception:  # damaged files make Pillow raise nearly anything
        return False


@cache
def readable_formats() -> tuple[str, ...]:
    """Return the formats that Pillow decodes by itself, the frequent ones first."""
    Image.init()
    known = [name for name in Image.ID if name not in SKIPPED_FORMATS]
    return tuple(sorted(known, key=lambda name: name not in FREQUENT_FORMATS))  # Pillow tries them in this order


def _check_pixels(pixels: np.ndarray) -> None:
    kind = type(pixels).__name__
    require(isinstance(pixels, np.ndarray), f"pixels are of type {kind}; give a numpy array (N, H, W, 3) of uint8")
    shape = pixels.shape
    hint = "give (N, H, W, 3)"
    if pixels.ndim == 3:
        hint += ": one image as pixels[None]" if shape[2] == 3 else ": grey images as np.stack([pixels] * 3, axis=-1)"
        hint += "; embeddings with views (N, V, F) are floats"
    elif pixels.ndim == 4 and shape[1] == 3:
        hint += ": pixels.transpose(0, 2, 3, 1) moves the channels to the end"
    elif pixels.ndim == 4 and shape[3] in (1, 4):
        hint += ": np.repeat(pixels, 3, axis=-1)" if shape[3] == 1 else ": pixels[..., :3] leaves out the transparency"
    require(pixels.ndim == 4 and shape[3] == 3, f"pixels have shape {shape}; {hint}")
    hint = "pixels.astype(np.uint8), or for floats in 0..1 (pixels * 255).round().astype(np.uint8)"
    require(pixels.dtype == np.uint8, f"pixels have dtype {pixels.dtype}; give uint8 in 0..255: {hint}")
    require(pixels.size > 0, f"pixels have shape {shape}, which is empty; give at least one image and one pixel")


def _size_and_times(file: Path) -> tuple[int, int, int]:
    """Return size, mtime and ctime: a copy may keep the first two, but not the third."""
    try:
        found = Path(file).stat()
    except OSError:
        return -1, -1, -1
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _read_file(file: Path, at_least: int) -> Image.Image:
    try:
        if not file.is_file():  # opening a named pipe would wait forever
            raise BrokenImage("not a file" if file.exists() else "no such file")
        with _silence(), Image.open(file, formats=readable_formats()) as image:
            if at_least > 0:
                image.draft(None, (at_least, at_least))
            image.load()
            upright: Image.Image = image
            with suppress(Exception):  # an image with damaged metadata is not broken
                upright = ImageOps.exif_transpose(image)
            return _as_rgb(upright)
    except (MemoryError, BrokenImage):
        raise
    except Exception as error:  # damaged files make Pillow raise nearly anything
        raise BrokenImage(_reason(file, error)) from error


def _reason(file: Path, error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        if file.suffix.lower() in UNREADABLE_PHOTOS:
            return f"{file.suffix} cannot be read; convert it, to JPEG for instance"
        return "zero bytes" if _size_and_times(file)[0] == 0 else "not an image of a known format"
    if isinstance(error, Image.DecompressionBombError):
        return f"too many pixels: {error}"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).splitlines()[0][:120]


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        return Image.fromarray(_eight_bits(np.asarray(image)).astype(np.uint8)).convert("RGB")
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    opaque = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(opaque, image.convert("RGBA")).convert("RGB")


def _eight_bits(values: np.ndarray) -> np.ndarray:
    """Scale grey values to 0..255: integers of 8, 12 or 16 bits keep the upper 8, other values are stretched."""
    low, high = float(values.min()), float(values.max())
    if values.dtype.kind in "iu" and low >= 0 and high < 2**16:
        return values >> next(bits - 8 for bits in (8, 12, 16) if high < 2**bits)
    require(bool(np.isfinite([low, high]).all()), "holds NaN or infinity")
    return np.round((values.astype(np.float64) - low) * (255 / max(high - low, 1e-300)))


_lock, _filters, _readers = threading.Lock(), ExitStack(), list[None]()


@contextmanager
def _silence() -> Iterator[None]:
    """Ignore warnings while any thread is inside.

    `warnings.catch_warnings` alone leaves the wrong filters behind when threads enter and leave in turns.
    """
    with _lock:
        if not _readers:
            _filters.enter_context(warnings.catch_warnings(action="ignore"))
        _readers.append(None)
    try:
        yield
    finally:
        with _lock:
            _readers.pop()
            if not _readers:
                _filters.close()
