"""Run folders survive what people and machines do to them."""

import contextlib
import json
import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

from combemb import methods
from combemb.system.files import sealed, unsealed
from tests.commands import call, done, fitted, refused


@pytest.fixture(scope="module")
def indexed(item_run: tuple[Path, object]) -> Path:
    """A run with a discovery and an index."""
    done("index", item_run[0])
    return item_run[0]


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


@pytest.mark.parametrize(
    "name", ["run.json", "weights.safetensors", "discovery.safetensors", "index.safetensors", "entries.parquet"]
)
@pytest.mark.parametrize("n_bytes", [1, 20, 2_000])
def test_a_damaged_file_is_named(indexed: Path, items: Path, tmp_path: Path, name: str, n_bytes: int):
    run = shutil.copytree(indexed, tmp_path / "run")
    arguments = ["search", run, items, "-k", "3"]
    if name not in ("index.safetensors", "entries.parquet"):
        arguments = ["embed", run, items, "--overwrite", "--out", tmp_path / "z.npy"]
    right, whole, rng = done(*arguments).stdout, (run / name).read_bytes(), np.random.default_rng(n_bytes)
    for _ in range(3):
        start = int(rng.integers(len(whole) // 8, max(len(whole) // 8 + 1, len(whole) - n_bytes)))
        flipped = bytes(byte ^ 1 for byte in whole[start : start + n_bytes])
        (run / name).write_bytes(whole[:start] + flipped + whole[start + n_bytes :])
        with warnings.catch_warnings(record=True, action="always") as caught:
            result = call(*arguments)
        told = result.stderr + "".join(str(warning.message) for warning in caught)
        if name == "entries.parquet" and not told:  # its pages have checksums, the statistics at its end have none
            assert result.stdout == right
            continue
        assert str(run) in told, start
        assert name in told, start
        if name != "discovery.safetensors":  # without it, the rest of the run can be used
            assert result.exit_code == 1
            assert result.stderr.startswith("error: ")


@pytest.mark.parametrize("value", [[], {}, "abc", None, -1, 1.5, True, [None], {"a": 1}])
def test_any_edit_of_the_configuration_is_one_line(own_run: Path, items: Path, tmp_path: Path, value: object):
    config = json.loads((own_run / "run.json").read_text())
    edits = [{**config, key: value} for key in config if config[key] != value]
    settings = config["settings"]
    edits += [{**config, "settings": {**settings, key: value}} for key in settings if settings[key] != value]
    for edited in edits:
        (own_run / "run.json").write_text(json.dumps(edited))
        with pytest.raises(ValueError, match=str(own_run)):
            methods.load(own_run)
        with contextlib.suppress(ValueError):  # with a right checksum, there may be nothing wrong; never a traceback
            (own_run / "run.json").write_text(json.dumps(sealed(unsealed(edited))))
            methods.load(own_run)
    assert str(own_run) in refused("embed", own_run, items, "--out", tmp_path / "z.npy")
