"""Images from a folder whose sub-folders are the classes, from a manifest, or from an array file."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from combemb.data.images import Images, image_suffixes, looks_like_image
from combemb.data.manifests import MANIFEST_SUFFIXES, PARQUET_SUFFIXES, read_manifest
from combemb.system.errors import reading, require

UNLABELLED_FOLDERS = ("unlabelled", "unlabeled")
PARTS = ({"train", "test"}, {"train", "val"})
RUN_MARKER = "run.json"  # a folder with such a file is a run folder, not a class


def read_images(path: str | Path) -> Images:
    """Read an image folder, a manifest, a single image or an array of pixels.

    Each sub-folder is a class, which includes all folders below it. Images outside sub-folders and in `unlabelled/`
    have no label. A folder with exactly `train/`, which has sub-folders, and `test/` or `val/` is read as such, and
    `is_test` is set. Links are followed, but not in circles. Silently skipped: hidden files, run folders, files with
    the suffix of another kind of file, and files without a suffix that do not start like an image.

    Parameters
    ----------
    path : str or Path
        A folder; a manifest (`.csv` or Parquet) with a column `path` and optional `label`, `split` and `id`; an image
        file; or `.npy` with an array (N, H, W, 3) of uint8.

    Returns
    -------
    Images
        Sorted by path if read from a folder, with the paths below the folder as ids.
    """
    path = Path(path)
    if path.is_dir():
        return _read_folder(path)
    if path.suffix.lower() in MANIFEST_SUFFIXES:
        return read_manifest(path)
    if path.suffix.lower() == ".npy":
        with reading(path, OSError, ValueError, hint="expected one array (N, H, W, 3) of uint8"):
            return Images(pixels=np.lib.format.open_memmap(path, mode="r"))
    require(path.exists(), f"cannot read {path}: there is no such file or folder")
    if path.suffix.lower() in image_suffixes():
        return listed_images([path])
    known = f"an image folder, a manifest ({', '.join(MANIFEST_SUFFIXES)}), an image or .npy"
    raise ValueError(f"cannot read {path}: unknown suffix {path.suffix!r}; give {known}")


def listed_images(paths: Sequence[str | Path]) -> Images:
    """Return the images of these files, whose ids are the paths as given."""
    return Images(files=[Path(path) for path in paths], ids=np.array([readable_name(str(path)) for path in paths]))


def is_images(path: str | Path) -> bool:
    """Return whether a path holds images: a folder, a manifest, an image, or an array file of pixels.

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
    except (OSError, ValueError):  # damaged or missing: the reader of embeddings reports it
        return False


def are_pixels(x: np.ndarray) -> bool:
    """Return whether an array holds pixels rather than embeddings; `Images` checks its shape and dtype."""
    return x.ndim == 4 or (x.ndim == 3 and x.dtype == np.uint8)


def readable_name(name: str) -> str:
    """Return a file name as text that can be written; bytes that are not UTF-8 are escaped."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def image_files(folder: Path) -> list[str]:
    """Return the sorted paths of all images below the folder, relative to it and with `/` as separator."""
    try:
        return sorted(_walk(folder, "", ()))
    except PermissionError as error:
        raise ValueError(f"cannot read {error.filename}: {error.strerror}; fix its permissions, or move it") from error


def _read_folder(folder: Path) -> Images:
    part_names = _parts(folder)
    ids = image_files(folder)
    require(len(ids) > 0, f"{folder} holds no images; give a folder with sub-folders of images, one for each class")
    labels = [_label(name.split("/")[1 if part_names else 0 :]) for name in ids]
    class_names = sorted({label for label in labels if label is not None})
    return Images(
        files=[folder / name for name in ids],
        ids=np.array([readable_name(name) for name in ids]),
        labels=np.array(labels, dtype=object) if class_names else None,
        class_names=np.array(class_names) if class_names else None,
        is_test=np.array([not name.startswith("train/") for name in ids]) if part_names else None,
    )


def _label(parts: list[str]) -> str | None:
    return None if len(parts) == 1 or parts[0].lower() in UNLABELLED_FOLDERS else readable_name(parts[0])


def _parts(folder: Path) -> set[str] | None:
    """Return the names of the folders for training and testing, if there are such."""
    names = {entry.name for entry in _visible(folder) if entry.is_dir()}
    found = {name for name in names if name.lower() not in UNLABELLED_FOLDERS}
    is_divided = any(pair <= found for pair in PARTS) and found <= set().union(*PARTS)
    if not is_divided or not any(entry.is_dir() for entry in _visible(folder / "train")):
        return None
    has_loose_images = any(_is_image(entry) for entry in _visible(folder))
    if names not in PARTS or has_loose_images:
        others = sorted(names.difference(*PARTS)) + ["loose images"] * has_loose_images
        inside = " and ".join(", ".join(part) for part in (sorted(found), others) if part)
        raise ValueError(
            f"{folder} holds {inside}; give exactly train and test, or train and val, with a sub-folder for each "
            "class; images without a label go into train/unlabelled"
        )
    return names


def _walk(folder: Path, prefix: str, above: tuple[tuple[int, int], ...]) -> Iterator[str]:
    """Yield the images below the folder; `above` identifies its parents, which links may not enter again."""
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
        shown = [entry for entry in entries if not entry.name.startswith(".")]
    # Path.is_file would raise an error about run.json where a folder may not be entered.
    return [e for e in shown if not (e.is_dir() and os.path.isfile(f"{e.path}/{RUN_MARKER}"))]  # noqa: PTH113


def _is_image(entry: "os.DirEntry[str]") -> bool:
    if entry.is_dir():
        return False
    suffix = Path(entry.name).suffix.lower()
    return suffix in image_suffixes() or (suffix == "" and entry.is_file() and looks_like_image(Path(entry.path)))
