"""Matchings equal brute force over all of them; NMI, ARI and AUROC equal scikit-learn's."""

import math
import random
from dataclasses import fields
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score, roc_auc_score

from combemb.discovery.metrics import METRICS, Agreement, Parts, agreement, novelty_auroc

PARTS = ("all", "seen", "novel")
SHAPES = [(1, 1), (1, 6), (6, 1), (2, 5), (5, 2), (4, 3), (6, 6)]  # clusters, classes


def items(n_clusters: int, n_classes: int) -> st.SearchStrategy:
    """Lists of items (cluster, class, is novel); some clusters are None, and any set of classes is novel."""
    cluster = st.one_of(st.integers(0, n_clusters - 1), st.integers(0, n_clusters - 1), st.none())
    pairs = st.lists(st.tuples(cluster, st.integers(0, n_classes - 1)), min_size=1, max_size=25)
    novel = st.sets(st.integers(0, n_classes - 1))
    return st.builds(lambda found, n: [(c, t, t in n) for c, t in found], pairs, novel)


def matchings(clusters: list, classes: list) -> list[dict]:
    """Every one-to-one assignment of clusters to classes that leaves nothing over on one side at least."""
    if len(clusters) <= len(classes):
        return [dict(zip(clusters, chosen, strict=True)) for chosen in permutations(classes, len(clusters))]
    return [dict(zip(chosen, classes, strict=True)) for chosen in permutations(clusters, len(classes))]


def brute_force(rows: list) -> tuple[int, int]:
    """Right items of the best matching, and those of seen classes among them; the largest of all such pairs."""
    clusters, classes = sorted({c for c, _, _ in rows if c is not None}), sorted({t for _, t, _ in rows})
    right = [[is_novel for c, t, is_novel in rows if c in m and m[c] == t] for m in matchings(clusters, classes)]
    return max((len(of), of.count(False)) for of in right)


def share(part: float, whole: int) -> float:
    return part / whole if whole else math.nan


def parts_of(rows: list) -> tuple[list, list, list]:
    return rows, [row for row in rows if not row[2]], [row for row in rows if row[2]]


def assert_same(found: Agreement, expected: Agreement) -> None:
    for field in fields(Agreement):
        values = getattr(expected, field.name)
        assert getattr(found, field.name) == pytest.approx(values, abs=1e-12, nan_ok=True), field.name


@pytest.mark.parametrize(("n_clusters", "n_classes"), SHAPES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_accuracies_equal_brute_force(n_clusters, n_classes, data):
    rows = data.draw(items(n_clusters, n_classes))
    _, seen, novel = parts_of(rows)
    n, n_seen, n_novel = map(len, (rows, seen, novel))
    right, right_seen = brute_force(rows)
    apart = brute_force(seen)[0], brute_force(novel)[0]
    split = Parts(sum(apart) / n, share(apart[0], n_seen), share(apart[1], n_novel))
    found = agreement(*zip(*rows, strict=True))
    assert found.n_items == (n, n_seen, n_novel)
    assert found.acc_joint == pytest.approx(
        (right / n, share(right_seen, n_seen), share(right - right_seen, n_novel)), nan_ok=True
    )
    assert found.acc_split == pytest.approx(split, nan_ok=True)
    assert found.acc_paper == pytest.approx((right / n, *split[1:]), nan_ok=True)


@pytest.mark.parametrize(("n_clusters", "n_classes"), SHAPES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_nmi_and_ari_equal_scikit_learn(n_clusters, n_classes, data):
    rows = data.draw(items(n_clusters, n_classes))
    found = agreement(*zip(*rows, strict=True))
    for name, reference in (("nmi", normalized_mutual_info_score), ("ari", adjusted_rand_score)):
        for value, part in zip(getattr(found, name), parts_of(rows), strict=True):
            clusters = [99 if c is None else c for c, _, _ in part]  # noise is a cluster of its own
            expected = reference([t for _, t, _ in part], clusters) if part else math.nan
            assert value == pytest.approx(expected, abs=1e-12, nan_ok=True)


@settings(max_examples=60, deadline=None)
@given(rows=items(5, 5), rng=st.randoms(use_true_random=False))
def test_neither_the_order_of_the_items_nor_the_names_of_clusters_matter(rows, rng):
    expected = agreement(*zip(*rows, strict=True))
    names = rng.sample(["new 1", 7, ("a", 1), "7", 2.5, -3], 6)
    renamed = [(None if c is None else names[c], f"class {t}", is_novel) for c, t, is_novel in rows]
    rng.shuffle(renamed)
    assert_same(agreement(*zip(*renamed, strict=True)), expected)


@settings(max_examples=60, deadline=None)
@given(items(6, 6))
def test_one_matching_for_all_is_never_better_than_one_for_each_part(rows):
    found = agreement(*zip(*rows, strict=True))
    assert found.acc_joint.all == found.acc_paper.all <= found.acc_split.all
    for part in ("seen", "novel"):
        if not math.isnan(getattr(found.acc_joint, part)):
            assert getattr(found.acc_joint, part) <= getattr(found.acc_split, part) == getattr(found.acc_paper, part)


def made_of(cells: dict) -> tuple[list, list, list]:
    """Items of a table {(cluster, class): count}; classes in capitals are novel."""
    rows = [pair for pair, count in cells.items() for _ in range(count)]
    return [c for c, _ in rows], [t for _, t in rows], [t.isupper() for _, t in rows]


@pytest.mark.parametrize(
    ("cells", "joint", "split"),
    [
        # The novel class hides in the cluster of a seen one: 2-X in the joint matching, 0-X in one of its own.
        ({(0, "a"): 6, (1, "b"): 4, (0, "X"): 6, (2, "X"): 4}, (14 / 20, 1, 4 / 10), (16 / 20, 1, 6 / 10)),
        # One large novel class takes a seen class's best cluster: seen items lose in the joint matching alone.
        ({(0, "a"): 3, (1, "a"): 1, (0, "X"): 8}, (9 / 12, 1 / 4, 1), (11 / 12, 3 / 4, 1)),
        # Two novel classes in one cluster: one of them is wrong, whichever matching.
        ({(0, "a"): 5, (1, "X"): 3, (1, "Y"): 2}, (8 / 10, 1, 3 / 5), (8 / 10, 1, 3 / 5)),
        # More clusters than classes: what is left over is wrong.
        ({(0, "a"): 3, (1, "a"): 2, (2, "X"): 4, (3, "X"): 1}, (7 / 10, 3 / 5, 4 / 5), (7 / 10, 3 / 5, 4 / 5)),
        # Perfect, though the clusters bear the names of other classes.
        ({("b", "a"): 3, ("a", "b"): 2, ("Y", "X"): 4}, (1, 1, 1), (1, 1, 1)),
        # One cluster for everything: the largest class of each part is right.
        ({(0, "a"): 2, (0, "b"): 1, (0, "X"): 3}, (3 / 6, 0, 1), (5 / 6, 2 / 3, 1)),
    ],
)
def test_made_up_tables_have_known_accuracies(cells, joint, split):
    found = agreement(*made_of(cells))
    assert found.acc_joint == pytest.approx(joint)
    assert found.acc_split == pytest.approx(split)
    assert found.acc_paper == pytest.approx((joint[0], *split[1:]))


@pytest.mark.parametrize("seed", range(4))
def test_ties_between_matchings_go_to_seen_classes(seed):
    rows = [(0, "a", False)] * 5 + [(0, "X", True)] * 5
    random.Random(seed).shuffle(rows)
    assert agreement(*zip(*rows, strict=True)).acc_joint == (0.5, 1, 0)
    rows += [(0, "X", True)]  # one more right item outweighs any number of seen ones
    assert agreement(*zip(*rows, strict=True)).acc_joint == (6 / 11, 0, 1)


@pytest.mark.parametrize("noise", [None, -1, np.int64(-1), -1.0])
def test_noise_is_wrong_though_its_cluster_would_be_the_best(noise):
    clusters, targets, is_novel = [0, 0, noise, noise, noise], ["a", "X", "X", "X", "X"], [False, *[True] * 4]
    found = agreement(clusters, targets, is_novel)
    assert found.acc_joint == (1 / 5, 1, 0)
    assert found.acc_split == (2 / 5, 1, 1 / 4)
    other = agreement([0, 0, 1, 1, 1], targets, is_novel)
    assert other.acc_joint == (4 / 5, 1, 3 / 4)
    assert (found.nmi, found.ari) == (other.nmi, other.ari)


def test_nothing_but_noise_has_no_right_items():
    found = agreement([None] * 3, [0, 1, 1], [False, True, True])
    assert found.acc_joint == found.acc_split == found.acc_paper == (0, 0, 0)
    assert found.nmi == found.ari == (0, 1, 1)


def test_a_part_without_items_is_nan():
    found = agreement([0, 0, 1], ["a", "a", "b"], [False] * 3)
    for name in METRICS:
        assert getattr(found, name) == pytest.approx((1, 1, math.nan), nan_ok=True)
    assert str(found).splitlines()[2].split() == ["acc_joint", "1.000", "1.000", "-"]
    found = agreement([0, 0, 1], ["a", "a", "b"], [True] * 3)
    assert found.ari == pytest.approx((1, math.nan, 1), nan_ok=True)


@pytest.mark.parametrize("as_ids", [list, tuple, np.array, np.float32, torch.tensor, lambda ids: np.array(ids, object)])
@pytest.mark.parametrize("as_mask", [list, np.array, torch.tensor])
def test_lists_arrays_and_tensors_are_read_alike(as_ids, as_mask):
    clusters, targets, is_novel = [3, 3, 0, -1, 0], [1, 1, 1, 2, 2], [False, False, False, True, True]
    expected = agreement(clusters, targets, is_novel)
    assert agreement(as_ids(clusters), as_ids(targets), as_mask(is_novel)) == expected


def test_a_number_and_its_string_are_different_ids():
    mixed = [1, "1", 1, "1"]
    for clusters in (mixed, np.array(mixed, dtype=object)):
        assert agreement(clusters, ["a", "X", "a", "X"], [False, True] * 2).acc_joint == (1, 1, 1)


def test_many_items_agree_with_scikit_learn():
    rng = np.random.default_rng(0)
    targets = rng.integers(100, size=20_000)
    clusters = np.where(rng.random(20_000) < 0.4, targets, rng.integers(130, size=20_000))
    found = agreement(clusters, targets, targets >= 75)
    for value, of in zip(
        zip(found.nmi, found.ari, strict=True), (targets >= 0, targets < 75, targets >= 75), strict=True
    ):
        pair = targets[of], clusters[of]
        assert value == pytest.approx((normalized_mutual_info_score(*pair), adjusted_rand_score(*pair)), abs=1e-12)
    assert found.acc_joint.novel == pytest.approx((targets == clusters)[targets >= 75].mean())


def test_flat_names_tell_metric_part_and_data():
    found = agreement([0, 0, 0, 0, 0, 1], list("aaaXXX"), [False] * 3 + [True] * 3)
    flat = found.as_dict("unlabelled")
    assert list(flat) == [f"unlabelled_{name}_{part}" for name in METRICS for part in PARTS]
    assert flat["unlabelled_acc_joint_novel"] == found.acc_joint.novel == 1 / 3
    assert flat["unlabelled_acc_split_novel"] == 2 / 3
    assert found.as_dict() == {name.removeprefix("unlabelled_"): value for name, value in flat.items()}
    assert all(type(value) is float for value in flat.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clusters": [0, 1]}, "there are 2 clusters for the 3 items of is_novel"),
        ({"targets": np.zeros(4)}, "there are 4 targets for the 3 items of is_novel"),
        ({"clusters": np.zeros((3, 1))}, r"clusters have shape \(3, 1\); give \(N,\)"),
        ({"targets": torch.zeros(3, 2)}, r"targets have shape \(3, 2\); give \(N,\)"),
        ({"clusters": 3}, r"clusters have shape \(\)"),
        ({"clusters": [[0], [0], [1]]}, "clusters hold what cannot be an id .*unhashable.*; give one int or string"),
        ({"clusters": [0, math.nan, 1]}, "clusters hold nan, which equals no other id"),
        ({"clusters": np.array([0, np.float32("nan"), 1], dtype=object)}, "clusters hold .*nan.*, which equals no"),
        ({"clusters": list(torch.tensor([0, 0, 1]))}, r"clusters hold tensor\(0\), which equals no other id"),
        ({"targets": ["a", None, "b"]}, r"1 of 3 targets are missing \(None or -1\); drop these items"),
        ({"targets": [-1, -1, 1]}, "2 of 3 targets are missing"),
        ({"targets": ["a", "X", "a"]}, "1 of 2 items of class 'a' are marked novel; a class is novel as a whole"),
        ({"is_novel": [0, 0, 1]}, r"is_novel has shape \(3,\) and dtype int64; give \(N,\) bool"),
        ({"is_novel": [[True, False, True]]}, r"is_novel has shape \(1, 3\)"),
        ({"clusters": [], "targets": [], "is_novel": np.zeros(0, bool)}, "at least one item"),
    ],
)
def test_unusable_input_says_what_is_wrong(changes, message):
    usable = {"clusters": [0, 0, 1], "targets": ["a", "a", "X"], "is_novel": [False, False, True]}
    assert agreement(**usable).acc_joint == (1, 1, 1)
    with pytest.raises(ValueError, match=message):
        agreement(**(usable | changes))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([-math.inf, -1, 0, 0.1, 0.2, 3, 1e300]), st.booleans()), min_size=1))
def test_auroc_counts_pairs_and_equals_scikit_learn(rows):
    scores, is_novel = map(list, zip(*rows, strict=True))
    found = novelty_auroc(scores, is_novel)
    novel, seen = ([s for s, of in rows if of is wanted] for wanted in (True, False))
    if not novel or not seen:
        assert math.isnan(found)
        return
    won = sum(1.0 if n > s else 0.5 if n == s else 0.0 for n in novel for s in seen)
    assert found == pytest.approx(won / (len(novel) * len(seen)), abs=1e-12)
    finite = np.searchsorted(np.unique(scores), scores)  # scikit-learn refuses infinite scores; ranks are the same
    assert found == pytest.approx(roc_auc_score(is_novel, finite), abs=1e-12)


def test_higher_scores_mean_novel():
    is_novel = np.array([False, False, True, True])
    assert novelty_auroc([0.1, 0.2, 0.3, 0.4], is_novel) == 1
    assert novelty_auroc(np.uint8([4, 3, 2, 1]), is_novel) == 0
    assert novelty_auroc(torch.tensor([0.5] * 4, dtype=torch.bfloat16, requires_grad=True), is_novel) == 0.5
    assert novelty_auroc([1, 3, 2, 3], is_novel) == (1 + 0 + 1 + 0.5) / 4


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([0.1, math.nan, math.nan], "2 of 3 scores are NaN"),
        ([0.1, 0.2], r"scores have shape \(2,\) and dtype float64 for 3 items; give one number per item"),
        (np.zeros((3, 1)), r"scores have shape \(3, 1\)"),
        (["a", "b", "c"], "dtype <U1 for 3 items"),
        ([0.1, None, 0.3], "dtype object for 3 items"),
        ([True, False, True], "dtype bool for 3 items"),
    ],
)
def test_unusable_scores_say_what_is_wrong(scores, message):
    with pytest.raises(ValueError, match=message):
        novelty_auroc(scores, [False, True, True])
