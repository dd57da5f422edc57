"""DTC: assignments, targets and losses against loops; when targets change, and what the averages hold."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from combemb.learning.batches import Batch, Batches
from combemb.methods.dtc import DTC, ClusterNetwork, assignments, divergence, sharpened
from combemb.system.machine import seeded
from tests.blobs import blobs

BLOBS = blobs(3, 2, n_each=20, D=12)
SMALL = {"n_novel": 2, "epochs": 2, "batch_size": 32, "start_steps": 20, "width": 16, "device": "cpu"}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def training(progress: float = 0.5, **settings) -> tuple[DTC, Batch, Batches]:
    """A method before its first step, in double precision, and a batch of the data."""
    method = DTC(**{**SMALL, **settings})
    seen = []

    class Stop(Exception):
        pass

    def stop(batch, optimisers):
        seen.append(batch)
        raise Stop

    method.step = stop
    data = []
    real = method.on_epoch
    method.on_epoch = lambda batches, epoch: data.append(batches) or real(batches, epoch)
    kept = {}
    real_prepare = method.prepare
    method.prepare = lambda batches: real_prepare(batches) or kept.update(scratch=method.scratch)
    with pytest.raises(Stop):
        method.fit(BLOBS.x, BLOBS.labels, progress=False)
    method.scratch_ = kept["scratch"]
    method.network_.double()
    method.kept.update({name: tensor.double() for name, tensor in method.kept.items()})
    batch = seen[0]
    return method, replace(batch, x=batch.x.double(), other=batch.other.double(), fraction_done=progress), data[0]


# Assignments and targets


def test_assignments_by_hand():
    q = assignments(torch.tensor([[0.0, 3.0], [1.0, 1.0]]))
    torch.testing.assert_close(q, torch.tensor([[0.8, 0.2], [0.5, 0.5]]))


def test_targets_by_hand():
    """f = (1.3, 0.7); .64 / 1.3 against .04 / .7, and .25 / 1.3 against .25 / .7."""
    p = sharpened(torch.tensor([[0.8, 0.2], [0.5, 0.5]]))
    expected = [[0.64 * 0.7, 0.04 * 1.3], [0.25 * 0.7, 0.25 * 1.3]]
    torch.testing.assert_close(p, torch.tensor([[a / (a + b), b / (a + b)] for a, b in expected]))


def test_targets_sum_to_one_and_are_sharper_if_clusters_are_equally_large():
    q = torch.cat([normal(40, 5).softmax(dim=1).roll(k, dims=1) for k in range(5)])  # every cluster has the same sum
    p = sharpened(q)
    torch.testing.assert_close(p.sum(dim=1), torch.ones(200).double())
    assert (p.amax(dim=1) > q.amax(dim=1)).all()


def test_distances_and_assignments_are_those_of_a_loop():
    with seeded(0):
        network = ClusterNetwork(6, 7, 2, 4).double()
    torch.nn.init.normal_(network.centres)
    x = normal(5, 6)
    layer = network.heads["clusters"]
    found = network.squared_distances(x)
    for i in range(5):
        z = layer.weight @ torch.relu(network.trunk[0].weight @ x[i]) + layer.bias
        close = [1 / (1 + sum((z[d] - u[d]) ** 2 for d in range(4))) for u in network.centres]
        torch.testing.assert_close(found[i], torch.stack([1 / c - 1 for c in close]))
        torch.testing.assert_close(assignments(found)[i], torch.stack([c / sum(close) for c in close]))


def test_the_divergence_is_a_mean_over_items_and_classes():
    p, q = normal(6, 3).softmax(dim=1), normal(6, 3, seed=1).softmax(dim=1)
    loop = sum(p[i, k] * math.log(p[i, k] / q[i, k]) for i in range(6) for k in range(3)) / 18
    torch.testing.assert_close(divergence(p, q), loop)
    assert divergence(p, p).item() == pytest.approx(0)
    assert divergence(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]])).item() == pytest.approx(math.log(2) / 2)


def test_there_are_no_more_components_than_features():
    network = ClusterNetwork(3, None, 2, 5)
    assert network.centres.shape == (5, 3)
    assert network.order.tolist() == list(range(5))


# The start


def test_the_linear_layer_starts_with_the_principal_components_and_the_centres_with_k_means():
    method, _, data = training()
    net = method.network_
    hidden = torch.from_numpy(np.flatnonzero(BLOBS.labels < 0))
    with torch.no_grad():
        f = net.trunk(method.clean_features(data.items, hidden).double())
        z = net.heads["clusters"](f)
    values = torch.linalg.eigvalsh(torch.cov(f.T, correction=0)).flip(0)
    torch.testing.assert_close(z.mean(dim=0), torch.zeros(5).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.cov(z.T, correction=0), values[:5].diag(), atol=1e-4, rtol=1e-4)
    nearest = net.squared_distances(method.clean_features(data.items, hidden).double()).argmin(dim=1)
    for k in range(5):
        torch.testing.assert_close(net.centres[k].detach(), z[nearest == k].mean(dim=0), atol=1e-4, rtol=1e-4)


def test_targets_are_those_of_unlabelled_items_whatever_their_class():
    method, _, data = training()
    hidden = BLOBS.labels < 0
    assert (BLOBS.targets[hidden] < 3).any()  # seen classes are among them
    targets = method.kept["targets"]
    assert (targets[torch.from_numpy(~hidden)] == 0).all()
    clean = method.clean_features(data.items, torch.from_numpy(np.flatnonzero(hidden))).double()
    q = assignments(method.network_.squared_distances(clean)).detach()
    torch.testing.assert_close(targets[torch.from_numpy(hidden)], sharpened(q), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("most", [1, 200])
def test_many_classes_are_compared_with_a_few_items_at_a_time(most, monkeypatch):
    method, _, data = training()
    method.network_.float()
    method.kept["targets"] = method.kept["targets"].float()
    whole, n_items, real = method.kept["targets"].clone(), [], method.network_.squared_distances
    monkeypatch.setattr("combemb.methods.dtc.MAX_DIFFERENCES", most)
    method.network_.squared_distances = lambda x: n_items.append(len(x)) or real(x)
    method._refresh(data)
    assert max(n_items) == max(most // 25, 1)  # five centres of five components
    torch.testing.assert_close(method.kept["targets"], whole)


@pytest.mark.parametrize(("start_steps", "is_learned"), [(200, True), (0, False)])
def test_the_start_learns_the_labels_and_the_classifier_is_left_alone_then(start_steps, is_learned):
    method, _, data = training(start_steps=start_steps)
    known = np.flatnonzero(BLOBS.labels >= 0)
    features = method.clean_features(data.items, torch.from_numpy(known)).double()
    seen = method.network_.heads["seen"]
    found = seen(method.network_.trunk(features)).argmax(dim=1).numpy()
    assert (np.mean(found == BLOBS.labels[known]) > 0.9) == is_learned
    assert not any(parameter.requires_grad for parameter in seen.parameters())


# The losses


@pytest.mark.parametrize("variant", ["baseline", "pi", "te", "tep"])
def test_losses_and_gradients_are_those_of_loops(variant):
    method, batch, _ = training(variant=variant, labelled_share=0.4)
    n, net, K = batch.n_labelled, method.network_, 5
    assert (batch.labels[:n] >= 0).all()
    assert (batch.labels[n:] == -1).all()
    torch.nn.init.normal_(net.centres)  # gradients would vanish where targets are met
    if variant in {"te", "tep"}:
        method.kept["average"][:] = normal(*method.kept["average"].shape, seed=3).softmax(dim=1)
        method.kept["n_averaged"][::2] = 3

    def q(x: Tensor) -> Tensor:
        z = net.heads["clusters"](torch.relu(x @ net.trunk[0].weight.T + net.trunk[0].bias))
        close = torch.stack([1 / (1 + (z - net.centres[k]).square().sum(dim=1)) for k in range(K)], dim=1)
        return close / close.sum(dim=1, keepdim=True)

    first, second = q(batch.x), q(batch.other)
    divergences, squares = [], []
    for i in range(n, len(batch.x)):
        row = batch.rows[i]
        p = method.kept["targets"][row]
        divergences += [p[k] * (p[k] / first[i, k]).log() for k in range(K)]
        if variant == "pi":
            squares += [(first[i, k] - second[i, k]) ** 2 for k in range(K)]
        if variant == "te":
            n_averaged = method.kept["n_averaged"][row].item()
            past = method.kept["average"][row] / (1 - 0.6**n_averaged) if n_averaged else first[i].detach()
            squares += [(first[i, k] - past[k]) ** 2 for k in range(K)]
    expected = {"divergence": sum(divergences) / len(divergences)}
    if squares:
        expected["consistency"] = 10 * sum(squares) / len(squares)
    terms = method.losses(batch)
    assert terms.keys() == expected.keys()
    parameters = [net.centres, *net.heads["clusters"].parameters(), *net.trunk.parameters()]
    for name, term in terms.items():
        torch.testing.assert_close(term, expected[name])
        assert term.item() > 0
        for found, wanted in zip(
            torch.autograd.grad(term, parameters, retain_graph=True),
            torch.autograd.grad(expected[name], parameters, retain_graph=True),
            strict=True,
        ):
            torch.testing.assert_close(found, wanted)


def test_labelled_items_have_no_part_in_the_losses():
    method, batch, _ = training(labelled_share=0.4)
    batch.x.requires_grad_(True)
    gradient = torch.autograd.grad(sum(method.losses(batch).values()), batch.x)[0]
    assert (gradient[: batch.n_labelled] == 0).all()
    assert (gradient[batch.n_labelled :] != 0).any(dim=1).all()


def test_the_consistency_starts_when_targets_are_no_longer_fixed_and_rises_to_its_weight():
    method = DTC(fixed_share=0.2, ramp_share=0.5, consistency_weight=7.0)
    assert method.consistency(0.19) == 0
    assert method.consistency(0.2) == pytest.approx(7 * math.exp(-5))
    assert method.consistency(0.45) == pytest.approx(7 * math.exp(-5 / 4))
    assert method.consistency(0.7) == method.consistency(1.0) == pytest.approx(7)


# Averages and refreshed targets


def test_averages_are_exponential_and_corrected_for_their_start():
    method, batch, _ = training(variant="te", ensemble_momentum=0.75)
    rows = batch.rows[batch.n_labelled :][:2]
    first, second, other = (normal(2, 5, seed=seed).softmax(dim=1) for seed in range(3))
    torch.testing.assert_close(method.averaged(rows, other), other)  # nothing yet
    method._average(rows, first)
    torch.testing.assert_close(method.averaged(rows, other), first)
    method._average(rows[:1], second[:1])
    torch.testing.assert_close(
        method.averaged(rows, other), torch.stack([(0.75 * first[0] + second[0]) / 1.75, first[1]])
    )
    torch.testing.assert_close(method.kept["average"][rows[1]], 0.25 * first[1])


def test_a_step_averages_the_first_view_after_it_was_compared():
    method, batch, _ = training(variant="te")
    terms = method.losses(batch)
    assert terms["consistency"].item() == 0  # there was no average
    rows = batch.rows[batch.n_labelled :]
    with torch.no_grad():
        q = assignments(method.network_.squared_distances(batch.x[batch.n_labelled :]))
    torch.testing.assert_close(method.kept["average"][rows], 0.4 * q)
    others = np.setdiff1d(np.arange(len(BLOBS.x)), rows.numpy())
    assert (method.kept["average"][torch.from_numpy(others)] == 0).all()


def test_targets_are_fixed_first_and_refreshed_every_few_epochs_then():
    method, _, data = training(epochs=20, fixed_share=0.25, refresh_every=4)
    refreshed = []
    method._refresh = lambda _: refreshed.append(epoch)
    for epoch in range(20):
        method.on_epoch(data, epoch)
    assert refreshed == [5, 9, 13, 17]


@pytest.mark.parametrize("variant", ["pi", "te", "tep"])
def test_refreshed_targets_follow_the_network_or_the_averages(variant):
    method, _, data = training(variant=variant)
    before = method.kept["targets"].clone()
    torch.nn.init.normal_(method.network_.centres)
    method.network_.float()
    method.kept.update({name: tensor.float() for name, tensor in method.kept.items()})
    hidden = torch.from_numpy(np.flatnonzero(BLOBS.labels < 0))
    q = assignments(method.network_.squared_distances(method.clean_features(data.items, hidden))).detach()
    if variant in {"te", "tep"}:
        averaged = normal(len(hidden[::2]), 5).softmax(dim=1).float()
        method._average(hidden[::2], averaged)
    if variant == "tep":
        q[::2] = averaged
    method._refresh(data)
    assert not torch.equal(method.kept["targets"], before)
    torch.testing.assert_close(method.kept["targets"][hidden], sharpened(q), atol=1e-5, rtol=1e-4)


# Whole fits


@pytest.mark.parametrize("variant", ["baseline", "te", "tep"])
def test_a_resumed_fit_has_the_same_averages_and_targets(variant, tmp_path, monkeypatch):
    monkeypatch.setattr("combemb.learning.loop.CHECKPOINT_SECONDS", 0.0)
    settings = {**SMALL, "variant": variant, "epochs": 5, "refresh_every": 3}
    whole = DTC(**settings).fit(BLOBS.x, BLOBS.labels, progress=False)
    real = DTC.on_epoch

    def stop(self, data, epoch):
        real(self, data, epoch)
        if epoch == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(DTC, "on_epoch", stop)
    with pytest.raises(KeyboardInterrupt):
        DTC(**settings).fit(BLOBS.x, BLOBS.labels, folder=tmp_path / "run", progress=False)
    monkeypatch.setattr(DTC, "on_epoch", real)
    resumed = DTC(**settings).fit(BLOBS.x, BLOBS.labels, folder=tmp_path / "run", resume=True, progress=False)
    assert torch.equal(resumed.embed(BLOBS.x), whole.embed(BLOBS.x))
    assert torch.equal(resumed.network_.centres, whole.network_.centres)


def test_the_head_says_the_nearest_centre_in_the_order_of_the_classes():
    method = DTC(**SMALL).fit(BLOBS.x, BLOBS.labels, progress=False)
    net = method.network_
    net.order.copy_(torch.tensor([3, 0, 4, 1, 2]))
    features = method.tower_.features(torch.from_numpy(BLOBS.x))
    torch.testing.assert_close(method.logits(features), -net.squared_distances(features)[:, [3, 0, 4, 1, 2]])


def test_blobs_are_found():
    method = DTC(**{**SMALL, "epochs": 30, "start_steps": 100}).fit(BLOBS.x, BLOBS.labels, progress=False)
    found = method.predict(BLOBS.x)
    assert np.mean(found[BLOBS.targets < 3] == BLOBS.targets[BLOBS.targets < 3]) > 0.9


def test_the_defaults_are_those_of_the_paper():
    method = DTC()
    assert (method.refresh_every, method.consistency_weight, method.ensemble_momentum) == (5, 10.0, 0.6)
    assert (method.ramp_share, method.cluster_starts) == (0.05, 20)
