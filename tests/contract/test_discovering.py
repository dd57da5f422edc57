"""What every method must do when it is asked for classes: keep what it found, use it, store it and forget it."""

import random
import re

import numpy as np
import pytest
import torch

from combemb import methods
from combemb.discovery.discovering import NothingToDiscover, discover
from combemb.discovery.metrics import agreement
from combemb.discovery.result import Discovery
from tests.contract.conftest import N_NOVEL, N_SEEN
from tests.contract.quick import contents, small
from tests.pictures import IDS, LABELS, PIXELS, SEEN, TARGETS, write_folder, write_manifest

QUICK = {"image_size": 32, "n_views": 2}
BROKEN = ("bee/007.png", "unlabelled/030.png")
WHOLE = [row for row, name in enumerate(IDS) if name not in BROKEN]


@pytest.fixture(scope="module")
def discovered(run, toy):
    """A good method that was asked for classes."""
    fitted, _ = run
    fitted.discover(toy.x, toy.labels)
    return fitted


@pytest.fixture(scope="module")
def plain_model(name, plain):
    """A method after a short fit, to be asked for classes."""
    return small(name).fit(plain.x, plain.labels)


def assert_same(a: Discovery, b: Discovery) -> None:
    assert a.names.tolist() == b.names.tolist()
    assert (a.n_seen, a.n_novel_interval, a.reach) == (b.n_seen, b.n_novel_interval, b.reach)
    for part in ("assignment", "distance", "confidence", "is_labelled", "centres", "spreads"):
        assert np.array_equal(getattr(a, part), getattr(b, part)), part


# What is found


def test_the_classes_are_found_and_kept(discovered, toy):
    found = discovered.discovery_
    assert isinstance(found, Discovery)
    assert len(found) == len(toy.x)
    assert found.names.tolist() == [*range(N_SEEN), *(f"novel-{i}" for i in range(1, N_NOVEL + 1))]
    is_labelled = toy.labels >= 0
    assert np.array_equal(found.is_labelled, is_labelled)
    assert found.clusters[is_labelled].tolist() == toy.labels[is_labelled].tolist()
    assert agreement(found.clusters.tolist(), toy.targets, toy.targets >= N_SEEN).acc_joint.all > 0.95


def test_discover_returns_what_it_keeps_and_the_last_call_counts(plain_model, plain):
    first = plain_model.discover(plain.x, plain.labels, 3)
    assert plain_model.discovery_ is first
    second = plain_model.discover(plain.x, plain.labels, 1)
    assert plain_model.discovery_ is second
    assert (first.n_novel, second.n_novel) == (3, 1)
    assert "novel-3" not in plain_model.predict(plain.x)


@pytest.mark.parametrize("options", [{"count_by": "gcd"}, {"count_by": "dtc"}, {"n_novel": 3}], ids=str)
def test_it_is_what_the_embeddings_and_the_clean_features_say(name, plain, options):
    model = small(name, seed=3).fit(plain.x, plain.labels)
    expected = discover(model.embed(plain.x), plain.labels, features=plain.x, seed=3, **options)
    assert_same(model.discover(plain.x, plain.labels, **options), expected)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"n_novel": -1}, "n_novel=-1"),
        ({"n_novel": 2.5}, "2.5"),
        ({"count_by": "nope"}, "sizes, codes, gcd, dtc"),
        ({"labels": [0, -1]}, "2 labels for 280 items"),
    ],
    ids=str,
)
def test_a_refused_call_keeps_what_was_found(plain_model, plain, options, word):
    found = plain_model.discover(plain.x, plain.labels, 2)
    with pytest.raises(ValueError, match=word):
        plain_model.discover(plain.x, **{"labels": plain.labels, **options})
    assert plain_model.discovery_ is found


@pytest.mark.parametrize("form", ["names", "list", "gaps are NaN", "tensor", "beside the items"])
def test_the_form_of_the_labels_changes_the_names_only(plain_model, plain, form, tmp_path):
    reference = plain_model.discover(plain.x, plain.labels, 2)
    words = np.array([f"klasse ä{c}" if c >= 0 else None for c in plain.labels], dtype=object)
    np.savez(tmp_path / "items.npz", x=plain.x, labels=plain.labels)
    given = {
        "names": (plain.x, words),
        "list": (plain.x, plain.labels.tolist()),
        "gaps are NaN": (plain.x, np.where(plain.labels >= 0, plain.labels, np.nan)),
        "tensor": (torch.from_numpy(plain.x), torch.from_numpy(plain.labels)),
        "beside the items": (tmp_path / "items.npz", None),
    }
    found = plain_model.discover(*given[form], 2)
    classes = [f"klasse ä{c}" for c in range(N_SEEN)] if form == "names" else list(range(N_SEEN))
    assert found.names[:N_SEEN].tolist() == classes
    assert np.array_equal(found.assignment, reference.assignment)
    assert np.array_equal(found.confidence, reference.confidence)


def test_only_the_clean_view_counts(discovered, toy):
    found = discovered.discovery_
    if toy.x.ndim == 3:
        shaken = toy.x.copy()
        shaken[:, 1:] += 1
        assert np.array_equal(discovered.predict(shaken), discovered.predict(toy.x[:, 0]))
        assert_same(discovered.discover(shaken, toy.labels), found)
    else:
        assert np.array_equal(discovered.predict(toy.x[:, None]), discovered.predict(toy.x))


def test_what_is_hidden_behind_gaps_changes_nothing(plain_model, plain, tmp_path):
    """Neither the truth in the file of the embeddings nor that in the arrays that labels were made of."""
    found = []
    for i, targets in enumerate((plain.targets, plain.with_targets_behind_gaps(seed=0))):
        np.savez(tmp_path / f"{i}.npz", x=plain.x, labels=targets)
        labels = np.where(plain.labels >= 0, targets, -1)
        found.append(plain_model.discover(tmp_path / f"{i}.npz", labels))
    assert_same(*found)
    assert found[0].n_seen == N_SEEN


def test_the_input_is_not_changed(plain_model, toy):
    clean = toy.x if toy.x.ndim == 2 else toy.x[:, 0]
    x, labels, tensor = clean.copy(), toy.labels.copy(), torch.from_numpy(clean.copy())
    plain_model.discover(x, labels)
    plain_model.discover(tensor, torch.from_numpy(labels), 2)
    plain_model.predict(x)
    plain_model.novelty(tensor)
    assert np.array_equal(x, clean)
    assert np.array_equal(labels, toy.labels)
    assert np.array_equal(tensor.numpy(), clean)


def test_the_seed_decides(name, plain):
    first, same = (small(name, seed=3).fit(plain.x, plain.labels) for _ in range(2))
    assert_same(first.discover(plain.x, plain.labels), same.discover(plain.x, plain.labels))
    assert_same(first.discover(plain.x, plain.labels), same.discovery_)  # and not the number of calls


def test_the_global_random_state_is_neither_used_nor_changed(plain_model, plain):
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        states = (torch.get_rng_state(), np.random.get_state()[1], random.getstate())  # noqa: NPY002
        found.append(plain_model.discover(plain.x, plain.labels))
        plain_model.predict(plain.queries)
        assert torch.equal(torch.get_rng_state(), states[0])
        assert np.array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002
        assert random.getstate() == states[2]
    assert_same(*found)


def test_without_labels_all_clusters_are_novel(plain_model, plain):
    with pytest.warns(NothingToDiscover, match="plain clustering"):
        found = plain_model.discover(plain.x, n_novel=4)
    assert found.names.tolist() == ["novel-1", "novel-2", "novel-3", "novel-4"]
    assert set(plain_model.predict(plain.x)) <= {*found.names, "neither"}
    assert not plain_model.novelty(plain.x).any()


# What it is used for


def test_prediction_gives_names_of_clusters(discovered, toy):
    found = discovered.discovery_
    predicted = discovered.predict(toy.x)
    assert predicted.shape == (len(toy.x),)
    assert predicted.dtype == object
    is_near = predicted != "neither"
    assert is_near.mean() > 0.9
    assert predicted[is_near].tolist() == found.clusters[is_near].tolist()
    assert {type(name) for name in predicted} <= {int, str}
    assert discovered.predict(toy.queries[:1]).shape == (1,)


def test_new_items_of_novel_classes_are_known_as_such(discovered, toy):
    predicted = discovered.predict(toy.queries)
    known = predicted[predicted != "neither"].tolist()
    assert len(known) > 0.7 * len(predicted)
    assert np.mean([str(name).startswith("novel-") for name in known]) > 0.9
    assert "neither" in discovered.predict(-5 * toy.x.reshape(len(toy.x), -1, toy.x.shape[-1])[:, 0])


def test_novelty_is_larger_for_items_of_novel_classes(discovered, toy):
    novelty = discovered.novelty(toy.x)
    assert novelty.shape == (len(toy.x),)
    assert novelty.dtype == np.float32
    assert np.isfinite(novelty).all()
    is_novel = toy.targets >= N_SEEN
    assert np.median(novelty[is_novel]) > np.quantile(novelty[~is_novel], 0.95)
    assert np.median(discovered.novelty(toy.queries)) > np.median(novelty[~is_novel])


def test_a_prediction_does_not_depend_on_the_items_beside_it(discovered, toy):
    alone = [discovered.predict(toy.queries[i : i + 1])[0] for i in range(10)]
    assert alone == discovered.predict(toy.queries)[:10].tolist()
    novelty = np.concatenate([discovered.novelty(toy.queries[i : i + 1]) for i in range(10)])
    np.testing.assert_allclose(novelty, discovered.novelty(toy.queries)[:10], rtol=1e-3, atol=1e-3)


def test_before_it_was_asked_for_classes_it_says_what_to_do(name, plain):
    method = small(name)
    with pytest.raises(ValueError, match=r"not fitted; call fit\(x, labels\)"):
        method.discover(plain.x, plain.labels)
    method.fit(plain.x, plain.labels)
    for use in (method.predict, method.novelty):
        with pytest.raises(ValueError, match=r"nothing was discovered yet; call discover\(x, labels\) first"):
            use(plain.x)


def test_items_of_another_width_are_refused(discovered, toy):
    width = toy.x.shape[-1] - 1
    for use in (discovered.predict, discovered.novelty, discovered.discover):
        with pytest.raises(ValueError, match=rf"{width} features.*{width + 1}"):
            use(np.zeros((4, width), np.float32))


# How it is stored


def test_the_run_folder_carries_it(discovered, toy, tmp_path):
    discovered.save(tmp_path / "run")
    methods.load(tmp_path / "run").save(tmp_path / "again")
    for place in ("run", "again"):
        loaded = methods.load(tmp_path / place)
        assert_same(loaded.discovery_, discovered.discovery_)
        assert loaded.predict(toy.queries).tolist() == discovered.predict(toy.queries).tolist()
        assert np.array_equal(loaded.novelty(toy.x), discovered.novelty(toy.x))
        assert [type(name) for name in loaded.discovery_.names] == [*N_SEEN * [int], *N_NOVEL * [str]]
    assert contents(tmp_path / "run") == contents(tmp_path / "again")


def test_a_method_that_found_nothing_stores_nothing(name, plain, tmp_path):
    method = small(name).fit(plain.x, plain.labels)
    method.discover(plain.x, plain.labels, 1)
    method.save(tmp_path / "run")
    small(name).fit(plain.x, plain.labels).save(tmp_path / "run", overwrite=True)
    assert "discovery.safetensors" not in contents(tmp_path / "run")
    assert not hasattr(methods.load(tmp_path / "run"), "discovery_")


def test_a_fit_forgets_it(name, plain, tmp_path):
    method = small(name).fit(plain.x, plain.labels, folder=tmp_path / "run")
    method.discover(plain.x, plain.labels, 1)
    method.save(tmp_path / "run", overwrite=True)
    assert hasattr(methods.load(tmp_path / "run"), "discovery_")
    method.fit(plain.x, plain.labels, folder=tmp_path / "run", overwrite=True)
    assert "discovery.safetensors" not in contents(tmp_path / "run")
    for unasked in (method, methods.load(tmp_path / "run")):
        with pytest.raises(ValueError, match="nothing was discovered yet"):
            unasked.predict(plain.x)


def test_a_refused_fit_forgets_it_but_leaves_the_folder(name, plain, tmp_path):
    method = small(name).fit(plain.x, plain.labels)
    method.discover(plain.x, plain.labels, 1)
    method.save(tmp_path / "run")
    before = contents(tmp_path / "run")
    with pytest.raises(ValueError, match="NaN"):
        method.fit(np.full_like(plain.x, np.nan), plain.labels, folder=tmp_path / "run", overwrite=True)
    assert contents(tmp_path / "run") == before
    with pytest.raises(ValueError, match="nothing was discovered yet"):
        method.predict(plain.x)


def test_labels_that_are_not_those_of_the_fit_are_noticed(name, plain, tmp_path):
    names = np.array([*"abcdefg", None], dtype=object)[plain.labels]
    method = small(name).fit(plain.x, names, folder=tmp_path / "run")
    assert method.was_fitted_with(names, tmp_path / "run")
    assert not method.was_fitted_with(np.roll(names, 1), tmp_path / "run")
    renamed = np.array([*"uvwxyz!", None], dtype=object)[plain.labels]
    assert not method.was_fitted_with(renamed, tmp_path / "run")


# Images


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("damaged"), broken=BROKEN)


@pytest.fixture(scope="module")
def image_model(name, photos):
    return small(name, **QUICK).fit(photos)


def test_labels_stay_with_their_images_where_some_are_broken(image_model, damaged):
    shuffled = np.random.default_rng(1).permutation(LABELS)
    found = image_model.discover(damaged, shuffled, 2)
    assert len(found) == len(WHOLE)
    expected = shuffled[WHOLE]
    is_labelled = expected != None  # noqa: E711
    assert np.array_equal(found.is_labelled, is_labelled)
    assert found.clusters[is_labelled].tolist() == expected[is_labelled].tolist()
    given = image_model.read(damaged)
    assert_same(image_model.discover(given, expected, 2), found)  # labels of what `read` gave are those of its rows
    assert image_model.predict(given).shape == image_model.novelty(given).shape == (len(WHOLE),)


def test_labels_beside_the_images_are_taken(image_model, damaged, photos):
    found = image_model.discover(damaged, n_novel=2)
    assert found.names.tolist() == [*SEEN, "novel-1", "novel-2"]
    assert_same(image_model.discover(damaged, LABELS, 2), found)
    whole = image_model.discover(photos, n_novel=2)
    assert_same(image_model.discover(PIXELS, LABELS, 2), whole)
    assert image_model.predict(PIXELS[:5]).tolist() == image_model.predict(photos)[:5].tolist()


def test_several_labels_per_image_are_refused(image_model, photos, tmp_path):
    several = [label and f"{label}|{'red' if i % 2 else 'round'}" for i, label in enumerate(LABELS)]
    with pytest.raises(ValueError, match="one label per item"):
        image_model.discover(write_manifest(tmp_path / "photos.csv", photos, several))


# What is neither taken for granted nor guessed


@pytest.mark.parametrize("n", [70, 71, 73, 80])
def test_a_wrong_number_of_labels_of_images_is_refused(image_model, damaged, n):
    with pytest.raises(ValueError, match=f"{n} labels for 72"):
        image_model.discover(damaged, [*LABELS, *8 * [None]][:n], 2)


def test_broken_images_cannot_be_predicted_unless_they_were_read_first(image_model, damaged, photos):
    image_model.discover(photos, n_novel=2)
    for use in (image_model.embed, image_model.predict, image_model.novelty):
        with pytest.raises(ValueError, match=r"2 images cannot be read, such as .*`read`"):
            use(damaged)


def test_labels_of_the_part_to_test_on_are_not_seen(image_model, photos, tmp_path):
    split = np.where(np.arange(len(IDS)) % 3 == 0, "test", "train")
    manifest = write_manifest(tmp_path / "photos.csv", photos, np.where(split == "test", TARGETS, LABELS), split=split)
    assert image_model.discover(manifest, n_novel=2).names[:-2].tolist() == list(SEEN)
    read = image_model.read(manifest)
    assert read.labels[split == "test"].tolist() == [None] * sum(split == "test")
    assert read.labels[split == "train"].tolist() == LABELS[split == "train"].tolist()
    assert image_model.discover(read, n_novel=2).names[:-2].tolist() == list(SEEN)


@pytest.mark.parametrize("form", ["file", "read-only"])
def test_arrays_that_cannot_be_written_to_are_no_reason_to_warn(plain_model, plain, form, tmp_path):
    np.save(tmp_path / "x.npy", plain.x)
    x = plain.x.copy()
    x.flags.writeable = False
    torch.set_warn_always(True)
    try:
        plain_model.discover(x if form == "read-only" else tmp_path / "x.npy", plain.labels, 2)
    finally:
        torch.set_warn_always(False)


def test_a_damaged_discovery_does_not_cost_the_run(plain_model, plain, tmp_path):
    plain_model.discover(plain.x, plain.labels, 2)
    plain_model.save(tmp_path / "run")
    path = tmp_path / "run" / "discovery.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.warns(UserWarning, match=re.escape(str(path))):
        loaded = methods.load(tmp_path / "run")
    assert torch.equal(loaded.embed(plain.x), plain_model.embed(plain.x))
    with pytest.raises(ValueError, match="nothing was discovered yet"):
        loaded.predict(plain.x)
    assert loaded.discover(plain.x, plain.labels, 2).n_novel == 2
