import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from combemb.data import open_set_split
from combemb.data.splits import SPLITS

TEN = np.repeat(np.arange(10), 10)  # ten items of each of ten classes
PERCENT = st.integers(1, 99).map(lambda percent: percent / 100)


@pytest.mark.parametrize(
    ("split", "novel"), [(None, [7, 8, 9]), (0, [7, 8, 9]), (1, [4, 5, 6]), ("2", [1, 2, 3]), ("3", [0, 8, 9])]
)
def test_novel_classes_walk_backwards_around_the_circle(split, novel):
    found = open_set_split(TEN, split)
    assert found.novel.tolist() == novel
    assert found.seen.tolist() == sorted(set(range(10)) - set(novel))


def test_the_class_order_decides_which_are_novel():
    order = [9, 0, 1, 2, 3, 4, 5, 8, 7, 6]
    assert open_set_split(TEN, 0, class_order=order).novel.tolist() == [6, 7, 8]
    assert open_set_split(TEN, 3, class_order=np.array(order)).novel.tolist() == [6, 7, 9]


@pytest.mark.parametrize("i", [0, 1, 2])
def test_tuning_splits_shuffle_the_class_order(i):
    order = np.random.default_rng(100 + i).permutation(10)
    assert open_set_split(TEN, f"tune-{i}").novel.tolist() == sorted(order[7:].tolist())


@settings(deadline=None)
@given(
    st.lists(st.integers(2, 9), min_size=2, max_size=12), st.sampled_from(SPLITS), PERCENT, PERCENT, st.integers(0, 99)
)
def test_rules_of_every_split(sizes, split, seen_share, labelled_share, seed):
    C = len(sizes)
    n_seen = math.floor(Fraction(str(seen_share)) * C)
    n_labelled = [math.floor(Fraction(str(labelled_share)) * n) for n in sizes]
    assume(n_seen > 0 and min(n_labelled) > 0)
    targets = np.random.default_rng(0).permutation(np.repeat(np.arange(C) * 3, sizes))

    found = open_set_split(targets, split, seen_share=seen_share, labelled_share=labelled_share, seed=seed)

    assert len(found.seen) == n_seen
    assert sorted([*found.seen, *found.novel]) == [3 * c for c in range(C)]  # a partition of the classes
    for c in range(C):
        expected = n_labelled[c] if 3 * c in found.seen else 0
        assert (found.labels[targets == 3 * c] >= 0).sum() == expected
    shown = found.labels >= 0
    np.testing.assert_array_equal(found.labels[shown], targets[shown])
    np.testing.assert_array_equal(found.targets, targets)
    np.testing.assert_array_equal(found.is_novel(targets), np.isin(targets, found.novel))


def test_shares_are_taken_as_meant():
    assert 0.29 * 100 < 29
    found = open_set_split(np.repeat(np.arange(100), 100), seen_share=0.29, labelled_share=0.29)
    assert len(found.seen) == 29
    assert (found.labels >= 0).sum() == 29 * 29


def test_a_class_has_the_same_labelled_items_in_every_split_and_order():
    shown = [open_set_split(TEN, split, seed=3) for split in SPLITS]
    shown.append(open_set_split(TEN, 1, seed=3, class_order=np.arange(10)[::-1]))
    for c in range(10):
        rows = {tuple(np.flatnonzero(split.labels == c)) for split in shown if c in split.seen}
        assert len(rows) == 1


def test_a_larger_share_contains_a_smaller_one():
    few, many = (open_set_split(TEN, labelled_share=share).labels >= 0 for share in (0.2, 0.7))
    assert (few <= many).all()


def test_the_seed_decides_and_the_global_state_is_untouched():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first, again, other = (open_set_split(TEN, "tune-1", seed=seed).labels for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_strings_are_hidden_by_none():
    targets = ["cat", "dog", "eel", "fox"] * 4
    found = open_set_split(targets, class_order=["fox", "eel", "dog", "cat"])
    assert found.novel.tolist() == ["cat"]
    assert found.seen.tolist() == ["dog", "eel", "fox"]
    assert found.targets.tolist() == targets
    assert sorted(filter(None, found.labels)) == ["dog", "dog", "eel", "eel", "fox", "fox"]
    assert {label for label in found.labels if not isinstance(label, str)} == {None}
    assert found.is_novel(["cat", "fox"]).tolist() == [True, False]


def multi_targets(n: int = 60) -> np.ndarray:
    """(n, 4) of 0/1, one to two classes for each item."""
    rows = np.random.default_rng(1).integers(0, 4, size=(n, 2))
    targets = np.zeros((n, 4), dtype=int)
    np.put_along_axis(targets, rows, 1, axis=1)
    return targets


@settings(deadline=None)
@given(st.sampled_from(SPLITS), st.integers(0, 20))
def test_multi_label_items_with_a_novel_label_are_never_labelled(split, seed):
    targets = multi_targets()
    found = open_set_split(targets, split, seed=seed)
    has_novel = targets[:, found.novel].any(axis=1)
    shown = (found.labels >= 0).all(axis=1)
    assert not (shown & has_novel).any()
    assert shown.sum() == (~has_novel).sum() // 2
    np.testing.assert_array_equal(found.labels[shown], targets[shown][:, found.seen])
    assert (found.labels[~shown] == -1).all()
    np.testing.assert_array_equal(found.is_novel(targets), has_novel)
    assert found.is_novel(np.zeros((1, 4))).tolist() == [False]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": 4}, r"split 4 is unknown; choose one of 0, 1, 2, 3, tune-0, tune-1, tune-2"),
        ({"split": "tune-9"}, r"split 'tune-9' is unknown"),
        ({"seen_share": 1.0}, r"seen_share=1.0 is outside \(0, 1\)"),
        ({"labelled_share": 0}, r"labelled_share=0 is outside \(0, 1\)"),
        ({"labelled_share": float("nan")}, r"labelled_share=nan is outside \(0, 1\)"),
        ({"seen_share": 0.05}, r"seen_share=0.05 of 10 classes leaves none seen"),
        ({"labelled_share": 0.05}, r"seen class 0 has no labelled item at labelled_share=0.05; raise the share"),
        ({"class_order": range(9)}, r"class_order has 9 entries for 10 classes.*missing \[9\], unknown \[\]"),
        ({"class_order": [*range(9), 11]}, r"list each class exactly once \(missing \[9\], unknown \[11\]\)"),
        ({"class_order": [*range(10), 0]}, r"class_order has 11 entries for 10 classes"),
    ],
)
def test_splits_that_cannot_be_made_say_why(options, message):
    with pytest.raises(ValueError, match=message):
        open_set_split(TEN, **options)


def test_targets_that_cannot_be_split_say_why():
    with pytest.raises(ValueError, match=r"2 targets are missing \(-1 or None\)"):
        open_set_split([0, -1, 1, -1])
    with pytest.raises(ValueError, match=r"seen_share=0.75 of 1 classes leaves none seen"):
        open_set_split([0, 0])
    with pytest.raises(ValueError, match="leaves none novel"):
        open_set_split([0, 1], seen_share=1 - 1e-12)
    with pytest.raises(ValueError, match="seen class 1 has no labelled item"):
        open_set_split([[1, 0, 0], [1, 0, 0], [0, 1, 1], [0, 0, 1]], seen_share=0.7)


def test_targets_of_other_classes_say_why():
    with pytest.raises(ValueError, match="targets hold class 12, which is not one of the 10 classes"):
        open_set_split(TEN).is_novel([0, 12])
    with pytest.raises(ValueError, match=r"targets have shape \(1, 3\); this split needs \(n, 4\)"):
        open_set_split(multi_targets()).is_novel([[0, 1, 0]])
