"""Whether a fit is good, in words."""

import numpy as np
import pytest

from combemb import CombEmb
from combemb.learning.hidden_check import HiddenCheck
from combemb.learning.verdict import verdict
from tests.blobs import blobs


def check(own: float, plain: float | None, n_queries: int = 100, favours_plain: bool = False) -> HiddenCheck:
    return HiddenCheck(8, n_queries, own, own, plain, None, favours_plain)


@pytest.mark.parametrize(
    ("own", "plain", "grade", "words"),
    [
        (0.60, 0.40, "good", "clearly better than with plain features"),
        (0.42, 0.40, "fair", "about as well as with plain features"),
        (0.39, 0.40, "fair", "about as well as with plain features"),
        (0.30, 0.40, "poor", "worse than with plain features; label more"),
        (0.80, None, "good", "are found well"),
        (0.40, None, "fair", "are found in part"),
        (0.10, None, "poor", "are found badly; label more"),
    ],
)
def test_the_grade_compares_with_plain_features(own: float, plain: float | None, grade: str, words: str):
    found = verdict(check(own, plain))
    assert found.grade == grade
    assert words in found.why
    assert str(found).startswith(f"{grade}: classes whose labels were hidden are found ")


@pytest.mark.parametrize(
    ("own", "words"), [(0.02, "hardly any hits"), (0.62, "about 6 in 10 hits"), (0.97, "nearly all hits")]
)
def test_what_to_expect_is_a_share_of_hits(own: float, words: str):
    assert verdict(check(own, None)).expectation == f"In a search for a new class, expect {words} to be right"


@pytest.mark.parametrize(("own", "n_queries"), [(0.3, 100), (0.7, 12)])
def test_a_fit_is_not_good_if_most_hits_are_wrong_or_labels_are_few(own: float, n_queries: int):
    found = verdict(check(own, 0.2, n_queries))
    assert found.grade == "fair"
    assert found.why.endswith("clearly better than with plain features")


def test_few_labels_and_kept_features_are_said():
    assert verdict(check(0.5, 0.4, n_queries=12)).expectation.endswith("a rough guess, since there are few labels")
    kept = verdict(check(0.3, 0.4, favours_plain=True))
    assert kept.grade == "fair"
    assert kept.why.endswith("best with plain features, so the fit keeps to them")


def test_a_finished_fit_that_is_resumed_has_its_check(tmp_path):
    data = blobs(4, 2)
    settings = {"bits": 12, "epochs": 2, "batch_size": 64}
    fitted = CombEmb(**settings).fit(data.x, data.labels, folder=tmp_path / "run")
    again = CombEmb(**settings).fit(data.x, data.labels, folder=tmp_path / "run", resume=True)
    assert again.check_ == fitted.check_ is not None
    assert np.isfinite(again.check_.expected)
