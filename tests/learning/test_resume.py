"""A run that was interrupted or killed ends like an uninterrupted one."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from combemb import methods
from combemb.learning import deep
from combemb.learning.loop import train
from combemb.learning.run_folder import CHECKPOINT, WEIGHTS, RunFolder
from combemb.methods.combemb import CombEmb
from tests.toy_methods import One, Paper, Two, assert_same_state, make, toy_data, without_speed

LONG = {"bits": 12, "epochs": 80, "batch_size": 140, "device": "cpu"}  # what the killed process fits


@pytest.mark.parametrize("kind", [One, Two, Paper])
def test_a_resumed_run_ends_as_an_unbroken_one(kind, every_epoch, tmp_path):
    x, labels = toy_data()
    whole = make(kind).fit(x, labels, folder=tmp_path / "whole")
    for stop in (2, 4):  # stopped twice
        method = make(kind)
        method.interrupted_before = stop
        with pytest.raises(KeyboardInterrupt):
            method.fit(x, labels, folder=tmp_path / "run", resume=stop > 2)
        assert RunFolder(tmp_path / "run").checkpoint()[0] == stop
        with pytest.raises(ValueError, match="resume"):
            RunFolder(tmp_path / "run").weights()
    resumed = make(kind).fit(x, labels, folder=tmp_path / "run", resume=True)
    assert_same_state(resumed.state(), whole.state())
    assert_same_state(load_file(tmp_path / "run" / WEIGHTS), load_file(tmp_path / "whole" / WEIGHTS))
    assert without_speed(resumed.log_) == without_speed(whole.log_)
    assert without_speed(RunFolder(tmp_path / "run").log()) == without_speed(RunFolder(tmp_path / "whole").log())
    assert not (tmp_path / "run" / CHECKPOINT).exists()


@pytest.mark.parametrize("stop", [2, 3])
def test_clusters_of_the_rule_kmeans_survive_a_stop(stop, every_epoch, tmp_path):
    """They were made before epoch 0 and are made again before epoch 3."""
    x, labels = toy_data()
    fields = {"pair_rules": ("kmeans",), "n_clusters": 7, "epochs_per_clustering": 3}
    whole = make(Paper, **fields).fit(x, labels)
    method = make(Paper, **fields)
    method.interrupted_before = stop
    with pytest.raises(KeyboardInterrupt):
        method.fit(x, labels, folder=tmp_path / "run")
    resumed = make(Paper, **fields).fit(x, labels, folder=tmp_path / "run", resume=True)
    assert_same_state(resumed.state(), whole.state())
    assert without_speed(resumed.log_) == without_speed(whole.log_)


def test_a_run_stopped_before_its_first_checkpoint_starts_again(tmp_path):
    x, labels = toy_data()
    whole = make(One).fit(x, labels)
    method = make(One)
    method.interrupted_before = 3
    with pytest.raises(KeyboardInterrupt):
        method.fit(x, labels, folder=tmp_path / "run")
    assert [record["epoch"] for record in RunFolder(tmp_path / "run").log()] == [1, 2, 3]
    assert not (tmp_path / "run" / CHECKPOINT).exists()
    resumed = make(One).fit(x, labels, folder=tmp_path / "run", resume=True)
    assert_same_state(resumed.state(), whole.state())
    assert [record["epoch"] for record in RunFolder(tmp_path / "run").log()] == [1, 2, 3, 4, 5, 6]


def test_resume_starts_a_run_where_there_is_none(tmp_path):
    x, labels = toy_data()
    resumed = make(One).fit(x, labels, folder=tmp_path / "run", resume=True)
    assert_same_state(resumed.state(), make(One).fit(x, labels).state())


@pytest.mark.parametrize("kind", [One, Paper])
def test_resuming_a_finished_run_changes_nothing(kind, tmp_path):
    x, labels = toy_data()
    whole = make(kind).fit(x, labels, folder=tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    again = make(kind)
    again.interrupted_before = 0  # were it to train
    again.fit(x, labels, folder=tmp_path / "run", resume=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    assert_same_state(again.state(), whole.state())
    assert again.log_ == whole.log_
    assert torch.equal(again.embed(x), whole.embed(x))


def changes() -> dict[str, tuple[dict, np.ndarray, np.ndarray]]:
    x, labels = toy_data()
    moved, relabelled = x.copy(), labels.copy()
    moved[17, 3] += 1e-3
    relabelled[np.flatnonzero(labels == 2)[0]] = -1
    return {
        "learning rate": ({"learning_rate": 2e-3}, x, labels),
        "seed": ({"seed": 1}, x, labels),
        "epochs": ({"epochs": 7}, x, labels),
        "a feature": ({}, moved, labels),
        "a label": ({}, x, relabelled),
        "an item": ({}, x[:-1], labels[:-1]),
        "names of classes": ({}, x, np.where(labels >= 0, labels + 10, -1)),
    }


@pytest.mark.parametrize("change", changes())
def test_a_run_is_not_resumed_with_something_else(change, every_epoch, tmp_path):
    x, labels = toy_data()
    method = make(One)
    method.interrupted_before = 3
    with pytest.raises(KeyboardInterrupt):
        method.fit(x, labels, folder=tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    fields, x, labels = changes()[change]
    with pytest.raises(ValueError, match="cannot resume"):
        make(One, **fields).fit(x, labels, folder=tmp_path / "run", resume=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_a_killed_process_is_resumed_to_the_same_weights(every_epoch, tmp_path):
    folder = tmp_path / "run"
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.learning.test_resume", str(folder)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        deadline = time.monotonic() + 60
        while child.poll() is None and time.monotonic() < deadline and checkpoint_epoch(folder) < 3:
            time.sleep(0.001)
    finally:
        child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert not (folder / WEIGHTS).exists(), "the process was meant to die in the middle"
    assert 3 <= checkpoint_epoch(folder) < LONG["epochs"]

    x, labels = toy_data()
    resumed = CombEmb(**LONG).fit(x, labels, folder=folder, resume=True)
    whole = CombEmb(**LONG).fit(x, labels)
    assert_same_state(resumed.state(), whole.state())
    assert_same_state(methods.load(folder).state(), whole.state())
    assert without_speed(RunFolder(folder).log()) == without_speed(whole.log_)


def checkpoint_epoch(folder: Path) -> int:
    """The epoch of the checkpoint, 0 without one: read at any moment, it must be whole."""
    path = folder / CHECKPOINT
    return int(load_file(path)["epoch"]) if path.exists() else 0


if __name__ == "__main__":
    deep.train = partial(train, checkpoint_seconds=0.0)
    CombEmb(**LONG).fit(*toy_data(), folder=sys.argv[1])
