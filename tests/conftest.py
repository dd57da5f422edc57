"""Settings and fixtures of all tests."""

import signal
from functools import partial

import pytest

from combemb.learning import deep
from combemb.learning.loop import train

# Jobs in the background of a shell ignore Ctrl-C, and so would the programs that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


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
