"""Ramps at their end points."""

import math

import pytest

from combemb.learning.objectives.ramps import ramp_up


def test_it_rises_from_exp_minus_five_to_one_and_stays_there():
    assert ramp_up(0) == pytest.approx(math.exp(-5))
    assert ramp_up(0.5) == pytest.approx(math.exp(-5 / 4))
    assert [ramp_up(t) for t in (1, 1.5, 100)] == [1, 1, 1]


def test_it_never_falls():
    values = [ramp_up(t / 50) for t in range(60)]
    assert values == sorted(values)
    assert values[0] < values[10] < values[49] < 1
