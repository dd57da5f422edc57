"""How the weight of a loss rises in training."""

import math


def ramp_up(t: float) -> float:
    """Return exp(-5 (1 - t)^2), which rises from 0.007 at t = 0 to 1 at t = 1 and stays there."""
    return math.exp(-5 * (1 - min(t, 1.0)) ** 2)
