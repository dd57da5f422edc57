"""Piles as people have them: uneven classes, few labels, one class only, nothing novel; and what is said about them."""

import warnings

import numpy as np
import pytest

from combemb.discovery import NothingToDiscover, Unsure, discover
from combemb.discovery.gaussians import Mixture, log_same
from combemb.discovery.hidden import _seen_share
from combemb.discovery.merging import Pieces
from combemb.discovery.novel import _classes_within
from combemb.discovery.points import beside, scale_beside
from combemb.discovery.refining import refined
from combemb.discovery.regions import Regions
from combemb.discovery.result import Discovery

IGNORED = pytest.mark.filterwarnings("ignore::combemb.system.errors.Note")


def mixture(sizes, n_seen, *, share=0.5, D=16, distance=8.0, seed=0):
    """Gaussian classes of these sizes with one shape, stretched in some directions; a share of the seen is labelled."""
    rng = np.random.default_rng(seed)
    shape = rng.normal(size=(D, D)) / np.sqrt(D) * np.linspace(0.3, 1.5, D)
    means = distance * rng.normal(size=(len(sizes), D)) / np.sqrt(2 * D)
    targets = np.repeat(np.arange(len(sizes)), sizes)
    x = means[targets] + rng.normal(size=(len(targets), D)) @ shape
    place = np.arange(len(targets)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    is_labelled = (targets < n_seen) & (place < np.maximum(np.asarray(sizes) * share, 2)[targets])
    return x.astype(np.float32), targets, np.where(is_labelled, targets, -1)


def own_shapes(sizes, n_seen, *, D=16, distance=4.5, tails=6, seed=0):
    """Classes with a shape each and heavy tails (Student's t), which the model of `discover` does not assume."""
    rng = np.random.default_rng(seed)
    means = distance * rng.normal(size=(len(sizes), D)) / np.sqrt(2 * D)
    targets = np.repeat(np.arange(len(sizes)), sizes)
    shapes = rng.normal(size=(len(sizes), D, D)) / np.sqrt(D) * np.linspace(0.3, 1.5, D)
    noise = np.einsum("nd,nde->ne", rng.normal(size=(len(targets), D)), shapes[targets])
    noise /= np.sqrt(rng.chisquare(tails, len(targets)) / tails)[:, None]
    place = np.arange(len(targets)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    is_labelled = (targets < n_seen) & (place < np.asarray(sizes)[targets] / 2)
    return (means[targets] + noise).astype(np.float32), targets, np.where(is_labelled, targets, -1)


@IGNORED
@pytest.mark.parametrize("seed", range(3))
def test_classes_of_other_shapes_are_found(seed):
    x, targets, labels = own_shapes([60] * 10, 7, seed=seed)
    found = discover(x, labels)
    assert abs(found.n_novel - 3) <= 1
    assert found.is_novel[targets >= 7].mean() > 0.75
    seen = (labels < 0) & (targets < 7)
    assert (found.clusters[seen] == targets[seen]).mean() > 0.75


@IGNORED
def test_regions_find_novel_items_that_gaussians_miss():
    """With the Gaussians alone, 91 % of these novel items are called novel."""
    x, targets, labels = mixture([60] * 10, 7, distance=3.5, seed=1)
    assert discover(x, labels).is_novel[targets >= 7].mean() > 0.95


@IGNORED
def test_a_class_of_500_beside_classes_of_eight_keeps_its_items():
    x, targets, labels = mixture([500, 8, 8, 8], 4)
    found = discover(x, labels)
    rest = (labels < 0) & (targets == 0)
    assert (found.clusters[rest] == 0).mean() > 0.95
    assert found.n_novel <= 1


@IGNORED
def test_one_large_novel_class_is_not_cut():
    x, targets, labels = mixture([60] * 6 + [500], 6)
    found = discover(x, labels)
    assert found.n_novel <= 2
    largest = found.assignment == found.n_seen
    assert largest[targets == 6].mean() > 0.9


@pytest.mark.parametrize(
    ("sizes", "total", "varies", "number"),
    [
        ([1.0, 1.0, 1.0], 3, 0, [1, 1, 1]),
        ([1.7, 0.9], 2.6, 0, [2, 1]),  # seen classes are equal, so a cluster nearly twice as large holds two
        ([1.9], 2.8, 0, [3]),  # a third of the novel items was missed
        ([1.7, 0.9], 2.6, 3, [1, 1]),  # sizes say nothing
        ([0.05, 1.0], 1.05, 0, [1, 1]),  # a small cluster stays a class
        ([9.0], 9, 0, [1]),  # a single class may be far larger than all others
    ],
)
def test_a_cluster_holds_as_many_classes_as_its_size_tells(sizes, total, varies, number):
    assert _classes_within(np.array(sizes), total, varies).tolist() == number


@IGNORED
@pytest.mark.parametrize("seed", range(3))
def test_overlapping_novel_classes_are_counted_by_their_size(seed):
    x, _, labels = mixture([150] * 10, 7, distance=3.5, seed=seed)
    found = discover(x, labels)
    assert found.n_novel == 3


@IGNORED
@pytest.mark.parametrize("seed", range(3))
def test_uneven_novel_classes_are_counted(seed):
    x, targets, labels = mixture([120, 16, 60, 30, 24, 20, 200, 40, 12], 6, seed=seed)
    found = discover(x, labels)
    low, high = found.n_novel_interval
    assert abs(found.n_novel - 3) <= 2
    assert low <= 3 <= high
    assert found.is_novel[targets >= 6].mean() > 0.8
    seen = (labels < 0) & (targets < 6)
    assert (found.clusters[seen] == targets[seen]).mean() > 0.8


@pytest.mark.parametrize(("seed", "distance"), [(0, 8.0), (1, 8.0), (2, 8.0), (1, 4.0)])
def test_where_nothing_is_novel_it_says_so(seed, distance):
    x, targets, labels = mixture([80] * 8, 8, seed=seed, distance=distance)
    with pytest.warns(NothingToDiscover, match="no item is unlike the seen classes"):
        found = discover(x, labels)
    assert found.n_novel == 0
    assert (found.clusters == targets).mean() > 0.95


@IGNORED
def test_a_single_novel_item_becomes_a_class_and_is_said_to_be_alone():
    x, _, labels = mixture([60] * 5, 5)
    x, labels = np.concatenate([x, np.full((1, 16), 25, np.float32)]), np.append(labels, -1)
    with pytest.warns(Unsure, match="1 item is unlike the seen classes"):
        found = discover(x, labels)
    assert found.n_novel == 1
    assert np.flatnonzero(found.is_novel).tolist() == [300]


@IGNORED
def test_one_seen_class_is_enough_to_find_the_rest():
    x, targets, labels = mixture([60, 60, 60], 1, distance=14.0)
    with pytest.warns(Unsure, match="only 0 is labelled"):
        found = discover(x, labels)
    assert found.n_seen == 1
    assert 1 <= found.n_novel <= 4
    assert found.n_novel_interval[0] <= 2 <= found.n_novel_interval[1]
    assert found.is_novel[targets > 0].mean() > 0.9
    assert found.is_novel[(targets == 0) & (labels < 0)].mean() < 0.3


def test_two_labels_per_class_are_said_to_be_few_and_the_number_to_be_uncertain():
    x, _, labels = mixture([40] * 6, 4, share=0.05)
    with (
        pytest.warns(Unsure, match="4 of 4 seen classes have fewer than 3 labelled items"),
        pytest.warns(Unsure, match="the number of novel classes is uncertain"),
    ):
        found = discover(x, labels)
    assert found.n_novel <= 8


def few_labels():
    """Twelve classes, nine of them seen with two labels each; embeddings are clearer than the features."""
    x, targets, labels = mixture([40] * 12, 9, share=0.05, distance=4.0)
    z, _, _ = mixture([40] * 12, 9, share=0.05, distance=9.0, seed=1)
    return x, z, targets, labels


@IGNORED
def test_where_labels_are_few_embeddings_stand_beside_the_features(tmp_path):
    x, z, targets, labels = few_labels()
    found = discover(z, labels, features=x)
    assert found.points.z_scale > 0
    novelty, unlabelled = found.novelty(z, x), labels < 0
    assert np.median(novelty[unlabelled & (targets >= 9)]) > np.quantile(novelty[unlabelled & (targets < 9)], 0.8)
    found.save(tmp_path / "found.safetensors")
    np.testing.assert_array_equal(Discovery.load(tmp_path / "found.safetensors").novelty(z, x), novelty)
    more = np.where((targets < 9) & (np.arange(len(x)) % 2 == 0), targets, -1)
    assert discover(z, more, features=x).points.z_scale == 0


@IGNORED
def test_embeddings_that_know_their_labels_by_heart_are_left_out():
    _, x, targets, labels = few_labels()
    z = np.random.default_rng(2).normal(size=(len(x), 12)).astype(np.float32)
    z[labels >= 0] = 9 * np.eye(12, dtype=np.float32)[targets[labels >= 0]]
    assert discover(z, labels, features=x).points.z_scale == 0


def test_features_and_embeddings_vary_alike_side_by_side():
    x, z, _, _ = few_labels()
    joined = beside(x + 5, z, scale_beside(x + 5, z))
    parts = np.split(joined.var(axis=0, dtype=np.float64), [x.shape[1]])
    np.testing.assert_allclose(parts[0].sum(), parts[1].sum(), rtol=1e-4)
    assert scale_beside(x, np.ones_like(z)) == 0


@IGNORED
def test_few_labels_are_no_reason_to_find_nothing():
    x, _, _, labels = few_labels()
    found = discover(x, labels)
    assert found.n_novel > 0
    assert found.n_novel_interval[1] >= 3


def test_a_class_whose_labelled_items_belong_to_what_is_novel_is_named():
    """Two items of each novel class are labelled as one class, which lies between them."""
    x, targets, labels = mixture([60] * 8, 4)
    for c in range(4, 8):
        labels[np.flatnonzero(targets == c)[:2]] = 4
    with pytest.warns(Unsure, match="more than half of the labelled items look novel in 4: are the labels right"):
        discover(x, labels)


def test_wrong_labels_are_no_reason_to_fail():
    """Class 0 is labelled by items of what is novel."""
    x, targets, labels = mixture([60] * 7, 5)
    labels[(targets == 0) & (labels == 0)] = -1
    labels[np.flatnonzero(targets == 5)[:4]] = 0
    labels[np.flatnonzero(targets == 6)[:4]] = 0
    with warnings.catch_warnings(record=True, action="always") as caught:
        found = discover(x, labels)
    assert found.n_novel >= 1
    assert all(isinstance(w.message, Unsure | NothingToDiscover) for w in caught)


@IGNORED
@pytest.mark.parametrize("distance", [8.0, 5.0])
def test_neither_the_order_of_items_nor_a_rotation_of_features_decides_anything(distance):
    x, _, labels = mixture([60, 30, 40, 50, 20, 90, 45], 4, distance=distance)
    rng = np.random.default_rng(1)
    order = rng.permutation(len(x))
    turn = np.linalg.qr(rng.normal(size=(16, 16)))[0]
    reference = discover(x, labels, features=x)
    shuffled = discover(x[order], labels[order], features=x[order])
    turned = discover(x, labels, features=x @ turn)
    for found, rows in ((shuffled, order), (turned, np.arange(len(x)))):
        assert found.n_novel == reference.n_novel
        assert found.n_novel_interval == reference.n_novel_interval
        assert (found.clusters == reference.clusters[rows]).mean() > 0.99
        assert np.allclose(found.confidence, reference.confidence[rows], atol=0.02)


@IGNORED
def test_the_same_seed_gives_the_same():
    x, _, labels = mixture([60, 30, 40, 50, 20, 90, 45], 4, distance=4.0)
    a, b = (discover(x, labels, seed=3) for _ in range(2))
    assert np.array_equal(a.assignment, b.assignment)
    assert np.array_equal(a.confidence, b.confidence)


def test_two_clusters_are_one_class_as_bayes_has_it():
    """The log ratio equals that of the joint densities of two means, with covariance b or without."""
    from scipy.stats import multivariate_normal

    rng = np.random.default_rng(0)
    a, c, b = rng.normal(size=5), rng.normal(size=(1, 5)), rng.random(5) + 0.1
    expected = 0.0
    for i in range(5):
        apart = np.diag([b[i] + 1 / 3, b[i] + 1 / 7])
        same = apart + b[i] * (1 - np.eye(2))
        pair = [a[i], c[0, i]]
        expected += multivariate_normal.logpdf(pair, cov=same) - multivariate_normal.logpdf(pair, cov=apart)
    assert np.isclose(log_same(a, 3, c, np.array([7.0]), b)[0], expected)


def test_a_class_with_many_items_predicts_as_its_gaussian_does():
    from scipy.stats import norm

    y, b = np.array([[0.3, -1.0]]), np.array([2.0, 0.5])
    mixed = Mixture(np.array([[1.0, 1.0], [0.0, 0.0]]), np.array([1e9, 1e9]), b, 2)
    joint = mixed.log_joint(y)[0]
    expected = norm.logpdf(y[0], 1).sum() - norm.logpdf(y[0], 0).sum()
    assert np.isclose(joint[0] - joint[1], expected)
    new = norm.logpdf(y[0], 0, np.sqrt(1 + b)).sum() - norm.logpdf(y[0], 1).sum()
    assert np.isclose(mixed.log_new(y)[0] - (joint[0] - np.log1p(1e9)), new)


def test_pieces_are_merged_to_the_clusters_that_are_there():
    rng = np.random.default_rng(0)
    sizes = [200, 30, 9]
    y = np.repeat(10 * np.eye(3, 4), sizes, axis=0) + rng.normal(size=(239, 4))
    clusters = Pieces(y, np.full(4, 20.0)).merged(grain=2.0)
    assert sorted(np.bincount(clusters).tolist(), reverse=True) == sizes
    assert len(set(Pieces(y, np.full(4, 20.0)).merged(2.0, 2))) == 2


def test_outliers_are_no_class_if_classes_have_the_same_size():
    rng = np.random.default_rng(0)
    targets = np.repeat(np.arange(4), [100, 100, 100, 20])
    means = np.array([[9, 0, 0, 0], [0, 9, 0, 0], [0, 9, 4, 0], [0, 0, 0, 30]])
    pieces = Pieces(means[targets] + rng.normal(size=(len(targets), 4)), np.full(4, 30.0))
    sizes = [sorted(np.bincount(pieces.merged(1.0, 3, share))) for share in (0.1, 0.4)]
    assert sizes[0][0] <= 25  # the outliers are a class, and two near classes are one
    assert sizes[1][0] >= 90


@IGNORED
def test_seen_items_stay_where_one_novel_class_outnumbers_them():
    x, targets, labels = mixture([40, 20, 30, 24, 16, 500], 5, distance=6.0)
    found = discover(x, labels)
    seen = (labels < 0) & (targets < 5)
    assert found.is_novel[seen].mean() < 0.1
    assert (found.clusters[seen] == targets[seen]).mean() > 0.85
    assert found.is_novel[targets == 5].mean() > 0.9


def test_regions_without_labels_are_evidence_of_novelty():
    """By hand: one region with 6 labels among 12 items, one with none among 12; half a label counts in each."""
    regions = Regions(np.eye(2, dtype=np.float32), np.array([6.0, 0.0]), np.array([6.0, 12.0]))
    seen, novel = regions.evidence(np.array([[5.0, 0.0], [0.0, 0.1]]))
    odds = 18 / 6
    assert np.isclose(seen, np.log((6 + odds / 2) / 6.5 / odds), atol=1e-4)
    assert np.isclose(novel, np.log((12 + odds / 2) / 0.5 / odds), atol=1e-4)
    assert Regions.none(2).evidence(np.ones((3, 2))).tolist() == [0, 0, 0]


def test_shares_of_classes_are_not_tempered():
    """Where densities are equal, the probability of a class is its share, however flat the densities are made."""
    mixed = Mixture(
        np.array([[1e-9, 0.0], [-1e-9, 0.0]]), np.array([8e8 - 1, 2e8 - 1]), np.ones(2), 2, temperature=0.05
    )
    assert np.allclose(mixed.posterior(np.zeros((1, 2)))[0], [0.8, 0.2], atol=1e-3)


def test_unlabelled_items_move_the_mean_of_a_class_with_two_labels():
    rng = np.random.default_rng(0)
    means = np.array([[20.0, 0, 0], [0, 20.0, 0], [0, 0, 20.0]])
    y = np.repeat(means, 50, axis=0) + rng.normal(size=(150, 3))
    labels = np.full(150, -1)
    labels[[0, 1]], labels[[50, 51]] = 0, 1
    start = np.array([y[:2].mean(axis=0) + 3, y[50:52].mean(axis=0) - 3, means[2] + 4])
    moved = refined(Mixture(start, np.array([2, 2, 30]), np.full(3, 100.0), 2), y, labels)
    assert (np.linalg.norm(moved.means - means, axis=1) < np.linalg.norm(start - means, axis=1) / 2).all()
    assert moved.counts.tolist() == [12, 12, 50]


@IGNORED
def test_a_saved_discovery_keeps_its_regions(tmp_path):
    x, _, labels = mixture([60, 30, 40, 50, 20, 90, 45], 4)
    found = discover(x, labels)
    found.save(tmp_path / "found.safetensors")
    loaded = type(found).load(tmp_path / "found.safetensors")
    assert len(found.mixture.regions.centres) > 0
    assert np.array_equal(loaded.novelty(x), found.novelty(x))


def test_where_classes_are_far_apart_items_that_look_seen_decide_the_share():
    rng = np.random.default_rng(0)
    seen, hidden = rng.normal(-6, 1, 400), rng.normal(6, 1, 400)
    free = np.concatenate([rng.normal(-6.25, 1, 400), rng.normal(6, 1, 600)])  # the lowest quantiles of seen mislead
    assert _seen_share(free, seen, hidden)[0] == pytest.approx(0.4, abs=0.07)


@pytest.mark.parametrize(("novel_at", "error"), [(1.5, 0.05), (3.0, 0.1), (9.0, 0.1)], ids=str)
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_the_share_of_seen_items_is_found_even_if_novel_classes_are_stranger_than_hidden_ones(novel_at, error, share):
    """Log-odds of seen and hidden items are Gaussians at -1.5 and 1.5; those of novel items may be larger."""
    rng = np.random.default_rng(0)
    scale = np.sqrt(3)  # the log-odds of two Gaussians that differ by 3 have this deviation and are calibrated
    seen, hidden = rng.normal(-1.5, scale, 2_000), rng.normal(1.5, scale, 2_000)
    n_seen = round(3_000 * share)
    free = np.append(rng.normal(-1.5, scale, n_seen), rng.normal(novel_at, scale, 3_000 - n_seen))
    assert _seen_share(free, seen, hidden)[0] == pytest.approx(share, abs=error)
