"""Meta-class sets (Eq. 1): partitions of the classes, drawn from class embeddings that a classifier learned."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from combemb.learning.objectives.meta_classes import (
    canonical,
    class_embeddings,
    count_partitions,
    draw_meta_classes,
    lloyd,
    meta_labels,
)


def random_embeddings(C: int, F: int = 40, seed: int = 0) -> Tensor:
    return torch.randn(C, F, generator=torch.Generator().manual_seed(seed))


def blobs(n_per_class: int = 30, C: int = 4, F: int = 6, noise: float = 0.5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(C).repeat_interleave(n_per_class)
    centres = 3 * torch.eye(C, F)
    return centres[labels] + noise * torch.randn(len(labels), F, generator=generator), labels


def distinct_partitions(table: Tensor) -> int:
    return len({canonical(row) for row in table.tolist()})


# Drawing the sets


@pytest.mark.parametrize(("C", "K", "F"), [(7, 2, 64), (7, 4, 50), (75, 4, 64), (150, 32, 10), (20, 16, 10)])
def test_k_means_draws_the_partitions_of_scikit_learn(C, K, F):
    points = random_embeddings(C, F).double().numpy()
    for seed in range(30):
        theirs = KMeans(K, init="random", n_init=1, random_state=seed).fit_predict(points)
        assert canonical(lloyd(points, K, seed).tolist()) == canonical(theirs.tolist())


def test_k_means_ends_where_every_point_is_at_its_nearest_centre():
    points = random_embeddings(60, 3).double().numpy()
    clusters = lloyd(points, 5, seed=0)
    centres = np.stack([points[clusters == k].mean(axis=0) for k in range(5)])
    distances = np.square(points[:, None] - centres).sum(axis=2)
    np.testing.assert_array_equal(distances.argmin(axis=1), clusters)


def test_each_set_is_drawn_in_its_own_few_dimensions():
    """Classes are far apart in one dimension and alternate in the other, which alone joins 0, 2 and 4."""
    embeddings = torch.tensor([[0.0, 0], [10, 1], [20, 0], [100, 1], [110, 0], [120, 1]])
    alternating = (0, 1, 0, 1, 0, 1)
    for n_dims, is_found in ((1, True), (2, False)):
        drawn = (draw_meta_classes(embeddings, 1, 2, n_dims=n_dims, seed=seed).table[0] for seed in range(20))
        assert (alternating in {canonical(row.tolist()) for row in drawn}) == is_found


@pytest.mark.parametrize(("C", "K", "M"), [(7, 2, 12), (10, 4, 24), (12, 8, 8), (20, 16, 6)])
def test_every_set_is_a_partition_with_no_meta_class_empty_and_no_two_sets_are_equal(C, K, M):
    drawn = draw_meta_classes(random_embeddings(C), M, K, n_dims=10, seed=0)
    assert drawn.table.shape == (M, C)
    assert drawn.table.dtype == torch.int64
    for row in drawn.table.tolist():
        assert set(row) == set(range(K))
    assert distinct_partitions(drawn.table) == M
    assert drawn.n_repeated == 0


def test_five_classes_have_fifteen_partitions_in_two_and_then_sets_repeat():
    drawn = draw_meta_classes(random_embeddings(5, seed=4), 24, 2, n_dims=5, seed=0)
    assert distinct_partitions(drawn.table[:15]) == 15
    assert distinct_partitions(drawn.table) == 15
    assert drawn.n_repeated == 9
    assert "9 repeats kept" in str(drawn)
    assert all(set(row) == {0, 1} for row in drawn.table.tolist())


@pytest.mark.parametrize("seed", range(4))
def test_sets_that_are_not_distinct_are_counted(seed):
    drawn = draw_meta_classes(random_embeddings(4, seed=seed), 10, 2, n_dims=3, seed=0)
    assert 1 < distinct_partitions(drawn.table) <= 7
    assert distinct_partitions(drawn.table) + drawn.n_repeated == 10


def test_as_many_classes_as_meta_classes_leave_one_partition():
    drawn = draw_meta_classes(random_embeddings(4), 6, 4, n_dims=10, seed=0)
    assert drawn.table.tolist() == [[0, 1, 2, 3]] * 6
    assert drawn.n_repeated == 5
    assert drawn.n_redrawn == 0  # once all partitions are there, it is no use to draw again


def test_partitions_that_k_means_does_not_find_are_made_by_moving_classes():
    groups = torch.tensor([0.0, 0.0, 0.0, 100.0, 100.0, 100.0])[:, None] + 0.01 * random_embeddings(6)
    drawn = draw_meta_classes(groups, 3, 2, n_dims=10, seed=0)
    assert drawn.table[0].tolist() == [0, 0, 0, 1, 1, 1]
    assert distinct_partitions(drawn.table) == 3
    assert all(set(row) == {0, 1} for row in drawn.table.tolist())
    assert drawn.n_repeated == 0
    assert drawn.n_redrawn > 2


def test_a_subspace_that_cannot_tell_the_classes_apart_is_drawn_again():
    embeddings = random_embeddings(6)
    embeddings[:, :20] = torch.tensor([0.0, 1.0]).repeat(3)[:, None]  # two values, too few for three meta-classes
    drawn = draw_meta_classes(embeddings, 6, 3, n_dims=1, seed=0)
    assert all(set(row) == {0, 1, 2} for row in drawn.table.tolist())
    assert drawn.n_redrawn > 0


def test_the_sets_follow_from_the_seed():
    embeddings = random_embeddings(10)
    first, again = (draw_meta_classes(embeddings, 6, 4, n_dims=10, seed=3) for _ in range(2))
    assert torch.equal(first.table, again.table)
    assert not torch.equal(first.table, draw_meta_classes(embeddings, 6, 4, n_dims=10, seed=4).table)


def test_the_global_random_state_is_neither_used_nor_changed():
    embeddings = random_embeddings(10)
    tables = []
    for seed in (1, 2):
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        numpy_state, torch_state = np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
        tables.append(draw_meta_classes(embeddings, 6, 4, n_dims=10, seed=0).table)
        after = np.random.get_state()  # noqa: NPY002
        assert np.array_equal(numpy_state[1], after[1])
        assert numpy_state[2:] == after[2:]
        assert torch.equal(torch_state, torch.get_rng_state())
    assert torch.equal(*tables)


def test_sets_use_random_subspaces():
    """In 1 of 2 dimensions there are two partitions to find; in both there would be one of them or a third."""
    across = torch.tensor([0.0, 0.0, 9.0, 9.0])
    embeddings = torch.stack([across, across[[0, 2, 1, 3]]], dim=1)
    drawn = draw_meta_classes(embeddings, 2, 2, n_dims=1, seed=0)
    assert {tuple(row) for row in drawn.table.tolist()} == {(0, 0, 1, 1), (0, 1, 0, 1)}


def test_fewer_distinct_embeddings_than_meta_classes_are_refused():
    with pytest.raises(ValueError, match="fewer than 4 distinct class embeddings; use fewer meta-classes"):
        draw_meta_classes(random_embeddings(3)[[0, 1, 2, 0, 1]], 6, 4, n_dims=10, seed=0)


def test_the_description_counts_the_class_codes():
    drawn = draw_meta_classes(random_embeddings(8), 12, 2, n_dims=10, seed=0)
    assert len(set(map(tuple, drawn.table.T.tolist()))) == 8
    assert str(drawn).startswith("12 sets of 2 meta-classes over 8 seen classes, 8 class codes")


# Counting and naming partitions


@pytest.mark.parametrize(("C", "K"), [(C, K) for C in range(1, 7) for K in range(1, C + 2)])
def test_partitions_are_counted_as_listing_them_does(C, K):
    listed = {canonical(list(p)) for p in itertools.product(range(K), repeat=C) if len(set(p)) == K}
    assert count_partitions(C, K) == len(listed)


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1), st.permutations(range(6)))
def test_a_partition_is_its_grouping_whatever_the_numbers(partition, numbers):
    named = canonical(partition)
    assert canonical([numbers[k] for k in partition]) == named
    assert canonical(list(named)) == named
    for i, j in itertools.combinations(range(len(partition)), 2):
        assert (named[i] == named[j]) == (partition[i] == partition[j])


# Class embeddings


def test_the_classifier_separates_what_is_separable():
    x, labels = blobs()
    weights = class_embeddings(x, torch.nn.functional.one_hot(labels).float(), 1e-3)
    assert weights.shape == (4, 6)
    assert torch.equal((x @ weights.T).argmax(dim=1), labels)  # the blobs are alike, so it needs no bias


def test_the_classifier_is_regularised_logistic_regression():
    x, labels = blobs(noise=2.0)
    found = class_embeddings(x, torch.nn.functional.one_hot(labels).float(), weight_decay=0.01, iterations=500)
    sklearn = LogisticRegression(C=1 / (2 * 0.01 * len(x)), tol=1e-8, max_iter=1000).fit(x.numpy(), labels.numpy())
    np.testing.assert_allclose(found.numpy(), sklearn.coef_, atol=2e-3)


def test_the_order_of_the_items_does_not_matter():
    x, labels = blobs(noise=2.0)
    membership = torch.nn.functional.one_hot(labels).float()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    expected = class_embeddings(x, membership, 1e-3)
    assert expected.norm(dim=1).min() > 0.1
    torch.testing.assert_close(class_embeddings(x[order], membership[order], 1e-3), expected, rtol=0, atol=1e-2)


def test_an_item_of_two_classes_counts_as_half_an_item_of_each():
    x, labels = blobs(noise=2.0)
    membership = torch.nn.functional.one_hot(labels).float()
    shared = membership.clone()
    shared[:10] = 0
    shared[:10, :2] = 0.5
    # The same objective: every item twice, the shared ones once in each class.
    halves = torch.cat([membership, membership])
    halves[:10] = torch.tensor([1.0, 0, 0, 0])
    halves[len(x) : len(x) + 10] = torch.tensor([0, 1.0, 0, 0])
    expected = class_embeddings(torch.cat([x, x]), halves, 1e-3, iterations=500)
    torch.testing.assert_close(class_embeddings(x, shared, 1e-3, iterations=500), expected, rtol=0, atol=1e-2)


# The labels of Eq. 4


def test_meta_labels_look_up_the_table():
    table = draw_meta_classes(random_embeddings(7), 5, 4, n_dims=10, seed=0).table
    labels = torch.tensor([6, 0, 3, 3])
    assert meta_labels(table, labels, 4).tolist() == [[int(table[m, c]) for m in range(5)] for c in labels]


def test_meta_labels_of_several_classes_are_shares():
    table = draw_meta_classes(random_embeddings(7), 5, 4, n_dims=10, seed=0).table
    labels = torch.zeros(3, 7)
    classes = [[2], [0, 5], [1, 3, 6]]
    for row, own in zip(labels, classes, strict=True):
        row[own] = 1
    expected = torch.zeros(3, 4, 5)
    for b, own in enumerate(classes):
        for c, m in itertools.product(own, range(5)):
            expected[b, int(table[m, c]), m] += 1 / len(own)
    torch.testing.assert_close(meta_labels(table, labels, 4), expected)
