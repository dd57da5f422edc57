"""Whether a fit is good, in words: what the check on hidden classes says about new classes."""

from dataclasses import dataclass
from typing import Literal

from combemb.learning.hidden_check import ROUGH_QUERIES, HiddenCheck

Grade = Literal["good", "fair", "poor"]

GOOD_GAIN, FAIR_GAIN = 1.1, 0.95  # mean average precision relative to that of plain features
GOOD_ALONE, FAIR_ALONE = 0.5, 0.25  # mean average precision where there are no plain features to compare with


@dataclass(frozen=True)
class Verdict:
    """How good a fit is for new classes.

    Attributes
    ----------
    grade : {"good", "fair", "poor"}
        How well items of classes whose labels were hidden retrieve each other, compared with plain features. A fit
        is good only if, in addition, half of the hits are expected to be right and the labels suffice to tell.
    why : str
        What the grade means.
    expectation : str
        What to expect of a search for items of a new class.
    """

    grade: Grade
    why: str
    expectation: str

    def __str__(self) -> str:
        return f"{self.grade}: {self.why}. {self.expectation}"


def verdict(check: HiddenCheck) -> Verdict:
    """Return what a check means for a person who has never heard of mean average precision.

    >>> print(verdict(HiddenCheck(n_hidden=8, n_queries=90, codes=0.54, z=0.56, plain=0.4)))
    good: classes whose labels were hidden are found clearly better than with plain features. In a search for a new \
class, expect about 5 in 10 hits to be right
    """
    gain = _grade(check)
    is_rough = check.n_queries < ROUGH_QUERIES
    grade: Grade = "fair" if gain == "good" and (is_rough or check.expected < GOOD_ALONE) else gain
    rough = "; this is a rough guess, since there are few labels" if is_rough else ""
    expectation = f"In a search for a new class, expect {_share(check.expected)} to be right{rough}"
    return Verdict(grade, f"classes whose labels were hidden are found {_why(check, gain)}", expectation)


def _grade(check: HiddenCheck) -> Grade:
    if check.plain is None:
        return "good" if check.own >= GOOD_ALONE else "fair" if check.own >= FAIR_ALONE else "poor"
    if check.favours_plain:
        return "fair"  # the fit keeps to the plain features, so it is about as good
    if check.own >= GOOD_GAIN * check.plain:
        return "good"
    return "fair" if check.own >= FAIR_GAIN * check.plain else "poor"


def _why(check: HiddenCheck, grade: Grade) -> str:
    if check.plain is None:
        return {"good": "well", "fair": "in part", "poor": "badly; label more items or more classes"}[grade]
    if check.favours_plain:
        return "best with plain features, so the fit keeps to them"
    return {
        "good": "clearly better than with plain features",
        "fair": "about as well as with plain features",
        "poor": "worse than with plain features; label more items or more classes",
    }[grade]


def _share(expected: float) -> str:
    tenths = round(10 * expected)
    return {0: "hardly any hits", 10: "nearly all hits"}.get(tenths, f"about {tenths} in 10 hits")
