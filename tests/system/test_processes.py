"""Two processes train as one: gathered gradients, batch statistics and a whole fit, against a single process.

Run as a script, this file is one of the two processes.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import nn

from combemb import methods
from combemb.data.labels import read_labels
from combemb.learning.batches import Batches, MappedItems
from combemb.learning.run_folder import RunFolder
from combemb.methods.combemb import CombEmb
from combemb.system import processes

VARIANTS = {
    "default": {},
    "default, positives move": {"positive_gradient": True},
    "labelled anchors": {"labelled_anchors": 2.0, "positive_gradient": True},
    "no pull": {"feature_pull": 0.0, "label_trust": 0.0},
    "nearest": {"pair_rules": ("nearest",)},
    "neighbours": {"pair_rules": ("neighbours",)},
    "calibrated": {"pair_rules": ("similar",), "threshold_rate": 1.0},
    "calibrated, positives move": {"pair_rules": ("similar",), "threshold_rate": 1.0, "positive_gradient": True},
    "fixed": {"pair_rules": ("similar",), "positive_threshold": 0.3},
    "all rules": {"pair_rules": ("similar", "nearest", "neighbours"), "include_self": False},
}
SHORT = {"bits": 12, "epochs": 3, "batch_size": 64, "device": "cpu", "ramp_share": 0.1}
LIMIT = 120  # seconds until a process that hangs is given up


def toy_data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    targets = np.arange(140) % 7
    x = rng.normal(size=(7, 16))[targets] + 0.3 * rng.normal(size=(140, 16))
    return x.astype(np.float32), np.where((targets < 5) & (np.arange(140) < 90), targets, -1)


# What each process does with its share; one process alone does it with everything.


def share(x: torch.Tensor) -> torch.Tensor:
    return processes.own_rows(x).clone()


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def gather_case() -> dict[str, torch.Tensor]:
    """Every row meets the rows of all processes, and the gathered rows go two ways."""
    x, w = share(drawn(6, 3, seed=0)).requires_grad_(), share(drawn(6, 6, seed=1))
    everyone = processes.gather(x)
    ((x @ everyone.T).tanh() * w).sum().backward()
    return {"everyone": everyone.detach(), "grad": x.grad, "own": processes.own_rows(everyone).detach()}


def gather_beside_case() -> dict[str, torch.Tensor]:
    """A gathered tensor in a sum: the gradient of the other summand is this process's own business."""
    x, v = share(drawn(6, 3, seed=0)).requires_grad_(), drawn(6, 3, seed=2).requires_grad_()
    doubled = 2 * v
    (doubled + processes.gather(x)).square().sum().backward()
    return {"x": x.grad, "v": v.grad}


def batch_norm_case(layer: nn.BatchNorm1d) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        layer.weight.copy_(1 + 0.3 * drawn(5, seed=3))
        layer.bias.copy_(drawn(5, seed=4))
    for step in range(3):
        layer.zero_grad()
        x = share(2 * drawn(8, 5, seed=10 + step) + 1).requires_grad_()
        out = layer(x)
        (out.tanh() * share(drawn(8, 5, seed=20 + step))).sum().backward()
    processes.average_gradients(layer.parameters())
    layer.eval()
    found = {"out": out.detach(), "x": x.grad, "weight": layer.weight.grad, "bias": layer.bias.grad}
    return {**found, "later": layer(drawn(4, 5, seed=5)).detach(), **layer.state_dict(prefix="state.")}


def start_case() -> dict[str, torch.Tensor]:
    """Modules that differ before they are made the same, and the mean of something that differs."""
    with torch.random.fork_rng():
        torch.manual_seed(processes.rank())
        module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    module[1].running_mean.fill_(processes.rank())
    processes.same_state(module)
    rank = torch.tensor(float(processes.rank()))
    return {**module.state_dict(), "mean": processes.mean(rank), "rank": rank}


def gradient_case(folder: Path, variant: str) -> dict[str, torch.Tensor]:
    """Gradients of a fitted CombEmb for one batch in the middle of training."""
    model = CombEmb.load(folder / "model").set_params(**VARIANTS[variant])
    x, labels = toy_data()
    data = Batches(
        MappedItems(x, model.feature_map_).in_memory(),
        read_labels(labels, len(x)),
        batch_size=64,
        labelled_share=0.5,
        seed=0,
        noise=0.5,
        dropout=0.1,
        rank=processes.rank(),
        world_size=processes.world_size(),
        with_clean=True,
    )
    model.prepare(data)
    batch = replace(next(data.epoch(0)), fraction_done=0.5)
    model.network_.train()
    terms = model.losses(batch)
    torch.stack(list(terms.values())).sum().backward()
    processes.average_gradients(model.network_.parameters())
    found = {f"grad.{name}": p.grad for name, p in model.network_.named_parameters()}
    found |= {f"term.{name}": processes.mean(term.detach()) for name, term in terms.items()}
    found["positives"] = torch.tensor(model.diagnostics(batch, data)["positives_per_anchor"])
    return {**found, **{f"buffer.{name}": buffer for name, buffer in model.network_.named_buffers()}}


def all_cases(folder: Path, batch_norm: type[nn.BatchNorm1d]) -> dict[str, torch.Tensor]:
    cases = {
        "gather": gather_case(),
        "beside": gather_beside_case(),
        "batch norm": batch_norm_case(batch_norm(5)),
        "start": start_case(),
        **{variant: gradient_case(folder, variant) for variant in VARIANTS},
    }
    return {f"{case}/{name}": t.clone() for case, found in cases.items() for name, t in found.items()}


# The comparison


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> tuple[dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]:
    """What one process finds, and what each of two finds."""
    folder = tmp_path_factory.mktemp("two")
    CombEmb(**SHORT).fit(*toy_data()).save(folder / "model")
    children = [
        subprocess.Popen([sys.executable, __file__, str(folder), str(rank)], env={**os.environ, "OMP_NUM_THREADS": "1"})
        for rank in range(2)
    ]
    try:
        assert [child.wait(LIMIT) for child in children] == [0, 0]
    finally:
        for child in children:
            child.kill()
            child.wait()
    return all_cases(folder, nn.BatchNorm1d), [load_file(folder / f"{rank}.safetensors") for rank in range(2)]


def test_gathered_rows_are_those_of_all_in_order(results):
    one, two = results
    for rank, found in enumerate(two):
        assert torch.equal(found["gather/everyone"], one["gather/everyone"])
        assert torch.equal(found["gather/own"], one["gather/everyone"][3 * rank : 3 * rank + 3])


def test_the_gradient_of_gathered_rows_comes_from_all_processes(results):
    one, two = results
    torch.testing.assert_close(torch.cat([found["gather/grad"] for found in two]), one["gather/grad"])


def test_gathering_leaves_other_gradients_alone(results):
    one, two = results
    torch.testing.assert_close(torch.cat([found["beside/x"] for found in two]), 2 * one["beside/x"])
    for found in two:  # each process has its own v, so its gradient is that of its own loss
        torch.testing.assert_close(found["beside/v"], one["beside/v"])


def test_batch_norm_sees_the_whole_batch(results):
    one, two = results
    for name in ("out", "x"):
        torch.testing.assert_close(torch.cat([f[f"batch norm/{name}"] for f in two]), one[f"batch norm/{name}"])
    for found in two:
        for name in ("weight", "bias"):  # the mean over two processes of what one process sums
            torch.testing.assert_close(2 * found[f"batch norm/{name}"], one[f"batch norm/{name}"])
        for name in ("running_mean", "running_var", "weight", "bias"):
            torch.testing.assert_close(found[f"batch norm/state.{name}"], one[f"batch norm/state.{name}"])
        torch.testing.assert_close(found["batch norm/later"], one["batch norm/later"])


def test_batch_norm_counts_its_batches(results):
    one, two = results
    assert one["batch norm/state.num_batches_tracked"] == 3
    assert [int(found["batch norm/state.num_batches_tracked"]) for found in two] == [3, 3]


def test_all_processes_start_from_the_first(results):
    one, two = results
    assert [found["start/rank"].item() for found in two] == [0, 1]
    for found in two:
        for name in ("0.weight", "0.bias", "1.running_mean"):
            assert torch.equal(found[f"start/{name}"], one[f"start/{name}"])
        assert found["start/mean"] == 0.5


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_halves_have_the_gradient_of_the_whole_batch(results, variant):
    one, two = results
    names = [name for name in one if name.startswith(f"{variant}/")]
    assert sum("/grad." in name for name in names) >= 8
    assert one[f"{variant}/positives"] > 1.2, "hardly a pair was found, so there was little to compare"
    for name in names:
        expected = one[name].double()
        for found in two:
            assert torch.equal(found[name], two[0][name]), f"{name} differs between the processes"
            if name.endswith("num_batches_tracked"):
                continue
            assert "/grad." not in name or expected.norm() > 1e-4, f"{name} has no gradient to compare"
            error = (found[name].double() - expected).norm()
            assert error <= 1e-5 * expected.norm() + 1e-7, f"{name}: {error} of {expected.norm()}"


def test_alone_nothing_is_exchanged():
    x = drawn(4, 3, seed=0)
    assert (processes.world_size(), processes.rank()) == (1, 0)
    assert processes.gather(x) is x
    assert torch.equal(processes.own_rows(x), x)
    assert processes.mean(x) is x
    with processes.process_group(torch.device("cpu")):
        assert not dist.is_initialized()
    one, other = processes.BatchNorm(3), nn.BatchNorm1d(3)
    assert torch.equal(one(x), other(x))
    assert_equal_states(one.state_dict(), other.state_dict())


def assert_equal_states(a, b) -> None:
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


# A whole fit


SCRIPT = """
import json, os, pty, select, sys
from pathlib import Path

import torch.distributed as dist
from safetensors.torch import save_file

from combemb.methods.combemb import CombEmb
from combemb.learning.run_folder import RunFolder

folder, rank = Path(sys.argv[1]), os.environ["RANK"]
master, terminal = pty.openpty()
screen = sys.stderr = os.fdopen(terminal, "w")  # each process has a terminal of its own
try:
    model = CombEmb(**json.loads(sys.argv[2])).fit(folder / "data.npz", folder=folder / "run")
    assert RunFolder(folder / "run").is_complete(), "fit returned here before the first process had written the run"
finally:
    screen.flush()
    sys.stderr = sys.__stderr__
shown = b""
while select.select([master], [], [], 0.5)[0]:
    shown += os.read(master, 4096)
assert not dist.is_initialized()
save_file(model.state(), folder / f"state-{rank}.safetensors")
(folder / f"shown-{rank}").write_bytes(shown)
(folder / f"log-{rank}.json").write_text(json.dumps(model.log_))
"""


@pytest.fixture(scope="module")
def torchrun(tmp_path_factory) -> Path:
    """The folder in which two processes started by torchrun have fitted."""
    folder = tmp_path_factory.mktemp("torchrun")
    x, labels = toy_data()
    np.savez(folder / "data.npz", x=x, labels=labels)
    (folder / "script.py").write_text(SCRIPT)
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *command, str(folder / "script.py"), str(folder), json.dumps(SHORT)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm"},
        timeout=LIMIT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def alone() -> CombEmb:
    return CombEmb(**SHORT).fit(*toy_data())


def test_a_fit_of_two_processes_is_that_of_one(torchrun, alone):
    states = [load_file(torchrun / f"state-{rank}.safetensors") for rank in range(2)]
    assert_equal_states(states[0], states[1])
    start = CombEmb(**{**SHORT, "learning_rate": 1e-12}).fit(*toy_data()).state()
    for name, expected in alone.state().items():
        torch.testing.assert_close(states[0][name], expected, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
    x, _ = toy_data()
    torch.testing.assert_close(methods.load(torchrun / "run").embed(x), alone.embed(x), rtol=1e-4, atol=1e-4)
    moved = (alone.state()["network.project.weight"] - start["network.project.weight"]).abs().max()
    assert moved > 5e-3, "the weights hardly moved, so there was nothing to compare"


def test_two_processes_write_one_run_folder(torchrun, alone):
    run = RunFolder(torchrun / "run")
    assert {path.name for path in run.folder.iterdir()} == {
        *("run.json", "weights.safetensors", "metrics.jsonl", "diagnosis.json", "training.png")
    }
    assert_equal_states(methods.load(run.folder).state(), load_file(torchrun / "state-0.safetensors"))
    assert run.log() == json.loads((torchrun / "log-0.json").read_text())
    assert [record["epoch"] for record in run.log()] == [1, 2, 3]
    for record, expected in zip(run.log(), alone.log_, strict=True):
        for name in ("loss", "meta", "similarity", "consistency"):
            assert record[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-4), name
    for name in ("pair_precision", "positives_per_anchor"):
        assert run.log()[-1][name] == pytest.approx(alone.log_[-1][name], rel=1e-3, abs=1e-4), name


def test_only_the_first_process_shows_its_progress(torchrun):
    assert b"training" in (torchrun / "shown-0").read_bytes()
    assert (torchrun / "shown-1").read_bytes() == b""


if __name__ == "__main__":
    place, number = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}/meeting", rank=number, world_size=2)
    save_file(all_cases(place, processes.BatchNorm), place / f"{number}.safetensors")
    dist.destroy_process_group()
