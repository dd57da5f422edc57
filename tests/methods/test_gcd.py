"""GCD: both contrasts with their gradients against loops, and the centres of semi-supervised k-means."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from combemb.data.labels import read_labels
from combemb.discovery.kmeans import kmeans
from combemb.learning.batches import Batch, Batches, MappedItems
from combemb.methods import gcd
from combemb.methods.gcd import GCD
from combemb.system.machine import seeded
from tests.pictures import LABELS as LABELS_OF_PICTURES
from tests.pictures import PIXELS, SEEN
from tests.toy_methods import toy_data

N_LABELLED, N, F, N_SEEN = 5, 9, 4, 2
LABELS = torch.tensor([0, 1, 1, 0, 1, -1, -1, -1, -1])


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def training(labels: Tensor = LABELS, n_labelled: int = N_LABELLED, **settings) -> tuple[GCD, Batch]:
    """A method amid training."""
    method = GCD(width=6, hidden=7, projection=3, **settings)
    method.image_input_ = None
    method.tower_ = torch.nn.Module()
    with seeded(1):
        method.tower_.network = method.network(F, N_SEEN, 2).double()
    x, other = (normal(N, F, seed=seed).requires_grad_() for seed in (2, 3))
    return method, Batch(torch.arange(N), x, other, labels, n_labelled)


# The terms


def naive_views(method: GCD, x: Tensor) -> list[Tensor]:
    """What the losses compare, layer by layer."""
    net, views = method.network_, []
    for item in x:
        h = torch.relu(net.trunk[0].weight @ item + net.trunk[0].bias)
        for layer in (net.projector[0], net.projector[2]):
            h = layer.weight @ h + layer.bias
            h = h * 0.5 * (1 + torch.erf(h / math.sqrt(2)))
        h = net.projector[4].weight @ h + net.projector[4].bias
        views.append(h / h.norm())
    return views


def naive_contrast(views: list[Tensor], positives: list[list[int]], temperature: float) -> Tensor:
    total = 0
    for i, own in enumerate(positives):
        below = sum(torch.exp(views[i] @ views[k] / temperature) for k in range(len(views)) if k != i)
        total = total - sum(torch.log(torch.exp(views[i] @ views[j] / temperature) / below) for j in own) / len(own)
    return total / len(positives)


@pytest.mark.parametrize("n_labelled", [N_LABELLED, 2])
def test_terms_and_gradients_equal_the_loops(n_labelled):
    labels = torch.where(torch.arange(N) < n_labelled, LABELS, -1)
    method, batch = training(labels, n_labelled, label_weight=0.3, temperature=0.8, label_temperature=0.2)
    terms, n = method.losses(batch), n_labelled
    first, second = (naive_views(method, x) for x in (batch.x, batch.other))
    own_class = [
        [j for j in range(2 * n) if j != i and labels[j % n] == labels[i % n]] for i in range(2 * n)
    ]  # the other view of an item included
    expected = {
        "items": 0.7 * naive_contrast(first + second, [[(i + N) % (2 * N)] for i in range(2 * N)], 0.8),
        "labels": 0.3 * naive_contrast(first[:n] + second[:n], own_class, 0.2),
    }
    assert terms.keys() == expected.keys()
    of = [batch.x, batch.other, *method.network_.parameters()]
    for name, term in terms.items():
        torch.testing.assert_close(term, expected[name])
        found, wanted = (
            torch.autograd.grad(value, of, retain_graph=True, materialize_grads=True)
            for value in (term, expected[name])
        )
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b)


def test_supcon_sees_labelled_items_alone_and_infonce_all():
    method, batch = training()
    terms = method.losses(batch)
    for name, reached in (("items", True), ("labels", False)):
        for view in (batch.x, batch.other):
            (gradient,) = torch.autograd.grad(terms[name], view, retain_graph=True)
            assert gradient[:N_LABELLED].any(dim=1).all(), name
            assert gradient[N_LABELLED:].any(dim=1).tolist() == [reached] * (N - N_LABELLED), name


def test_equal_views_give_the_logarithm_of_the_number_of_others():
    method, batch = training(label_weight=0.35)
    with torch.no_grad():
        method.network_.projector[4].weight.zero_()
        method.network_.projector[4].bias.fill_(1.0)
    terms = method.losses(batch)
    assert terms["items"].item() == pytest.approx(0.65 * math.log(2 * N - 1))
    assert terms["labels"].item() == pytest.approx(0.35 * math.log(2 * N_LABELLED - 1))


# The centres


def fitted(labels: np.ndarray | None = None, **settings) -> tuple[GCD, np.ndarray, np.ndarray]:
    x, own = toy_data()
    labels = own if labels is None else labels
    small = {"n_novel": 2, "epochs": 3, "device": "cpu", "batch_size": 64, "hidden": 16, "projection": 8}
    return GCD(**{**small, **settings}).fit(x, labels), x, labels


def test_centres_are_the_means_of_the_labelled_items_of_a_class_and_of_what_is_nearest():
    method, x, labels = fitted()
    z = method.embed(x).numpy()
    assert np.allclose(np.linalg.norm(z, axis=1), 1, atol=1e-5)
    centres = method.network_.centres.numpy()
    assert centres.shape == (7, method.network_.trunk[0].out_features)
    nearest = ((z[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    members = np.where(labels >= 0, labels, nearest)  # labelled items never leave their class
    assert (np.bincount(members, minlength=7) > 0).all()
    for c in range(7):
        assert np.allclose(centres[c], z[members == c].mean(axis=0), atol=1e-4)


def test_labelled_items_that_are_wrong_stay_in_their_class():
    x, labels = toy_data()
    labels = labels.copy()
    labels[7] = 3  # an item of class 0
    method, x, _ = fitted(labels, epochs=1, learning_rate=1e-6)
    z = method.embed(x).numpy()
    nearest = method.predict(x)
    assert nearest[7] == 0
    members = np.where(labels >= 0, labels, np.where(np.vectorize(str)(nearest) == "3", 3, -1))
    assert np.allclose(method.network_.centres[3].numpy(), z[members == 3].mean(axis=0), atol=1e-4)


def test_the_best_of_several_starts_is_kept(monkeypatch):
    calls = []
    monkeypatch.setattr(gcd, "kmeans", lambda *given, **options: calls.append(options) or kmeans(*given, **options))
    method, _, _ = fitted(n_starts=4, n_iterations=9, seed=5)
    (options,) = calls
    assert (options["n_starts"], options["n_iterations"], options["seed"]) == (4, 9, 5)
    assert method.network_.centres.any(dim=1).all()


def test_logits_are_minus_the_squared_distances():
    method, x, _ = fitted()
    features = method.feature_map_(torch.from_numpy(x[:6]))
    z, centres = method.embed(x[:6]).tolist(), method.network_.centres.tolist()
    expected = [[-(math.dist(row, centre) ** 2) for centre in centres] for row in z]
    torch.testing.assert_close(method.logits(features).detach(), torch.tensor(expected), rtol=1e-4, atol=1e-4)


def test_a_sample_of_very_many_items_has_all_classes(monkeypatch):
    method, x, labels = fitted()
    rows = np.concatenate([np.flatnonzero(labels == c)[:2] for c in range(5)] + [np.flatnonzero(labels < 0)[:20]])
    monkeypatch.setattr(gcd, "counted_rows", lambda *_: rows)
    data = Batches(MappedItems(x[:, None], method.feature_map_), read_labels(labels, len(x)), 64, 0.5, 0)
    method.on_end(data)
    expected = kmeans(method.embed(x[rows]), 7, labels[rows], n_starts=20, n_iterations=200)
    torch.testing.assert_close(method.network_.centres, torch.from_numpy(expected.centres), atol=1e-4, rtol=1e-4)


def test_the_head_names_seen_classes_and_finds_novel_ones():
    method, x, labels = fitted(epochs=20)
    found, known = method.predict(x), labels >= 0
    assert (found[known] == labels[known]).mean() > 0.95
    novel = found[np.arange(140) % 7 >= 5]
    assert np.mean([str(name).startswith("novel") for name in novel]) > 0.9


def test_a_run_folder_restores_the_centres(tmp_path):
    method, x, _ = fitted()
    method.save(tmp_path)
    loaded = GCD.load(tmp_path)
    assert torch.equal(loaded.network_.centres, method.network_.centres)
    assert (loaded.predict(x) == method.predict(x)).all()


def test_a_backbone_without_weights_is_trained_by_simclr_first(tmp_path, monkeypatch):
    monkeypatch.setenv("COMBEMB_CACHE", str(tmp_path))
    small = {"backbone": "resnet18", "backbone_width": 4, "image_size": 16, "finetune": "all", "pretraining_epochs": 1}
    method = GCD(**small, n_novel=2, epochs=1, batch_size=36, n_views=2).fit(PIXELS, LABELS_OF_PICTURES)
    assert [path.name.split("-")[0] for path in (tmp_path / "pretraining").iterdir()] == ["simclr"]
    assert method.network_.centres.shape == (6, 32)  # of the backbone, without a layer
    assert set(method.predict(PIXELS)) <= {*SEEN, "novel-1", "novel-2"}


def test_the_numbers_of_the_paper_are_the_defaults():
    method = GCD()
    assert (method.label_weight, method.temperature, method.label_temperature) == (0.35, 1.0, 0.07)
    assert (method.labelled_share, method.n_iterations) == (0.5, 200)
