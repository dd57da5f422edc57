"""Labelled items stay in their class, the others join one or form new ones, and new items find their place."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from combemb.data.labels import read_labels
from combemb.discovery import Discovery, NothingToDiscover, Unsure, agreement, discover
from combemb.discovery.kmeans import kmeans
from combemb.search.codebook import binary_codebook
from tests.blobs import blobs

NAMES = np.array(["ape", "bee", "cow", "doe", "elk", "fox", "gnu", "hen"], dtype=object)


def partition(clusters):
    """Items in the same cluster, whatever its name."""
    return {frozenset(np.flatnonzero(clusters == name).tolist()) for name in set(clusters)}


def test_separated_classes_are_found_with_their_number():
    given = blobs(4, 3)
    found = discover(given.x, given.labels)
    assert found.n_novel == 3
    assert found.n_novel_interval[0] <= 3 <= found.n_novel_interval[1]
    assert agreement(found.clusters.tolist(), given.targets, given.targets >= 4).acc_joint.all == 1
    assert np.array_equal(found.is_novel, given.targets >= 4)
    assert found.names.tolist() == [0, 1, 2, 3, "novel-1", "novel-2", "novel-3"]
    assert found.clusters.dtype == object


@pytest.mark.parametrize("spread", [0.1, 0.5])
@pytest.mark.parametrize("n_novel", [0, 1, 3, 9])
def test_labelled_items_never_move(spread, n_novel):
    given = blobs(4, 3, spread=spread)
    labels = np.random.default_rng(0).permutation(given.labels)  # as wrong as labels can be
    labels = np.where(labels >= 0, NAMES[labels], None)
    found = discover(given.x, labels, n_novel)
    is_labelled = labels != None  # noqa: E711 - of each element
    assert np.array_equal(found.clusters[is_labelled], labels[is_labelled])
    assert (found.confidence[is_labelled] == 1).all()
    assert min(found.sizes.values()) > 0


@pytest.mark.filterwarnings("ignore::combemb.discovery.discovering.Unsure")
def test_novel_classes_come_by_size_and_none_is_empty():
    x = np.concatenate([np.full((n, 2), place, np.float32) for n, place in ((5, 0.0), (3, 5.0), (9, 9.0), (6, -5.0))])
    x += np.random.default_rng(0).normal(0, 0.01, x.shape).astype(np.float32)
    found = discover(x, [7] * 3 + [-1] * 20, 3)
    assert list(found.sizes.items()) == [(7, 5), ("novel-1", 9), ("novel-2", 6), ("novel-3", 3)]


def test_the_order_of_items_decides_nothing_where_classes_are_apart():
    given = blobs(3, 3)
    order = np.random.default_rng(1).permutation(len(given.x))
    a, b = discover(given.x, given.labels), discover(given.x[order], given.labels[order])
    assert a.n_novel == b.n_novel == 3
    back = np.argsort(order)
    assert partition(a.clusters) == partition(b.clusters[back])
    assert np.array_equal(a.clusters[~a.is_novel], b.clusters[back][~a.is_novel])


def test_the_same_seed_gives_the_same_and_the_global_state_is_left_alone():
    given = blobs(3, 3, spread=0.4)
    before, state = np.random.get_state()[1].copy(), torch.random.get_rng_state()  # noqa: NPY002
    a, b = (discover(given.x, given.labels, seed=3) for _ in range(2))
    assert np.array_equal(a.clusters, b.clusters)
    assert np.array_equal(a.centres, b.centres)
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002
    assert torch.equal(state, torch.random.get_rng_state())


def test_input_is_left_as_it_was_and_tensors_are_taken():
    given = blobs(3, 2)
    x, labels = given.x.copy(), given.labels.copy()
    a = discover(x, labels, 2)
    assert np.array_equal(x, given.x)
    assert np.array_equal(labels, given.labels)
    b = discover(torch.from_numpy(x), torch.from_numpy(labels), 2)
    assert np.array_equal(a.clusters, b.clusters)


def test_labels_that_were_read_are_taken_as_they_are():
    given = blobs(3, 2)
    names = np.where(given.labels >= 0, NAMES[given.labels], None)
    read = read_labels(names, len(names))
    assert np.array_equal(discover(given.x, read, 2).clusters, discover(given.x, names, 2).clusters)
    assert np.array_equal(kmeans(given.x, 5, read).assignment, kmeans(given.x, 5, given.labels).assignment)
    with pytest.raises(ValueError, match="there are 200 labels for 9 items"):
        discover(given.x[:9], read, 2)


def test_names_that_are_taken_are_skipped():
    given = blobs(2, 3)
    labels = np.where(given.labels >= 0, np.array(["novel-2", "neither"], dtype=object)[given.labels], None)
    found = discover(given.x, labels, 3)
    assert found.names.tolist() == ["neither", "novel-2", "novel-1", "novel-3", "novel-4"]
    assert found.neither == "neither-1"


def test_confidence_is_a_probability_and_falls_from_the_centre_to_the_border():
    rng = np.random.default_rng(0)
    targets = np.repeat([0, 1, 2, 3], 150)
    x = (3 * targets + rng.normal(0, 1, 600)).astype(np.float32)[:, None]
    found = discover(x, np.where(np.arange(600) % 3 == 0, targets, -1), 0)
    assert (found.confidence[found.is_labelled] == 1).all()
    free = ~found.is_labelled
    right = (found.assignment == targets)[free]
    assert abs(found.confidence[free].mean() - right.mean()) < 0.05
    assert np.abs(x[found.borderline(0, 5)] - 1.5).max() < 0.5
    assert found.borderline(0, 600)[-1] in np.flatnonzero(found.is_labelled)
    with pytest.raises(ValueError, match="there is no cluster 'cat'"):
        found.exemplars("cat")


def test_exemplars_are_the_nearest_to_the_centre():
    given = blobs(3, 2, spread=0.3)
    found = discover(given.x, given.labels, 2)
    for place, name in enumerate(found.names):
        rows = np.flatnonzero(found.clusters == name)
        distances = np.linalg.norm(found.points.of(given.x[rows], None) - found.centres[place], axis=1)
        assert np.array_equal(found.exemplars(name, 5), rows[np.argsort(distances, kind="stable")[:5]])
        assert np.allclose(found.distance[rows], distances, atol=1e-3)


@pytest.mark.filterwarnings("ignore::combemb.discovery.discovering.Unsure")
def test_the_neighbour_of_a_novel_class_is_the_nearest_seen_one():
    x = np.array([[0.0, 0], [0.1, 0], [9, 0], [9.1, 0], [2, 0], [2.1, 0], [7, 0], [7.1, 0], [7.2, 0]], np.float32)
    found = discover(x, ["a", "a", "b", "b", None, None, None, None, None], 2)
    assert found.neighbours == {"novel-1": "b", "novel-2": "a"}


def test_new_items_join_a_seen_class_a_found_cluster_or_neither():
    given, new = blobs(4, 3), blobs(4, 3, n_each=10)
    found = discover(given.x, np.where(given.labels >= 0, NAMES[given.labels], None))
    centre = {c: found.clusters[given.targets == c][0] for c in range(7)}
    fresh = new.x + 0.01 * np.random.default_rng(9).normal(size=new.x.shape).astype(np.float32)
    expected = np.array([centre[c] for c in new.targets], dtype=object)
    said = found.predict(fresh)
    assert (said == expected).mean() > 0.9
    assert np.isin(said[said != expected], ["neither"]).all()
    assert (found.predict(50 + fresh) == "neither").all()
    assert (found.predict(given.x) == "neither").mean() <= 0.02


def test_novelty_tells_what_is_of_no_seen_class():
    given = blobs(4, 3)
    found = discover(given.x, given.labels)
    scores = found.novelty(given.x)
    assert scores[given.targets >= 4].min() > scores[given.targets < 4].max()
    only_seen = discover(given.x, given.labels, 0)
    assert only_seen.novelty(given.x[:5]).shape == (5,)


def test_features_stand_beside_the_embeddings():
    """Embeddings in which two novel classes are one, and features in which they are not."""
    given = blobs(4, 2)
    z = given.x.copy()
    z[given.targets == 5] = z[given.targets == 4]
    features = blobs(4, 2, seed=1, spread=0.05).x
    found = discover(z, given.labels, 2, features=features)
    assert agreement(found.clusters.tolist(), given.targets, given.targets >= 4).acc_joint.all == 1
    assert np.array_equal(found.predict(z, features)[given.targets == 5], found.clusters[given.targets == 5])
    with pytest.raises(ValueError, match="found with features; give the 12 features of each item"):
        found.predict(z)
    with pytest.raises(ValueError, match=r"features have shape \(240, 3\)"):
        found.novelty(z, features[:, :3])


def test_a_round_trip_through_a_file_in_another_process(tmp_path):
    given = blobs(3, 2)
    names = np.where(given.labels >= 0, NAMES[given.labels], None)
    found = discover(given.x, names, features=given.x)
    found.save(tmp_path / "found.safetensors")
    np.save(tmp_path / "x.npy", given.x)
    code = (
        "import sys, numpy as np; from combemb import Discovery; f = Discovery.load(sys.argv[1]);"
        "x = np.load(sys.argv[2]); print(f, *f.predict(x, x)); print(*f.clusters)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "found.safetensors", tmp_path / "x.npy"],
        check=True,
        capture_output=True,
        text=True,
    )
    first, second = done.stdout.splitlines()
    assert first == " ".join([repr(found), *found.predict(given.x, given.x)])
    assert second.split() == found.clusters.tolist()


def test_integer_classes_stay_integers_in_a_file(tmp_path):
    given = blobs(2, 1)
    discover(given.x, given.labels, 1).save(tmp_path / "f")
    loaded = Discovery.load(tmp_path / "f")
    assert [type(name) for name in loaded.names] == [int, int, str]
    assert loaded.n_novel_interval == (1, 1)


@pytest.mark.parametrize("damage", ["missing", "text", "cut", "other"])
def test_a_file_that_holds_no_discovery(tmp_path, damage):
    path = tmp_path / "found"
    if damage == "text":
        path.write_text("not this")
    elif damage == "cut":
        given = blobs(2, 1)
        discover(given.x, given.labels, 1).save(path)
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "other":
        from safetensors.torch import save_file

        save_file({"x": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match=r"cannot read a discovery from .*; discover again"):
        Discovery.load(path)


def test_without_labels_it_is_plain_clustering_and_says_so():
    given = blobs(0, 4)
    with pytest.warns(NothingToDiscover, match="no item is labelled: this is plain clustering"):
        found = discover(given.x)
    assert found.n_seen == 0
    assert found.n_novel == 4
    assert found.is_novel.all()
    assert found.neighbours == {}
    assert (found.novelty(given.x) == 0).all()
    with pytest.warns(NothingToDiscover):
        assert discover(given.x, n_novel=2).names.tolist() == ["novel-1", "novel-2"]


def test_where_all_is_labelled_nothing_is_left_and_it_says_so():
    given = blobs(3, 0)
    with pytest.warns(NothingToDiscover, match="all items are labelled: nothing is left to discover"):
        found = discover(given.x, given.targets)
    assert found.n_novel == 0
    assert np.array_equal(found.clusters, given.targets)
    assert not found.is_novel.any()


def test_one_item_and_equal_items():
    with pytest.warns(NothingToDiscover):
        assert discover(np.ones((1, 2)), n_novel=1).sizes == {"novel-1": 1}
    with pytest.warns(Unsure, match="only 0 is labelled"), pytest.warns(NothingToDiscover):
        found = discover(np.ones((6, 2)), [0, 0, -1, -1, -1, -1])
    assert found.n_novel == 0
    assert found.clusters.tolist() == [0] * 6
    assert found.predict(np.ones((1, 2))).tolist() == [0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_novel": 999}, "n_novel=999 novel classes need as many unlabelled items, but there are 60"),
        ({"n_novel": -1}, "n_novel=-1; give a whole number, 0 or more, or None"),
        ({"n_novel": 1.5}, "n_novel=1.5; give a whole number"),
        ({"n_novel": True}, "n_novel=True; give a whole number"),
        ({"labels": [0, 1]}, "there are 2 labels for 100 items"),
        ({"labels": np.zeros((100, 3)) - 1}, "discovery takes one label per item"),
        ({"count_by": "magic"}, "count_by='magic' is unknown; choose one of merging, sizes, codes, gcd, dtc"),
        ({"count_by": "codes"}, "there is no codebook; choose count_by='merging'"),
        ({"features": np.zeros((3, 2))}, "there are 3 features for 100 embeddings"),
        ({"embeddings": np.full((100, 12), np.nan)}, "hold NaN or infinity"),
        ({"embeddings": np.zeros((100, 3, 12))}, r"embeddings has shape \(100, 3, 12\)"),
        ({"features": np.full((100, 2), np.inf)}, "hold NaN or infinity"),
    ],
)
def test_what_makes_no_sense_is_refused(change, message):
    given = blobs(2, 1, n_each=40)
    keep = np.r_[:100]
    arguments = {"embeddings": given.x[keep], "labels": given.labels[keep], **change}
    with pytest.raises(ValueError, match=message):
        discover(**arguments)


@pytest.mark.filterwarnings("ignore::combemb.discovery.discovering.Unsure")
def test_more_novel_classes_than_different_items_are_refused():
    with pytest.raises(ValueError, match="n_novel=2, but only 1 of the unlabelled items are distinct; use fewer"):
        discover(np.ones((6, 2)), [0, 0, -1, -1, -1, -1], 2)


@pytest.mark.filterwarnings("ignore::combemb.discovery.discovering.Unsure")
@pytest.mark.parametrize("n_each", [3, 10, 30])
def test_new_items_of_small_classes_are_rarely_neither(n_each):
    """Items pull their centre towards themselves, new ones do not."""
    rng = np.random.default_rng(0)
    centres = np.repeat(np.eye(8, 200, dtype=np.float32), n_each, axis=0)
    z, new = (centres + 0.05 * rng.normal(size=centres.shape).astype(np.float32) for _ in range(2))
    labels = np.where(np.arange(len(z)) % n_each < n_each // 2, np.arange(len(z)) // n_each, -1)
    found = discover(z, np.where(labels < 6, labels, -1), 2)
    assert (found.predict(new) == found.neither).mean() < (0.1 if n_each > 3 else 0.25)
    assert (found.predict(rng.normal(size=z.shape)) == found.neither).all()


@pytest.mark.filterwarnings("ignore::combemb.discovery.discovering.Unsure")
def test_distances_keep_their_digits_where_classes_are_small_and_far_apart():
    rng = np.random.default_rng(0)
    z = np.repeat(np.eye(3, 8), 50, axis=0) + 1e-4 * rng.normal(size=(150, 8))
    found = discover(z, np.where(np.arange(150) < 10, 0, -1), 2)
    own = found.centres.astype(np.float64)[found.assignment]
    points = found.points.of(z.astype(np.float32), None)
    assert np.allclose(found.distance, np.linalg.norm(points - own, axis=1), rtol=1e-3)


@pytest.mark.filterwarnings("ignore::combemb.discovery.discovering.Unsure")
def test_nearest_says_where_a_labelled_item_would_have_gone():
    x = np.array([0.0, 0.1, 0.2, 0.3, 0.1, 5.0, 5.1, 5.2, 5.3, 5.1], np.float32)[:, None]
    found = discover(x, [0, 0, 0, 1, -1, 1, 1, 1, 1, -1], 0)
    assert found.clusters.tolist() == [0, 0, 0, 1, 0, 1, 1, 1, 1, 1]
    assert found.nearest.tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]


@pytest.mark.filterwarnings("ignore::combemb.discovery.discovering.Unsure")
@pytest.mark.parametrize("shape", [(6, 1), (6, 3)])
def test_features_that_say_nothing_leave_the_embeddings_alone(shape):
    x = np.array([[0.0], [0.1], [0.2], [5.0], [5.1], [5.2]], np.float32)
    found = discover(x, [0, -1, -1, -1, -1, -1], 1, features=np.ones(shape))
    assert found.clusters.tolist() == [0, 0, 0, "novel-1", "novel-1", "novel-1"]
    assert found.predict(x).tolist() == found.clusters.tolist()


def test_no_cluster_at_all_is_refused():
    with (
        pytest.raises(ValueError, match="n_novel=0 and no labels leave no cluster at all"),
        pytest.warns(NothingToDiscover),
    ):
        discover(np.ones((4, 2)), n_novel=0)


def test_codes_count_as_embeddings_do():
    given = blobs(4, 3, D=16, spread=0.05, signs=True)
    found = discover(given.x, given.labels, count_by="codes", codebook=binary_codebook(16))
    assert found.n_novel == 3
