import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from combemb.data import Labels, read_labels
from combemb.data.labels import require_partly_labelled, same_class

class_names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1).filter(
    lambda name: name not in ("-1", "nan")
)


@st.composite
def multi_labels(draw, min_classes=1, max_classes=5):
    """(N, C) of 0/1 in which every row has a class, and some rows of -1."""
    C = draw(st.integers(min_classes, max_classes))
    row = st.lists(st.integers(0, 1), min_size=C, max_size=C).filter(any) | st.just([-1] * C)
    return np.array(draw(st.lists(row, min_size=1, max_size=8)))


@settings(deadline=None)
@given(st.lists(st.integers(-1, 2**63 - 1)))
def test_ints_come_back_as_given(given_labels):
    labels = read_labels(given_labels, len(given_labels))
    if given_labels:
        assert labels.names(labels.values).tolist() == given_labels
    assert labels.is_labelled.tolist() == [value >= 0 for value in given_labels]


@settings(deadline=None)
@given(st.lists(class_names | st.none()))
def test_strings_come_back_as_given(given_labels):
    labels = read_labels(given_labels, len(given_labels))
    assert labels.names(labels.values).tolist() == given_labels
    assert labels.classes.tolist() == sorted({name for name in given_labels if name is not None})


@settings(deadline=None)
@given(multi_labels())
def test_multi_labels_come_back_as_given(given_labels):
    labels = read_labels(given_labels, len(given_labels))
    assert labels.is_multi
    assert labels.values.dtype == np.float32
    np.testing.assert_array_equal(labels.names(labels.values), given_labels)
    np.testing.assert_array_equal(labels.is_labelled, given_labels[:, 0] >= 0)


def test_values_are_positions_in_the_sorted_classes():
    labels = read_labels(["fox", None, "cat", "fox"], 4)
    assert labels.classes.tolist() == ["cat", "fox"]
    assert labels.values.tolist() == [1, -1, 0, 1]
    assert labels.values.dtype == np.int64
    assert len(labels) == 4
    assert not labels.is_multi


@pytest.mark.parametrize(
    "form",
    [
        [7, -1, 3],
        [7, None, 3],
        (7, float("nan"), 3),
        [7.0, -1, np.int16(3)],
        np.array([7, -1, 3], dtype=np.int8),
        np.array([7.0, np.nan, 3.0], dtype=np.float16),
        np.array([7, None, 3], dtype=object),
        torch.tensor([7, -1, 3]),
        torch.tensor([7.0, -1.0, 3.0], dtype=torch.bfloat16),
    ],
)
def test_all_forms_of_the_same_ints_are_read_alike(form):
    labels = read_labels(form, 3)
    assert labels.classes.tolist() == [3, 7]
    assert labels.classes.dtype == np.int64
    assert labels.values.tolist() == [1, -1, 0]


@pytest.mark.parametrize(
    "form",
    [["b", "", "a"], np.array(["b", "", "a"]), np.array(["b", np.nan, "a"], dtype=object), [np.str_("b"), None, "a"]],
)
def test_all_forms_of_the_same_strings_are_read_alike(form):
    labels = read_labels(form, 3)
    assert labels.classes.tolist() == ["a", "b"]
    assert labels.values.tolist() == [1, -1, 0]
    assert labels.names(labels.values).tolist() == ["b", None, "a"]


@pytest.mark.parametrize(
    "form",
    [
        [[1, 0], [-1, -1]],
        [(True, False), (-1, -1)],
        [np.array([1, 0]), np.array([-1, -1])],
        torch.tensor([[1.0, 0.0], [-1, -1]]),
    ],
)
def test_all_forms_of_the_same_matrix_are_read_alike(form):
    labels = read_labels(form, 2)
    assert labels.classes.tolist() == [0, 1]
    assert labels.values.tolist() == [[1, 0], [-1, -1]]


def test_a_bool_matrix_and_unused_columns_are_kept():
    labels = read_labels(np.array([[True, False, True], [True, False, False]]), 2)
    assert labels.values.tolist() == [[1, 0, 1], [1, 0, 0]]


def test_the_input_is_not_changed():
    raw = np.array([4.0, np.nan, 2.0])
    labels = read_labels(raw, 3)
    labels.values[:] = 0
    np.testing.assert_array_equal(raw, [4.0, np.nan, 2.0])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, 2], r"there are 3 labels for 2 items"),
        ([0, -2], r"labels hold -2; only -1 \(unlabelled\) may be negative"),
        ([0.5, 1], r"labels hold 0.5; give whole numbers"),
        (np.array([0.0, np.inf]), r"labels hold inf; give whole numbers"),
        (np.array([True, False]), r"labels have dtype bool; give ints or strings"),
        ([True, 1], r"labels hold a bool; give ints or strings"),
        (["a", 1], r"labels mix strings \('a'\) and numbers \(1\).*None for unlabelled"),
        (["a", -1], r"labels mix strings"),
        (np.array(["a", -1]), r"labels hold the string '-1'; mark unlabelled items among strings with None or ''"),
        (np.array(["a", np.nan]), r"labels hold the string 'nan'; mark unlabelled"),
        (["a", b"b"], r"labels hold a bytes"),
        ([0, 2**70], r"labels hold numbers that do not fit 64 bits"),
        (np.array([0, 2**63], dtype=np.uint64), r"more than 64 signed bits"),
        (np.zeros((2, 2, 2)), r"labels have shape \(2, 2, 2\); give \(N,\), or \(N, C\)"),
        (np.array(3), r"labels have shape \(\)"),
        ("ab", r"labels are of type str; give a list, numpy array or torch tensor"),
        (None, r"labels are of type NoneType"),
        ([[1, 0], [1]], r"rows of the labels differ in length"),
        ([[0, 1], [0, 2]], r"row 1 of the \(N, C\) labels has values other than 0 and 1"),
        ([[0, 1], [-1, 1]], r"row 1 of the \(N, C\) labels has values other than 0 and 1"),
        ([[np.nan, 1], [0, 1]], r"row 0 of the \(N, C\) labels has values other than 0 and 1"),
        ([[0, 1], [0, 0]], r"row 1 of the \(N, C\) labels has no class; mark it unlabelled with a row of -1"),
        ([["a", "b"], ["a", "c"]], r"several labels per item are \(N, C\) of 0/1"),
        (np.zeros((2, 0)), r"labels have shape \(2, 0\)"),
    ],
)
def test_labels_that_cannot_be_read_say_why(labels, message):
    with pytest.raises(ValueError, match=message):
        read_labels(labels, 2)


def test_membership_of_one_label_is_one_hot():
    labels = read_labels(["c", None, "a", "b"], 4)
    np.testing.assert_array_equal(labels.membership([0, 2, 3]), np.eye(3, dtype=np.float32)[[2, 0, 1]])
    np.testing.assert_array_equal(labels.membership(labels.is_labelled), labels.membership(np.array([0, 2, 3])))


@settings(deadline=None)
@given(multi_labels())
def test_membership_shares_an_item_equally_among_its_classes(given_labels):
    labels = read_labels(given_labels, len(given_labels))
    rows = np.flatnonzero(labels.is_labelled)
    membership = labels.membership(rows)
    assert membership.dtype == np.float32
    np.testing.assert_allclose(membership.sum(axis=1), 1, rtol=1e-6)
    expected = [[value / sum(row) for value in row] for row in given_labels[rows].tolist()]
    np.testing.assert_allclose(membership, np.reshape(expected, membership.shape), rtol=1e-6)


@pytest.mark.parametrize("given_labels", [[0, -1], [[1, 0], [-1, -1]]])
def test_unlabelled_items_have_no_membership(given_labels):
    with pytest.raises(AssertionError, match="unlabelled"):
        read_labels(given_labels, 2).membership([0, 1])


@settings(deadline=None)
@given(st.lists(st.integers(-1, 2), min_size=1), st.lists(st.integers(-1, 2), min_size=1))
def test_same_class_of_positions_is_the_plain_loop(a, b):
    expected = [[x == y and x >= 0 for y in b] for x in a]
    assert same_class(torch.tensor(a), torch.tensor(b)).tolist() == expected


@settings(deadline=None)
@given(multi_labels(3, 3), multi_labels(3, 3))
def test_same_class_of_matrices_is_sharing_a_class(a, b):
    expected = [[any(x == y == 1 for x, y in zip(p, q, strict=True)) for q in b] for p in a]
    found = same_class(torch.tensor(a, dtype=torch.float32), torch.tensor(b, dtype=torch.float32))
    assert found.dtype == torch.bool
    assert found.tolist() == expected


@pytest.mark.parametrize(
    ("given_labels", "message"),
    [
        ([-1, -1, -1], r"none of the 3 items is labelled; label some items of at least two classes"),
        ([0, 1, 2], r"all 3 items are labelled; add unlabelled items"),
        ([5, 5, -1], r"only one class has labels; label items of at least two classes"),
        ([[0, 1, 0], [0, 1, 0], [-1, -1, -1]], r"only one class has labels"),
    ],
)
def test_labels_a_method_cannot_learn_from_say_why(given_labels, message):
    with pytest.raises(ValueError, match=message):
        require_partly_labelled(read_labels(given_labels, 3))


def test_two_seen_classes_and_an_unlabelled_item_pass():
    require_partly_labelled(read_labels([0, 1, -1], 3))
    require_partly_labelled(read_labels([[1, 0, 0], [0, 0, 1], [-1, -1, -1]], 3))


def test_seen_classes_are_those_of_the_labelled_items():
    assert Labels(classes=np.arange(3), values=np.array([0, 1, -1])).n_seen == 2  # nobody has class 2
    assert read_labels([[1, 1, 0], [1, 0, 0], [-1, -1, -1]], 3).n_seen == 2
    assert read_labels([-1, -1], 2).n_seen == 0


def test_labels_that_were_read_pass_through():
    labels = read_labels(["cat", None, "dog"], 3)
    assert read_labels(labels, 3) is labels
    with pytest.raises(ValueError, match="there are 3 labels for 4 items"):
        read_labels(labels, 4)


def test_texts_name_the_classes_of_each_item():
    assert read_labels(["cat", None, "dog"], 3).texts() == ["cat", None, "dog"]
    assert read_labels([7, -1, 3], 3).texts() == ["7", None, "3"]
    several = read_labels([[1, 0, 1], [-1, -1, -1], [0, 1, 0]], 3)
    assert several.texts() == ["0|2", None, "1"]
    named = replace(several, classes=np.array(["sea", "sky", "sun"]))
    assert named.texts() == ["sea|sun", None, "sky"]


def test_the_digest_is_that_of_the_positions():
    labels = read_labels([5, 5, -1, 2], 4)
    assert labels.digest == hashlib.sha256(np.array([1, 1, -1, 0], np.int64).tobytes()).hexdigest()[:16]
    assert labels.digest == read_labels(["b", "b", None, "a"], 4).digest
    assert labels.digest != read_labels([5, 2, -1, 2], 4).digest


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.float64])
def test_several_labels_come_back_in_the_type_they_came_in(dtype):
    given = np.array([[0, 1], [1, 1], [-1, -1]], dtype=dtype)
    labels = read_labels(given, 3)
    back = labels.names(labels.values)
    assert back.dtype == dtype
    np.testing.assert_array_equal(back, given)


@pytest.mark.parametrize("multi", [False, True])
def test_a_bounded_choice_of_labelled_rows_has_every_class(multi):
    targets = np.array([0] * 500 + [1] * 3 + [2] * 97 + [-1] * 50)
    given = np.where(targets[:, None] < 0, -1, targets[:, None] == np.arange(3)).astype(int) if multi else targets
    labels = read_labels(given, 650)
    rows = labels.labelled_rows(60, np.random.default_rng(0))
    assert np.bincount(targets[rows]).tolist() == [20, 3, 20]
    assert len(set(rows.tolist())) == len(rows)
    everyone = labels.labelled_rows(600, np.random.default_rng(0))
    assert sorted(everyone.tolist()) == list(range(600))


def test_shares_are_of_the_labelled_items():
    assert read_labels([3, 3, 3, 7, -1], 5).shares().tolist() == [0.75, 0.25]
    several = read_labels([[1, 1, 0], [1, 0, 0], [-1, -1, -1]], 3)
    assert several.shares().tolist() == [0.75, 0.25, 0.0]


def test_taking_rows_forgets_classes_without_items():
    taken = read_labels(["cat", None, "dog", "eel"], 4).take(np.array([0, 1, 3]))
    assert taken.classes.tolist() == ["cat", "eel"]
    assert taken.values.tolist() == [0, -1, 1]
    several = read_labels([[1, 1, 0], [1, 0, 0], [-1, -1, -1]], 3).take(np.array([2, 1]))
    assert several.values.tolist() == [[-1, -1, -1], [1, 0, 0]]
