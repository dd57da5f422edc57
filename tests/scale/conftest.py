"""One fitted run for all tests of this folder."""

import pytest

from tests.scale import toy_run


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """A folder with x.npy and run/."""
    folder = tmp_path_factory.mktemp("toy")
    toy_run.fitted(folder)
    return folder
