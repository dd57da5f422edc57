"""Datasets by name, read from the files in which each is published."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from combemb.data.datasets.cifar import cifar10, cifar100, obtain_cifar10
from combemb.data.datasets.cub import cub200
from combemb.data.datasets.dataset import Dataset
from combemb.data.datasets.digits import digits
from combemb.data.datasets.nus_wide import nus_wide
from combemb.data.datasets.tiny_imagenet import tiny_imagenet
from combemb.system.errors import require

__all__ = ["Dataset", "load", "names", "obtain_cifar10"]


def names() -> list[str]:
    """Return the names of the datasets."""
    return sorted(["digits", *_AT_A_PATH])


def load(name: str, path: str | Path | None = None, **options: Any) -> Dataset:
    """Load a dataset.

    Parameters
    ----------
    name : str
        One of `names()`.
    path : str or Path, optional
        Folder or archive of the published files; none for "digits", which comes with scikit-learn.
    **options
        Options of the dataset, such as `n_concepts` of "nus_wide" or `n_views` of "digits".

    Returns
    -------
    Dataset
    """
    require(name in names(), f"dataset {name!r} is unknown; choose one of {', '.join(names())}")
    if name == "digits":
        require(path is None, f"dataset {name!r} comes with the package and is not read from {path}; give no path")
        return digits(**options)
    if path is None:
        raise ValueError(f"dataset {name!r} needs the path of its published files")
    require(Path(path).exists(), f"there is no {path}; give the path of the published files of {name!r}")
    return _AT_A_PATH[name](Path(path), **options)


_READERS: tuple[Callable[..., Dataset], ...] = (cifar10, cifar100, cub200, nus_wide, tiny_imagenet)
_AT_A_PATH = {read.__name__: read for read in _READERS}
