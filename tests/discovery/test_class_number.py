"""Ways to count novel classes, on piles whose number is known."""

import numpy as np
import pytest

from combemb.discovery.class_number import COUNTERS, MAX_COUNTED_ITEMS, ClassNumber, Pile, count_novel
from combemb.search.codebook import binary_codebook
from tests.blobs import blobs


def pile_of(given, **more):
    return Pile(given.x, given.labels, binary_codebook(given.x.shape[1]), **more)


@pytest.mark.parametrize("count_by", ["sizes", "codes"])
@pytest.mark.parametrize(("n_seen", "n_novel"), [(2, 1), (4, 1), (5, 3), (8, 8), (3, 9), (2, 20)])
def test_separated_classes_are_counted(count_by, n_seen, n_novel):
    found = count_novel(pile_of(blobs(n_seen, n_novel, D=24, spread=0.05, signs=True)), count_by)
    assert found.n == n_novel
    assert found.low <= found.n <= found.high


@pytest.mark.parametrize(("n_seen", "n_novel"), [(5, 3), (8, 8)])
def test_agreement_with_labels_counts_roughly(n_seen, n_novel):
    """Plain k-means may split a class, which has no price as long as labelled items are not in it."""
    found = count_novel(pile_of(blobs(n_seen, n_novel, D=24, spread=0.05)), "gcd")
    assert abs(found.n - n_novel) <= 2
    assert found.low <= found.n <= found.high


@pytest.mark.parametrize(("n_seen", "n_novel"), [(5, 3), (10, 4)])
def test_probes_count_roughly(n_seen, n_novel):
    found = count_novel(pile_of(blobs(n_seen, n_novel, D=24, spread=0.03)), "dtc")
    assert abs(found.n - n_novel) <= 2
    assert found.low <= found.n <= found.high


@pytest.mark.parametrize("count_by", ["sizes", "codes"])
def test_where_nothing_is_novel_none_is_found(count_by):
    assert count_novel(pile_of(blobs(6, 0, D=24, spread=0.05, signs=True)), count_by).n == 0


@pytest.mark.parametrize("count_by", list(COUNTERS))
def test_where_all_is_labelled_there_is_none(count_by):
    given = blobs(3, 0)
    assert count_novel(Pile(given.x, given.targets, binary_codebook(12)), count_by) == ClassNumber(0, 0, 0)


def test_without_labels_the_silhouette_decides():
    found = count_novel(pile_of(blobs(0, 6, D=24)))
    assert found.n == 6
    equal = Pile(np.ones((9, 2), np.float32), np.full(9, -1))
    assert count_novel(equal) == ClassNumber(1, 1, 1)


def test_of_a_large_pile_some_items_are_looked_at_and_every_class():
    rng = np.random.default_rng(0)
    labels = np.full(MAX_COUNTED_ITEMS + 5_000, -1)
    labels[:300] = np.arange(300)  # one each
    pile = Pile(rng.normal(size=(len(labels), 2)).astype(np.float32), labels)
    some = pile.some()
    assert MAX_COUNTED_ITEMS <= len(some.x) <= MAX_COUNTED_ITEMS + 301
    assert len(some.x) == len(some.labels)
    assert some.n_seen == 300
    assert set(some.labels.tolist()) == set(range(-1, 300))


@pytest.mark.parametrize("n_novel", [3, 10])
@pytest.mark.parametrize("n_labels", [1, 2, 3])
def test_few_labels_per_class_are_enough_where_classes_are_apart(n_labels, n_novel):
    given = blobs(20, n_novel, n_each=30, spread=0.02, D=24)
    labels = np.where(np.arange(len(given.x)) % 30 < n_labels, given.labels, -1)
    found = count_novel(Pile(given.x, labels))
    assert abs(found.n - n_novel) <= 2


@pytest.mark.parametrize("count_by", list(COUNTERS))
@pytest.mark.parametrize("is_labelled", [True, False])
def test_items_that_differ_below_float32_are_equal(count_by, is_labelled):
    """K-means works in float32, where these are three distinct items."""
    rng = np.random.default_rng(0)
    x = 1 + np.repeat(np.eye(3), 20, axis=0) + 1e-12 * rng.random((60, 3))
    labels = np.where(is_labelled & (np.arange(60) < 10), 0, -1)
    found = count_novel(Pile(x, labels, binary_codebook(3)), count_by)
    assert 0 <= found.n <= 3


@pytest.mark.parametrize("n_seen", [3, 8])
def test_one_feature_is_enough(n_seen):
    x = np.repeat(np.arange(n_seen + 2.0), 20)[:, None] + np.random.default_rng(0).normal(
        0, 0.01, (20 * (n_seen + 2), 1)
    )
    labels = np.where(np.arange(len(x)) % 20 < 10, np.arange(len(x)) // 20, -1)
    labels[labels >= n_seen] = -1
    assert count_novel(Pile(x.astype(np.float32), labels)).n == 2


@pytest.mark.parametrize("count_by", ["sizes", "gcd", "dtc"])
@pytest.mark.parametrize("n_places", [2, 3, 5])
def test_classes_that_share_their_places_are_no_reason_to_fail(count_by, n_places):
    places = np.random.default_rng(0).normal(size=(n_places, 4)).astype(np.float32)
    labels = np.where(np.arange(120) < 60, np.arange(120) % 4, -1)  # four classes
    found = count_novel(Pile(places[np.arange(120) % n_places], labels), count_by)
    assert 0 <= found.low <= found.n <= found.high <= n_places
