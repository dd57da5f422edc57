"""The loop: its schedule and its step in closed form, what it logs, and what it does when a loss is not finite."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from combemb.learning.loop import Diverged, _is_diagnosed, _load_state, _state, descend, schedule
from combemb.learning.run_folder import CHECKPOINT, LOG, WEIGHTS, RunFolder
from combemb.system.files import unsealed
from tests.toy_methods import Dropping, One, Paper, Two, assert_same_state, make, toy_data

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
            progress.append(batch.fraction_done)
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
    assert [unsealed(record) for record in records] == method.log_
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
    assert method.log_[-1]["undefined"] is None
    assert '"undefined": null' in (tmp_path / "run" / LOG).read_text()


@pytest.mark.parametrize(("n_steps", "diagnosed"), [(3, [3, 6, 9, 11]), (10, list(range(11))), (25, list(range(11)))])
def test_short_epochs_are_diagnosed_every_ten_steps_and_at_the_end(n_steps, diagnosed):
    expected = [epoch for epoch in range(12) if epoch in {*diagnosed, 11}]
    assert [epoch for epoch in range(12) if _is_diagnosed(epoch, 12, n_steps)] == expected


def test_epochs_left_open_make_enough_steps():
    assert make(One, epochs=None).n_epochs(steps_per_epoch=7) == math.ceil(600 / 7)
    assert make(One, epochs=None).n_epochs(steps_per_epoch=5000) == 10
    assert make(One, epochs=3).n_epochs(steps_per_epoch=5000) == 3


def test_after_training_the_network_no_longer_learns():
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
    for name, parameter in three.network_.named_parameters():
        assert torch.equal(dict(bad.network_.named_parameters())[name], parameter), name

    run = RunFolder(tmp_path / "run")
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
    assert all(parameter.isfinite().all() for parameter in method.network_.parameters())
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


def test_a_diverged_network_keeps_its_buffers_too():
    """Batch norm has updated its running statistics when the loss turns out to be nan."""
    x, labels = toy_data()
    method = make(Paper, learning_rate=1e30)
    with pytest.raises(Diverged):
        method.fit(x, labels)
    assert [name for name, buffer in method.network_.named_buffers() if not buffer.isfinite().all()] == []


def test_an_optimiser_is_restored_in_the_memory_format_of_its_parameters():
    """Files have one order only, but a fused optimiser steps through the memory of weights and momentum alike."""

    def trained(n_steps: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        module = torch.nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)
        optimiser = torch.optim.AdamW(module.parameters(), lr=0.1, fused=True)
        steps(module, optimiser, range(n_steps))
        return module, optimiser

    def steps(module: torch.nn.Module, optimiser: torch.optim.Optimizer, numbers: range) -> None:
        for number in numbers:
            x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(number))
            optimiser.zero_grad()
            module(x.contiguous(memory_format=torch.channels_last)).square().mean().backward()
            optimiser.step()

    half, of_half = trained(2)
    stored = {name: tensor.contiguous().clone() for name, tensor in _state(half, [of_half], {}).items()}
    module, optimiser = trained(0)
    _load_state(stored, module, [optimiser], {})
    steps(module, optimiser, range(2, 4))
    torch.testing.assert_close(module.weight, trained(4)[0].weight, rtol=0, atol=1e-6)
