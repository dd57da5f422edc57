"""The check on hidden seen classes: its average precision, what it leaves alone, and when there is none."""

import json

import numpy as np
import pytest
import torch

from combemb.learning.hidden_check import HiddenCheck, expected_precision
from combemb.methods.combemb import CombEmb

SMALL = {"bits": 12, "epochs": 2, "batch_size": 64, "device": "cpu"}


def blobs(n_classes: int = 8, n_each: int = 30, spread: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Items of some classes; of the first three quarters of the classes, half of the items are labelled."""
    rng = np.random.default_rng(0)
    targets = np.repeat(np.arange(n_classes), n_each)
    x = rng.normal(size=(n_classes, 16))[targets] + spread * rng.normal(size=(len(targets), 16))
    is_labelled = (targets < 0.75 * n_classes) & (np.arange(len(targets)) % 2 == 0)
    return x.astype(np.float32), np.where(is_labelled, targets, -1)


def naive_average_precision(scores: list[float], relevant: list[bool]) -> float:
    """The mean precision at the places of the relevant items, without ties."""
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    hits, found = 0, []
    for place, i in enumerate(order):
        if relevant[i]:
            hits += 1
            found.append(hits / (place + 1))
    return sum(found) / len(found)


def test_of_a_pile_that_is_all_labelled_it_is_the_average_precision():
    rng = np.random.default_rng(1)
    classes, scores = rng.integers(3, size=40), rng.normal(size=(5, 40))
    queries = np.arange(5)
    expected = []
    for row, q in zip(scores, queries, strict=True):
        others = [i for i in range(40) if i != q]
        expected.append(naive_average_precision(row[others].tolist(), [classes[i] == classes[q] for i in others]))
    sizes = torch.bincount(torch.tensor(classes))
    found = expected_precision(torch.tensor(scores), torch.tensor(queries), torch.tensor(classes), sizes, 40)
    assert found == pytest.approx(np.mean(expected))


def test_items_of_equal_score_are_in_the_middle_of_each_other():
    """One relevant item among four others of its score: two of them come before it."""
    classes = torch.tensor([0, 0, 1, 1, 1, 1])
    found = expected_precision(torch.zeros(1, 6), torch.tensor([0]), classes, torch.tensor([2, 4]), 6)
    assert found == pytest.approx(1 / 3)


@pytest.mark.parametrize(("share", "error"), [(0.1, 0.02), (0.06, 0.06)])
def test_a_labelled_part_estimates_the_whole_pile(share, error):
    """The plain average precision of a part is too high, the more the smaller the part is; this one is nearer."""
    rng = np.random.default_rng(2)
    targets = np.repeat(np.arange(40), 50)
    x = rng.normal(size=(40, 8))[targets] + 0.8 * rng.normal(size=(2000, 8))
    x = torch.from_numpy(x / np.linalg.norm(x, axis=1, keepdims=True))

    def precision(rows: np.ndarray, assumed: float) -> float:
        z, classes = x[rows], torch.from_numpy(targets[rows])
        queries, sizes = torch.arange(len(rows)), torch.bincount(classes) / assumed
        return expected_precision(z[queries] @ z.T, queries, classes, sizes, round(len(rows) / assumed))

    truth = precision(np.arange(2000), 1.0)
    part = np.sort(np.concatenate([rng.permutation(50)[: round(50 * share)] + 50 * c for c in range(40)]))
    estimate, plain = precision(part, share), precision(part, 1.0)
    assert abs(estimate - truth) < error < plain - truth


def test_the_check_does_not_change_the_model(tmp_path):
    x, labels = blobs()
    with_check = CombEmb(**SMALL).fit(x, labels, folder=tmp_path / "run", progress=False)
    without = CombEmb(**SMALL, check=False).fit(x, labels, progress=False)
    torch.testing.assert_close(with_check.embed(x), without.embed(x), rtol=0, atol=0)
    assert without.check_ is None
    stored = json.loads((tmp_path / "run" / "diagnosis.json").read_text())["hidden_check"]
    assert stored == with_check.check_.as_dict()
    assert stored["n_hidden"] == 2  # of six
    assert any("checked on 2 hidden classes" in line for line in with_check.summary())


def test_the_check_is_the_same_at_every_call():
    x, labels = blobs()
    assert CombEmb(**SMALL).fit(x, labels).check_ == CombEmb(**SMALL).fit(x, labels).check_


def test_separate_classes_are_expected_to_be_found_and_mixed_ones_are_not():
    easy, hard = (CombEmb(**{**SMALL, "epochs": 10}).fit(*blobs(spread=spread)).check_ for spread in (0.1, 3.0))
    assert easy.expected > 0.95
    assert hard.expected < 0.5


@pytest.mark.parametrize("n_seen", [2, 3])
def test_too_few_classes_have_no_check(n_seen):
    x, labels = blobs()
    few = np.where(labels < n_seen, labels, -1)
    check = CombEmb(**SMALL).fit(x, few, progress=False).check_
    assert (check is None) == (n_seen == 2)


def test_items_with_several_labels_have_no_check():
    x, labels = blobs()
    table = np.where(labels[:, None] >= 0, np.eye(6)[labels], -1)
    assert CombEmb(**SMALL).fit(x, table, progress=False).check_ is None


def test_the_line_says_when_it_is_rough_and_when_plain_features_are_better():
    assert str(HiddenCheck(2, 400, 0.61, 0.6, 0.55)) == (
        "checked on 2 hidden classes: your codes 0.61, plain features 0.55, expected on new classes about 0.61"
    )
    assert str(HiddenCheck(1, 6, None, 0.4, 0.55)) == (
        "checked on 1 hidden class: your embeddings 0.40, plain features 0.55, expected on new classes about 0.40; "
        "the plain features are better here; few labels, so this is a rough guess"
    )


def test_what_is_expected_allows_for_hidden_classes_that_are_easier_than_others():
    """Plain features reach 0.8 on the hidden classes and 0.6 on all seen ones, so the codes will lose a quarter."""
    check = HiddenCheck(2, 400, 0.8, 0.7, 0.8, 0.6)
    assert check.expected == pytest.approx(0.6)
    assert HiddenCheck(2, 400, None, 0.7, 0.8, 0.6).expected == pytest.approx(0.525)
    assert HiddenCheck(2, 400, 0.9, 0.9, 0.3, 0.6).expected == 1
    assert HiddenCheck(2, 400, 0.9, 0.9, None, None).expected == 0.9
    assert "your codes 0.80, plain features 0.80, expected on new classes about 0.60" in str(check)


def test_a_part_in_which_other_classes_are_rarer_than_in_the_pile_estimates_the_whole_pile():
    """Of the first class half of the items are looked at, of the others a quarter."""
    part = torch.from_numpy(np.concatenate([np.arange(30), np.arange(60, 1200, 4)]))
    sizes, classes = torch.full((20,), 60), torch.arange(20).repeat_interleave(60)
    found = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(20, 8))[classes] + 0.8 * rng.normal(size=(1200, 8))
        x = torch.from_numpy(x / np.linalg.norm(x, axis=1, keepdims=True))
        given = [(x[rows[:30]] @ x[rows].T, torch.arange(30), classes[rows]) for rows in (torch.arange(1200), part)]
        truth, estimate = (expected_precision(*some, sizes, 1200) for some in given)
        plain = expected_precision(*given[1], torch.bincount(classes[part]), len(part))
        found.append([truth, estimate, plain])
    truth, estimate, plain = np.mean(found, axis=0)
    assert estimate == pytest.approx(truth, abs=0.03)
    assert plain > truth + 0.06
