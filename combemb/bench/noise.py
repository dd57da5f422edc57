"""Which differences between methods are larger than the noise of splits and seeds."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

LEVEL = 0.05
MAX_EXACT = 14  # pairs up to which all signs are tried
N_DRAWN = 20_000  # signs drawn beyond it
TEST = (
    "two-sided sign-flip test of the paired differences of all runs (split and seed), Holm's correction over all "
    f"pairs of methods, level {LEVEL:.0%}; runs share items, and those of a split its classes, so take a close "
    "decision with caution"
)
Scores = Mapping[tuple[str, int], float]  # score by split and seed


@dataclass(frozen=True)
class Difference:
    """The mean difference of two methods over the runs that both have, and whether it exceeds the noise."""

    better: str
    worse: str
    mean: float
    p: float
    is_clear: bool


def sign_flip(differences: np.ndarray) -> float:
    """Return how often the mean of differences (n,) with random signs is at least as large, in absolute value.

    All 2^n signs are tried for small n.

    >>> sign_flip(np.array([1.0, 1.0, 1.0]))
    0.25
    """
    n = len(differences)
    if n <= MAX_EXACT:
        signs = 1 - 2 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
    else:
        signs = np.random.default_rng(0).choice([-1, 1], size=(N_DRAWN, n))
    means = np.abs(signs @ differences)
    observed = abs(differences.sum())
    is_extreme = means >= observed * (1 - 1e-12)
    if n <= MAX_EXACT:
        return float(is_extreme.mean())
    return float((is_extreme.sum() + 1) / (len(signs) + 1))


def differences(scores: Mapping[str, Scores]) -> list[Difference]:
    """Return the differences between all pairs of methods, tested together.

    Parameters
    ----------
    scores : mapping
        Method -> its score in each run.

    Returns
    -------
    list of Difference
        The smallest p first; p is corrected.
    """
    found = []
    for one, other in combinations(scores, 2):
        runs = sorted(scores[one].keys() & scores[other].keys())
        if not runs:
            continue
        gap = np.array([scores[one][run] - scores[other][run] for run in runs])
        names = (one, other) if gap.mean() >= 0 else (other, one)
        found.append((sign_flip(gap), *names, float(abs(gap.mean()))))
    found.sort()
    tested, largest = [], 0.0
    for place, (p, better, worse, mean) in enumerate(found):
        largest = max(largest, min(p * (len(found) - place), 1.0))  # Holm: never below that of a smaller p
        tested.append(Difference(better, worse, mean, largest, largest <= LEVEL))
    return tested


def sentence(title: str, scores: Mapping[str, Scores]) -> str:
    """Say of one column which leads of the best method exceed the noise, on the runs that all methods have."""
    scores = {name: runs for name, runs in scores.items() if runs}
    if len(scores) < 2:
        return ""
    common = set.intersection(*map(set, scores.values()))
    if not common:
        return f"{title}: no run of all methods, so nothing can be compared"
    n, n_pairs = len(common), len(scores) * (len(scores) - 1) // 2
    where = "" if n == max(map(len, scores.values())) else f" on the {n} runs that all methods have"
    shared = {name: {run: runs[run] for run in common} for name, runs in scores.items()}
    best = max(shared, key=lambda name: float(np.mean(list(shared[name].values()))))
    if n < MAX_EXACT and 2 / 2**n * n_pairs > LEVEL:
        needed = int(np.ceil(np.log2(2 * n_pairs / LEVEL)))
        return (
            f"{title}: best is {best}{where}, but {n} runs are too few to tell any difference between {len(scores)} "
            f"methods from noise; {needed} are needed, so use more --seeds or --splits"
        )
    own = sorted((d for d in differences(shared) if best in (d.better, d.worse)), key=lambda d: -d.mean)
    parts = []
    for is_clear, text in ((True, "by more than the noise"), (False, "by no more than the noise")):
        others = [f"{d.worse if d.better == best else d.better} ({d.mean:+.3f})" for d in own if d.is_clear == is_clear]
        parts += [f"ahead of {', '.join(others)} {text}"] if others else []
    return f"{title}: best is {best}{where}, {'; '.join(parts)}"
