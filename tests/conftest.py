"""What holds for all tests."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """Features go into a temporary cache, shared by all tests; the user's own is never touched."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMBEMB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
