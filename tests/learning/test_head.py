"""What methods with a head share: matching of outputs, a start on the labels, first stages by name."""

from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar

import numpy as np
import pytest
import torch

from combemb.data.items import ArrayItems
from combemb.data.labels import read_labels
from combemb.learning import head
from combemb.learning.batches import Batches
from combemb.learning.head import HeadMethod
from combemb.learning.tower import Tower
from combemb.system.files import write_tensors
from combemb.system.machine import seeded
from tests.learning.kinds import PAPER
from tests.pictures import PIXELS

N, F, N_SEEN, N_NOVEL = 60, 8, 3, 2


@dataclass(kw_only=True, eq=False, repr=False)
class Pairs(HeadMethod):
    """A head whose outputs have no names (2026): L = 0."""

    paper: ClassVar[str] = PAPER
    paper_stages: ClassVar[tuple[str, ...]] = ("simclr", "supervised")

    def network(self, n_features, n_seen, n_novel):
        return self.head_network(n_features, {"seen": n_seen, "all": n_seen + n_novel})

    def logits(self, features):
        net = self.heads_
        return net.heads["all"](net.trunk(features))[:, net.order]


def ready(labels: np.ndarray, seed: int = 0) -> tuple[Pairs, Batches, np.ndarray]:
    """A method before its training, and data without views."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(len(labels), F)).astype(np.float32)
    method = Pairs(width=16, device="cpu", start_steps=60)
    method.image_input_ = None
    method.tower_ = Tower(None, torch.nn.Identity(), torch.nn.Identity())
    with seeded(seed):
        method.tower_.network = method.network(F, N_SEEN, N_NOVEL)
    return method, Batches(ArrayItems(x[:, None]), read_labels(labels, len(labels)), 20, 0.5, 0), x


def some_labels(seed: int = 0) -> np.ndarray:
    labels = np.random.default_rng(seed).integers(-1, N_SEEN, N)
    labels[: N_SEEN + 1] = range(-1, N_SEEN)
    return labels


# Matching


@pytest.mark.parametrize("seed", range(4))
def test_the_matching_puts_most_labelled_items_into_the_output_of_their_class(seed):
    labels = some_labels(seed)
    method, data, x = ready(labels, seed)
    found = method.logits(torch.from_numpy(x)).argmax(dim=1).numpy()
    known = labels >= 0
    method.match_outputs(data)
    order = method.network_.order.tolist()
    assert sorted(order) == list(range(N_SEEN + N_NOVEL))
    assert order[N_SEEN:] == sorted(order[N_SEEN:])
    best = max(
        sum((found[known] == np.array(own)[labels[known]]).tolist())
        for own in permutations(range(N_SEEN + N_NOVEL), N_SEEN)
    )
    assert (found[known] == np.array(order)[labels[known]]).sum() == best
    after = method.logits(torch.from_numpy(x)).argmax(dim=1).numpy()
    assert (after[known] == labels[known]).sum() == best


def test_a_second_matching_starts_from_the_outputs_themselves():
    method, data, _ = ready(some_labels(1), seed=1)
    method.match_outputs(data)
    first = method.network_.order.clone()
    assert not torch.equal(first, torch.arange(N_SEEN + N_NOVEL))
    method.match_outputs(data)
    assert torch.equal(method.network_.order, first)


def test_unlabelled_items_do_not_change_the_matching():
    labels = some_labels(2)
    method, data, x = ready(labels, seed=2)
    method.match_outputs(data)
    first = method.network_.order.clone()
    moved = x.copy()
    moved[labels < 0] = 100 * np.random.default_rng(9).normal(size=((labels < 0).sum(), F))
    data = Batches(ArrayItems(moved[:, None]), data.labels, 20, 0.5, 0)
    method.match_outputs(data)
    assert torch.equal(method.network_.order, first)


# A start on the labels


def test_the_start_learns_the_labels_by_the_named_head_alone():
    labels = some_labels()
    method, data, x = ready(labels)
    x[np.arange(N), labels] += 4.0  # in place, in the data too; -1 is a direction of its own
    before = {name: tensor.clone() for name, tensor in method.network_.state_dict().items()}
    with seeded(0):
        method.learn_labels(data, "seen")
    net, known = method.network_, labels >= 0
    said = net.heads["seen"](net.trunk(torch.from_numpy(x[known]))).argmax(dim=1).numpy()
    assert (said == labels[known]).mean() > 0.9
    changed = {name for name, tensor in net.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"trunk.0.weight", "trunk.0.bias", "heads.seen.weight", "heads.seen.bias"}


def test_unlabelled_items_do_not_change_the_start():
    labels = some_labels()
    states = []
    for shift in (0.0, 50.0):
        method, data, x = ready(labels)
        x[labels < 0] += shift  # in place, in the data too
        with seeded(0):
            method.learn_labels(data, "seen")
        states.append(method.network_.state_dict())
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def test_no_steps_change_nothing():
    method, data, _ = ready(some_labels())
    method.start_steps = 0
    before = {name: tensor.clone() for name, tensor in method.network_.state_dict().items()}
    method.learn_labels(data, "seen")
    assert all(torch.equal(tensor, before[name]) for name, tensor in method.network_.state_dict().items())


@pytest.mark.parametrize("at_most", [6, 10_000])
def test_of_many_labelled_items_equally_many_of_each_class_are_used(at_most, monkeypatch):
    monkeypatch.setattr(head, "MAX_LABELLED", at_most)
    labels = some_labels()
    method, data, _ = ready(labels)
    rows = method._labelled_rows(data)
    counts = np.bincount(labels[rows])
    assert counts.tolist() == ([2, 2, 2] if at_most == 6 else np.bincount(labels[labels >= 0]).tolist())


# Trunk


def test_a_trained_backbone_needs_no_layer_as_its_trunk():
    method = Pairs(width=16, finetune="all")
    method.image_input_ = None
    assert method.head_network(F, {"all": 5}).n_outputs == 16  # embeddings have no backbone
    method.image_input_ = object()
    network = method.head_network(F, {"all": 5})
    assert network.n_outputs == F
    x = torch.randn(3, F, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(network(x), x / x.norm(dim=1, keepdim=True))
    method.finetune = "none"
    assert method.head_network(F, {"all": 5}, bias=False).heads["all"].bias is None


# First stages


SMALL = {"backbone": "resnet18", "backbone_width": 4, "image_size": 16, "finetune": "all"}


def stages(tmp_path, weights: bool = False, **settings) -> list[tuple[str, int | None]]:
    method = Pairs(**SMALL, **settings)
    if weights:
        write_tensors(tmp_path / "w.safetensors", Pairs(**SMALL).image_input().backbone.state_dict())
        method.backbone_weights = str(tmp_path / "w.safetensors")
    method.image_input_ = method.image_input()
    return [(stage.recipe["name"], stage.recipe["epochs"]) for stage in method.first_stages()]


def test_random_weights_get_the_stages_of_the_paper_and_others_none(tmp_path):
    assert stages(tmp_path) == [("simclr", 200), ("supervised", 100)]
    assert stages(tmp_path, weights=True) == []


def test_stages_that_are_named_replace_those_of_the_paper(tmp_path):
    assert stages(tmp_path, pretraining=("supervised",)) == [("supervised", 100)]
    assert stages(tmp_path, weights=True, pretraining=("simclr",)) == [("simclr", 200)]
    assert stages(tmp_path, pretraining=("none",)) == []
    assert stages(tmp_path, pretraining_epochs=3) == [("simclr", 3), ("supervised", 3)]


def test_an_unknown_stage_is_refused():
    with pytest.raises(ValueError, match="pretraining"):
        Pairs(**SMALL, pretraining=("rotnet",)).fit(PIXELS, [0] * 6 + [1] * 6 + [-1] * (len(PIXELS) - 12))
