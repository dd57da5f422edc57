"""Datasets by name, read from the layout in which each is published, with their targets."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from combemb.data.datasets.cifar import cifar10, cifar100, obtain_cifar10
from combemb.data.datasets.cub import cub200
from combemb.data.datasets.dataset import Dataset
from combemb.data.datasets.digits import digits
from combemb.data.datasets.nus_wide import nus_wide
from combemb.data.datasets.tiny_imagenet import tiny_imagenet

__all__ = ["Dataset", "load", "names", "obtain_cifar10"]


def names() -> list[str]:
    """The datasets that `load` knows."""
    return sorted([*_AT_HAND, *_AT_A_PATH])


def load(name: str, path: str | Path | None = None, **options: Any) -> Dataset:
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


_AT_HAND: dict[str, Callable[..., Dataset]] = {"digits": digits}
_AT_A_PATH: dict[str, Callable[..., Dataset]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "cub200": cub200,
    "nus_wide": nus_wide,
    "tiny_imagenet": tiny_imagenet,
}
