"""Settings and fixtures of all tests."""

from functools import partial

import pytest

from combemb.learning import deep
from combemb.learning.loop import train


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """Features go into a temporary cache, shared by all tests; the user's own is never touched."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMBEMB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def every_epoch(monkeypatch):
    """A checkpoint after every epoch."""
    monkeypatch.setattr(deep, "train", partial(train, checkpoint_seconds=0.0))
