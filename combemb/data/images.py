"""Images as a user has them: files of any size, or an array; read one at a time, upright and in RGB."""

import hashlib
import os
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

# Pillow names these formats but cannot show them, or hands them to another program (EPS).
NO_PICTURES = ("BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF")
FREQUENT = ("JPEG", "PNG")
PHOTOS = frozenset(  # of phones and cameras, which Pillow cannot read without help
    {".heic", ".heif", ".jxl", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf"}
)
MOST_BROKEN = 0.1  # of the images
HASH_BYTES = 16 * 2**20  # of pixels hashed at a time


class BrokenImage(ValueError):
    """A file that holds no whole image; the message is the reason."""


@dataclass(frozen=True, eq=False)
class Images:
    """N images with what is known of them. Either `pixels` or `files` is there.

    pixels: (N, H, W, 3) uint8, possibly a memory map. files: N paths, which need not be images before they are read.
    ids: (N,) str or int, how a user finds an image again; for files the path as it was given.
    labels: (N,) str with None, or (N, C) of 0/1 with rows of -1; `class_names` (C,) are then the columns' names.
    is_test: (N,) bool, where the data have a part to test on.
    """

    pixels: np.ndarray | None = None
    files: Sequence[Path] | None = None
    ids: np.ndarray | None = None
    labels: np.ndarray | None = None
    class_names: np.ndarray | None = None
    is_test: np.ndarray | None = None

    def __post_init__(self) -> None:
        if (self.pixels is None) == (self.files is None):
            raise ValueError("give either pixels (N, H, W, 3) or files, exactly one of the two")
        if self.pixels is not None:
            _check_pixels(self.pixels)
        if isinstance(self.files, str | Path):
            raise ValueError(f"files is the one path {str(self.files)!r}; give a list of paths")
        if len(self) == 0:
            raise ValueError("there are no images; give at least one")
        for name in ("ids", "labels", "is_test"):
            rows = getattr(self, name)
            if rows is not None and np.shape(rows)[:1] != (len(self),):
                raise ValueError(f"{name} have shape {np.shape(rows)} for {len(self)} images; give one per image")
        if self.is_test is not None and self.is_test.dtype != bool:
            raise ValueError(f"is_test has dtype {self.is_test.dtype}; give bool")
        if self.labels is not None and self.labels.ndim == 2:
            n_names = 0 if self.class_names is None else len(self.class_names)
            if n_names != self.labels.shape[1]:
                raise ValueError(f"there are {n_names} class_names for labels of shape {self.labels.shape}")

    def __len__(self) -> int:
        return len(self.pixels if self.pixels is not None else self.files or ())

    def read(self, i: int, at_least: int = 0) -> Image.Image:
        """Image i in RGB, upright; transparent parts become white. BrokenImage if it cannot be decoded whole.

        at_least: a JPEG may come smaller, by 2, 4 or 8, while both sides keep this many pixels; 0 keeps the full size.
        """
        if self.pixels is not None:
            return Image.fromarray(np.asarray(self.pixels[i]))
        assert self.files is not None
        return _read_file(Path(self.files[i]), at_least)

    def name(self, i: int) -> str:
        """How a user finds image i again."""
        ids = self.files if self.ids is None else self.ids
        return f"image {i}" if ids is None else str(ids[i])

    def take(self, rows: np.ndarray) -> "Images":
        """The images of these rows (ints, or a bool mask over all N), with all that is known of them."""
        rows = np.asarray(rows)
        if rows.dtype == bool and rows.shape == (len(self),):
            rows = np.flatnonzero(rows)
        if rows.ndim != 1 or (rows.dtype.kind not in "iu" and len(rows) > 0):
            raise ValueError(
                f"rows have shape {rows.shape} and dtype {rows.dtype}; give ints, or bool of shape ({len(self)},)"
            )
        rows = rows.astype(np.int64)
        taken: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("pixels", "ids", "labels", "is_test"):
            taken[name] = None if taken[name] is None else taken[name][rows]
        if self.files is not None:
            taken["files"] = [self.files[row] for row in rows.tolist()]
        return Images(**taken)

    @property
    def known_labels(self) -> np.ndarray | None:
        """The labels that may be learned from: those of a part to test on are hidden."""
        if self.labels is None or self.is_test is None:
            return self.labels
        known = self.labels.astype(object) if self.labels.ndim == 1 else self.labels.copy()
        known[self.is_test] = None if self.labels.ndim == 1 else -1
        return known

    @property
    def key(self) -> str:
        """Hex digest that changes with every pixel of an array, or with the path, size and times of each file.

        Files are not opened, labels do not count, and a missing file is part of the key too.
        """
        if self.files is None:
            return self._key_of_pixels
        digest = hashlib.blake2b(digest_size=16)
        for file in self.files:
            digest.update(os.fsencode(Path(file).absolute()) + repr(_size_and_times(file)).encode())
        return digest.hexdigest()

    @cached_property
    def _key_of_pixels(self) -> str:
        """Read once: arrays may be large, and unlike files they are seldom changed under way."""
        assert self.pixels is not None
        digest = hashlib.blake2b(repr(self.pixels.shape).encode(), digest_size=16)
        step = max(1, HASH_BYTES // self.pixels[0].nbytes)
        for start in range(0, len(self), step):
            digest.update(np.ascontiguousarray(self.pixels[start : start + step]).data)
        return digest.hexdigest()


def refuse_many_broken(broken: dict[int, str], images: Images) -> None:
    """ValueError if more than a tenth of the images are broken. broken: position -> reason."""
    if len(broken) > MOST_BROKEN * len(images):
        first = "; ".join(f"{images.name(row)}: {reason}" for row, reason in list(broken.items())[:3])
        raise ValueError(
            f"at least {len(broken)} of {len(images)} images cannot be read, more than {MOST_BROKEN:.0%}, such as "
            f"{first}; mend them or leave them out"
        )


@cache
def image_suffixes() -> frozenset[str]:
    """The lower-case endings of files that may be images, such as `.jpg`; of photos also those that cannot be read."""
    return PHOTOS | {suffix for suffix, name in Image.registered_extensions().items() if name in _formats()}


def looks_like_image(file: Path) -> bool:
    """Whether a file begins like an image; it may yet be broken."""
    try:
        with _silence, Image.open(file, formats=_formats()):
            return True
    except Exception:  # damaged files make Pillow raise nearly anything
        return False


@cache
def _formats() -> tuple[str, ...]:
    Image.init()
    known = [name for name in Image.ID if name not in NO_PICTURES]
    return tuple(sorted(known, key=lambda name: name not in FREQUENT))  # they are tried in this order


def _check_pixels(pixels: np.ndarray) -> None:
    if not isinstance(pixels, np.ndarray):
        raise ValueError(f"pixels are of type {type(pixels).__name__}; give a numpy array (N, H, W, 3) of uint8")
    shape = pixels.shape
    hint = "give (N, H, W, 3)"
    if pixels.ndim == 3:
        hint += ": one image as pixels[None]" if shape[2] == 3 else ": grey images as np.stack([pixels] * 3, axis=-1)"
        hint += "; embeddings with views (N, V, F) are floats"
    elif pixels.ndim == 4 and shape[1] == 3:
        hint += ": pixels.transpose(0, 2, 3, 1) moves the channels to the end"
    elif pixels.ndim == 4 and shape[3] in (1, 4):
        hint += ": np.repeat(pixels, 3, axis=-1)" if shape[3] == 1 else ": pixels[..., :3] leaves out the transparency"
    if pixels.ndim != 4 or shape[3] != 3:
        raise ValueError(f"pixels have shape {shape}; {hint}")
    if pixels.dtype != np.uint8:
        raise ValueError(
            f"pixels have dtype {pixels.dtype}; give uint8 in 0..255: pixels.astype(np.uint8), or of floats in 0..1 "
            "(pixels * 255).round().astype(np.uint8)"
        )
    if pixels.size == 0:
        raise ValueError(f"pixels have shape {shape}, which is empty; give at least one image and one pixel")


def _size_and_times(file: Path) -> tuple[int, int, int]:
    """Of its content and of its place on the disk: a copy may carry the former over, but not the latter."""
    try:
        found = Path(file).stat()
    except OSError:
        return -1, -1, -1
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _read_file(file: Path, at_least: int) -> Image.Image:
    try:
        if not file.is_file():  # opening a named pipe would wait for ever
            raise BrokenImage("not a file" if file.exists() else "no such file")
        with _silence, Image.open(file, formats=_formats()) as image:
            if at_least > 0:
                image.draft(None, (at_least, at_least))
            image.load()
            return _as_rgb(_upright(image))
    except (MemoryError, BrokenImage):
        raise
    except Exception as error:  # damaged files make Pillow raise nearly anything
        raise BrokenImage(_reason(file, error)) from error


def _reason(file: Path, error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        if file.suffix.lower() in PHOTOS:
            return f"{file.suffix} cannot be read; convert it, to JPEG for instance"
        return "zero bytes" if _size_and_times(file)[0] == 0 else "no image of a known format"
    if isinstance(error, Image.DecompressionBombError):
        return f"too many pixels: {error}"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).splitlines()[0][:120]


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # whole pixels with damaged metadata are no broken image
        return image


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        return _grey(_eight_bits(np.asarray(image)))
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    opaque = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(opaque, image.convert("RGBA")).convert("RGB")


def _grey(values: np.ndarray) -> Image.Image:
    return Image.fromarray(values.astype(np.uint8)).convert("RGB")


def _eight_bits(values: np.ndarray) -> np.ndarray:
    """Whole numbers of 8, 12 or 16 bits keep the upper 8; of others the smallest becomes 0 and the largest 255."""
    low, high = float(values.min()), float(values.max())
    if values.dtype.kind in "iu" and low >= 0 and high < 2**16:
        return values >> next(bits - 8 for bits in (8, 12, 16) if high < 2**bits)
    if not np.isfinite([low, high]).all():
        raise ValueError("holds NaN or infinity")
    return np.round((values.astype(np.float64) - low) * (255 / max(high - low, 1e-300)))


class _Silence:
    """Ignores warnings while any thread is inside.

    `warnings.catch_warnings` alone leaves the wrong filters behind when threads enter and leave in turns.
    """

    def __init__(self) -> None:
        self.lock, self.n_inside, self.caught = threading.Lock(), 0, warnings.catch_warnings()

    def __enter__(self) -> None:
        with self.lock:
            if self.n_inside == 0:
                self.caught = warnings.catch_warnings()
                self.caught.__enter__()
                warnings.simplefilter("ignore")
            self.n_inside += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self.lock:
            self.n_inside -= 1
            if self.n_inside == 0:
                self.caught.__exit__(kind, error, at)


_silence = _Silence()
