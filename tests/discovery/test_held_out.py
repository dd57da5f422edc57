"""The share of novel items by classes that are held out."""

import numpy as np
import pytest

from combemb.discovery.held_out import _mixed, held_out
from tests.blobs import blobs


@pytest.mark.parametrize("n_novel", [0, 6, 20])
@pytest.mark.parametrize("spread", [0.2, 0.3])
def test_classes_that_overlap_are_counted(n_novel, spread):
    given = blobs(20, n_novel, n_each=60, spread=spread)
    estimates = held_out(given.x, given.labels)
    assert len(estimates) == 30
    assert abs(estimates.mean() - n_novel) <= max(3, 0.3 * n_novel)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.7, 1.0])
def test_the_share_of_a_mixture(share):
    rng = np.random.default_rng(0)
    known, unknown = rng.normal(0, 1, 4_000), rng.normal(1.5, 1, 4_000)
    n = int(4_000 * share)
    mixture = np.concatenate([rng.normal(0, 1, n), rng.normal(1.5, 1, 4_000 - n)])
    assert abs(_mixed(known, unknown, mixture) - share) < 0.05


def test_too_few_classes_give_no_estimate():
    given = blobs(4, 2)
    assert len(held_out(given.x, given.labels)) == 0


@pytest.mark.parametrize("n_labels", [1, 2])
def test_classes_with_too_few_labels_take_no_part(n_labels):
    given = blobs(20, 6, n_each=60, spread=0.3)
    labels = given.labels.copy()
    labels[np.flatnonzero(given.labels == 3)[n_labels:]] = -1
    estimates = held_out(given.x, labels)
    assert len(estimates) == 30
    assert abs(estimates.mean() - 6) <= 3


def test_items_that_all_look_the_same_give_no_estimate():
    given = blobs(8, 2)
    assert len(held_out(np.ones((len(given.x), 4)), given.labels)) == 0


def test_the_seed_decides():
    given = blobs(8, 2, spread=0.3)
    a, b, c = (held_out(given.x, given.labels, seed) for seed in (0, 0, 1))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)
