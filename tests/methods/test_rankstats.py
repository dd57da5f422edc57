"""RankStats, and what methods with two heads and pairs share: each term against loops, the schedule, toy data."""

import math
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
import torch
from torch import Tensor

from combemb.discovery.kmeans import kmeans
from combemb.discovery.metrics import agreement
from combemb.learning.batches import Batch
from combemb.learning.objectives.pair_losses import consistency, pairwise_bce
from combemb.learning.tower import Tower
from combemb.methods.ncl import NCL
from combemb.methods.rankstats import RankStats
from combemb.system.machine import seeded
from tests.blobs import blobs

N_LABELLED, N, F, N_SEEN, N_NOVEL, WIDTH = 5, 11, 4, 3, 2, 9
GIVEN = torch.tensor([0, 2, 1, 0, 2, *[-1] * 6])
QUICK = {"device": "cpu", "start_steps": 20, "batch_size": 32, "width": 24}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def training(clean: bool = False, done: float = 0.1, **settings) -> tuple[RankStats, Batch]:
    """A method with its network, as in training, and a batch."""
    method = RankStats(**{"width": WIDTH, "n_ranked": 1, "ramp_share": 0.4, "consistency_weight": 3.0, **settings})
    method.image_input_ = None
    with seeded(0):
        network = method.network(F, N_SEEN, N_NOVEL).double()
    for head in network.heads.values():
        torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(1))
    method.tower_ = Tower(None, torch.nn.Identity(), network)
    x, other = (normal(N, F, seed=seed).requires_grad_() for seed in (2, 3))
    views = {"x": x, "other": other, "clean": normal(N, F, seed=4) if clean else None}
    return method, Batch(torch.arange(N), labels=GIVEN, n_labelled=N_LABELLED, fraction_done=done, **views)


def softmax(scores: Tensor) -> list[Tensor]:
    return [torch.exp(row) / sum(torch.exp(value) for value in row) for row in scores]


def strongest(features: Tensor, k: int) -> set[int]:
    return set(sorted(range(len(features)), key=lambda i: (-features[i].item(), i))[:k])


# The terms


@pytest.mark.parametrize("clean", [False, True])
def test_the_terms_and_their_gradients_are_those_of_loops(clean):
    method, batch = training(clean)
    terms = method.losses(batch)
    net = method.network_
    layer, seen, everything = net.trunk[0], net.heads["seen"], net.heads["all"]
    f, g = (torch.relu(x @ layer.weight.T + layer.bias) for x in (batch.x, batch.other))
    ranked = torch.relu(batch.clean @ layer.weight.T + layer.bias) if clean else f
    scores, other_scores = (softmax(h @ seen.weight.T + seen.bias) for h in (f, g))
    p, q = (softmax(h @ everything.weight.T + everything.bias) for h in (f, g))
    unlabelled = range(N_LABELLED, N)
    pairs, n_same = [], 0
    for i, j in product(unlabelled, unlabelled):
        same = strongest(ranked[i], 1) == strongest(ranked[j], 1)
        n_same += same and i != j
        together = (p[i] * q[j]).sum()
        pairs.append(-torch.log(together) if same else -torch.log(1 - together))
    assert 0 < n_same < len(pairs) - len(unlabelled)
    square = [
        sum((a - b).square().sum() for a, b in zip(one, two, strict=True)) / (N * n)
        for one, two, n in ((scores, other_scores, N_SEEN), (p, q, N_SEEN + N_NOVEL))
    ]
    expected = {
        "classes": sum(-torch.log(scores[i][batch.labels[i]]) for i in range(N_LABELLED)) / N_LABELLED,
        "pairs": sum(pairs) / len(unlabelled) ** 2,
        "consistency": 3.0 * math.exp(-5 * (1 - 0.1 / 0.4) ** 2) * sum(square),
    }
    assert terms.keys() == expected.keys()
    of, options = [batch.x, batch.other, *net.parameters()], {"retain_graph": True, "allow_unused": True}
    for name, term in terms.items():
        torch.testing.assert_close(term, expected[name])
        found, wanted = (torch.autograd.grad(loss, of, **options) for loss in (term, expected[name]))
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(torch.zeros(1) if a is None else a, torch.zeros(1) if b is None else b)


def test_labelled_items_are_those_with_labels_and_only_others_are_paired():
    method, batch = training()
    for name, is_reached in (("classes", (True, False)), ("pairs", (False, True)), ("consistency", (True, True))):
        (gradient,) = torch.autograd.grad(method.losses(batch)[name], batch.x)
        assert (gradient[:N_LABELLED].any().item(), gradient[N_LABELLED:].any().item()) == is_reached, name


@pytest.mark.parametrize(("done", "share"), [(0.0, math.exp(-5)), (0.4, 1.0), (0.9, 1.0)])
def test_the_weight_of_consistency_rises_to_its_peak_and_stays(done, share):
    method, batch = training(done=done)
    peak = method.losses(training(done=1.0)[1])["consistency"]
    torch.testing.assert_close(method.losses(batch)["consistency"], share * peak)


def test_closed_forms():
    uniform, similar = torch.full((6, 5), 0.2), torch.eye(6, dtype=torch.bool)
    expected = -(6 * math.log(0.2) + 30 * math.log(0.8)) / 36
    assert pairwise_bce(uniform, uniform, similar).item() == pytest.approx(expected)
    assert pairwise_bce(torch.eye(6), torch.eye(6), similar).item() == pytest.approx(0, abs=1e-6)
    assert consistency(uniform, uniform).item() == 0
    assert consistency(torch.eye(2), torch.eye(2).flip(0)).item() == 1


@pytest.mark.parametrize("k", [1, 2, 3, 5, 20])
def test_pairs_are_equal_sets_of_the_largest_features(k):
    f = torch.relu(normal(40, 6))
    f[7] = f[30]
    f[8] = 0.0  # all equal: the first ones count
    expected = [[strongest(a, k) == strongest(b, k) for b in f] for a in f]
    assert RankStats(n_ranked=k).pairs(f).tolist() == expected


# The network


def test_scores_are_those_of_the_head_over_all_classes_in_the_order_of_classes():
    method, batch = training()
    net = method.network_
    scores = net.heads["all"](net.trunk(batch.x))
    assert torch.equal(method.logits(batch.x), scores)
    net.order.copy_(torch.tensor([3, 0, 4, 1, 2]))
    assert torch.equal(method.logits(batch.x), scores[:, [3, 0, 4, 1, 2]])


@pytest.mark.parametrize("cls", [RankStats, NCL])
@pytest.mark.parametrize("clean_pairs", [True, False])
def test_pairs_are_found_on_the_clean_view_of_a_fit_if_that_is_set(cls, clean_pairs):
    toy, seen = blobs(3, 2, n_each=20, D=8), []

    class Watched(cls):
        def losses(self, batch):
            seen.append(batch)
            return super().losses(batch)

    model = Watched(**QUICK, epochs=1, n_novel=2, clean_pairs=clean_pairs).fit(toy.x, toy.labels, progress=False)
    batch = seen[0]
    assert (batch.clean is not None) == clean_pairs
    if clean_pairs:
        expected = model.tower_.features(torch.from_numpy(toy.x[batch.rows.numpy()]))
        torch.testing.assert_close(batch.clean, expected)
        assert not torch.isclose(batch.clean, batch.x).all()


@pytest.mark.parametrize("seed", [2, 5])
def test_diagnostics_count_pairs_of_different_items(seed):
    method, batch = training()
    batch = replace(batch, x=normal(N, F, seed=seed))
    f = torch.relu(method.network_.trunk(batch.x)).detach()
    sets = [strongest(row, 1) for row in f]

    def pairs(items):
        return [(i, j) for i, j in product(items, items) if i != j and sets[i] == sets[j]]

    found = method.diagnostics(batch, None)
    assert found["positives_per_anchor"] == pytest.approx(len(pairs(range(N_LABELLED, N))) / (N - N_LABELLED))
    labelled = pairs(range(N_LABELLED))
    right = [(i, j) for i, j in labelled if GIVEN[i] == GIVEN[j]]
    assert found["pair_recall"] == pytest.approx(len(right) / 4)
    expected = len(right) / len(labelled) if labelled else math.nan
    assert found["pair_precision"] == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("cls", [RankStats, NCL])
def test_the_outputs_are_matched_to_the_seen_classes_at_the_end(cls):
    toy = blobs(3, 2, n_each=20, D=8)
    method = cls(**QUICK, epochs=10, n_novel=2, learning_rate=0.01).fit(toy.x, toy.labels, progress=False)
    features = method.tower_.features(torch.from_numpy(toy.x))
    scores = method.network_.heads["all"](method.network_.trunk(features))
    known = toy.labels >= 0
    said = scores.argmax(dim=1).numpy()[known]

    def n_right(order) -> int:
        return int((np.array(order)[toy.labels[known]] == said).sum())

    order = method.network_.order.tolist()
    assert n_right(order) == max(map(n_right, permutations(range(5), 3))) > n_right(range(5))


@pytest.mark.parametrize(("steps_per_epoch", "expected"), [(1, 1200), (7, 172), (120, 10), (500, 10)])
def test_a_fit_has_1200_steps_but_at_least_ten_epochs(steps_per_epoch, expected):
    assert RankStats().n_epochs(steps_per_epoch) == expected
    assert RankStats(epochs=3).n_epochs(steps_per_epoch) == 3


# Toy data


@pytest.mark.parametrize("cls", [RankStats, NCL])
def test_classes_are_found_where_k_means_on_features_fails(cls):
    toy = blobs(6, 2, n_each=60, spread=0.1, D=8)
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(len(toy.x), 3)) * 0.6  # larger than the distances of classes
    x = np.concatenate([toy.x, noise], axis=1).astype(np.float32)
    hidden, is_novel = toy.labels < 0, toy.targets >= 6

    def accuracy(clusters) -> float:
        return agreement(clusters[hidden].tolist(), toy.targets[hidden], is_novel[hidden]).acc_joint.all

    plain = accuracy(kmeans(x, 8, seed=0, n_starts=5, progress=False).assignment)
    method = cls(**{**QUICK, "start_steps": 100, "batch_size": 64, "epochs": 30, "n_novel": 2, "width": 48})
    method.fit(x, toy.labels, progress=False)
    found = accuracy(kmeans(method.embed(x).numpy(), 8, seed=0, n_starts=5, progress=False).assignment)
    said = accuracy(method.predict(x))
    assert plain < 0.7
    assert found > plain + 0.2
    assert said > plain + 0.1
