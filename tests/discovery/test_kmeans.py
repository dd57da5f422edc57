"""K-means, plain and with labels, against loops that follow its definition."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from combemb.discovery import kmeans as clustering
from combemb.discovery.kmeans import kmeans, kmeans_of_codes
from combemb.search.codebook import ProductCodebook
from combemb.system.machine import limited_threads
from tests.clusters import assert_is_clustering, blobs, cloud, half_labelled, naive_kmeans


@pytest.fixture
def small_chunks(monkeypatch):
    """Several spans of several chunks, the last ones not full."""
    monkeypatch.setattr(clustering, "CHUNK_BYTES", 1_000)
    monkeypatch.setattr(clustering, "SPAN_ITEMS", 70)


# Against the definition


@pytest.mark.parametrize("n_iterations", [1, 2, 7])
@pytest.mark.parametrize("n_seen", [0, 3, 8])
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.usefixtures("small_chunks")
def test_from_the_same_start_the_naive_loop_ends_the_same(n_iterations, n_seen, is_weighted):
    x, rng = cloud(), np.random.default_rng(1)
    labels = rng.integers(-4, n_seen, len(x)).clip(min=-1) if n_seen else np.full(len(x), -1)
    weights = rng.uniform(0.2, 5, len(x)) if is_weighted else None
    start = x[rng.choice(len(x), 8, replace=False)]
    found = kmeans(x, 8, labels, start=start, weights=weights, n_iterations=n_iterations, tolerance=0)
    assignment, centres, inertia = naive_kmeans(x, labels, start, n_iterations, weights)
    np.testing.assert_array_equal(found.assignment, assignment)
    np.testing.assert_allclose(found.centres, centres, rtol=1e-5, atol=1e-6)
    assert found.inertia == pytest.approx(inertia, rel=1e-4)
    assert found.n_iterations == n_iterations


def test_without_labels_the_end_is_as_good_as_that_of_scikit_learn():
    x = cloud(2_000)
    theirs = KMeans(10, n_init=10, random_state=0).fit(x).inertia_
    assert kmeans(x, 10, n_starts=10).inertia < 1.005 * theirs


def test_at_the_end_every_unlabelled_item_is_with_its_nearest_centre():
    x = cloud()
    labels = np.where(x[:, 0] > 1, 0, -1)
    found = kmeans(x, 6, labels, tolerance=0, n_iterations=1_000)
    distances = ((x[:, None].astype(np.float64) - found.centres) ** 2).sum(axis=2)
    np.testing.assert_array_equal(found.assignment[labels < 0], distances.argmin(axis=1)[labels < 0])
    assert distances.min(axis=1).sum() < found.inertia  # labelled items may be nearer to another cluster


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("offset", [0, 1_000])
def test_items_far_from_the_origin_and_in_chunks_are_with_the_nearest_centre(offset):
    x = cloud() + offset
    found = kmeans(x, 20, tolerance=0, n_iterations=1_000)
    distances = ((x[:, None].astype(np.float64) - found.centres) ** 2).sum(axis=2)
    own = distances[np.arange(len(x)), found.assignment]
    np.testing.assert_allclose(own, distances.min(axis=1), rtol=1e-3)
    assert found.inertia == pytest.approx(own.sum(), rel=1e-3)


# Blobs


@pytest.mark.parametrize("n_seen", [0, 1, 5, 8])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_separated_blobs_are_recovered_and_seen_classes_keep_their_number(n_seen, seed):
    x, targets = blobs(seed=seed)
    labels = half_labelled(targets, n_seen)
    found = kmeans(x, 8, labels, seed=seed)
    assert_is_clustering(found, x, labels, 8)
    assert adjusted_rand_score(targets, found.assignment) == 1
    is_seen = targets < n_seen
    np.testing.assert_array_equal(found.assignment[is_seen], targets[is_seen])


@settings(deadline=None, max_examples=25)
@given(order=st.permutations(range(80)), n_seen=st.sampled_from([0, 3]), seed=st.integers(0, 3))
def test_the_order_of_items_does_not_matter_up_to_relabelling(order, n_seen, seed):
    x, targets = blobs(n_per_blob=10)
    labels = half_labelled(targets, n_seen)
    found, shuffled = kmeans(x, 8, labels, seed=seed), kmeans(x[order], 8, labels[order], seed=seed)
    numbers = dict(zip(found.assignment[order].tolist(), shuffled.assignment.tolist(), strict=True))
    assert sorted(numbers.values()) == list(range(8))
    assert [numbers[c] for c in range(n_seen)] == list(range(n_seen))
    renumbered = np.array([numbers[k] for k in found.assignment[order].tolist()])
    np.testing.assert_array_equal(renumbered, shuffled.assignment)
    np.testing.assert_allclose(found.centres, shuffled.centres[[numbers[k] for k in range(8)]], atol=1e-5)
    assert found.inertia == pytest.approx(shuffled.inertia, rel=1e-6)


def test_labels_decide_against_the_distances():
    x, targets = blobs()
    labels = np.full(len(x), -1)
    stray = np.flatnonzero(targets == 0)[:3]
    labels[stray] = 1
    labels[np.flatnonzero(targets == 1)[:20]] = 1
    labels[np.flatnonzero(targets == 0)[3:20]] = 0
    found = kmeans(x, 8, labels)
    assert_is_clustering(found, x, labels, 8)
    assert (found.assignment[stray] == 1).all()
    np.testing.assert_array_equal(found.assignment[labels < 0] == 0, targets[labels < 0] == 0)


def test_new_centres_begin_far_from_the_seen_ones():
    x, targets = blobs(noise=0.01)
    labels = half_labelled(targets, 6)
    for seed in range(20):  # one iteration cannot fix a bad start
        found = kmeans(x, 8, labels, seed=seed, n_starts=1, n_iterations=1)
        assert adjusted_rand_score(targets, found.assignment) == 1


@pytest.mark.parametrize("n_seen", [0, 5])
def test_a_start_from_a_sample_of_the_items_recovers_blobs_too(monkeypatch, n_seen):
    monkeypatch.setattr(clustering, "START_ITEMS", 60)
    monkeypatch.setattr(clustering, "START_ITEMS_PER_CLUSTER", 1)
    x, targets = blobs(n_per_blob=100)
    found = kmeans(x, 8, half_labelled(targets, n_seen))
    assert adjusted_rand_score(targets, found.assignment) == 1


def test_far_from_the_origin_blobs_are_still_recovered():
    x, targets = blobs()
    found = kmeans(x + 30_000, 8)
    assert adjusted_rand_score(targets, found.assignment) == 1


def test_the_best_of_several_starts_wins():
    x = cloud()
    single = [kmeans(x, 12, seed=seed, n_starts=1).inertia for seed in range(20)]
    assert max(single) > min(single)
    assert kmeans(x, 12, n_starts=20).inertia < np.mean(single)
    assert kmeans(x, 12, n_starts=3).inertia <= kmeans(x, 12, n_starts=1).inertia


# Determinism


def test_the_result_depends_on_the_seed_and_on_no_global_state():
    x = cloud()
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    first = kmeans(x, 12, seed=3)
    state = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    second = kmeans(x, 12, seed=3)
    np.testing.assert_array_equal(first.assignment, second.assignment)
    np.testing.assert_array_equal(first.centres, second.centres)
    assert (first.inertia, first.n_iterations) == (second.inertia, second.n_iterations)
    assert state == (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # noqa: NPY002
    assert any((kmeans(x, 12, seed=seed).assignment != first.assignment).any() for seed in range(4, 8))


@pytest.mark.usefixtures("small_chunks")
def test_the_number_of_threads_does_not_matter():
    x = cloud()
    found = []
    for n in (1, 2, 5):
        with limited_threads(n):
            found.append(kmeans(x, 12, tolerance=0))
    assert len({(f.inertia, f.n_iterations, f.centres.tobytes(), f.assignment.tobytes()) for f in found}) == 1


def test_x_is_not_written_to_and_may_be_read_only(tmp_path):
    np.save(tmp_path / "x.npy", cloud())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    np.testing.assert_array_equal(kmeans(mapped, 4).assignment, kmeans(cloud(), 4).assignment)


@pytest.mark.parametrize(
    "convert",
    [torch.from_numpy, np.float64, np.asfortranarray, lambda x: torch.from_numpy(x).double(), lambda x: x[::-1][::-1]],
)
def test_the_form_of_x_does_not_matter(convert):
    x = cloud()
    labels = np.where(x[:, 0] > 1, 0, -1)
    expected, found = kmeans(x, 4, labels), kmeans(convert(x), 4, torch.from_numpy(labels))
    np.testing.assert_array_equal(found.assignment, expected.assignment)
    np.testing.assert_array_equal(found.centres, expected.centres)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_read(dtype):
    x, targets = blobs()
    found = kmeans(torch.from_numpy(x).to(dtype), 8)
    assert adjusted_rand_score(targets, found.assignment) == 1


# Weights and codes


@pytest.mark.parametrize("n_seen", [0, 2])
def test_weights_count_as_repeated_items(n_seen):
    x, rng = cloud(100), np.random.default_rng(0)
    counts = rng.integers(1, 5, len(x))
    labels = np.where(np.arange(100) < 10 * n_seen, np.arange(100) // 10, -1)
    found = kmeans(x, 7, labels, weights=counts)
    repeated = kmeans(np.repeat(x, counts, axis=0), 7, np.repeat(labels, counts))
    np.testing.assert_array_equal(np.repeat(found.assignment, counts), repeated.assignment)
    np.testing.assert_allclose(found.centres, repeated.centres, rtol=1e-5, atol=1e-6)
    assert found.inertia == pytest.approx(repeated.inertia, rel=1e-5)


@pytest.mark.parametrize("n_seen", [0, 2])
def test_codes_are_clustered_as_what_they_decode_to(n_seen):
    rng = np.random.default_rng(0)
    codebook = ProductCodebook(rng.normal(size=(3, 4, 2)))
    codes = rng.integers(0, 4, (400, 3)).astype(np.uint8)
    labels = rng.integers(-3, n_seen, len(codes)).clip(min=-1)  # equal codes have different labels
    start = rng.normal(size=(9, 6))
    found = kmeans_of_codes(codes, codebook, 9, labels, start=start)
    expected = kmeans(codebook.decode(codes), 9, labels, start=start)
    np.testing.assert_array_equal(found.assignment, expected.assignment)
    np.testing.assert_allclose(found.centres, expected.centres, rtol=1e-5, atol=1e-6)
    assert found.inertia == pytest.approx(expected.inertia, rel=1e-5)
    assert set(kmeans_of_codes(torch.from_numpy(codes), codebook, 9).assignment) == set(range(9))


# When to stop


def test_a_larger_tolerance_stops_earlier_and_moves_nothing_much():
    x = cloud(2_000)
    exact, early = (kmeans(x, 10, tolerance=t, n_starts=1, n_iterations=1_000) for t in (0, 1e-2))
    assert early.n_iterations < exact.n_iterations < 1_000
    assert exact.inertia <= early.inertia < 1.01 * exact.inertia


def test_progress_is_shown_when_wanted(capsys, monkeypatch):
    monkeypatch.setattr("combemb.system.progress.SECONDS_BETWEEN_LINES", 0)
    kmeans(cloud(), 3, n_starts=2, progress=True)
    assert "clustering 100%" in capsys.readouterr().err
    kmeans(cloud(), 3, progress=False)
    assert capsys.readouterr().err == ""
