"""Runs with and without a discovery, fitted once for a module."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.cli.found import BLOBS, BROKEN, NAMES, N
from tests.commands import done, fitted
from tests.pictures import write_folder


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Embeddings of four seen classes and two novel ones, with labels and ids."""
    path = tmp_path_factory.mktemp("items") / "items.npz"
    np.savez(path, x=BLOBS.x, labels=NAMES, ids=[f"item-{i}" for i in range(N)])
    return path


@pytest.fixture(scope="module")
def plain_run(items: Path) -> Path:
    """A run that was fitted on the embeddings."""
    return fitted(items, items.parent / "run")


@pytest.fixture(scope="module")
def item_run(plain_run: Path, tmp_path_factory: pytest.TempPathFactory):
    """Such a run with a discovery, and what was printed of it."""
    run = shutil.copytree(plain_run, tmp_path_factory.mktemp("discovered") / "run")
    return run, done("discover", run)


@pytest.fixture
def own_run(plain_run: Path, tmp_path: Path) -> Path:
    """A run on the embeddings that a test may change."""
    return shutil.copytree(plain_run, tmp_path / "run")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pictures, one of which is cut short."""
    return write_folder(tmp_path_factory.mktemp("photos") / "photos", broken=(BROKEN,))


@pytest.fixture(scope="module")
def plain_photo_run(photos: Path) -> Path:
    """A run that was fitted on the pictures."""
    return fitted(photos, photos.parent / "run")


@pytest.fixture(scope="module")
def photo_run(plain_photo_run: Path, tmp_path_factory: pytest.TempPathFactory):
    """Such a run with a discovery, and what was printed of it."""
    run = shutil.copytree(plain_photo_run, tmp_path_factory.mktemp("discovered") / "run")
    return run, done("discover", run, "--n-novel", "2")
