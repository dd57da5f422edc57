"""Items to cluster, k-means by its definition, and what holds for every result."""

import numpy as np
import pytest


def blobs(n_per_blob=30, n_blobs=8, D=6, noise=0.3, seed=0):
    """Items (N, D) float32 around corners far apart, in random order, and their blobs (N,)."""
    rng = np.random.default_rng(seed)
    targets = rng.permutation(np.repeat(np.arange(n_blobs), n_per_blob))
    corners = 10 * rng.permutation(np.array(np.meshgrid(*[[0, 1]] * D)).reshape(D, -1).T)[:n_blobs]
    return (corners[targets] + noise * rng.normal(size=(len(targets), D))).astype(np.float32), targets


def cloud(N=300, D=5, seed=0):
    """Items without clusters, so that k-means has many ends."""
    return np.random.default_rng(seed).normal(size=(N, D)).astype(np.float32)


def half_labelled(targets, n_seen, seed=0):
    """Labels of half of the items of the first classes."""
    is_labelled = np.random.default_rng(seed).random(len(targets)) < 0.5
    return np.where(is_labelled & (targets < n_seen), targets, -1)


def naive_kmeans(x, labels, centres, n_iterations, weights=None):
    """The definition, item by item: assignment, centres and inertia. Expects no cluster to become empty."""
    x, centres = x.astype(np.float64), centres.astype(np.float64)
    weights = np.ones(len(x)) if weights is None else weights
    for _ in range(n_iterations):
        assignment = []
        for item, label in zip(x, labels, strict=True):
            distances = [((item - centre) ** 2).sum() for centre in centres]
            assignment.append(int(np.argmin(distances)) if label < 0 else int(label))
        centres = np.zeros_like(centres)
        counts = np.zeros(len(centres))
        for item, k, weight in zip(x, assignment, weights, strict=True):
            centres[k] += weight * item
            counts[k] += weight
        assert (counts > 0).all()
        centres /= counts[:, None]
    inertia = sum(
        weight * ((item - centres[k]) ** 2).sum() for item, k, weight in zip(x, assignment, weights, strict=True)
    )
    return np.array(assignment), centres, inertia


def assert_is_clustering(found, x, labels, n_clusters):
    """What holds for every result."""
    x = x.astype(np.float64)
    assert set(found.assignment) == set(range(n_clusters))  # none empty
    assert found.assignment.shape == (len(x),)
    assert found.assignment.dtype == np.int64
    assert found.centres.shape == (n_clusters, x.shape[1])
    assert found.centres.dtype == np.float32
    np.testing.assert_array_equal(found.assignment[labels >= 0], labels[labels >= 0])
    means = np.stack([x[found.assignment == k].mean(axis=0) for k in range(n_clusters)])
    np.testing.assert_allclose(found.centres, means, rtol=1e-5, atol=1e-5)
    assert found.inertia == pytest.approx(((x - means[found.assignment]) ** 2).sum(), rel=1e-4, abs=1e-6)
