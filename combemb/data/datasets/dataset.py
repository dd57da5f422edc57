"""What a dataset is here: items to train on and items to test with, and the hidden truth of both."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from combemb.data.folders import read_images
from combemb.data.images import Images


@dataclass(frozen=True, eq=False)
class Dataset:
    """A dataset with its own division into training and test items.

    train_x, test_x: `Images` without labels; or arrays of embeddings (N, V, F), view 0 the clean one, and (n, F).
    targets: (N,), (n,) positions in `class_names` (C,); or (N, C), (n, C) of 0/1 where an item has several classes.
    """

    name: str
    train_x: Any
    train_targets: np.ndarray
    test_x: Any
    test_targets: np.ndarray
    class_names: np.ndarray


def divided(name: str, x: Images, targets: np.ndarray, is_test: np.ndarray, class_names: np.ndarray) -> Dataset:
    """The dataset whose images are marked as test images or not."""
    parts = (x.take(~is_test), targets[~is_test], x.take(is_test), targets[is_test])
    return Dataset(name, *parts, class_names=class_names)


def is_divided_folder(path: Path) -> bool:
    """Whether this is a folder with `train/` and `test/` inside."""
    return (path / "train").is_dir() and (path / "test").is_dir()


def from_folder(name: str, path: Path) -> Dataset:
    """The dataset of an image folder with `train/<class>/` and `test/<class>/`; targets count the sorted classes."""
    images = read_images(path)
    if images.is_test is None or images.labels is None or images.class_names is None or None in images.labels:
        raise ValueError(f"{path} is not divided into train/<class>/ and test/<class>/ with every image in a class")
    targets = np.searchsorted(images.class_names, images.labels.astype(str))
    unlabelled = Images(files=images.files, ids=images.ids)
    return divided(name, unlabelled, targets, images.is_test, images.class_names)


def first_with(file: str, *folders: Path) -> Path | None:
    """The first of these folders that holds the file."""
    return next((folder for folder in folders if (folder / file).exists()), None)


def read_fields(path: Path, n: int, separator: str | None = None) -> list[list[str]]:
    """The first n fields of each line of a text file, without empty lines."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    rows = [line.strip().split(separator)[:n] for line in lines if line.strip()]
    if not rows:
        raise ValueError(f"{path} is empty; expected {n} fields in each line")
    short = next((i for i, row in enumerate(rows) if len(row) < n), None)
    if short is not None:
        raise ValueError(f"{path}, line {short + 1}: expected {n} fields, found {len(rows[short])}")
    return rows


def positions(names: list[str], of: list[str], path: Path) -> np.ndarray:
    """(N,) where each name stands in the list `of`; ValueError that points to the file if it is not there."""
    place = {name: i for i, name in enumerate(of)}
    unknown = [name for name in names if name not in place]
    if unknown:
        raise ValueError(f"{path} names {unknown[0]!r}, which is none of the {len(of)} known ones")
    return np.array([place[name] for name in names], dtype=np.int64)
