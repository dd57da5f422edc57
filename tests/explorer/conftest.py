"""A run on pictures with all that the explorer shows, made once, and a client of a server of a copy of it."""

import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from combemb.explorer.server.access import Access
from combemb.explorer.server.app import Options, application
from tests.commands import done, fitted
from tests.pictures import write_folder

HERE = "http://127.0.0.1:8017"


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pictures of four labelled classes and two unlabelled ones."""
    return write_folder(tmp_path_factory.mktemp("explored") / "photos")


@pytest.fixture(scope="session")
def finished_run(photos: Path) -> Path:
    """A run on them with index, discovery and map."""
    return run_on(photos)


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """Such a run that a test may change."""
    return shutil.copytree(finished_run, tmp_path / "runs" / "photos")


def run_on(photos: Path) -> Path:
    run = fitted(photos, photos.parent / "run")
    done("discover", run, "--n-novel", "2", "--quiet")
    done("index", run, "--quiet")
    return run


def client_of(run: Path, **options) -> TestClient:
    return TestClient(application(Options(run, **{"prepares": False, **options})), base_url=HERE)


@pytest.fixture
def client(run: Path) -> Iterator[TestClient]:
    """A client of a server of the run."""
    with warnings.catch_warnings(), client_of(run, access=Access()) as found:
        yield found
