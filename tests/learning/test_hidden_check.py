"""The check on hidden seen classes: its average precision, what it leaves alone, and when there is none."""

import json

import numpy as np
import pytest
import torch

from combemb.data.labels import read_labels
from combemb.learning.hidden_check import HiddenCheck, _hidden_classes, _is_surely_better
from combemb.methods.combemb import CombEmb
from combemb.search.metrics import code_retrieval

SMALL = {"bits": 12, "epochs": 2, "batch_size": 64, "device": "cpu"}


def blobs(n_classes: int = 8, n_each: int = 30, spread: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Items of some classes; of the first three quarters of the classes, half of the items are labelled."""
    rng = np.random.default_rng(0)
    targets = np.repeat(np.arange(n_classes), n_each)
    x = rng.normal(size=(n_classes, 16))[targets] + spread * rng.normal(size=(len(targets), 16))
    is_labelled = (targets < 0.75 * n_classes) & (np.arange(len(targets)) % 2 == 0)
    return x.astype(np.float32), np.where(is_labelled, targets, -1)


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


def test_the_copy_does_not_see_the_labels_of_hidden_classes(monkeypatch):
    x, labels = blobs(n_classes=12, n_each=40, spread=1.0)
    learned, fitted = [], CombEmb._fit

    def noted(self, data, run, progress):
        learned.append(data.labels)
        return fitted(self, data, run, progress)

    monkeypatch.setattr(CombEmb, "_fit", noted)
    CombEmb(**SMALL).fit(x, labels, progress=False)
    copy, whole = learned
    assert (len(whole.classes), len(copy.classes)) == (9, 7)
    lost = whole.is_labelled & ~copy.is_labelled
    hidden = set(whole.values[lost].tolist())
    assert len(hidden) == 2
    assert lost.sum() == np.isin(whole.values, list(hidden)).sum()  # none of their labels stays


def test_what_is_expected_is_near_the_truth():
    """Twelve classes that overlap a little, three of them novel, in half of the pile."""
    x, labels = blobs(n_classes=12, n_each=60, spread=0.8)
    targets = np.repeat(np.arange(12), 60)
    model = CombEmb(**{**SMALL, "epochs": 20}).fit(x, labels, progress=False)
    z, novel = model.embed(x), np.flatnonzero(targets >= 9)
    found = code_retrieval(model.codebook, z[novel], model.codebook.encode(z), targets[novel], targets)
    assert abs(model.check_.expected - found.map) < 0.1


def test_a_method_without_features_among_its_positives_does_not_claim_to_keep_to_them(monkeypatch):
    x, labels = blobs()
    monkeypatch.setattr("combemb.learning.hidden_check._is_surely_better", lambda *_: True)
    plain = CombEmb.as_published(12, epochs=2, batch_size=64, device="cpu").fit(x, labels, progress=False)
    assert not plain.check_.favours_plain
    assert plain.log_[-1]["meta"] > 0
    assert CombEmb(**SMALL).fit(x, labels, progress=False).check_.favours_plain


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


def test_what_is_expected_leans_on_plain_features_if_few_classes_are_hidden():
    """Plain features reach 0.6 on all seen classes, usually a gain of 1.3 follows; two hidden classes count as much."""
    assert HiddenCheck(2, 400, 0.9, 0.7, 0.8, 0.6).expected == pytest.approx((0.9 + 0.78) / 2)
    assert HiddenCheck(38, 400, 0.9, 0.7, 0.8, 0.6).expected == pytest.approx((38 * 0.9 + 2 * 0.78) / 40)
    assert HiddenCheck(2, 400, None, 0.7, 0.8, 0.6).expected == pytest.approx((0.7 + 0.78) / 2)
    assert HiddenCheck(2, 400, 0.9, 0.9, 0.9, 0.9).expected == pytest.approx((0.9 + 0.95) / 2)
    assert HiddenCheck(2, 400, 0.9, 0.9, None, None).expected == 0.9


def test_hidden_classes_are_easy_and_hard_ones():
    """Of eight classes two are hidden: one of the easier four, one of the harder four, by what plain features find."""
    labels = read_labels(np.repeat(np.arange(8), 3), 24)
    easy_first = {c: 1 - c / 10 for c in range(8)}
    hidden = _hidden_classes(labels, easy_first, np.random.default_rng(0))
    assert sorted(c < 4 for c in hidden) == [False, True]
    alone = read_labels(np.array([0, 1, 2, 2, -1]), 5)
    assert _hidden_classes(alone, {}, np.random.default_rng(0)).tolist() == [2]


def test_plain_features_must_be_better_in_many_classes():
    plain = dict.fromkeys(range(6), 0.5)
    assert _is_surely_better(plain, {c: 0.4 + 0.01 * c for c in range(6)})
    assert not _is_surely_better(plain, {c: 0.2 + 0.11 * c for c in range(6)})
    assert not _is_surely_better({0: 0.9, 1: 0.9}, {0: 0.1, 1: 0.1})


@pytest.mark.parametrize("favours_plain", [False, True])
def test_where_labels_do_harm_the_fit_does_not_learn_from_them(monkeypatch, favours_plain):
    x, labels = blobs()
    found = HiddenCheck(6, 100, 0.4, 0.4, 0.5, 0.5, favours_plain)
    monkeypatch.setattr("combemb.learning.fitting.hidden_check", lambda *_: found)
    model = CombEmb(**SMALL).fit(x, labels, progress=False)
    assert (model.log_[-1]["meta"] == 0) == favours_plain
    assert ("so the fit kept to them" in " ".join(model.summary())) == favours_plain


def test_a_resumed_fit_does_not_check_again(tmp_path, monkeypatch):
    x, labels = blobs()
    checked = CombEmb(**SMALL).fit(x, labels, folder=tmp_path / "run", progress=False).check_
    (tmp_path / "run" / "weights.safetensors").unlink()
    monkeypatch.setattr("combemb.learning.fitting.hidden_check", None)
    resumed = CombEmb(**SMALL).fit(x, labels, folder=tmp_path / "run", resume=True, progress=False)
    assert resumed.check_ == checked
    stored = json.loads((tmp_path / "run" / "diagnosis.json").read_text())["hidden_check"]
    assert stored == checked.as_dict()


@pytest.mark.parametrize("content", ["", "[]", '{"hidden_check": null}'])
def test_a_damaged_diagnosis_only_costs_another_check(tmp_path, content):
    x, labels = blobs()
    checked = CombEmb(**SMALL).fit(x, labels, folder=tmp_path / "run", progress=False).check_
    (tmp_path / "run" / "weights.safetensors").unlink()
    (tmp_path / "run" / "diagnosis.json").write_text(content)
    assert CombEmb(**SMALL).fit(x, labels, folder=tmp_path / "run", resume=True, progress=False).check_ == checked
