"""Neighbours among all items, against loops: smoothed features, mutual lists, sizes of classes."""

import numpy as np
import pytest
import torch
from torch import Tensor

from combemb.learning.objectives.neighbours import (
    logistic_line,
    mutual_lists,
    shares_of_items,
    sizes_by_density,
    smoothed,
    uneven_shares_of_items,
)
from combemb.system.arrays import unit
from tests.reference import naive


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Smoothing


@pytest.mark.parametrize("n_neighbours", [1, 3, 10, 12, 50])
def test_smoothed_items_equal_the_loops(n_neighbours):
    x, landmarks = drawn(15, 4), 3 * drawn(12, 4, seed=1)
    loops = torch.tensor(naive.smoothed(x.tolist(), landmarks.tolist(), n_neighbours), dtype=torch.float64)
    torch.testing.assert_close(smoothed(x, landmarks, n_neighbours), loops)


def test_an_item_alone_stands_for_itself():
    x = drawn(15, 4)
    torch.testing.assert_close(smoothed(x, x, 1), unit(x))


def test_fewer_items_than_neighbours_are_all_averaged():
    x = drawn(5, 4) + 1
    torch.testing.assert_close(smoothed(x, x, 10), unit(unit(x).mean(dim=0)).expand(5, 4))


def test_rows_taken_some_at_a_time_are_the_same():
    x, landmarks = drawn(15, 4), drawn(12, 4, seed=1)
    torch.testing.assert_close(smoothed(x, landmarks, 3, n_rows=4), smoothed(x, landmarks, 3))


def test_smoothing_brings_items_of_a_kind_together():
    """The mean of k neighbours has 1/k of an item's variance, so kinds are told apart where items are not."""
    kinds = torch.arange(300) % 5
    x = 2.5 * drawn(5, 16)[kinds] + 2 * drawn(300, 16, seed=1)
    same = kinds[:, None] == kinds

    def margin(features: Tensor) -> float:
        cosines = unit(features) @ unit(features).T
        return float((cosines[same].mean() - cosines[~same].mean()) / cosines[~same].std())

    assert margin(smoothed(x, x, 10)) > 1.3 * margin(x)


# Lists of mutual neighbours


def as_sets(lists: Tensor) -> list[set[int]]:
    """The neighbours of each item; no item is listed twice."""
    found = [row[row >= 0].tolist() for row in lists]
    assert all(len(set(own)) == len(own) for own in found)
    return [set(own) for own in found]


@pytest.mark.parametrize("most", [1, 3, 7, 100])
@pytest.mark.parametrize("n_rows", [4, 2_048])
def test_mutual_lists_equal_the_loops(most, n_rows):
    x = unit(drawn(25, 4))
    ranks = torch.arange(25) % most + 1
    found = mutual_lists(x, ranks, n_rows)
    assert found.shape == (25, min(int(ranks.max()), 24))
    assert as_sets(found) == naive.mutual_neighbours(x.tolist(), ranks.tolist())


def test_lists_are_mutual_and_without_the_item_itself():
    lists = as_sets(mutual_lists(unit(drawn(40, 3)), torch.arange(40) % 6 + 1))
    assert all(i in lists[j] for i, own in enumerate(lists) for j in own)
    assert all(i not in own for i, own in enumerate(lists))
    assert any(lists)


def test_of_two_items_each_is_the_neighbour_of_the_other():
    assert mutual_lists(unit(drawn(2, 3)), torch.tensor([5, 5])).tolist() == [[1], [0]]
    assert mutual_lists(unit(drawn(1, 3)), torch.tensor([5])).shape == (1, 0)


def test_copies_of_one_item_are_listed_without_harm():
    x = unit(drawn(1, 3)).expand(10, 3)
    lists = as_sets(mutual_lists(x, torch.full((10,), 3)))
    assert all(i in lists[j] and j != i for i, own in enumerate(lists) for j in own)


# Sizes of classes


def membership_of(classes: list[list[int]], n_classes: int) -> Tensor:
    return torch.tensor([[(c in own) / len(own) for c in range(n_classes)] for own in classes], dtype=torch.float64)


@pytest.mark.parametrize(
    "classes",
    [
        [[0], [0], [0], [1], [1], [2]],
        [[0], [0, 1], [0], [1, 2], [1], [2]],
        [[0], [1], [2]],
    ],
    ids=["one class each", "several", "one item per class"],
)
def test_the_shares_of_items_equal_the_loops(classes):
    x, labelled = unit(drawn(20, 4)), torch.tensor([17, 2, 5, 11, 0, 8][: len(classes)])
    membership = membership_of(classes, 3)
    found = shares_of_items(x, labelled, membership, membership.mean(dim=0))
    own = dict(zip(labelled.tolist(), classes, strict=True))
    torch.testing.assert_close(found, torch.tensor(naive.item_shares(x.tolist(), own), dtype=torch.float64))


def test_an_item_has_its_own_class_if_it_is_known_and_the_nearest_one_otherwise():
    x = unit(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.1, 0.9], [1.0, 0.1]]))
    labelled, membership = torch.tensor([0, 1, 4]), torch.eye(2)[[0, 1, 1]]  # the last is labelled, but of class 1
    found = shares_of_items(x, labelled, membership, torch.tensor([0.9, 0.1]))
    torch.testing.assert_close(found, torch.tensor([0.9, 0.1, 0.9, 0.1, 0.1]))


def test_the_line_is_that_of_scikit_learn():
    from sklearn.linear_model import LogisticRegression

    x, weights = drawn(200, 1)[:, 0].double(), torch.rand(200, generator=torch.Generator().manual_seed(1)) + 0.1
    y = (x + 0.7 * drawn(200, 2)[:, 1] > 0.3).double()
    expected = LogisticRegression(C=1e3, tol=1e-10).fit(x[:, None].numpy(), y.numpy(), weights.numpy())
    slope, offset = logistic_line(x, y, weights)
    assert slope == pytest.approx(expected.coef_.item(), rel=1e-2)
    assert offset == pytest.approx(expected.intercept_.item(), rel=1e-2, abs=1e-3)


def test_separable_pairs_have_a_finite_line():
    slope, offset = logistic_line(torch.tensor([-1.0, -0.5, 0.5, 1.0]), torch.tensor([0, 0, 1, 1]), torch.ones(4))
    assert slope > 0
    assert np.isfinite([slope, offset]).all()


def pile(sizes: dict[str, int]) -> tuple[Tensor, np.ndarray]:
    """Items around an axis each, and the names of their classes."""
    names = np.repeat(list(sizes), list(sizes.values()))
    noise = torch.from_numpy(np.random.default_rng(0).normal(size=(len(names), 8)))
    centres = torch.eye(8, dtype=torch.float64)[np.unique(names, return_inverse=True)[1]]
    return unit(centres + 0.1 * noise), names


def test_the_size_of_a_class_is_known_from_the_density_of_its_items():
    """Of two labelled classes, 20 and 40 items, and one without any label, 100 items."""
    x, names = pile({"a": 20, "b": 40, "large": 100})
    labelled = torch.from_numpy(np.r_[0:10, 20:40])
    membership = torch.from_numpy(np.stack([names[labelled] == "a", names[labelled] == "b"], axis=1)).double()
    sizes = sizes_by_density(x, labelled, membership, n_rows=7)
    for name, expected in (("a", 20), ("b", 40), ("large", 100)):
        assert sizes[torch.from_numpy(names == name)].median() == pytest.approx(expected, rel=0.1)


def test_a_large_class_without_labels_has_a_large_share_among_uneven_classes():
    x, names = pile({"a": 10, "b": 60, "large": 130})
    labelled = torch.from_numpy(np.r_[0:5, 10:40])
    membership = torch.from_numpy(np.stack([names[labelled] == "a", names[labelled] == "b"], axis=1)).double()
    shares = membership.mean(dim=0)
    by_class = shares_of_items(x, labelled, membership, shares)
    found = uneven_shares_of_items(x, labelled, membership, shares)
    is_large = torch.from_numpy(names == "large")
    torch.testing.assert_close(found[labelled], by_class[labelled], rtol=0, atol=0)
    own = found[torch.from_numpy(names == "a")].median()
    assert found[is_large].median() > 2 * own
    assert found[is_large].max() == 0.5  # no more than half of a batch is near to anything
    assert (found >= 1 / 200).all()


def test_among_even_classes_density_does_not_count():
    x, names = pile({"a": 30, "b": 30, "large": 90})
    labelled = torch.from_numpy(np.r_[0:10, 30:40])
    membership = torch.from_numpy(np.stack([names[labelled] == "a", names[labelled] == "b"], axis=1)).double()
    given = x, labelled, membership, membership.mean(dim=0)
    torch.testing.assert_close(uneven_shares_of_items(*given), shares_of_items(*given), rtol=0, atol=0)
