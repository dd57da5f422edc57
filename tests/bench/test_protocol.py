"""What is hidden from a method, on published data and on data of somebody's own."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from combemb.bench import TABLES
from combemb.bench.cells import cell_of
from combemb.bench.own_data import MIN_ITEMS, OwnData
from combemb.bench.presets import PRESETS
from combemb.bench.protocol import fingerprint, first_of_each, hidden, limited
from combemb.bench.scores import Plain, retrieval
from combemb.bench.sources import SOURCES, MissingData
from combemb.data.datasets import Dataset
from combemb.search.metrics import float_retrieval
from tests.pictures import IDS, TARGETS, write_folder, write_manifest

TABLE = TABLES["retrieval-digits"]
CELL = cell_of(TABLE, PRESETS["cpu"], TABLE.rows[0], 12, ("0", 0))
RNG = np.random.default_rng(0)


def items(targets, test_targets) -> Dataset:
    x = RNG.normal(size=(len(targets), 1, 6)).astype(np.float32)
    return Dataset(
        "toy", x, np.array(targets), RNG.normal(size=(len(test_targets), 6)), np.array(test_targets), np.arange(4)
    )


def test_novel_classes_and_half_of_the_labels_are_hidden():
    pile = hidden(items(np.repeat(np.arange(4), 10), [0, 1, 2, 3]), CELL)
    assert (pile.n_seen, pile.n_novel, pile.n_classes) == (3, 1, 4)
    assert pile.novel.tolist() == [3]
    assert [int((pile.labels == c).sum()) for c in range(4)] == [5, 5, 5, 0]
    assert pile.is_novel.sum() == 10
    assert pile.is_novel_test.tolist() == [False, False, False, True]
    fewer = hidden(items(np.repeat(np.arange(4), 10), [3]), replace(CELL, labelled_share=0.1, seen_share=0.5))
    assert [int((fewer.labels == c).sum()) for c in range(4)] == [1, 1, 0, 0]


def test_items_of_unknown_class_are_learned_from_and_never_counted():
    targets = np.array([*np.repeat(np.arange(4), 10), *[-1] * 7])
    data = items(targets, [3, 3, 0])
    pile = hidden(data, CELL)
    assert (pile.labels[-7:] == -1).all()
    assert not pile.is_novel[-7:].any()
    assert pile.is_known.sum() == 40
    found = retrieval(Plain(), pile)
    known = float_retrieval(data.test_x[:2].astype(np.float32), data.train_x[:40, 0], [3, 3], targets[:40])
    assert found["novel_z"] == pytest.approx(known.map)
    assert found["novel_chance"] == 0.25


def test_only_novel_labels_count_for_novel_queries_that_have_several():
    targets = np.eye(4, dtype=np.int64)[np.repeat(np.arange(4), 10)]
    targets[::3, 0] = 1
    data = items(targets, np.array([[1, 0, 0, 1], [0, 1, 0, 0]]))
    pile = hidden(data, CELL)
    assert pile.labels.shape == (40, 3)
    assert pile.is_novel_test.tolist() == [True, False]
    found = retrieval(Plain(), pile)
    assert found["novel_chance"] == pytest.approx((targets[:, 3] > 0).mean())
    assert found["seen_chance"] == pytest.approx((targets[:, 1] > 0).mean())


def test_the_first_items_of_each_class_are_taken():
    assert first_of_each(np.array([1, 0, 1, 1, 0, 2]), 2).tolist() == [0, 1, 2, 4, 5]
    assert len(first_of_each(np.arange(5), None)) == 5
    small = limited(items([0, 0, 0, 1, 1, 1], [0, 0, 1]), 2, 1)
    assert (small.train_targets.tolist(), small.test_targets.tolist()) == ([0, 0, 1, 1], [0, 1])


def test_a_fingerprint_follows_the_data_and_not_their_folder(tmp_path: Path):
    data = items([0, 1, 2, 3], [0])
    other = replace(data, train_targets=data.train_targets[::-1])
    assert fingerprint(data) == fingerprint(data) != fingerprint(other)
    for name in ("a", "b"):
        folder = write_folder(tmp_path / name)
        write_manifest(tmp_path / f"{name}.csv", folder, labels=TARGETS)
    prints = {fingerprint(OwnData.read(tmp_path / name).divided(0)) for name in ("a.csv", "b.csv")}
    assert len(prints) == 1


def test_a_data_set_is_found_below_a_folder_and_described_if_it_is_not(tmp_path: Path):
    for source in SOURCES.values():
        if source.layout:
            with pytest.raises(MissingData, match="--data DIR with"):
                source.load(None)
            with pytest.raises(MissingData, match=f"{source.title} was not found"):
                source.load(tmp_path)
    images = write_folder(tmp_path / "voc2007/images")
    split = ["train" if i % 3 else "test" for i in range(len(IDS))]
    labels = [f"{name}|{'striped' if i % 2 else 'plain'}" for i, name in enumerate(TARGETS)]
    rows = [f"{images / name},{label},{part}\n" for name, label, part in zip(IDS, labels, split, strict=True)]
    (tmp_path / "voc2007/manifest.csv").write_text("path,labels,split\n" + "".join(rows))
    for place in (tmp_path, tmp_path / "voc2007"):
        data = SOURCES["voc2007"].load(place)
        assert data.train_targets.shape == (48, 8)
        assert data.test_targets.sum(axis=1).tolist() == [2] * 24


def own(path: Path, labels) -> Path:
    np.savez(path, x=RNG.normal(size=(len(labels), 5)).astype(np.float32), labels=np.array(labels))
    return path


def test_a_fifth_of_each_class_is_drawn_for_queries_by_the_seed(tmp_path: Path):
    data = OwnData.read(
        own(tmp_path / "x.npz", [*np.repeat(["a", "b", "c", "d", "rare"], [20, 20, 20, 20, 2]), *[""] * 5])
    )
    assert data.class_names.tolist() == ["a", "b", "c", "d"]
    assert data.too_small == ("rare",)
    first, again, other = (data.divided(seed) for seed in (0, 0, 1))
    assert np.bincount(first.test_targets).tolist() == [4] * 4
    assert (first.train_targets == -1).sum() == 7  # two of the rare class, five of no known one
    assert first.train_x.shape == (71, 1, 5)
    np.testing.assert_array_equal(first.test_x, again.test_x)
    assert not np.array_equal(first.test_x, other.test_x)


def test_a_test_split_of_the_data_is_kept(tmp_path: Path):
    folder = write_folder(tmp_path / "photos")
    split = ["test" if i % 4 == 0 else "train" for i in range(len(IDS))]
    data = OwnData.read(write_manifest(tmp_path / "m.csv", folder, labels=TARGETS, split=split)).divided(0)
    assert [len(data.train_x), len(data.test_x)] == [54, 18]
    assert [str(path) for path in data.test_x.files] == [str(folder / name) for name in IDS[::4]]


def test_too_few_classes_or_labels_say_what_is_needed(tmp_path: Path):
    for labels in (np.repeat(["a", "b", "c"], 20), np.repeat(list("abcdef"), 3)):
        path = own(tmp_path / "x.npz", labels)
        with pytest.raises(
            ValueError, match=rf"classes of .* have at least {MIN_ITEMS} labelled items each; compare needs 4"
        ):
            OwnData.read(path)
    np.save(tmp_path / "x.npy", np.zeros((10, 3), np.float32))
    with pytest.raises(ValueError, match=r"has no labels; compare needs 4 such classes"):
        OwnData.read(tmp_path / "x.npy")
