"""Whitening within classes against loops and closed forms; how much of it hidden classes ask for."""

import pytest
import torch
from torch import Tensor

from combemb.backbones.whitening import (
    RIDGES,
    Scatter,
    _mean_precision,
    choose_ridge,
    eigh,
    scatter_of_neighbours,
    scatter_within,
    whitening,
)
from combemb.data.labels import read_labels
from tests.reference import naive


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def membership_of(classes: list[list[int]], n_classes: int) -> Tensor:
    return torch.tensor([[(c in own) / len(own) for c in range(n_classes)] for own in classes], dtype=torch.float64)


# Scatter


@pytest.mark.parametrize(
    "classes",
    [[[i % 3] for i in range(12)], [[i % 3, 3] if i % 4 == 0 else [i % 3] for i in range(12)]],
    ids=["one class each", "several"],
)
def test_the_scatter_within_classes_equals_the_loops(classes):
    x, n_classes = drawn(12, 4), max(c for own in classes for c in own) + 1
    found = scatter_within(x, membership_of(classes, n_classes))
    loops = naive.scatter(naive.within_classes(x.tolist(), classes))
    torch.testing.assert_close(found.matrix, torch.tensor(loops, dtype=torch.float64))
    assert found.n == 12 - n_classes


def test_a_class_without_items_changes_nothing():
    x, membership = drawn(12, 4), membership_of([[i % 3] for i in range(12)], 3)
    wide = torch.cat([membership[:, :1], torch.zeros(12, 1, dtype=torch.float64), membership[:, 1:]], dim=1)
    one, other = scatter_within(x, membership), scatter_within(x, wide)
    torch.testing.assert_close(one.matrix, other.matrix)
    assert one.n == other.n == 9


def test_classes_of_one_item_each_have_no_scatter():
    found = scatter_within(drawn(5, 4), torch.eye(5, dtype=torch.float64))
    assert (found.n, found.matrix.any().item()) == (0, False)


def test_the_scatter_of_neighbours_equals_the_loops():
    x = drawn(20, 4)
    differences = [
        [a - b for a, b in zip(x[i].tolist(), x[j].tolist(), strict=True)]
        for i, others in enumerate(naive.nearest_first(x.tolist()))
        for j in others[:3]
    ]
    found = scatter_of_neighbours(x, seed=0)
    torch.testing.assert_close(found.matrix, torch.tensor(naive.scatter(differences), dtype=torch.float64))
    assert found.n == 60


@pytest.mark.parametrize("n", [2, 3])
def test_fewer_items_than_neighbours_are_all_neighbours(n):
    x = drawn(n, 4)
    differences = [(x[i] - x[j]).tolist() for i in range(n) for j in range(n) if i != j]
    expected = torch.tensor(naive.scatter(differences), dtype=torch.float64)
    torch.testing.assert_close(scatter_of_neighbours(x, seed=0).matrix, expected)


def test_neighbours_show_the_variation_within_classes_without_labels():
    """A direction in which classes differ and their items do not: it has much of all variance, but none of theirs."""
    classes = torch.arange(300) % 5
    x = 30 * drawn(5, 6)[classes] + drawn(300, 6, seed=1) * torch.tensor([3.0, 2.0, 1.0, 1.0, 0.5, 0.1])
    labelled = scatter_within(x, torch.eye(5, dtype=torch.float64)[classes]).matrix
    all_of_it, within, near = (
        m.diagonal() / m.trace() for m in (torch.cov(x.T), labelled, scatter_of_neighbours(x, seed=0).matrix)
    )
    assert all_of_it[5] > 0.05
    assert within[5] < near[5] < 0.01
    assert near.argmax() == within.argmax() == 0


# Shrinking


def test_a_scatter_is_shrunk_to_the_prior_by_the_number_of_its_differences():
    """Both at trace F; 6 differences against F = 2 make weights 3/4 and 1/4."""
    own = Scatter(torch.diag(torch.tensor([3.0, 1.0])), 6)
    prior = Scatter(torch.diag(torch.tensor([0.0, 10.0])), 100)
    expected = torch.diag(torch.tensor([0.75 * 1.5 + 0.25 * 0.0, 0.75 * 0.5 + 0.25 * 2.0]))
    torch.testing.assert_close(own.shrunk_to(prior), expected)
    torch.testing.assert_close(Scatter(7 * own.matrix, 6).shrunk_to(prior), expected)  # sizes do not matter


def test_without_any_variation_the_other_scatter_counts_alone():
    nothing, own = Scatter(torch.zeros(2, 2), 0), Scatter(torch.diag(torch.tensor([3.0, 1.0])), 6)
    expected = torch.diag(torch.tensor([1.5, 0.5]))
    torch.testing.assert_close(nothing.shrunk_to(own), expected)
    torch.testing.assert_close(own.shrunk_to(nothing), expected)
    assert not nothing.shrunk_to(nothing).any()


# Whitening


@pytest.mark.parametrize("ridge", [0.1, 1.0, 10.0])
def test_whitening_makes_the_scatter_with_its_ridge_the_unit_matrix(ridge):
    root = drawn(6, 6)
    scatter = root @ root.T
    white = whitening(scatter, ridge)
    eye = torch.eye(6, dtype=torch.float64)
    torch.testing.assert_close(white.T @ (scatter + ridge * eye) @ white, eye)


def test_a_scatter_of_zero_is_scaled_only():
    torch.testing.assert_close(whitening(torch.zeros(3, 3), 4.0).abs(), torch.eye(3) / 2)


def test_eigenvectors_are_found_another_way_if_the_first_fails(monkeypatch):
    matrix = drawn(8, 8)
    matrix = matrix + matrix.T
    values, _ = eigh(matrix)

    def fail(_):
        raise RuntimeError("failed to converge")

    monkeypatch.setattr(torch.linalg, "eigh", fail)
    again, vectors = eigh(matrix)
    torch.testing.assert_close(again, values)
    torch.testing.assert_close(vectors @ torch.diag(again) @ vectors.T, matrix)


# How much


def ridge_for(x: Tensor, classes: Tensor, seed: int = 0) -> float:
    order = torch.linalg.eigh(torch.cov(x.T)).eigenvectors.flip(-1)
    x = (x - x.mean(dim=0)) @ order
    return choose_ridge(x, read_labels(classes.numpy(), len(x)), scatter_of_neighbours(x, seed), seed)


@pytest.mark.parametrize("seed", range(3))
def test_variation_in_a_few_directions_beside_those_of_the_classes_asks_for_strong_whitening(seed):
    classes = torch.arange(160) % 8
    x = drawn(8, 20, seed=seed)[classes] + 0.3 * drawn(160, 20, seed=seed + 10)
    x = torch.cat([8 * drawn(160, 3, seed=seed + 20), x], dim=1)
    assert ridge_for(x, classes, seed) == min(RIDGES)


@pytest.mark.parametrize("seed", range(3))
def test_equal_variation_in_all_directions_asks_for_no_strong_whitening(seed):
    classes = torch.arange(160) % 8
    x = drawn(8, 20, seed=seed)[classes] + drawn(160, 20, seed=seed + 10)
    assert ridge_for(x, classes, seed) >= RIDGES[0]


@pytest.mark.parametrize("seed", range(3))
def test_classes_that_differ_where_their_items_vary_ask_for_weak_whitening(seed):
    """Sizes s of directions within classes, and multiples of s^4 between them: the widest directions tell most."""
    classes = torch.arange(160) % 8
    size = torch.logspace(0.6, -0.7, 20, dtype=torch.float64)
    x = 0.02 * size**4 * drawn(8, 20, seed=seed)[classes] + size * drawn(160, 20, seed=seed + 10)
    assert ridge_for(x, classes, seed) > RIDGES[0]


@pytest.mark.parametrize("n_classes", [1, 2, 3])
def test_with_too_few_classes_to_hide_some_the_first_ridge_is_taken(n_classes):
    classes = torch.arange(60) % n_classes
    x = torch.cat([8 * drawn(60, 3), drawn(n_classes, 20, seed=1)[classes] + 0.3 * drawn(60, 20, seed=2)], dim=1)
    assert ridge_for(x, classes) == RIDGES[0]


def test_items_of_several_classes_take_the_first_ridge():
    table = (drawn(60, 6, seed=3) > 0.5).float()
    table[:, 0] = 1
    x = drawn(60, 5)
    assert choose_ridge(x, read_labels(table.numpy(), 60), scatter_of_neighbours(x, 0), 0) == RIDGES[0]


def test_a_single_item_per_class_leaves_nothing_to_compare():
    assert ridge_for(drawn(10, 5), torch.arange(10)) == RIDGES[0]


def test_the_precision_of_hidden_items_equals_the_loops():
    x, classes, queries = drawn(20, 4), torch.arange(20) % 6, torch.tensor([3, 7, 19, 0])
    classes[19] = 9  # alone in its class: not counted
    order = naive.nearest_first(x.tolist())
    precisions = []
    for query in queries[[0, 1, 3]].tolist():
        hits = [rank for rank, j in enumerate(order[query], start=1) if classes[j] == classes[query]]
        precisions.append(naive.mean([n / rank for n, rank in enumerate(hits, start=1)]))
    assert float(_mean_precision(x, classes, queries)) == pytest.approx(naive.mean(precisions), rel=1e-6)
