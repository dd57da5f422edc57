"""K-means where clusters would be empty, where items are equal, and on invalid input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from combemb.discovery.kmeans import kmeans
from tests.clusters import assert_is_clustering, blobs, cloud, half_labelled

# Empty clusters, duplicates


NOWHERE = -1_000  # a centre that no item is near to


@pytest.mark.parametrize(
    ("x", "labels", "start", "expected"),
    [
        pytest.param([0, 1, 2, 50, 10], None, [0, 1, NOWHERE], [0, 1, 1, 2, 1], id="the farthest from its mean"),
        pytest.param([0, 500, 2, 90], [0, 0, -1, -1], [0, NOWHERE], [0, 0, 1, 0], id="only of the unlabelled"),
        pytest.param([0, 0, 1, 50, 50, 20], None, [0, NOWHERE, NOWHERE], [0, 0, 0, 1, 1, 2], id="with its equals"),
        pytest.param([0, 1, 40], None, [0, 30, NOWHERE], [2, 0, 1], id="none that is alone"),
        pytest.param([0, 1, 40, 40], None, [0, 30, NOWHERE], [2, 0, 1, 1], id="none with equals only"),
        pytest.param([5, 5, 5], [0, -1, -1], [5, NOWHERE], [0, 1, 1], id="one at the centre of a class"),
    ],
)
def test_an_empty_cluster_takes_an_item(x, labels, start, expected):
    x, start = (np.array(values, np.float32)[:, None] for values in (x, start))
    found = kmeans(x, len(start), labels, start=start, n_iterations=1)
    assert found.assignment.tolist() == expected
    assert_is_clustering(found, x, np.full(len(x), -1), len(start))


def test_a_given_start_cannot_part_equal_items():
    with pytest.raises(ValueError, match="only 2 of the unlabelled items are distinct; use at most 2 clusters"):
        kmeans(np.repeat(cloud(2), 5, axis=0), 3, start=cloud(3))


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 1_000), n_places=st.integers(2, 6), n_seen=st.integers(0, 3), is_weighted=st.booleans())
def test_no_cluster_is_empty_however_many_items_are_equal(seed, n_places, n_seen, is_weighted):
    rng = np.random.default_rng(seed)
    places = rng.integers(0, n_places, 30)
    x = rng.normal(size=(n_places, 2)).astype(np.float32)[places]
    labels = np.where(places < n_seen, places, -1)
    labels[::3] = -1
    labels = np.unique(labels, return_inverse=True)[1] - 1  # every class has items; one place or more is unlabelled
    n_seen, n_new = labels.max() + 1, len(np.unique(places[labels < 0]))
    weights = rng.uniform(0.5, 2, 30) if is_weighted else None
    found = kmeans(x, n_seen + n_new, labels, seed=seed, n_starts=2, weights=weights)
    assert set(found.assignment) == set(range(n_seen + n_new))
    np.testing.assert_array_equal(found.assignment[labels >= 0], labels[labels >= 0])
    with pytest.raises(ValueError, match=f"only {n_new} of .* distinct; use at most {n_seen + n_new} clusters"):
        kmeans(x, n_seen + n_new + 1, labels, seed=seed, weights=weights)


def test_as_many_clusters_as_distinct_items_leave_no_distance():
    x = np.repeat(cloud(12), 3, axis=0)
    found = kmeans(x, 12)
    assert found.inertia == pytest.approx(0, abs=1e-10)
    np.testing.assert_array_equal(found.assignment.reshape(12, 3).min(axis=1), found.assignment[::3])


def test_one_cluster_of_equal_items_is_fine():
    found = kmeans(np.ones((5, 3), np.float32), 1)
    assert found.centres.tolist() == [[1, 1, 1]]
    assert found.inertia == 0


def test_without_new_clusters_items_join_the_seen_classes():
    x, targets = blobs()
    labels = half_labelled(targets, 8)
    found = kmeans(x, 8, labels, n_starts=4)
    np.testing.assert_array_equal(found.assignment, targets)
    everything = kmeans(x, 8, targets)
    np.testing.assert_array_equal(everything.assignment, targets)
    assert_is_clustering(everything, x, targets, 8)


# Errors


def with_nan():
    x = cloud()
    x[7, 2] = np.nan
    return x


ONE_CLASS = np.repeat([0, -1], 150)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": with_nan()}, "1 of 300 rows of x hold NaN or infinity, the first is row 7"),
        ({"x": cloud()[:, None]}, r"x has shape \(300, 1, 5\); clustering takes \(N, D\)"),
        ({"x": cloud() * 1e16}, r"x reaches 3.8\d*e\+16, whose square leaves the range of float32; scale it"),
        ({"x": cloud() * 1e-16}, "whose square leaves the range of float32; scale it"),
        ({"n_clusters": 0}, "n_clusters=0 for 0 labelled classes"),
        ({"n_clusters": 301}, "only 300 of the unlabelled items are distinct; use at most 300 clusters"),
        ({"n_clusters": 152, "labels": ONE_CLASS}, "152 asks for 151 new clusters, .* only 150 .* at most 151"),
        ({"labels": np.arange(300) % 6}, "n_clusters=5 for 6 labelled classes"),
        ({"labels": np.zeros(300, int)}, "asks for 4 new clusters, but only 0 of the unlabelled items"),
        ({"labels": ONE_CLASS[1:]}, r"labels have shape \(299,\) and dtype int64; give 300 ints"),
        ({"labels": ONE_CLASS.astype(float)}, "dtype float64; give 300 ints, -1 if unlabelled"),
        ({"labels": ONE_CLASS * 2}, "labels hold -2; give 0 to C-1, and -1"),
        ({"labels": np.repeat([0, 2, -1], 100)}, "labels reach 2 but none is 1; number the classes 0 to C-1"),
        ({"weights": np.ones(299)}, r"weights have shape \(299,\); give 300 finite numbers above 0"),
        ({"weights": np.arange(300)}, "give 300 finite numbers above 0"),
        ({"start": cloud(5, 4)}, r"start has shape \(5, 4\); give one centre per cluster, \(5, 5\)"),
        ({"n_starts": 0}, "n_starts=0 and n_iterations=100 must both be at least 1"),
        ({"n_iterations": 0}, "n_iterations=0 must both be at least 1"),
    ],
)
def test_what_cannot_be_clustered_is_refused_with_a_reason(arguments, message):
    with pytest.raises(ValueError, match=message):
        kmeans(**({"x": cloud(), "n_clusters": 5} | arguments))
