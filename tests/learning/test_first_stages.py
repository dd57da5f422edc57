"""SimCLR and a classifier as first stages: their losses, what they depend on, resuming and sharing."""

import json
import math
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from combemb.data.given import read_given
from combemb.learning import loop
from combemb.learning.batches import Batch
from combemb.learning.pretraining import weights_after
from combemb.learning.pretraining.simclr import SimCLR
from combemb.learning.pretraining.supervised import Supervised
from combemb.learning.pretraining.training import TrainedStage, share_right
from combemb.system.machine import n_cores, seeded
from combemb.system.team import Team
from tests.learning.kinds import Head, Queue
from tests.pictures import LABELS, PIXELS
from tests.teams import together

IMAGES = {"backbone": "resnet18", "backbone_width": 4, "image_size": 16}
SMALL = {"epochs": 2, "batch_size": 36}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("COMBEMB_CACHE", str(tmp_path_factory.mktemp("cache")))


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def training(kind, n_features: int, labels: Tensor, n_labelled: int, **settings):
    """A stage amid training, with a batch of features."""
    method = kind(**settings)
    method.tower_ = torch.nn.Module()
    with seeded(0):
        method.tower_.network = method.network(n_features, 3, 0).double()
    n = len(labels)
    x, other = (normal(n, n_features, seed=seed).requires_grad_() for seed in (1, 2))
    return method, Batch(torch.arange(n), x, other, labels, n_labelled)


def trained(stage, labels=LABELS, seed: int = 0) -> Path:
    """The weights after a stage on the pictures."""
    images = Queue(**IMAGES, finetune="all", seed=seed).image_input()
    return weights_after(TrainedStage(stage), images, read_given(PIXELS, labels), False)


def same(a: Path, b: Path) -> bool:
    first, second = load_file(a), load_file(b)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


# The losses


def test_the_contrast_of_simclr_equals_the_loops():
    n, T = 5, 0.3
    method, batch = training(SimCLR, 6, torch.full((n,), -1), 0, temperature=T, projection=3)
    first, second = method.network_[0], method.network_[2]
    views = []
    for x in (*batch.x, *batch.other):
        v = second.weight @ torch.relu(first.weight @ x + first.bias) + second.bias
        views.append(v / v.norm())
    losses = []
    for i in range(2 * n):
        below = sum(torch.exp(views[i] @ views[k] / T) for k in range(2 * n) if k != i)
        losses.append(-torch.log(torch.exp(views[i] @ views[(i + n) % (2 * n)] / T) / below))
    expected = sum(losses) / (2 * n)
    (term,) = method.losses(batch).values()
    torch.testing.assert_close(term, expected)
    of = [batch.x, batch.other, *method.network_.parameters()]
    for a, b in zip(torch.autograd.grad(term, of), torch.autograd.grad(expected, of), strict=True):
        torch.testing.assert_close(a, b)


def test_the_classifier_has_the_cross_entropy():
    labels = torch.tensor([0, 2, 1, 0])
    method, batch = training(Supervised, 6, labels, 4)
    scores = (batch.x @ method.network_.weight.T + method.network_.bias).tolist()
    terms = [
        -math.log(math.exp(row[y]) / sum(map(math.exp, row))) for row, y in zip(scores, labels.tolist(), strict=True)
    ]
    assert method.losses(batch)["classes"].item() == pytest.approx(sum(terms) / 4)


# The check on the labels


@pytest.mark.parametrize("k", [1, 3, 20])
def test_the_neighbour_check_equals_a_loop(k):
    x, classes = normal(17, 3), torch.randint(3, (17,), generator=torch.Generator().manual_seed(4))
    right = 0
    for i in range(17):
        cosines = {j: float(x[i] @ x[j] / x[i].norm() / x[j].norm()) for j in range(17) if j != i}
        nearest = sorted(cosines, key=lambda j: -cosines[j])[:k]
        votes = Counter(int(classes[j]) for j in nearest)
        most = min(c for c in votes if votes[c] == max(votes.values()))  # the first of equally frequent classes
        right += most == int(classes[i])
    assert 0 < right < 17
    assert share_right(x, classes, k) == pytest.approx(right / 17)


def test_one_item_has_no_neighbours():
    assert share_right(torch.ones(1, 3), torch.tensor([2]), 5) == 0


def checked(epochs: int, folder: Path, **settings) -> list[int]:
    """The epochs after which a stage checked its features."""
    method = SimCLR(**IMAGES, **SMALL | {"epochs": epochs}, **settings).fit(PIXELS, LABELS, folder=folder)
    assert all(0 <= record.get("neighbours_right", 0) <= 1 for record in method.log_)
    return [record["epoch"] for record in method.log_ if "neighbours_right" in record]


def test_the_check_is_logged_every_few_epochs(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "STEPS_PER_DIAGNOSIS", 1)
    assert checked(7, tmp_path, check_every=3) == [3, 6, 7]


def test_the_check_is_also_logged_if_an_epoch_has_few_steps(tmp_path):
    """The loop asks after every tenth step only: here after every fifth epoch."""
    assert checked(11, tmp_path) == [5, 10, 11]


# What a stage depends on


def test_labels_do_not_change_the_weights_of_simclr():
    weights = {}
    for name, labels in (("labels", LABELS), ("none", np.full(len(LABELS), None, dtype=object))):
        method = SimCLR(**IMAGES, **SMALL, device="cpu").fit(PIXELS, labels)
        weights[name] = method.state()
    assert all(torch.equal(tensor, weights["none"][name]) for name, tensor in weights["labels"].items())
    assert trained(SimCLR(**SMALL)) == trained(SimCLR(**SMALL), np.roll(LABELS, 1))


def test_the_classifier_needs_its_labels_and_sees_no_other_image():
    first = Supervised(**IMAGES, **SMALL, device="cpu").fit(PIXELS, LABELS).state()
    known = np.array([label is not None for label in LABELS])
    alone = Supervised(**IMAGES, **SMALL, device="cpu").fit(PIXELS[known], LABELS[known]).state()
    assert all(torch.equal(tensor, alone[name]) for name, tensor in first.items())
    with pytest.raises(ValueError, match="label"):
        Supervised(**IMAGES, **SMALL).fit(PIXELS, np.full(len(LABELS), None, dtype=object))
    other = LABELS.copy()
    other[:12] = LABELS[11::-1]
    assert trained(Supervised(**SMALL)) != trained(Supervised(**SMALL), other)


def test_both_stages_train_the_whole_backbone():
    start = Queue(**IMAGES, finetune="all").image_input().backbone.state_dict()
    for stage in (SimCLR(**SMALL), Supervised(**SMALL)):
        after = load_file(trained(stage))
        assert after.keys() == start.keys()
        unchanged = [name for name in after if "weight" in name and torch.equal(after[name], start[name])]
        assert unchanged == []


@pytest.mark.parametrize("kind", [SimCLR, Supervised])
def test_the_backbone_learns_as_fast_as_the_network(kind, monkeypatch):
    """Although it starts from a file of weights, as a pretrained one does."""
    rates, real = [], kind.optimisers

    def watched(self):
        made = real(self)
        rates.extend([group["lr"] for optimiser in made for group in optimiser.param_groups])
        return made

    monkeypatch.setattr(kind, "optimisers", watched)
    trained(kind(**SMALL))
    assert len(rates) >= 2
    assert set(rates) == {kind().learning_rate}


@pytest.mark.parametrize("change", [{"epochs": 3}, {"temperature": 0.2}, {"crop_area": 0.5}, {"batch_size": 24}])
def test_another_recipe_is_another_stage(change):
    assert TrainedStage(SimCLR(**SMALL)).recipe != TrainedStage(SimCLR(**{**SMALL, **change})).recipe


def test_the_machine_is_no_part_of_the_recipe():
    assert TrainedStage(SimCLR(**SMALL)).recipe == TrainedStage(SimCLR(**SMALL, threads=2, device="cpu")).recipe


# Interruptions


@dataclass(kw_only=True, eq=False, repr=False)
class StoppedSimCLR(SimCLR):
    """SimCLR that is interrupted before an epoch."""

    before: ClassVar[int] = -1

    def on_epoch(self, data, epoch):
        if epoch == self.before:
            raise KeyboardInterrupt


def test_an_interrupted_stage_continues_to_the_same_weights(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    whole = trained(StoppedSimCLR(**SMALL))
    monkeypatch.setenv("COMBEMB_CACHE", str(tmp_path_factory.mktemp("other")))
    monkeypatch.setattr(StoppedSimCLR, "before", 1)
    with pytest.raises(KeyboardInterrupt):
        trained(StoppedSimCLR(**SMALL))
    begun, real = [], StoppedSimCLR.on_epoch
    monkeypatch.setattr(StoppedSimCLR, "before", -1)
    monkeypatch.setattr(StoppedSimCLR, "on_epoch", lambda self, *a: begun.append(a[1]) or real(self, *a))
    monkeypatch.setattr("combemb.learning.pretraining.training.n_cores", lambda: n_cores() + 1)  # on another machine
    resumed = trained(StoppedSimCLR(**SMALL))
    assert begun == [1]
    assert resumed != whole
    assert same(resumed, whole)


# Sharing


class SimCLRFirst:
    paper_stages = ("simclr",)


@dataclass(kw_only=True, eq=False, repr=False)
class OneHead(SimCLRFirst, Head):
    """A method that starts from SimCLR."""


@dataclass(kw_only=True, eq=False, repr=False)
class OtherHead(SimCLRFirst, Head):
    """Another method that starts from SimCLR."""


def test_methods_share_a_trained_stage(monkeypatch):
    fits, real = [], SimCLR.fit
    monkeypatch.setattr(SimCLR, "fit", lambda self, *a, **k: fits.append(self) or real(self, *a, **k))
    common = {**IMAGES, "n_novel": 2, "epochs": 1, "batch_size": 36, "n_views": 2, "pretraining_epochs": 1}
    for method in (OneHead(**common, finetune="last"), OtherHead(**common, finetune="all"), OneHead(**common)):
        method.fit(PIXELS, LABELS)
    assert len(fits) == 1
    OneHead(**{**common, "pretraining_epochs": 2}).fit(PIXELS, LABELS)
    assert len(fits) == 2


def trained_by(team: Team, caches: list[Path]) -> tuple[str, bytes, str]:
    """Name and content of the weights that several processes find after a stage, and the log beside them."""
    os.environ["COMBEMB_CACHE"] = str(caches[team.rank])
    images = Queue(**IMAGES, finetune="all").image_input()
    path = weights_after(TrainedStage(SimCLR(**SMALL)), images, read_given(PIXELS, LABELS), False, team)
    log = path.with_name("metrics.jsonl")
    return path.parent.name, path.read_bytes(), log.read_text() if log.exists() else ""


@pytest.mark.parametrize("is_shared", [True, False], ids=["one cache", "two caches"])
def test_several_processes_train_a_stage_together(tmp_path, is_shared):
    """With a cache for each, only the first process has the log, but both have the weights."""
    caches = [tmp_path / "a", tmp_path / ("a" if is_shared else "b")]
    for cache in caches:
        cache.mkdir(exist_ok=True)
    first, second = together(tmp_path, 2, trained_by, caches)
    assert first[:2] == second[:2]
    assert second[2] == (first[2] if is_shared else "")
    assert [json.loads(line)["epoch"] for line in first[2].splitlines()] == [1, 2]
    if is_shared:
        assert together(tmp_path, 2, trained_by, caches) == [first, second], "it was trained again"
