"""Pair rules and the calibration of gamma against loops."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from combemb.learning.objectives.pairs import (
    listed,
    mutual_neighbours,
    partners,
    rank_statistics,
    same_cluster,
    similar,
    threshold_for_precision,
)
from combemb.system.arrays import unit
from tests.reference import naive


def random_units(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return unit(torch.randn(*shape, generator=generator, dtype=torch.float64))


def as_mask(sets: list[set[int]]) -> Tensor:
    return torch.tensor([[j in own for j in range(len(sets))] for own in sets])


def some_ranks(n: int) -> Tensor:
    """How many neighbours items have: 1, 2, ... 5, and again."""
    return torch.arange(n) % 5 + 1


def some_lists(n: int) -> tuple[Tensor, Tensor]:
    """Three neighbours of each of n items among 40, some of them none, and the items' own positions."""
    generator = torch.Generator().manual_seed(3)
    return torch.randint(-1, 40, (n, 3), generator=generator), torch.randperm(40, generator=generator)[:n]


def labelled_pairs(seed: int, n: int = 24, n_classes: int = 3, spread: float = 1.5) -> tuple[Tensor, Tensor]:
    """Cosines of noisy items around class centres, and which of them share a class."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randint(n_classes, (n,), generator=generator)
    centres = torch.randn(n_classes, 6, generator=generator, dtype=torch.float64)
    x = unit(centres[classes] + spread * torch.randn(n, 6, generator=generator, dtype=torch.float64))
    return x @ x.T, classes[:, None] == classes


# Eq. 5


@pytest.mark.parametrize("threshold", [-0.5, 0.0, 0.3, 0.9])
def test_similar_equals_the_loops(threshold):
    pi = random_units(15, 4)
    mask = similar(pi, threshold)
    assert torch.equal(mask, as_mask([naive.positives(pi.tolist(), i, threshold) for i in range(15)]))
    assert 15 < int(mask.sum()) < 225  # more than the diagonal, less than all


def test_an_item_is_similar_to_itself_at_any_threshold():
    pi = random_units(15, 4)
    assert torch.equal(similar(pi, 1.5), torch.eye(15, dtype=torch.bool))


def test_a_cosine_of_exactly_gamma_is_enough():
    pi = torch.tensor([[1.0, 0.0], [0.5, 0.75**0.5]])
    assert similar(pi, torch.tensor(0.5)).all()
    assert not similar(pi, 0.5001)[0, 1]


@pytest.mark.parametrize("rows", [slice(4, None), slice(3, 9), slice(None, 5)])
def test_rows_asked_for_are_rows_of_the_whole(rows):
    x = random_units(15, 6)
    assert torch.equal(similar(x, 0.3, rows), similar(x, 0.3)[rows])
    ranks = some_ranks(15)
    assert torch.equal(mutual_neighbours(x, ranks, rows), mutual_neighbours(x, ranks)[rows])
    lists, items = some_lists(15)
    assert torch.equal(listed(lists, items, rows), listed(lists, items)[rows])
    assert torch.equal(rank_statistics(x, 2, rows), rank_statistics(x, 2)[rows])
    clusters = torch.arange(15) % 4
    assert torch.equal(same_cluster(clusters, rows), same_cluster(clusters)[rows])


# Mutual neighbours


@pytest.mark.parametrize("n_neighbours", [1, 3, 5, 50, None])
@pytest.mark.parametrize(("B", "F"), [(2, 3), (15, 4), (20, 12)])
def test_mutual_neighbours_equal_the_loops(B, F, n_neighbours):
    x = random_units(B, F)
    ranks = some_ranks(B) if n_neighbours is None else torch.full((B,), n_neighbours)
    loops = as_mask(naive.mutual_neighbours(x.tolist(), ranks.tolist()))
    assert torch.equal(mutual_neighbours(x, ranks), loops | torch.eye(B, dtype=torch.bool))


def test_an_item_has_no_more_pairs_than_its_own_rank_allows():
    ranks = some_ranks(30)
    beside = mutual_neighbours(random_units(30, 6), ranks).sum(dim=1) - 1
    assert (beside <= ranks).all()
    assert (beside > 2).any()


@pytest.mark.parametrize("n_neighbours", [1, 3, 5])
def test_mutual_neighbours_are_symmetric_and_at_most_n_beside_the_item_itself(n_neighbours):
    mask = mutual_neighbours(random_units(30, 6), torch.full((30,), n_neighbours))
    assert torch.equal(mask, mask.T)
    assert mask.diagonal().all()
    assert int(mask.sum(dim=1).max()) == n_neighbours + 1


def test_neighbourhood_that_is_not_mutual_is_no_pair():
    angles = torch.tensor([0.0, 0.1, 0.3])  # the third is nearest to the second, the second to the first
    x = torch.stack([angles.cos(), angles.sin()], dim=1)
    expected = torch.tensor([[True, True, False], [True, True, False], [False, False, True]])
    assert torch.equal(mutual_neighbours(x, torch.ones(3, dtype=torch.int64)), expected)


@settings(deadline=None, max_examples=25)
@given(items=st.permutations(range(12)))
def test_the_pairs_of_a_shuffled_batch_are_the_shuffled_pairs(items):
    x, ranks = random_units(12, 4), some_ranks(12)
    shuffled = x[items]
    assert torch.equal(mutual_neighbours(shuffled, ranks[items]), mutual_neighbours(x, ranks)[items][:, items])
    lists, rows = some_lists(12)
    assert torch.equal(listed(lists[items], rows[items]), listed(lists, rows)[items][:, items])
    expected = similar(x, 0.3)[items][:, items]
    assert torch.equal(similar(shuffled, 0.3), expected)


# Listed neighbours


def test_listed_pairs_equal_the_loops():
    lists, items = some_lists(15)
    expected = torch.tensor(
        [
            [i == j or items[j] in lists[i].tolist() or items[i] in lists[j].tolist() for j in range(15)]
            for i in range(15)
        ]
    )
    assert torch.equal(listed(lists, items), expected)
    assert 15 < int(expected.sum()) < 225


def test_items_without_neighbours_are_paired_with_themselves_only():
    assert torch.equal(listed(torch.full((4, 3), -1), torch.arange(4)), torch.eye(4, dtype=torch.bool))
    assert torch.equal(listed(torch.empty(4, 0, dtype=torch.int64), torch.arange(4)), torch.eye(4, dtype=torch.bool))


def test_neighbours_that_are_not_in_the_batch_are_no_pair():
    assert torch.equal(listed(torch.tensor([[7], [9]]), torch.tensor([3, 7])), torch.ones(2, 2, dtype=torch.bool))
    assert torch.equal(listed(torch.tensor([[8], [9]]), torch.tensor([3, 7])), torch.eye(2, dtype=torch.bool))


# Rank statistics


def largest(row: list[float], k: int) -> set[int]:
    """Positions of the k largest values; of equal ones, the first."""
    return set(sorted(range(len(row)), key=lambda d: (-row[d], d))[:k])


@pytest.mark.parametrize("k", [1, 2, 5, 9])
@pytest.mark.parametrize("n_values", [2, 4, 1000])
def test_rank_statistics_equal_sets_of_the_largest_features_with_ties(k, n_values):
    generator = torch.Generator().manual_seed(k)
    x = torch.randint(n_values, (30, 6), generator=generator).float().sub(n_values / 2).relu()  # many are 0
    sets = [largest(row, k) for row in x.tolist()]
    assert torch.equal(rank_statistics(x, k), torch.tensor([[a == b for b in sets] for a in sets]))


def test_the_order_of_the_largest_features_does_not_matter():
    x = torch.tensor([[5.0, 4, 1, 0], [4, 5, 0, 1], [5, 1, 4, 0]])
    assert rank_statistics(x, 2).tolist() == [[True, True, False], [True, True, False], [False, False, True]]
    assert rank_statistics(x, 1).tolist() == [[True, False, True], [False, True, False], [True, False, True]]
    assert rank_statistics(x, 4).all()
    assert rank_statistics(x, 100).all()


# Clusters


def test_items_of_one_cluster_are_pairs():
    clusters = [2, 0, 2, 1, 0]
    assert same_cluster(torch.tensor(clusters)).tolist() == [[a == b for b in clusters] for a in clusters]


# Partners


def test_labelled_items_get_every_other_item_of_their_class_and_unlabelled_ones_the_nearest():
    x, labels = random_units(14, 4), torch.tensor([0, 1, 0, 2, 1, 0, -1, -1, -1, -1, -1, -1, 1, -1])
    generator = torch.Generator().manual_seed(0)
    found = [set() for _ in range(14)]
    for _ in range(100):
        for own, j in zip(found, partners(x, labels, generator).tolist(), strict=True):
            own.add(j)
    for i in range(14):
        same = {j for j in range(14) if j != i and labels[j] == labels[i]}
        nearest = {max((j for j in range(14) if j != i), key=lambda j: float(x[i] @ x[j]))}
        expected = nearest if labels[i] < 0 else same or {i}  # an item alone in its class is its own partner
        assert found[i] == expected
    assert found[3] == {3}


def test_the_generator_decides_the_partners():
    x, labels = random_units(12, 4), torch.zeros(12, dtype=torch.int64)
    first, again, other = (partners(x, labels, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_partners_need_not_be_mutual():
    angles = torch.tensor([0.0, 0.1, 0.3])
    x = torch.stack([angles.cos(), angles.sin()], dim=1)
    assert partners(x, torch.tensor([-1, -1, -1])).tolist() == [1, 0, 1]


# The calibration of gamma


@pytest.mark.parametrize("precision", [0.4, 0.6, 0.8, 0.9, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_no_smaller_threshold_of_its_resolution_has_the_precision(seed, precision):
    cosines, same = labelled_pairs(seed, n=16, spread=0.8)
    found = round(float(threshold_for_precision(cosines, same, precision)) * 1000)
    assert -1000 < found < 1000
    assert naive.precision_at(cosines.tolist(), same.tolist(), found / 1000) >= precision
    for gamma in range(-1000, found):
        assert naive.precision_at(cosines.tolist(), same.tolist(), gamma / 1000) < precision


@settings(deadline=None, max_examples=60)
@given(
    n=st.integers(2, 8),
    n_classes=st.integers(1, 4),
    precision=st.sampled_from([0.0, 0.3, 0.5, 0.75, 0.9, 1.0]),
    seed=st.integers(0, 10_000),
)
def test_threshold_is_the_smallest_one_up_to_its_resolution(n, n_classes, precision, seed):
    generator = torch.Generator().manual_seed(seed)
    # Few values, in the middle of the bins, so that the bins lose nothing and ties are common.
    values = torch.randint(-10, 10, (n, n), generator=generator).double() / 10 + 0.0005
    cosines = torch.triu(values, 1) + torch.triu(values, 1).T
    cosines.fill_diagonal_(1.0)
    classes = torch.randint(n_classes, (n,), generator=generator)
    same = classes[:, None] == classes
    smallest = naive.smallest_threshold(cosines.tolist(), same.tolist(), precision)
    found = float(threshold_for_precision(cosines, same, precision))
    assert smallest - 1e-6 <= found <= smallest + 0.001 + 1e-6


def test_the_threshold_separates_what_can_be_separated():
    cosines = torch.tensor([[1.0, 0.8, 0.2], [0.8, 1.0, 0.2], [0.2, 0.2, 1.0]])
    same = torch.tensor([[True, True, False], [True, True, False], [False, False, True]])
    assert float(threshold_for_precision(cosines, same, 1.0)) == pytest.approx(0.201, abs=0.001)
    pi = torch.linalg.cholesky(cosines)  # rows with exactly these cosines
    assert torch.equal(similar(pi, threshold_for_precision(cosines, same, 1.0)), same)
    assert float(threshold_for_precision(cosines, same, 1 / 3)) == -1  # all six ordered pairs: two are right


def test_no_pair_of_one_class_gives_one():
    cosines, _ = labelled_pairs(0)
    own = torch.eye(len(cosines), dtype=torch.bool)
    assert float(threshold_for_precision(cosines, own, 0.9)) == 1
    assert float(threshold_for_precision(cosines, own, 0.0)) == 1


def test_a_precision_out_of_reach_gives_one():
    cosines = torch.tensor([[1.0, 0.2, 0.8], [0.2, 1.0, 0.8], [0.8, 0.8, 1.0]])  # the wrong pairs are the nearer ones
    same = torch.tensor([[True, True, False], [True, True, False], [False, False, True]])
    assert float(threshold_for_precision(cosines, same, 0.9)) == 1


def test_pairs_all_of_one_class_give_the_lowest_threshold():
    cosines, same = labelled_pairs(0)
    assert float(threshold_for_precision(cosines, torch.ones_like(same), 1.0)) == -1


def test_an_item_beside_itself_does_not_count():
    cosines = torch.tensor([[1.0, 0.9], [0.9, 1.0]])
    assert float(threshold_for_precision(cosines, torch.eye(2, dtype=torch.bool), 0.5)) == 1


def test_cosines_that_rounding_carried_beyond_one_are_counted():
    cosines = torch.tensor([[1.0, 1.0 + 2e-7, -1.0 - 2e-7], [1.0 + 2e-7, 1.0, -1.0], [-1.0 - 2e-7, -1.0, 1.0]])
    same = torch.tensor([[True, True, False], [True, True, False], [False, False, True]])
    assert float(threshold_for_precision(cosines, same, 1.0)) == pytest.approx(-0.999)
    assert math.isclose(float(threshold_for_precision(cosines, same, 0.3)), -1)


@settings(deadline=None, max_examples=25)
@given(items=st.permutations(range(10)))
def test_the_order_of_the_labelled_items_does_not_matter(items):
    cosines, same = labelled_pairs(1, n=10)
    expected = threshold_for_precision(cosines, same, 0.7)
    assert -1 < float(expected) < 1
    assert torch.equal(threshold_for_precision(cosines[items][:, items], same[items][:, items], 0.7), expected)
