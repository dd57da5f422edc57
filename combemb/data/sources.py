"""Datasets by name, read from the layout in which each is published, with their targets."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from combemb.data.cifar import cifar10, cifar100, obtain_cifar10
from combemb.data.folders import image_files
from combemb.data.images import Images
from combemb.data.nus_wide import nus_wide
from combemb.data.source import (
    Source,
    divided,
    first_with,
    from_folder,
    is_divided_folder,
    positions,
    read_fields,
)

__all__ = ["Source", "cub200", "digits", "load", "names", "obtain_cifar10", "tiny_imagenet"]

SIDE = 8  # of a digit image, in pixels
NOISE = 0.1  # standard deviation added to a view; pixels lie in [0, 1]


def names() -> list[str]:
    """The datasets that `load` knows."""
    return sorted([*_AT_HAND, *_AT_A_PATH])


def load(name: str, path: str | Path | None = None, **options: Any) -> Source:
    """The dataset of this name; path and options are those of its function in this module."""
    if name in _AT_HAND:
        if path is not None:
            raise ValueError(f"dataset {name!r} comes with the package and is not read from {path}; give no path")
        return _AT_HAND[name](**options)
    if name not in _AT_A_PATH:
        raise ValueError(f"dataset {name!r} is unknown; choose one of {', '.join(names())}")
    if path is None:
        raise ValueError(f"dataset {name!r} needs the path where its published files lie")
    if not Path(path).exists():
        raise ValueError(f"there is no {path}; give the path where the published files of {name!r} lie")
    return _AT_A_PATH[name](Path(path), **options)


def digits(n_views: int = 1, seed: int = 0) -> Source:
    """The 8x8 handwritten digits of scikit-learn; every fifth image is a test image.

    Views after the first are the image moved by up to one pixel, with noise. A linear map of pixels cannot follow a
    move, so methods do better on the one view.
    """
    if n_views < 1:
        raise ValueError(f"n_views={n_views}; use at least 1, the clean view")
    pixels, targets = load_digits(return_X_y=True)
    x = (pixels / 16).astype(np.float32)  # (N, 64) in [0, 1]
    is_test = np.arange(len(x)) % 5 == 0
    clean = x[~is_test]
    rng = np.random.default_rng(seed)
    views = np.stack([clean, *(_moved_and_noisy(clean, rng) for _ in range(n_views - 1))], axis=1)
    class_names = np.array([str(digit) for digit in range(10)])
    return Source("digits", views, targets[~is_test], x[is_test], targets[is_test], class_names)


def tiny_imagenet(path: Path) -> Source:
    """Tiny ImageNet from the folder `tiny-imagenet-200`; its validation images are the test images.

    Targets count the classes of wnids.txt, in its order; their names are those of words.txt.
    """
    folder = first_with("wnids.txt", path, path / "tiny-imagenet-200")
    if folder is None or not (folder / "train").is_dir() or not (folder / "val/val_annotations.txt").exists():
        raise ValueError(
            f"{path} is not Tiny ImageNet: expected tiny-imagenet-200/ with wnids.txt, words.txt, "
            "train/<wnid>/images/, val/images/ and val/val_annotations.txt"
        )
    wnids = [wnid for (wnid,) in read_fields(folder / "wnids.txt", 1)]
    words = dict(read_fields(folder / "words.txt", 2, "\t"))
    train_ids = [f"train/{name}" for name in image_files(folder / "train")]
    annotations = folder / "val/val_annotations.txt"
    files, of_files = zip(*read_fields(annotations, 2, "\t"), strict=True)  # a box follows
    test_ids = [f"val/images/{file}" for file in files]
    in_folders = [name.split("/")[1] for name in train_ids]
    targets = [positions(in_folders, wnids, folder), positions(list(of_files), wnids, annotations)]
    ids = train_ids + test_ids
    return divided(
        "tiny_imagenet",
        Images(files=[folder / name for name in ids], ids=np.array(ids)),
        np.concatenate(targets),
        np.arange(len(ids)) >= len(train_ids),
        np.array([words.get(wnid, wnid) for wnid in wnids]),
    )


def cub200(path: Path) -> Source:
    """CUB-200-2011 from the folder `CUB_200_2011`, or from an image folder with `train/<class>/` and `test/<class>/`.

    Images come in the order of images.txt; targets count the classes in the order of classes.txt.
    """
    folder = first_with("images.txt", path, path / "CUB_200_2011")
    if folder is None:
        if is_divided_folder(path):
            return from_folder("cub200", path)
        raise ValueError(
            f"{path} is not CUB-200-2011: expected CUB_200_2011/ with images.txt, image_class_labels.txt, classes.txt, "
            "train_test_split.txt and images/, or train/<class>/ and test/<class>/"
        )
    ids, files = zip(*read_fields(folder / "images.txt", 2), strict=True)
    class_ids, class_names = zip(*read_fields(folder / "classes.txt", 2), strict=True)
    of_image = {}
    for name in ("image_class_labels.txt", "train_test_split.txt"):
        table = dict(read_fields(folder / name, 2))
        if table.keys() != set(ids):
            raise ValueError(f"{folder / name} and images.txt name different images; take both from one archive")
        of_image[name] = [table[id_] for id_ in ids]
    targets = positions(of_image["image_class_labels.txt"], list(class_ids), folder / "image_class_labels.txt")
    is_train = positions(of_image["train_test_split.txt"], ["0", "1"], folder / "train_test_split.txt") == 1
    images = Images(files=[folder / "images" / file for file in files], ids=np.array(files))
    return divided("cub200", images, targets, ~is_train, np.array(class_names))


def _moved_and_noisy(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(N, 64) images, each moved by -1, 0 or 1 pixels in both directions (zeros enter), with noise, within [0, 1]."""
    n = len(x)
    framed = np.pad(x.reshape(n, SIDE, SIDE), ((0, 0), (1, 1), (1, 1)))
    corners = rng.integers(0, 3, size=(2, n, 1))  # of the window cut out of the frame; 1 is the middle
    rows, columns = corners + np.arange(SIDE)  # (N, 8) each
    moved = framed[np.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]].reshape(n, -1)
    noise = rng.normal(0, NOISE, size=moved.shape)
    return np.asarray(np.clip(moved + noise, 0, 1), dtype=np.float32)


_AT_HAND: dict[str, Callable[..., Source]] = {"digits": digits}
_AT_A_PATH: dict[str, Callable[..., Source]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "cub200": cub200,
    "nus_wide": nus_wide,
    "tiny_imagenet": tiny_imagenet,
}
