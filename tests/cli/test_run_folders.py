"""Run folders survive what people and machines do to them."""

import os
from pathlib import Path

import pytest

from tests.commands import done, fitted


@pytest.mark.skipif(os.name == "nt", reason="has no umask")
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
def test_all_files_of_a_run_follow_the_umask(items: Path, tmp_path: Path, mask: int, mode: int):
    before = os.umask(mask)
    try:
        run = fitted(items, tmp_path / "run")
        done("discover", run, "--no-page")
        done("index", run)
    finally:
        os.umask(before)
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in run.iterdir()}
    assert {"weights.safetensors", "discovery.safetensors", "index.safetensors", "entries.parquet"} <= modes.keys()
    assert modes == dict.fromkeys(modes, oct(mode))
