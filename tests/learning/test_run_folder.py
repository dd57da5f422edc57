"""The run folder: files appear whole or not at all, and nothing that is not ours is ever replaced."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from combemb.learning.curves import draw_curves
from combemb.learning.run_folder import (
    CHECKPOINT,
    CONFIG,
    CURVES,
    DIAGNOSIS,
    FORMAT_VERSION,
    LOG,
    WEIGHTS,
    RunFolder,
    write_tensors,
)
from combemb.system.files import write_json

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(3)}


@pytest.fixture
def run(tmp_path) -> RunFolder:
    """A run that was started."""
    run = RunFolder(tmp_path / "run")
    run.start({"method": "itq"})
    return run


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def record(epoch: int) -> dict[str, float]:
    return {"epoch": epoch, "loss": 1 / epoch}


# Writing


def test_a_kill_while_writing_leaves_what_was_there(run):
    run.write_weights(TENSORS)
    code = """
import os, signal, sys
from pathlib import Path
from combemb.system.files import write_atomically
from combemb.learning.run_folder import WEIGHTS

def write(temporary):
    temporary.write_bytes(b"half of the ")
    os.kill(os.getpid(), signal.SIGKILL)

write_atomically(Path(sys.argv[1]) / WEIGHTS, write)
"""
    child = subprocess.run([sys.executable, "-c", code, str(run.folder)], check=False, env=dict(os.environ))
    assert child.returncode == -signal.SIGKILL
    assert run.weights().keys() == TENSORS.keys()
    assert torch.equal(run.weights()["a"], TENSORS["a"])
    run.check_free(overwrite=True, resume=False)
    run.start({"method": "itq"})
    assert names(run.folder) == {CONFIG}, "a new run also removes what a killed one left"


def test_tensors_come_back_as_they_were(run):
    tensors = {
        "transposed": torch.arange(6.0).view(2, 3).T,
        "with gradient": torch.ones(2, requires_grad=True),
        "empty": torch.zeros(0, 3),
        "one": torch.ones(1).expand(1, 1).as_strided((1, 1), (0, 0)),
        "none": torch.ones(1).as_strided((0,), (0,)),
        "number": torch.tensor(7, dtype=torch.int64),
        "half": torch.tensor([0.1], dtype=torch.bfloat16),
    }
    run.write_weights(tensors)
    found = run.weights()
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor.detach())


# Which folders are free


def test_a_place_without_files_is_free(tmp_path):
    (tmp_path / "empty").mkdir()
    for place in ("empty", "missing", "missing/deeper"):
        for overwrite, resume in ((False, False), (True, False), (False, True)):
            RunFolder(tmp_path / place).check_free(overwrite, resume)
    assert names(tmp_path) == {"empty"}


def test_a_run_is_replaced_or_resumed_only_when_asked(run):
    run.check_free(overwrite=True, resume=False)
    run.check_free(overwrite=False, resume=True)
    with pytest.raises(ValueError, match=r"overwrite.*resume"):
        run.check_free(overwrite=False, resume=False)


@pytest.mark.parametrize("flags", [(False, False), (True, False), (False, True)])
def test_a_folder_that_is_no_run_is_never_touched(tmp_path, flags):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/cat.jpg").write_bytes(b"cat")
    (tmp_path / "file").write_text("text")
    for place in ("photos", "file"):
        with pytest.raises(ValueError, match="not a run folder"):
            RunFolder(tmp_path / place).check_free(*flags)


def test_overwrite_and_resume_exclude_each_other(run, tmp_path):
    for folder in (run.folder, tmp_path / "missing"):
        with pytest.raises(ValueError, match="exclude"):
            RunFolder(folder).check_free(overwrite=True, resume=True)


def test_starting_again_removes_the_files_of_a_run_and_nothing_else(run):
    run.write_checkpoint(1, TENSORS)
    run.write_weights(TENSORS)
    run.write_checkpoint(1, TENSORS)
    run.append_log(record(1))
    run.write_diagnosis({"n_codes": 1})
    draw_curves([record(1)], run.folder / CURVES)
    (run.folder / "notes.txt").write_text("mine")
    assert names(run.folder) == {CONFIG, CHECKPOINT, WEIGHTS, LOG, DIAGNOSIS, CURVES, "notes.txt"}
    config = {"method": "combemb", "settings": {"bits": 12}, "classes": [0, 1]}
    config |= {"images": None, "n_novel": None, "path": None}
    run.start(config)
    assert names(run.folder) == {CONFIG, "notes.txt"}
    assert run.config() == {"format_version": FORMAT_VERSION, **config}


def test_a_configuration_that_cannot_be_stored_leaves_the_old_run(run):
    run.write_weights(TENSORS)
    before = {path.name: path.read_bytes() for path in run.folder.iterdir()}
    for value in (object(), float("nan")):
        with pytest.raises((TypeError, ValueError)):
            run.start({"method": "combemb", "settings": {"bits": value}})
        assert {path.name: path.read_bytes() for path in run.folder.iterdir()} == before


# Reading


def test_an_unreadable_configuration_is_named(run, tmp_path):
    path = run.folder / CONFIG
    for content in (b"", b'{"format_version": 1, "meth', b"[1]", b"7", b"{}", b"null", b"\xff\xfe"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"{run.folder}.*{CONFIG}"):
            run.config()
    with pytest.raises(ValueError, match="missing is not a readable run folder: there is no such folder"):
        RunFolder(tmp_path / "missing").config()


@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, 0, "1", None])
def test_another_format_version_is_refused(run, version):
    write_json(run.folder / CONFIG, {"format_version": version, "method": "itq"})
    with pytest.raises(
        ValueError,
        match=rf"{run.folder} was written by another version.*format {version}, .*{FORMAT_VERSION}\); fit again",
    ):
        run.config()


@pytest.mark.parametrize("file", [WEIGHTS, CHECKPOINT])
def test_damaged_tensors_are_refused_with_advice(run, file):
    path = run.folder / file
    write_tensors(path, {**TENSORS, "epoch": torch.tensor(2)})
    whole = path.read_bytes()
    read = run.weights if file == WEIGHTS else run.checkpoint
    assert read()
    flipped = whole[:12] + bytes([whole[12] ^ 0xFF]) + whole[13:]
    last = whole[:-1] + bytes([whole[-1] ^ 1])
    for content in (whole[:-1], whole[:20], whole[:4], b"", whole + b"more", flipped, last):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"{path}.*damaged"):
            read()


def test_missing_weights_say_what_happened(run):
    with pytest.raises(ValueError, match=rf"{WEIGHTS}.*missing"):
        run.weights()
    run.write_checkpoint(3, TENSORS)
    with pytest.raises(ValueError, match="resume"):
        run.weights()


# Checkpoints and the log


def test_a_checkpoint_comes_back_and_weights_replace_it(run):
    assert run.checkpoint() is None
    run.write_checkpoint(3, TENSORS)
    run.write_checkpoint(5, TENSORS)
    epoch, tensors = run.checkpoint()
    assert epoch == 5
    assert tensors.keys() == TENSORS.keys()
    assert torch.equal(tensors["a"], TENSORS["a"])
    run.write_weights(TENSORS)
    assert not (run.folder / CHECKPOINT).exists()
    assert run.checkpoint() is None


def test_a_checkpoint_drops_the_log_after_it(run):
    for epoch in (1, 2, 3, 4):
        run.append_log(record(epoch))
    run.write_checkpoint(2, TENSORS)
    assert len(run.log()) == 4, "looking at the log changes nothing"
    run.checkpoint()
    assert run.log() == [record(1), record(2)]
    run.append_log(record(3))
    assert run.log() == [record(1), record(2), record(3)]


def test_without_a_checkpoint_the_log_starts_again(run):
    run.append_log(record(1))
    assert run.checkpoint() is None
    assert run.log() == []


@pytest.mark.parametrize("cut", range(1, len(json.dumps(record(3))) + 1, 4))
def test_a_last_line_cut_short_is_left_out(run, cut):
    for epoch in (1, 2, 3):
        run.append_log(record(epoch))
    path = run.folder / LOG
    path.write_bytes(path.read_bytes()[: -cut - 1])
    assert run.log() == [record(1), record(2)]
    run.write_checkpoint(2, TENSORS)
    run.checkpoint()
    run.append_log(record(3))  # must not stick to the rest of the cut line
    assert run.log() == [record(1), record(2), record(3)]


def test_a_damaged_line_in_the_log_is_named(run):
    for epoch in (1, 2, 3):
        run.append_log(record(epoch))
    path = run.folder / LOG
    path.write_text(path.read_text().replace("0.5", "0.6"))
    with pytest.raises(ValueError, match=rf"{path} is damaged in line 2"):
        run.log()


def test_a_damaged_diagnosis_is_not_used(run):
    run.write_diagnosis({"n_codes": 3})
    path = run.folder / DIAGNOSIS
    path.write_text(path.read_text().replace("3", "4", 1))
    assert run.diagnosis() == {}


def test_a_diagnosis_is_replaced_and_the_picture_lies_beside_it(run):
    run.write_diagnosis({"n_codes": 3})
    assert names(run.folder) == {CONFIG, DIAGNOSIS}
    run.write_diagnosis({"n_codes": 4})
    draw_curves([record(1), record(2)], run.folder / CURVES)
    assert run.diagnosis() == {"n_codes": 4}
    assert (run.folder / CURVES).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
