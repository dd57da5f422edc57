"""A run that loses a process ends at once, says so, and is continued by any number of processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from combemb.learning import loop
from combemb.learning.run_folder import WEIGHTS, RunFolder
from combemb.system import processes
from combemb.system.processes import LostProcess
from combemb.system.team import Team
from tests.commands import done
from tests.teams import together
from tests.toy_methods import Paper, toy_data

LAST = 3  # epoch in which a process dies
SHORT = {"epochs": 6, "batch_size": 96, "device": "cpu"}  # 48 labelled items and 48 others, for 1, 2 or 3 processes
LIMIT = 180  # seconds until processes that hang are given up


class Dying(Paper):
    """One of its processes is killed in the middle of a fit."""

    victim = -1

    def on_epoch(self, data, epoch):
        super().on_epoch(data, epoch)
        if epoch == LAST and processes.rank() == self.victim:
            os.kill(os.getpid(), signal.SIGKILL)


def fit(_: Team, folder: Path, victim: int = -1) -> dict[str, torch.Tensor]:
    loop.CHECKPOINT_SECONDS = 0.0  # a checkpoint after every epoch
    method = Dying(**SHORT)
    method.victim = victim
    return method.fit(*toy_data(), folder=folder, resume=True, progress=False).state()


@pytest.fixture(scope="module")
def whole() -> tuple[dict[str, torch.Tensor], list[dict]]:
    """The tensors and the log of a fit by one process that nothing happens to."""
    method = Dying(**SHORT).fit(*toy_data(), progress=False)
    return method.state(), method.log_


@pytest.mark.parametrize(("n_before", "victim", "n_after"), [(2, 1, 1), (2, 0, 3), (1, 0, 2)])
def test_a_run_that_lost_a_process_continues_with_others(tmp_path, whole, n_before, victim, n_after):
    began = time.monotonic()
    found = together(tmp_path, n_before, fit, tmp_path / "run", victim)
    assert time.monotonic() - began < LIMIT
    assert found.pop(victim) == -signal.SIGKILL
    for error in found:
        assert isinstance(error, LostProcess)
        assert "another process of this run has ended or cannot be reached" in str(error)
    run = RunFolder(tmp_path / "run")
    epoch, tensors = run.checkpoint()
    assert LAST - 1 <= epoch <= LAST
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values())
    assert not (run.folder / WEIGHTS).exists()

    for state in together(tmp_path, n_after, fit, tmp_path / "run"):
        assert state.keys() == whole[0].keys()
        for name, expected in whole[0].items():
            torch.testing.assert_close(state[name], expected, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
    assert [record["epoch"] for record in run.log()] == [1, 2, 3, 4, 5, 6]
    for record, expected in zip(run.log(), whole[1], strict=True):
        assert record["loss"] == pytest.approx(expected["loss"], rel=1e-3)


SCRIPT = f"""
import os, signal, sys

from combemb.cli import app
from combemb.learning import loop
from combemb.methods.combemb import CombEmb

loop.CHECKPOINT_SECONDS = 0.0
real = CombEmb.on_epoch


def on_epoch(self, data, epoch):
    if epoch == {LAST} and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    real(self, data, epoch)


CombEmb.on_epoch = on_epoch
app(sys.argv[1:])
"""


def test_torchrun_ends_with_the_process_that_died_and_one_process_resumes(tmp_path):
    x, labels = toy_data()
    np.savez(tmp_path / "data.npz", x=x, labels=labels)
    (tmp_path / "script.py").write_text(SCRIPT)
    settings = (f"--set={name}={value}" for name, value in {**SHORT, "check": False}.items())
    fitting = ["fit", tmp_path / "data.npz", "--out", tmp_path / "run", "--bits=12", "--quiet", *settings]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with subprocess.Popen(
        [*map(str, (*torchrun, tmp_path / "script.py", *fitting))],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    ) as started:
        try:
            _, errors = started.communicate(timeout=LIMIT)
        finally:
            started.terminate()  # torchrun then ends its processes; nothing happens if it has ended
    assert started.returncode not in (0, None)
    assert "Signal 9 (SIGKILL)" in errors
    assert LAST - 1 <= RunFolder(tmp_path / "run").checkpoint()[0] <= LAST
    done(*fitting, "--resume")
    log = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in log] == [1, 2, 3, 4, 5, 6]
