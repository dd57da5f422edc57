"""SSDH: the graph, the pseudo-label pairs and the four terms with their gradients against loops."""

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from combemb.data.labels import same_class
from combemb.learning.batches import Batch
from combemb.learning.objectives.triplets import triplets
from combemb.methods import ssdh
from combemb.methods.ssdh import (
    SSDH,
    HashAndClassLayers,
    class_loss,
    contrastive,
    graph_pairs,
    pseudo_label_pairs,
)
from combemb.system.machine import seeded

N_LABELLED, N, F, C, BITS = 7, 12, 6, 3, 4
ONE = torch.tensor([0, 1, 2, 0, 1, 2, 0, -1, -1, -1, -1, -1])
SEVERAL = torch.tensor(
    [[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 0, 0], *[[-1.0] * 3] * 5]
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


# The layers


@pytest.mark.parametrize("hidden", [0, 5])
def test_bits_and_scores_come_from_parallel_layers(hidden):
    with seeded(0):
        network = HashAndClassLayers(F, C, BITS, hidden).double().eval()
    x = normal(N, F)
    below = torch.relu(x @ network.fc7[0].weight.T + network.fc7[0].bias) if hidden else x
    h, scores = network.layers(x)
    torch.testing.assert_close(h, 1 / (1 + torch.exp(-(below @ network.hash.weight.T + network.hash.bias))))
    torch.testing.assert_close(scores, below @ network.classify.weight.T + network.classify.bias)
    torch.testing.assert_close(network(x), 2 * h - 1)


def test_the_hash_layer_starts_as_in_the_release_and_fc7_has_dropout():
    with seeded(0):
        network = HashAndClassLayers(200, C, 48, 100)
    assert network.hash.weight.std().item() == pytest.approx(0.005, rel=0.05)
    assert (network.hash.bias == 0.1).all()
    assert network.fc7[2].p == 0.5


# The graph


@pytest.mark.parametrize(
    ("B", "near", "far"),
    [
        (128, range(1, 9), range(120, 124)),  # the release's
        (256, range(1, 9), range(240, 244)),
        (64, range(1, 9), range(60, 64)),
        (20, range(1, 9), range(18, 20)),
        (8, range(1, 7), range(7, 8)),
        (2, range(1, 2), range(1, 2)),
    ],
)
def test_neighbours_in_the_graph_have_the_ranks_of_the_release(B, near, far):
    h = normal(B, 10).sigmoid()
    ranks = []  # of each item for each item, by sorting in a loop
    for i in range(B):
        rising = sorted((j for j in range(B) if j != i), key=lambda j: math.dist(h[i].tolist(), h[j].tolist()))
        ranks.append({j: rank + 1 for rank, j in enumerate(rising)} | {i: 0})
    found = [set(), set()]
    with seeded(0):
        for _ in range(10 if B >= 64 else 60):
            for part, drawn in zip(found, graph_pairs(h, 8, 0.94, 4), strict=True):
                assert drawn.shape == (B,)
                part |= {ranks[i][j] for i, j in enumerate(drawn.tolist())}
    assert [set(near), set(far)] == found


def test_an_item_is_never_its_own_neighbour_even_among_equal_ones():
    h = torch.zeros(16, 3)
    with seeded(0):
        for _ in range(50):
            near, far = graph_pairs(h, 8, 0.94, 4)
            assert (near != torch.arange(16)).all()
            assert (far != torch.arange(16)).all()


# Pseudo-labels


def naive_pseudo(scores: Tensor, labels: Tensor, n: int) -> set[tuple[int, int, int]]:
    """All (anchor, positive, negative), item by item as the method's text has them."""
    rows, B = scores.tolist(), len(scores)
    best = [row.index(max(row)) for row in rows]
    worst = [row.index(min(row)) for row in rows]

    def has(j: int, c: int) -> bool:
        if j >= n:
            return best[j] == c
        return labels[j].item() == c if labels.ndim == 1 else labels[j, c].item() == 1

    found = set()
    for i in range(n, B):
        positive = [j for j in range(B) if j != i and has(j, best[i]) and not has(j, worst[i])]
        negative = [j for j in range(B) if has(j, worst[i]) and not has(j, best[i])]
        found |= {(i, j, k) for j, k in product(positive, negative)}
    return found


@pytest.mark.parametrize("labels", [ONE, SEVERAL])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_all_pairs_that_the_pseudo_labels_allow_are_drawn_and_no_others(labels, seed):
    scores, found = normal(N, C, seed=seed), set()
    allowed = naive_pseudo(scores, labels, N_LABELLED)
    with seeded(0):
        for _ in range(300):
            drawn = list(zip(*(p.tolist() for p in pseudo_label_pairs(scores, labels, N_LABELLED)), strict=True))
            assert [i for i, _, _ in drawn] == sorted({i for i, _, _ in allowed})
            found |= set(drawn)
    assert found == allowed
    assert found


def test_anchors_without_both_are_left_out():
    labels = torch.tensor([0, 0, -1, -1])
    scores = torch.tensor(
        [[0.0, 0, 0], [0, 0, 0], [3, 2, 1], [1, 3, 2]]
    )  # class 2 has no item; the last has no positive
    assert [part.tolist() for part in pseudo_label_pairs(scores, labels, 2)] == [[], [], []]


# The terms


def test_the_contrastive_form_has_its_margin_on_the_plain_distance():
    near, far = torch.tensor([1.0, 4.0, 0.0]), torch.tensor([4.0, 9.0, 0.25])
    assert contrastive(near, far, 2.5).item() == pytest.approx((1 + 0.25 + 4 + 0 + 0 + 4) / 2 / 3)
    assert contrastive(near[:0], far[:0], 2.5).item() == 0


def test_equal_items_have_finite_gradients():
    far = torch.zeros(2, requires_grad=True)
    contrastive(torch.zeros(2), far, 2.5).backward()
    assert far.grad.isfinite().all()


def test_the_class_loss_is_the_cross_entropy_or_the_binary_one():
    scores, n = normal(N_LABELLED, C), N_LABELLED
    p = scores.exp() / scores.exp().sum(dim=1, keepdim=True)
    expected = sum(-math.log(p[i, ONE[i]]) for i in range(n)) / n
    assert class_loss(scores, ONE[:n]).item() == pytest.approx(expected)
    s = scores.sigmoid()
    expected = sum(-math.log(s[i, c] if SEVERAL[i, c] == 1 else 1 - s[i, c]) for i, c in product(range(n), range(C)))
    assert class_loss(scores, SEVERAL[:n].double()).item() == pytest.approx(expected / n)


def training(labels: Tensor, seen: list[bool] | None = None, **settings: float) -> tuple[SSDH, Batch]:
    """A method amid training; distances are as large as the margins."""
    method = SSDH(bits=BITS, hidden=0, **settings)
    method.tower_ = torch.nn.Module()
    with seeded(1):
        method.tower_.network = network = method.network(F, labels.shape[1] if labels.ndim == 2 else C, 0).double()
    torch.nn.init.normal_(network.hash.weight, generator=torch.Generator().manual_seed(4))
    method.scratch.seen = torch.tensor(seen or [True] * C)
    x = normal(N, F, seed=3).requires_grad_()
    labels = labels.double() if labels.ndim == 2 else labels
    return method, Batch(torch.arange(N), x, torch.full_like(x, torch.nan), labels, N_LABELLED)


def recorded(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[list, list]]:
    """What the three ways to draw are given and return from now on."""
    calls = {}
    for name, real in ((part.__name__, part) for part in (triplets, graph_pairs, pseudo_label_pairs)):

        def call(*given, name=name, real=real):
            out = real(*given)
            calls[name] = given[:-1], [part.tolist() for part in out]  # without the generator
            return out

        monkeypatch.setattr(ssdh, name, call)
    return calls


@pytest.mark.parametrize("labels", [ONE, SEVERAL])
def test_the_terms_and_their_gradients_are_those_of_the_formulas(labels, monkeypatch):
    calls = recorded(monkeypatch)
    method, batch = training(labels, margin=0.2, pair_margin=1.1, graph_weight=0.3, pseudo_weight=0.2)
    with seeded(0):
        terms = method.losses(batch)
    h, scores = method.network_.layers(batch.x)

    def squared(i: int, j: int) -> Tensor:
        return sum((h[i, b] - h[j, b]) ** 2 for b in range(BITS))

    def pulled(i: int, j: int, k: int) -> Tensor:
        return (squared(i, j) + torch.relu(1.1 - squared(i, k).sqrt()) ** 2) / 2

    (similar,), ranked = calls["triplets"]
    labelled = batch.labels[:N_LABELLED]
    assert torch.equal(similar, same_class(labelled, labelled))
    (given_h, *options), (near, far) = calls["graph_pairs"]
    assert torch.equal(given_h, h)
    assert not given_h.requires_grad
    assert options == [8, 0.94, 4]
    (given_scores, _, n), pseudo = calls["pseudo_label_pairs"]
    assert torch.equal(given_scores, scores)
    assert not given_scores.requires_grad
    assert n == N_LABELLED
    rank = [0.5 * torch.relu(0.2 + squared(i, j) - squared(i, k)) for i, j, k in zip(*ranked, strict=True)]
    graph = [pulled(i, near[i], far[i]) for i in range(N)]
    labelling = [pulled(i, j, k) for i, j, k in zip(*pseudo, strict=True)]
    assert 0 < sum(value.item() > 0 for value in rank) < len(rank) == N_LABELLED
    assert len(labelling) > 0
    expected = {
        "ranking": sum(rank) / len(rank),
        "graph": 0.3 * sum(graph) / N,
        "pseudo_labels": 0.2 * sum(labelling) / len(labelling),
        "classes": class_loss(scores[:N_LABELLED], labelled),
    }
    assert terms.keys() == expected.keys()
    of = [batch.x, *method.network_.parameters()]
    for name, term in terms.items():
        torch.testing.assert_close(term, expected[name])
        options = {"retain_graph": True, "allow_unused": True}
        for found, wanted in zip(
            torch.autograd.grad(term, of, **options), torch.autograd.grad(expected[name], of, **options), strict=True
        ):
            assert (found is None) == (wanted is None)
            if found is not None:
                torch.testing.assert_close(found, wanted)


def test_ranking_and_classes_learn_from_labelled_items_alone():
    method, batch = training(ONE)
    with seeded(0):
        terms = method.losses(batch)
    for name, reached in (("ranking", False), ("classes", False), ("graph", True), ("pseudo_labels", True)):
        (gradient,) = torch.autograd.grad(terms[name], batch.x, retain_graph=True)
        assert gradient[N_LABELLED:].any() == reached, name


@pytest.mark.parametrize("empty", [0, 1, 3])
def test_a_column_without_any_label_is_never_a_pseudo_label(empty, monkeypatch):
    calls = recorded(monkeypatch)
    columns = SEVERAL.tolist()
    widened = torch.tensor([[*row[:empty], -1.0 if row[0] < 0 else 0.0, *row[empty:]] for row in columns])
    method, batch = training(widened, seen=[c != empty for c in range(C + 1)])
    with seeded(0):
        terms = method.losses(batch)
    (scores, labels, _), drawn = calls["pseudo_label_pairs"]
    assert scores.shape == labels.shape == (N, C)
    assert torch.equal(labels, SEVERAL.double())
    assert len(drawn[0]) > 0
    gradient = torch.autograd.grad(terms["classes"], method.network_.classify.bias)[0]
    assert (gradient == 0).tolist() == [c == empty for c in range(C + 1)]


def test_a_fit_finds_the_columns_that_have_labels(monkeypatch):
    seen, real = [], SSDH.losses
    monkeypatch.setattr(SSDH, "losses", lambda self, batch: seen.append(self.scratch.seen) or real(self, batch))
    x, labels = normal(40, F).float().numpy(), torch.cat([SEVERAL[:7].repeat(4, 1), torch.full((12, 3), -1.0)])
    labels = torch.cat([labels, labels.clamp(max=0)], dim=1)  # three more columns, without labels
    SSDH(bits=12, epochs=1, device="cpu", hidden=4).fit(x, labels.numpy(), progress=False)
    assert seen
    assert all(mask.tolist() == [True] * 3 + [False] * 3 for mask in seen)


def test_the_defaults_are_those_of_the_release():
    method = SSDH()
    assert (method.batch_size, method.n_near, method.n_far, method.far_share) == (128, 8, 4, 0.94)
    assert (method.margin, method.pair_margin, method.graph_weight, method.pseudo_weight) == (1.0, 2.5, 0.1, 0.1)
