"""The loop: its schedule and its step in closed form, what it logs, and that a stopped run ends as an unbroken one."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from combemb import methods
from combemb.methods import deep
from combemb.methods.combemb import CombEmb
from combemb.methods.deep import DeepMethod
from combemb.runs import CHECKPOINT, LOG, WEIGHTS, Run
from combemb.training import Diverged, descend, schedule, train

LONG = {"bits": 12, "epochs": 80, "batch_size": 140, "device": "cpu"}  # what the killed process fits


def toy_data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    targets = np.arange(140) % 7
    x = rng.normal(size=(7, 16))[targets] + 0.3 * rng.normal(size=(140, 16))
    return x.astype(np.float32), np.where((targets < 5) & (np.arange(140) < 90), targets, -1)


@dataclass(kw_only=True, eq=False, repr=False)
class Stoppable:
    """Things that go wrong on the way; not fields, so that a run may be resumed without them."""

    interrupted_before: ClassVar[int] = -1  # epoch
    nan_from: ClassVar[float] = math.inf  # progress

    def on_epoch(self, data, epoch):
        super().on_epoch(data, epoch)
        if epoch == self.interrupted_before:
            raise KeyboardInterrupt

    def losses(self, batch):
        terms = super().losses(batch)
        return terms if batch.progress < self.nan_from else terms | {"sour": terms["sweet"] * math.nan}


class Plain(DeepMethod):
    """Two loss terms on a network with batch norm."""

    task = "discovery"
    paper = "none"

    def network(self, n_features, n_classes):
        return nn.Sequential(nn.Linear(n_features, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, n_classes))

    def losses(self, batch):
        y, n = self.module_(batch.x), batch.n_labelled
        return {
            "sweet": nn.functional.cross_entropy(y[:n], batch.labels[:n]),
            "sour": 0.1 * (y - self.module_(batch.other)).square().mean(),
        }

    def diagnostics(self, batch, data):
        return {"undefined": math.nan, "rows": len(batch.rows)}


@dataclass(kw_only=True, eq=False, repr=False)
class One(Stoppable, Plain):
    """One optimiser."""


@dataclass(kw_only=True, eq=False, repr=False)
class Two(Stoppable, Plain):
    """Two optimisers that take turns, with different states and rates."""

    def optimisers(self):
        first, *_, last = self.module_
        return [
            torch.optim.SGD(first.parameters(), lr=0.05, momentum=0.9),
            torch.optim.AdamW(last.parameters(), lr=self.learning_rate, amsgrad=True),
        ]

    def step(self, batch, optimisers):
        for optimiser in optimisers:
            terms = self.losses(batch)
            descend(optimiser.param_groups[0]["params"], optimiser, terms, self.clip_norm)
        return terms


@dataclass(kw_only=True, eq=False, repr=False)
class Paper(Stoppable, CombEmb):
    """The paper's method, with its calibrated threshold and batch norm."""

    bits: int = 12


@dataclass(kw_only=True, eq=False, repr=False)
class Dropping(Stoppable, Plain):
    """A module with dropout, whose random numbers come from torch's global generator."""

    def network(self, n_features, n_classes):
        return nn.Sequential(nn.Dropout(0.5), super().network(n_features, n_classes))


@pytest.fixture
def every_epoch(monkeypatch):
    """A checkpoint after every epoch."""
    monkeypatch.setattr(deep, "train", partial(train, checkpoint_seconds=0.0))


def make(kind, **fields):
    return kind(**{"epochs": 6, "batch_size": 64, "device": "cpu"} | fields)


def without_speed(log):
    return [{key: value for key, value in record.items() if key != "items_per_second"} for record in log]


def assert_same_state(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


# The schedule


@pytest.mark.parametrize(("n_steps", "share"), [(10, 0.2), (100, 0.05), (7, 0.0), (1, 0.0), (3, 0.9), (40, 0.99)])
def test_schedule_is_a_line_and_then_half_a_cosine(n_steps, share):
    n_warmup = round(share * n_steps)
    factors = [schedule(step, n_steps, share) for step in range(n_steps)]
    line = [(step + 1) / n_warmup for step in range(n_warmup)]
    # cos(x)^2 of half the angle, another form of the same curve
    curve = [math.cos(math.pi / 2 * i / (n_steps - n_warmup)) ** 2 for i in range(n_steps - n_warmup)]
    assert factors == pytest.approx(line + curve)
    assert max(factors) == pytest.approx(1)
    assert min(factors) > 0


def test_every_step_has_the_rate_of_the_schedule():
    rates, progress = [], []

    class Watched(Two):
        def step(self, batch, optimisers):
            rates.append([optimiser.param_groups[0]["lr"] for optimiser in optimisers])
            progress.append(batch.progress)
            return super().step(batch, optimisers)

    x, labels = toy_data()
    make(Watched, epochs=4, warmup_share=0.25, learning_rate=0.02).fit(x, labels)
    n = len(rates)
    assert n == 4 * 3
    factors = np.array([schedule(step, n, 0.25) for step in range(n)])
    np.testing.assert_allclose(rates, factors[:, None] * [0.05, 0.02], rtol=1e-12)
    np.testing.assert_allclose(progress, np.arange(n) / n, rtol=1e-12)


# One step


def leaf(*values: float) -> torch.Tensor:
    return torch.tensor(values, requires_grad=True)


def test_a_step_goes_down_the_gradient_of_the_sum():
    w = leaf(1.0, 2.0)
    terms = {"a": (w[0] - 3).square(), "b": 2 * w[1]}
    descend([w], torch.optim.SGD([w], lr=0.1), terms, clip_norm=100)
    assert w.tolist() == pytest.approx([1 - 0.1 * 2 * (1 - 3), 2 - 0.1 * 2])


def test_a_long_gradient_is_clipped_over_all_parameters():
    a, b = leaf(0.0), leaf(0.0)
    descend([a, b], torch.optim.SGD([a, b], lr=1.0), {"a": 30 * a.sum(), "b": 40 * b.sum()}, clip_norm=0.5)
    assert [a.item(), b.item()] == pytest.approx([-0.5 * 3 / 5, -0.5 * 4 / 5], rel=1e-5)


def test_gradients_of_earlier_steps_are_forgotten():
    w = leaf(0.0)
    w.grad = torch.tensor([100.0])
    descend([w], torch.optim.SGD([w], lr=1.0), {"a": 0.25 * w.sum()}, clip_norm=1)
    assert w.item() == pytest.approx(-0.25)


@pytest.mark.parametrize(
    ("term", "said"),
    [
        (lambda w: w.sum() * math.nan, "bitter nan"),
        (lambda w: w.sum() * math.inf, "bitter inf"),
        (lambda w: (w - w.detach()).sqrt().sum(), "gradient norm (nan|inf)"),  # a finite loss with a pole
    ],
    ids=["nan", "infinite", "gradient"],
)
def test_a_step_that_is_not_finite_changes_nothing(term, said):
    w = leaf(0.5, 2.0)
    optimiser = torch.optim.AdamW([w], lr=0.1)
    descend([w], optimiser, {"good": w.sum()}, clip_norm=1)
    before = w.detach().clone()
    state = {name: value.clone() for name, value in optimiser.state[w].items()}
    with pytest.raises(Diverged, match=said):
        descend([w], optimiser, {"good": w.sum(), "bitter": term(w)}, clip_norm=1)
    assert torch.equal(w.detach(), before)
    assert_same_state(optimiser.state[w], state)


# The log


@pytest.mark.parametrize("kind", [One, Two, Paper])
def test_every_epoch_leaves_one_record_with_its_mean_terms(kind, tmp_path):
    seen = []

    class Watched(kind):
        def step(self, batch, optimisers):
            terms = super().step(batch, optimisers)
            seen.append({name: float(term.detach()) for name, term in terms.items()})
            return terms

    x, labels = toy_data()
    method = make(Watched, epochs=4).fit(x, labels, folder=tmp_path / "run")
    lines = (tmp_path / "run" / LOG).read_text().splitlines()
    records = [json.loads(line, parse_constant=pytest.fail) for line in lines]  # NaN is not JSON
    assert records == method.log_
    assert [record["epoch"] for record in records] == [1, 2, 3, 4]
    per_epoch = len(seen) // 4
    for i, record in enumerate(records):
        steps = seen[i * per_epoch : (i + 1) * per_epoch]
        for name in steps[0]:
            assert record[name] == pytest.approx(np.mean([step[name] for step in steps]), rel=1e-5, abs=1e-7)
        assert record["loss"] == pytest.approx(sum(record[name] for name in steps[0]), rel=1e-6)
        assert record["items_per_second"] > 0


def test_a_number_that_is_undefined_is_logged_as_null(tmp_path):
    x, labels = toy_data()
    method = make(One, epochs=2).fit(x, labels, folder=tmp_path / "run")
    assert [record["undefined"] for record in method.log_] == [None, None]
    assert '"undefined": null' in (tmp_path / "run" / LOG).read_text()


def test_epochs_left_open_make_enough_steps():
    assert make(One, epochs=None).n_epochs(steps_per_epoch=7) == math.ceil(600 / 7)
    assert make(One, epochs=None).n_epochs(steps_per_epoch=5000) == 10
    assert make(One, epochs=3).n_epochs(steps_per_epoch=5000) == 3


def test_after_training_the_module_no_longer_learns():
    x, labels = toy_data()
    method = make(One, epochs=2).fit(x, labels)
    before = {name: tensor.clone() for name, tensor in method.state().items()}
    method.embed(x)
    assert_same_state(method.state(), before)


# Divergence


def test_a_loss_that_is_not_finite_stops_the_fit_where_it_was(every_epoch, tmp_path):
    x, labels = toy_data()
    whole = make(One).fit(x, labels)
    bad = make(One)
    bad.nan_from = 0.5  # the first step of epoch 4 of 6
    with pytest.raises(Diverged, match=r"epoch 4, step 1 of 3.*sweet [\d.]+, sour nan.*learning_rate"):
        bad.fit(x, labels, folder=tmp_path / "run")
    three = make(One)
    three.interrupted_before = 3
    with pytest.raises(KeyboardInterrupt):
        three.fit(x, labels)
    for name, parameter in three.module_.named_parameters():
        assert torch.equal(dict(bad.module_.named_parameters())[name], parameter), name

    run = Run(tmp_path / "run")
    assert not (run.folder / WEIGHTS).exists()
    epoch, tensors = run.checkpoint()
    assert epoch == 3
    assert all(tensor.isfinite().all() for tensor in tensors.values())
    resumed = make(One).fit(x, labels, folder=run.folder, resume=True)
    assert_same_state(resumed.state(), whole.state())


def test_an_absurd_learning_rate_is_reported(tmp_path):
    x, labels = toy_data()
    method = make(Paper, learning_rate=1e30)
    with pytest.raises(Diverged, match=r"consistency nan"):
        method.fit(x, labels, folder=tmp_path / "run")
    assert all(parameter.isfinite().all() for parameter in method.module_.parameters())
    kept = load_file(tmp_path / "run" / CHECKPOINT)  # the last good state
    assert all(torch.isfinite(tensor).all() for tensor in kept.values())


def test_dropout_follows_from_the_seed_and_leaves_the_global_generator_alone(every_epoch, tmp_path):
    x, labels = toy_data()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = make(Dropping).fit(x, labels)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    assert_same_state(make(Dropping).fit(x, labels).state(), first.state())
    stopped = make(Dropping)
    stopped.interrupted_before = 4
    with pytest.raises(KeyboardInterrupt):
        stopped.fit(x, labels, folder=tmp_path / "run")
    assert_same_state(make(Dropping).fit(x, labels, folder=tmp_path / "run", resume=True).state(), first.state())


def test_a_fit_refused_for_its_data_leaves_the_old_run_alone(tmp_path):
    x, labels = toy_data()
    make(Paper).fit(x, labels, folder=tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    one_direction = np.linspace(1, 2, len(x), dtype=np.float32)[:, None] * x[:1]
    method = make(Paper)
    with pytest.raises(ValueError, match="same features"):
        method.fit(one_direction, labels, folder=tmp_path / "run", overwrite=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    with pytest.raises(ValueError, match="not fitted"):
        method.embed(x)


def test_a_diverged_module_keeps_its_buffers_too():
    """Batch norm has updated its running statistics when the loss turns out to be nan."""
    x, labels = toy_data()
    method = make(Paper, learning_rate=1e30)
    with pytest.raises(Diverged):
        method.fit(x, labels)
    assert [name for name, buffer in method.module_.named_buffers() if not buffer.isfinite().all()] == []


# Stop and resume


@pytest.mark.parametrize("kind", [One, Two, Paper])
def test_a_resumed_run_ends_as_an_unbroken_one(kind, every_epoch, tmp_path):
    x, labels = toy_data()
    whole = make(kind).fit(x, labels, folder=tmp_path / "whole")
    for stop in (2, 4):  # stopped twice
        method = make(kind)
        method.interrupted_before = stop
        with pytest.raises(KeyboardInterrupt):
            method.fit(x, labels, folder=tmp_path / "run", resume=stop > 2)
        assert Run(tmp_path / "run").checkpoint()[0] == stop
        with pytest.raises(ValueError, match="resume"):
            Run(tmp_path / "run").weights()
    resumed = make(kind).fit(x, labels, folder=tmp_path / "run", resume=True)
    assert_same_state(resumed.state(), whole.state())
    assert_same_state(load_file(tmp_path / "run" / WEIGHTS), load_file(tmp_path / "whole" / WEIGHTS))
    assert without_speed(resumed.log_) == without_speed(whole.log_)
    assert without_speed(Run(tmp_path / "run").log()) == without_speed(Run(tmp_path / "whole").log())
    assert not (tmp_path / "run" / CHECKPOINT).exists()


def test_a_run_stopped_before_its_first_checkpoint_starts_again(tmp_path):
    x, labels = toy_data()
    whole = make(One).fit(x, labels)
    method = make(One)
    method.interrupted_before = 3
    with pytest.raises(KeyboardInterrupt):
        method.fit(x, labels, folder=tmp_path / "run")
    assert [record["epoch"] for record in Run(tmp_path / "run").log()] == [1, 2, 3]
    assert not (tmp_path / "run" / CHECKPOINT).exists()
    resumed = make(One).fit(x, labels, folder=tmp_path / "run", resume=True)
    assert_same_state(resumed.state(), whole.state())
    assert [record["epoch"] for record in Run(tmp_path / "run").log()] == [1, 2, 3, 4, 5, 6]


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
    child = subprocess.Popen([sys.executable, __file__, str(folder)], env={**os.environ, "OMP_NUM_THREADS": "1"})
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
    assert without_speed(Run(folder).log()) == without_speed(whole.log_)


def checkpoint_epoch(folder: Path) -> int:
    """The epoch of the checkpoint, 0 without one: read at any moment, it must be whole."""
    path = folder / CHECKPOINT
    return int(load_file(path)["epoch"]) if path.exists() else 0


if __name__ == "__main__":
    deep.train = partial(train, checkpoint_seconds=0.0)
    CombEmb(**LONG).fit(*toy_data(), folder=sys.argv[1])
