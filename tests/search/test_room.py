"""What the room exports, and what importing it costs."""

import subprocess
import sys

import pytest

import combemb.search


def test_codebooks_come_without_faiss():
    command = "import combemb.search, sys; assert 'faiss' not in sys.modules"
    subprocess.run([sys.executable, "-c", command], check=True)


def test_every_name_is_there():
    for name in combemb.search.__all__:
        assert getattr(combemb.search, name).__name__ == name
        assert name in dir(combemb.search)
    with pytest.raises(AttributeError, match=r"'combemb.search' has no attribute 'nothing'"):
        _ = combemb.search.nothing
