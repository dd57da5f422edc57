"""A dataset: items to train on, items to test with, and the true classes of both."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from combemb.data.folders import read_images
from combemb.data.images import Images
from combemb.system.errors import reading, require


@dataclass(frozen=True, eq=False)
class Dataset:
    """A dataset with its own division into training and test items.

    Parameters
    ----------
    name : str
    train_x, test_x : Images, or arrays (N, V, F) and (n, F)
        Images without labels, or embeddings, whose view 0 is the clean one.
    train_targets, test_targets : arrays (N,) and (n,), or (N, C) and (n, C)
        Positions in `class_names`; 0/1 if items have several classes.
    class_names : array (C,)
    """

    name: str
    train_x: Any
    train_targets: np.ndarray
    test_x: Any
    test_targets: np.ndarray
    class_names: np.ndarray


def divided(name: str, x: Images, targets: np.ndarray, is_test: np.ndarray, class_names: np.ndarray) -> Dataset:
    """Return the dataset of these images, some of which are test images."""
    parts = (x.take(~is_test), targets[~is_test], x.take(is_test), targets[is_test])
    return Dataset(name, *parts, class_names=class_names)


def from_folder(name: str, path: Path, expected: str) -> Dataset:
    """Read `train/<class>/` and `test/<class>/`, with targets in the order of the sorted classes.

    `expected` is for the error if the folder has no such parts: the dataset and its published files.
    """
    is_divided = (path / "train").is_dir() and (path / "test").is_dir()
    require(is_divided, f"{path} is not {expected}, or train/<class>/ and test/<class>/")
    images = read_images(path)
    if images.is_test is None or images.labels is None or images.class_names is None or None in images.labels:
        raise ValueError(f"{path} is not divided into train/<class>/ and test/<class>/ with every image in a class")
    targets = np.searchsorted(images.class_names, images.labels.astype(str))
    return divided(name, Images(files=images.files, ids=images.ids), targets, images.is_test, images.class_names)


def first_with(file: str, *folders: Path) -> Path | None:
    """Return the first of these folders that has the file."""
    return next((folder for folder in folders if (folder / file).exists()), None)


def read_fields(path: Path, n: int, separator: str | None = None) -> list[list[str]]:
    """Read the first n fields of each line of a text file, without empty lines."""
    with reading(path, OSError, UnicodeDecodeError):
        lines = path.read_text(encoding="utf-8").splitlines()
    rows = [line.strip().split(separator)[:n] for line in lines if line.strip()]
    require(len(rows) > 0, f"{path} is empty; expected {n} fields in each line")
    short = next((i for i, row in enumerate(rows) if len(row) < n), None)
    if short is not None:
        raise ValueError(f"{path}, line {short + 1}: expected {n} fields, found {len(rows[short])}")
    return rows


def positions(names: list[str], of: list[str], path: Path) -> np.ndarray:
    """Return the position (N,) of each name in the list `of`; the error for an unknown one points to the file."""
    place = {name: i for i, name in enumerate(of)}
    unknown = [name for name in names if name not in place]
    if unknown:
        raise ValueError(f"{path} names {unknown[0]!r}, which is none of the {len(of)} known ones")
    return np.array([place[name] for name in names], dtype=np.int64)
