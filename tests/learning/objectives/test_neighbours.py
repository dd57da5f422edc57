"""The features in which neighbours are searched, against loops and closed forms."""

import math

import pytest
import torch
from torch import Tensor

from combemb.backbones.feature_map import RIDGE, discriminant_map
from combemb.learning.objectives.neighbours import smoothed
from combemb.system.arrays import unit
from tests.reference import naive


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labelled_items(multi: bool = False) -> tuple[Tensor, Tensor]:
    """30 items in 6 unequal dimensions around the centres of 3 classes, and their classes as shares, (30, 3)."""
    classes = torch.arange(30) % 3
    x = 2 * drawn(3, 6)[classes] + drawn(30, 6, seed=1) * torch.tensor([3.0, 2.0, 1.0, 0.5, 0.2, 0.1])
    membership = torch.eye(3, dtype=torch.float64)[classes]
    if multi:
        membership[::4, 0] = 1  # a second class, unless it is the first
    return x, membership / membership.sum(dim=1, keepdim=True)


def classes_of(membership: Tensor) -> list[list[int]]:
    return [torch.nonzero(row)[:, 0].tolist() for row in membership]


def everyone(labelled: Tensor) -> Tensor:
    return torch.cat([labelled, drawn(25, 6, seed=2) + 1])


def scatter(labelled: Tensor, membership: Tensor) -> Tensor:
    residual = torch.tensor(naive.within_classes(labelled.tolist(), classes_of(membership)), dtype=torch.float64)
    return residual.T @ residual / len(residual)


# Directions


@pytest.mark.parametrize("multi", [False, True])
@pytest.mark.parametrize("n_features", [1, 2, 4, 6])
def test_the_discriminant_map_equals_the_loops(n_features, multi):
    x, membership = labelled_items(multi)
    found = discriminant_map(x, membership, everyone(x), n_features)
    loops = naive.discriminant_directions(x.tolist(), classes_of(membership), everyone(x).tolist(), n_features)
    loops = torch.tensor(loops, dtype=torch.float64).T
    assert found.shape == loops.shape == (6, n_features)
    torch.testing.assert_close(found @ found.T, loops @ loops.T, rtol=1e-9, atol=1e-9)  # directions have no sign


def test_the_map_whitens_within_classes_and_takes_the_widest_directions_first():
    x, membership = labelled_items()
    within = scatter(x, membership)
    found = discriminant_map(x, membership, everyone(x), 6)
    ridge = RIDGE * within.diagonal().mean() * torch.eye(6).to(within)
    torch.testing.assert_close(found.T @ (within + ridge) @ found, torch.eye(6).double())
    total = torch.cov((everyone(x) @ found).T)
    variances = total.diagonal()
    torch.testing.assert_close(total, torch.diag(variances), rtol=0, atol=1e-9)
    assert (variances[:-1] > variances[1:]).all()


def test_a_direction_that_only_tells_items_of_a_class_apart_counts_less():
    """The closed form of two axes: each is divided by the root of its variance within classes plus the mean one."""
    signs = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    x = signs * torch.tensor([5.0, 7.0])  # the first axis tells the two classes apart, the second is noise
    membership = torch.eye(2, dtype=torch.float64)[[0, 0, 1, 1]]
    found = discriminant_map(x, membership, x, 2)
    mean = 49 / 2
    expected = torch.diag(torch.tensor([1 / math.sqrt(mean), 1 / math.sqrt(49 + mean)], dtype=torch.float64))
    torch.testing.assert_close(found.abs(), expected)


def test_classes_of_one_item_each_leave_the_principal_components():
    x = drawn(30, 4) * torch.tensor([1.0, 4.0, 2.0, 3.0])
    found = discriminant_map(x[:5], torch.eye(5, dtype=torch.float64), x, 2)
    _, vectors = torch.linalg.eigh(torch.cov(x.T))
    torch.testing.assert_close(unit(found.T).abs(), vectors[:, [3, 2]].T.abs())
    lengths = found.norm(dim=0)
    torch.testing.assert_close(lengths[0], lengths[1])  # nothing to whiten by


def test_classes_of_one_item_each_are_no_harm_in_single_precision():
    x = drawn(30, 4).float()
    found = discriminant_map(x[:5], torch.eye(5), x, 3)
    assert found.isfinite().all()
    assert smoothed(x @ found, x @ found, 3).isfinite().all()


@pytest.mark.parametrize(("n_features", "expected"), [(3, 3), (6, 6), (64, 6)])
def test_there_are_no_more_directions_than_features(n_features, expected):
    x, membership = labelled_items()
    assert discriminant_map(x, membership, x, n_features).shape == (6, expected)


def test_fewer_items_than_features_have_directions_all_the_same():
    x = drawn(8, 20).float()
    found = discriminant_map(x[:4], torch.eye(2)[[0, 0, 1, 1]], x, 64)
    assert found.shape == (20, 20)
    assert found.isfinite().all()


def test_a_class_without_items_changes_nothing():
    x, membership = labelled_items()
    wide = torch.cat([membership[:, :1], torch.zeros(30, 1), membership[:, 1:]], dim=1)
    a, b = discriminant_map(x, membership, x, 3), discriminant_map(x, wide, x, 3)
    torch.testing.assert_close(a @ a.T, b @ b.T)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_cosines_do_not_depend_on_the_unit_or_the_axes_of_the_features(scale):
    x, membership = labelled_items()
    turn = scale * torch.linalg.qr(drawn(6, 6, seed=5)).Q
    one = unit(x @ discriminant_map(x, membership, everyone(x), 3))
    other = unit(x @ turn @ discriminant_map(x @ turn, membership, everyone(x) @ turn, 3))
    torch.testing.assert_close(one @ one.T, other @ other.T)


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
