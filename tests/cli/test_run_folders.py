"""Run folders survive what people and machines do to them."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from combemb import methods
from combemb.collection import changes
from combemb.collection.changes import store
from combemb.collection.classes import classes_of
from combemb.learning.run_folder import NEW
from combemb.system.files import sealed, unsealed
from tests.commands import call, done, files, fitted, refused
from tests.real_processes import command, ended, started


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


@pytest.mark.parametrize("name", ["discovery.parquet", "classes.jsonl"])
def test_every_changed_byte_of_what_classes_are_made_of_is_named_or_harmless(indexed: Path, tmp_path: Path, name: str):
    run = shutil.copytree(indexed, tmp_path / "run")
    store(run, changes.name(classes_of(run), "novel-1", "hawk"))
    right, whole = classes_of(run), (run / name).read_bytes()
    for place in range(0, len(whole), 11):
        for bit in (1, 16):
            (run / name).write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
            try:
                found = classes_of(run)
            except ValueError as error:
                assert str(run / name) in str(error)  # noqa: PT017 - an error is one of two right answers
                continue
            assert found.table.equals(right.table), place
            assert found.changes == right.changes, place
    (run / "discovery.parquet").write_bytes((indexed / "discovery.parquet").read_bytes()[:-9])
    told = refused("classes", run)
    assert f"cannot read {run / 'discovery.parquet'}: " in told
    assert told.endswith(f"; discover again: combemb discover {run}\n")


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
    (own_run / "run.json").write_text(json.dumps(edits[0]))
    assert str(own_run) in refused("embed", own_run, items, "--out", tmp_path / "z.npy")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)  # the index is still mapped


@pytest.mark.parametrize("verb", ["discover", "discover-page", "index", "fit", "fit-again", "classes", "relocate"])
def test_a_full_disk_is_one_line_and_all_is_as_before(indexed: Path, items: Path, small_disk: Path, verb: str):
    run = shutil.copytree(indexed, small_disk / "run")
    arguments = {
        "discover": ["discover", run, "--no-page", "--n-novel", "3", "--quiet"],
        "discover-page": ["discover", run, "--n-novel", "3", "--quiet"],
        "index": ["index", run, "--overwrite"],
        "fit": ["fit", items, "--out", small_disk / "new", "--method", "itq", "--bits", "12", "--quiet"],
        "fit-again": ["fit", items, "--out", run, "--method", "itq", "--bits", "12", "--quiet", "--overwrite"],
        "classes": ["classes", run, "name", "novel-1", "hawk"],
        "relocate": ["relocate", run, "--to", small_disk, "--from", items.parent],
    }[verb]
    room = 0 if verb != "discover-page" else 30_000  # then some files have been written when the page fails
    filler = (small_disk / "filler").open("wb", buffering=0)
    with contextlib.suppress(OSError), filler:
        while True:
            filler.write(bytes(65536))
    os.truncate(small_disk / "filler", max(0, (small_disk / "filler").stat().st_size - room))
    before = files(run)
    told = refused(*arguments)
    assert "cannot write " + str(small_disk) in told
    assert "the disk is full" in told
    assert "free some space" in told
    assert files(run) == before
    assert not [path for path in small_disk.rglob(".*") if path.is_file()]


@pytest.mark.parametrize("verb", ["discover", "index", "fit", "fit-again", "classes"])
def test_a_folder_that_cannot_be_written_is_one_line(indexed: Path, items: Path, small_disk: Path, verb: str):
    run = shutil.copytree(indexed, small_disk / "run")
    before = files(run)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    told = refused(
        *{
            "discover": ["discover", run, "--no-page", "--quiet"],
            "index": ["index", run, "--overwrite"],
            "fit": ["fit", items, "--out", small_disk / "new", "--method", "itq", "--bits", "12", "--quiet"],
            "fit-again": ["fit", items, "--out", run, "--method", "itq", "--bits", "12", "--quiet", "--overwrite"],
            "classes": ["classes", run, "name", "novel-1", "hawk"],
        }[verb]
    )
    assert "cannot write " + str(small_disk) in told
    assert "Read-only file system; make " in told
    assert files(run) == before


def test_a_fit_lists_the_files_that_it_wrote(indexed: Path, items: Path, tmp_path: Path):
    run = shutil.copytree(indexed, tmp_path / "run")
    told = done("fit", items, "--out", run, "--method", "itq", "--bits", "12", "--overwrite").stdout
    listed = told.split(f"written to {run}: ")[1].splitlines()[0].split()
    assert listed == ["diagnosis.json,", "run.json,", "weights.safetensors"]
    assert sorted(files(run)) == [name.rstrip(",") for name in listed], "nothing of the earlier run is left"


HOLD = """
import sys
from combemb.learning import fitting
from combemb.cli import app

def wait(*_, **__):
    print("reading", flush=True)
    sys.stdin.read()

fitting.read_given = wait
app(sys.argv[1:])
"""


@pytest.mark.parametrize("has_run", [False, True])
def test_a_second_writer_is_told_who_writes_and_a_dead_one_does_not_block(own_run: Path, items: Path, has_run: bool):
    run = own_run if has_run else own_run.parent / "deeper" / "new"
    arguments = ["fit", str(items), "--out", str(run), "--method", "itq", "--bits", "12", "--overwrite"]
    before = files(own_run)
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ)
    )
    with first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"reading\n"
        told = refused(*arguments)
        assert f"{run} is being written by process {first.pid} on " in told
        assert "--overwrite); wait until that is done, or use another folder" in told
        first.kill()
    if has_run:
        assert {name: content for name, content in files(run).items() if not name.startswith(".")} == before
    done(*arguments)
    assert not [name for name in files(run) if name.startswith(".")]


def test_ctrl_c_leaves_the_old_run_and_says_so(own_run: Path, items: Path, tmp_path: Path):
    options = ["--out", own_run, "--set=epochs=100000", "--set=check=False", "--overwrite"]
    writer = started(command, tmp_path / "printed", "fit", items, *options)
    deadline = time.monotonic() + 60
    while not (own_run / NEW / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert writer.pid is not None
    os.kill(writer.pid, signal.SIGINT)
    assert ended(writer) == 130
    said = f"stopped; use --resume to continue from the last checkpoint; until it is done, {own_run} holds the run of "
    assert said in (tmp_path / "printed").read_text()
    assert methods.load(own_run).get_params()["bits"] == 12
    done("discover", own_run, "--no-page")
    done("predict", own_run, items)
