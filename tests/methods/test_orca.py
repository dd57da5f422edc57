"""ORCA: its margin, its three terms with their gradients against loops, and what the margin is estimated on."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from combemb.data.labels import read_labels
from combemb.learning.batches import Batch, Batches, MappedItems
from combemb.methods import orca
from combemb.methods.orca import ORCA, entropy_of_mean, margin_loss, uncertainty
from combemb.system.machine import seeded
from tests.pictures import LABELS as LABELS_OF_PICTURES
from tests.pictures import PIXELS, SEEN
from tests.toy_methods import toy_data

N_LABELLED, N, F, N_SEEN, N_NOVEL, WIDTH = 6, 11, 5, 2, 2, 7
LABELS = torch.tensor([0, 1, 1, 0, 1, 0, -1, -1, -1, -1, -1])


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


# The margin


def test_the_margin_of_a_worked_example():
    # Three unlabelled items whose largest probabilities are 0.5, 0.8 and 0.8: u = (0.5 + 0.2 + 0.2) / 3 = 0.3.
    p = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.2, 0.0, 0.8]])
    assert uncertainty(p).item() == pytest.approx(0.3)
    # One labelled item with cosines 0.2 to its own class and 0.4 to the other, s = 10: with the margin, 10 (0.2 + 0.3)
    # stands against 4, and the item counts as right.
    found = margin_loss(torch.tensor([[2.0, 4.0]]), torch.tensor([0]), 0.3, 10.0).item()
    assert found == pytest.approx(math.log(1 + math.exp(4 - 5)))
    assert found < margin_loss(torch.tensor([[2.0, 4.0]]), torch.tensor([0]), 0.0, 10.0).item()


def test_uncertainty_slows_the_seen_classes_down():
    gradients = []
    for margin in (0.0, 0.2, 0.5):
        logits = torch.tensor([[2.0, 4.0, 1.0]], requires_grad=True)
        margin_loss(logits, torch.tensor([0]), margin, 10.0).backward()
        gradients.append(logits.grad.norm().item())
    assert gradients[0] > 1.5 * gradients[1] > 3 * gradients[2]


def test_certain_and_uniform_items_are_the_ends_of_the_uncertainty():
    assert uncertainty(torch.eye(4)).item() == 0
    assert uncertainty(torch.full((3, 4), 0.25)).item() == 0.75


def fitting(**settings) -> tuple[ORCA, Batches]:
    """A method after a short fit, and the data that it was fitted on."""
    x, labels = toy_data()
    method = ORCA(**{"n_novel": 2, "epochs": 1, "device": "cpu", "batch_size": 64, **settings}).fit(x, labels)
    items = MappedItems(x[:, None], method.feature_map_)
    return method, Batches(items, read_labels(labels, len(x)), 64, 0.5, 0)


@pytest.mark.parametrize("max_margin", [0.9, 0.3])
def test_the_margin_is_estimated_on_the_clean_view_of_unlabelled_items_alone(max_margin):
    method, data = fitting(max_margin=max_margin)
    method.on_epoch(data, 1)
    x, labels = toy_data()
    features = method.feature_map_(torch.from_numpy(x))
    f = torch.relu(method.network_.trunk[0](features)).detach().numpy()
    w = method.network_.heads["classes"].weight.detach().numpy()
    missing = []
    for i in np.flatnonzero(labels < 0):
        cosines = [f[i] @ v / np.linalg.norm(f[i]) / np.linalg.norm(v) for v in w]
        raised = [math.exp(10 * c) for c in cosines]
        missing.append(1 - max(raised) / sum(raised))
    assert 0.3 < np.mean(missing) < 0.9
    assert float(method.network_.margin) == pytest.approx(min(np.mean(missing), max_margin), abs=1e-5)


def test_each_epoch_estimates_the_margin_again_and_the_run_stores_it(tmp_path):
    x, labels = toy_data()
    method = ORCA(n_novel=2, epochs=12, device="cpu", batch_size=64, learning_rate=3e-3)
    method.fit(x, labels, folder=tmp_path)
    margins = [record["margin"] for record in method.log_ if "margin" in record]
    assert 0.5 >= margins[0] > 2 * margins[-1] > 0
    assert float(ORCA.load(tmp_path).network_.margin) == margins[-1]


def test_many_unlabelled_items_are_sampled(monkeypatch):
    method, data = fitting(max_margin=0.9)
    taken, real = [], type(data.items).take
    monkeypatch.setattr(orca, "MAX_ESTIMATED", 7)
    monkeypatch.setattr(MappedItems, "take", lambda self, rows, *view: taken.append(rows) or real(self, rows, *view))
    for epoch in (0, 0, 1):
        method.on_epoch(data, epoch)
    assert [len(set(rows.tolist())) for rows in taken] == [7, 7, 7]
    assert not data.labels.is_labelled[torch.cat(taken).numpy()].any()
    assert torch.equal(taken[0], taken[1])  # so that a resumed run is the same
    assert not torch.equal(taken[0], taken[2])


# The entropy


def test_the_entropy_of_equally_full_classes_is_log_c_and_that_of_one_class_is_zero():
    assert entropy_of_mean(torch.eye(5)).item() == pytest.approx(math.log(5))
    assert entropy_of_mean(torch.full((3, 5), 0.2)).item() == pytest.approx(math.log(5))
    assert entropy_of_mean(torch.eye(5)[[2, 2, 2]]).item() == 0


def test_a_class_without_any_probability_has_a_finite_gradient():
    logits = torch.tensor([[0.0, 500.0], [0.0, 500.0]], requires_grad=True)
    entropy_of_mean(logits.softmax(dim=1)).backward()
    assert logits.grad.isfinite().all()


# The terms


def training(labels: Tensor = LABELS, n_labelled: int = N_LABELLED, **settings) -> tuple[ORCA, Batch]:
    """A method amid training with a margin of 0.2."""
    method = ORCA(width=WIDTH, **settings)
    method.image_input_ = None
    method.tower_ = torch.nn.Module()
    with seeded(1):
        method.tower_.network = network = method.network(F, N_SEEN, N_NOVEL).double()
    network.margin.fill_(0.2)
    x, other = (normal(N, F, seed=seed).requires_grad_() for seed in (2, 3))
    return method, Batch(torch.arange(N), x, other, labels, n_labelled)


def naive_terms(method: ORCA, batch: Batch, partner: list[int]) -> dict[str, Tensor]:
    """The three terms, item by item; weights are not in them."""
    net, n, C = method.network_, batch.n_labelled, N_SEEN + N_NOVEL
    w = net.heads["classes"].weight

    def cosines(x: Tensor) -> list[Tensor]:
        f = torch.relu(net.trunk[0].weight @ x + net.trunk[0].bias)
        return [(f @ w[c]) / f.norm() / w[c].norm() for c in range(C)]

    def probabilities(x: Tensor) -> list[Tensor]:
        raised = [torch.exp(10 * c) for c in cosines(x)]
        return [r / sum(raised) for r in raised]

    own = []
    for i in range(n):
        y = int(batch.labels[i])
        raised = [torch.exp(10 * (c + 0.2 * (k == y))) for k, c in enumerate(cosines(batch.x[i]))]
        own.append(-torch.log(raised[y] / sum(raised)))
    p, q = ([probabilities(x) for x in view] for view in (batch.x, batch.other))
    pairs = [-torch.log(sum(p[i][c] * q[partner[i]][c] for c in range(C))) for i in range(N)]
    means = [sum(p[i][c] for i in range(N)) / N for c in range(C)]
    entropy = -sum(m * torch.log(m) for m in means)
    return {"classes": sum(own) / n, "pairs": sum(pairs) / N, "entropy": -entropy}


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, Tensor, Tensor]]:
    """What `partners` is given and returns from now on."""
    calls, real = [], orca.partners

    def call(features, labels, _):
        calls.append((features, labels, real(features, labels)))
        return calls[-1][-1]

    monkeypatch.setattr(orca, "partners", call)
    return calls


def test_terms_and_gradients_equal_the_loops(monkeypatch):
    calls = recorded(monkeypatch)
    method, batch = training(pair_weight=0.7, entropy_weight=0.4)
    with seeded(0):
        terms = method.losses(batch)
    ((features, labels, partner),) = calls
    assert not features.requires_grad
    torch.testing.assert_close(features, method.network_(batch.x).detach())
    assert torch.equal(labels, LABELS)
    expected = naive_terms(method, batch, partner.tolist())
    of = [batch.x, batch.other, *method.network_.parameters()]
    for name, weight in (("classes", 1.0), ("pairs", 0.7), ("entropy", 0.4)):
        torch.testing.assert_close(terms[name], weight * expected[name])
        found, wanted = (
            torch.autograd.grad(value, of, retain_graph=True, materialize_grads=True)
            for value in (terms[name], weight * expected[name])
        )
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b)
    assert terms.keys() == expected.keys()


def test_partners_are_of_the_own_class_or_nearest_in_the_whole_batch(monkeypatch):
    calls = recorded(monkeypatch)
    method, batch = training()
    found = [set() for _ in range(N)]
    for seed in range(40):
        with seeded(seed):
            method.losses(batch)
        for own, j in zip(found, calls[-1][-1].tolist(), strict=True):
            own.add(j)
    f = method.network_(batch.x).detach()
    for i in range(N_LABELLED):
        assert found[i] == {j for j in range(N_LABELLED) if j != i and LABELS[j] == LABELS[i]}
    for i in range(N_LABELLED, N):
        assert found[i] == {max((j for j in range(N) if j != i), key=lambda j: float(f[i] @ f[j]))}
    assert any(j < N_LABELLED for own in found[N_LABELLED:] for j in own)


def test_the_labels_given_decide_which_items_are_labelled():
    method, batch = training()
    with seeded(0):
        terms = method.losses(batch)
    (gradient,) = torch.autograd.grad(terms["classes"], batch.x)
    assert gradient[:N_LABELLED].any(dim=1).all()
    assert not gradient[N_LABELLED:].any()
    fewer = LABELS.clone()
    fewer[3:] = -1  # an item of a seen class without its label is an unlabelled one
    method, other = training(fewer, 3)
    with seeded(0):
        (gradient,) = torch.autograd.grad(method.losses(other)["classes"], other.x)
    assert not gradient[3:].any()


def test_the_entropy_and_the_pairs_use_labelled_and_unlabelled_items():
    method, batch = training()
    with seeded(0):
        terms = method.losses(batch)
    for name in ("pairs", "entropy"):
        (gradient,) = torch.autograd.grad(terms[name], batch.x, retain_graph=True)
        assert gradient.any(dim=1).all(), name


def test_logits_are_scaled_cosines_with_the_seen_classes_first():
    method, batch = training(scale=4.0)
    f, w = method.network_(batch.x), method.network_.heads["classes"].weight
    expected = 4 * torch.nn.functional.cosine_similarity(f[:, None], w[None], dim=2)
    torch.testing.assert_close(method.logits(batch.x), expected)
    with torch.no_grad():
        w.mul_(3.0)
    torch.testing.assert_close(method.logits(batch.x), expected)


def test_the_head_names_seen_classes_and_finds_novel_ones():
    x, labels = toy_data()
    method = ORCA(n_novel=2, epochs=100, device="cpu", batch_size=64, learning_rate=0.01).fit(x, labels)
    found, known = method.predict(x), labels >= 0
    assert (found[known] == labels[known]).mean() > 0.95
    novel = found[np.arange(140) % 7 >= 5]
    assert np.mean([str(name).startswith("novel") for name in novel]) > 0.9
    assert set(novel[::2]) == {"novel-1", "novel-2"} - set(novel[1::2])


def test_a_backbone_without_weights_is_trained_by_simclr_first(tmp_path, monkeypatch):
    monkeypatch.setenv("COMBEMB_CACHE", str(tmp_path))
    small = {"backbone": "resnet18", "backbone_width": 4, "image_size": 16, "finetune": "all", "pretraining_epochs": 1}
    method = ORCA(**small, n_novel=2, epochs=1, batch_size=36, n_views=2).fit(PIXELS, LABELS_OF_PICTURES)
    assert [path.name.split("-")[0] for path in (tmp_path / "pretraining").iterdir()] == ["simclr"]
    assert method.network_.heads["classes"].weight.shape == (6, 32)  # of the backbone, without a layer
    assert set(method.predict(PIXELS)) <= {*SEEN, "novel-1", "novel-2"}


def test_the_numbers_of_the_release_are_the_defaults():
    method = ORCA()
    assert (method.scale, method.max_margin, method.pair_weight, method.entropy_weight) == (10.0, 0.5, 1.0, 1.0)
    assert method.batch_size == 512
