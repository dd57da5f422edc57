"""Images from a folder, whose sub-folders are the classes, from a manifest, or from an array file."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from combemb.data.images import Images, image_suffixes, looks_like_image
from combemb.data.manifests import MANIFEST_SUFFIXES, PARQUET_SUFFIXES, read_manifest

UNLABELLED = ("unlabelled", "unlabeled")
PARTS = ({"train", "test"}, {"train", "val"})
RUN_MARKER = "run.json"  # a folder with such a file is a run folder, not a class


def read_images(path: str | Path) -> Images:
    """Read an image folder; a manifest, `.csv` or Parquet, with a column `path`; an image; or `.npy` of pixels.

    Folder: each sub-folder is a class, with all that lies below it; loose images and those in `unlabelled/` have no
    label. If it holds exactly `train/`, with sub-folders, and `test/` (or `val/`), these are read so, and `is_test` is
    set. Images come in the order of their paths, and ids are the paths below the folder. Hidden files, run folders and
    files whose suffix is no image's are passed over, of those without a suffix such as do not begin like an image;
    links are followed, but not in circles.
    """
    path = Path(path)
    if path.is_dir():
        return _read_folder(path)
    if path.suffix.lower() in MANIFEST_SUFFIXES:
        return read_manifest(path)
    if path.suffix.lower() == ".npy":
        return _read_npy(path)
    if not path.exists():
        raise ValueError(f"cannot read {path}: there is no such file or folder")
    if path.suffix.lower() in image_suffixes():
        return listed_images([path])
    raise ValueError(
        f"cannot read {path}: unknown suffix {path.suffix!r}; give an image folder, a manifest "
        f"({', '.join(MANIFEST_SUFFIXES)}), an image or .npy"
    )


def listed_images(paths: Sequence[str | Path]) -> Images:
    """Images of the files named; the names are the ids."""
    return Images(files=[Path(path) for path in paths], ids=np.array([_readable(str(path)) for path in paths]))


def is_images(path: str | Path) -> bool:
    """Whether `read_images` is to read this path: a folder, a manifest, an image, or an array file of pixels.

    A Parquet file is a manifest if it has a column `path` and no `embedding`.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if path.is_dir() or suffix == ".csv" or suffix in image_suffixes():
        return True
    try:
        if suffix in PARQUET_SUFFIXES:
            names = pq.read_schema(path).names
            return "path" in names and "embedding" not in names
        return suffix == ".npy" and are_pixels(np.lib.format.open_memmap(path, mode="r"))
    except (OSError, ValueError):  # damaged or missing: for the reader of embeddings to say
        return False


def are_pixels(x: np.ndarray) -> bool:
    """Whether an array holds pixels rather than embeddings; `Images` says what is wrong with those it cannot take."""
    return x.ndim == 4 or (x.ndim == 3 and x.dtype == np.uint8)


def image_files(folder: Path) -> list[str]:
    """The paths of all images below the folder, relative to it, with `/` between the parts, sorted."""
    try:
        return sorted(_walk(folder, "", ()))
    except PermissionError as error:
        raise ValueError(f"cannot read {error.filename}: {error.strerror}; mend its permissions, or move it") from error


def _read_npy(path: Path) -> Images:
    try:
        pixels = np.lib.format.open_memmap(path, mode="r")
        return Images(pixels=pixels)
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {path}: {error}; expected one array (N, H, W, 3) of uint8") from error


def _read_folder(folder: Path) -> Images:
    part_names = _parts(folder)
    ids = image_files(folder)
    if not ids:
        raise ValueError(f"{folder} holds no images; give a folder with sub-folders of images, one for each class")
    n_above = 1 if part_names else 0  # levels above the class folders
    labels = [_label(name.split("/")[n_above:]) for name in ids]
    class_names = sorted({label for label in labels if label is not None})
    is_test = np.array([not name.startswith("train/") for name in ids]) if part_names else None
    return Images(
        files=[folder / name for name in ids],
        ids=np.array([_readable(name) for name in ids]),
        labels=np.array(labels, dtype=object) if class_names else None,
        class_names=np.array(class_names) if class_names else None,
        is_test=is_test,
    )


def _label(parts: list[str]) -> str | None:
    return None if len(parts) == 1 or parts[0].lower() in UNLABELLED else _readable(parts[0])


def _readable(name: str) -> str:
    """A file's name as text that can be written; bytes that are no UTF-8 are spelled out."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _parts(folder: Path) -> set[str] | None:
    """The names of the folders for training and testing, if the folder is divided so."""
    names = {entry.name for entry in _visible(folder) if entry.is_dir()}
    found = {name for name in names if name.lower() not in UNLABELLED}
    is_divided = any(pair <= found for pair in PARTS) and found <= set().union(*PARTS)
    if not is_divided or not any(entry.is_dir() for entry in _visible(folder / "train")):
        return None
    has_loose_images = any(_is_image(entry) for entry in _visible(folder))
    if names not in PARTS or has_loose_images:
        others = sorted(names.difference(*PARTS)) + ["loose images"] * has_loose_images
        raise ValueError(
            f"{folder} holds {', '.join(sorted(found))}"
            + (f" and {', '.join(others)}" if others else "")
            + "; give exactly train and test, or train and val, with a sub-folder for each class; "
            "images without a label go into train/unlabelled"
        )
    return names


def _walk(folder: Path, prefix: str, above: tuple[tuple[int, int], ...]) -> Iterator[str]:
    """Images below the folder; `above` identifies the folders that lead to it, which links may not enter again."""
    found = folder.stat()
    here = (found.st_dev, found.st_ino)
    if here in above:
        return
    for entry in _visible(folder):
        if entry.is_dir():
            yield from _walk(Path(entry.path), f"{prefix}{entry.name}/", (*above, here))
        elif _is_image(entry):
            yield prefix + entry.name


def _visible(folder: Path) -> list["os.DirEntry[str]"]:
    with os.scandir(folder) as entries:
        return [entry for entry in entries if not (entry.name.startswith(".") or _is_run(entry))]


def _is_run(entry: "os.DirEntry[str]") -> bool:
    return entry.is_dir() and os.path.isfile(os.path.join(entry.path, RUN_MARKER))  # noqa: PTH113, PTH118


def _is_image(entry: "os.DirEntry[str]") -> bool:
    if entry.is_dir():
        return False
    suffix = Path(entry.name).suffix.lower()
    return suffix in image_suffixes() or (suffix == "" and entry.is_file() and looks_like_image(Path(entry.path)))
