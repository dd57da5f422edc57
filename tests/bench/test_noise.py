"""The test that tells differences from noise: exact signs, Holm's correction, and what is said."""

from itertools import product

import numpy as np
import pytest

from combemb.bench.noise import LEVEL, MAX_EXACT, differences, sentence, sign_flip

RNG = np.random.default_rng(0)
RUNS = [(str(split), seed) for split in range(4) for seed in range(3)]


def runs(mean: float, noise: np.ndarray | float = 0.0) -> dict:
    values = np.broadcast_to(mean + noise, len(RUNS))
    return dict(zip(RUNS, values.tolist(), strict=True))


@pytest.mark.parametrize("n", [1, 3, 6])
def test_every_sign_is_tried(n: int):
    gaps = RNG.normal(0.5, 1, n)
    sums = [abs(np.dot(signs, gaps)) for signs in product((-1, 1), repeat=n)]
    assert sign_flip(gaps) == pytest.approx(np.mean([s >= abs(gaps.sum()) - 1e-9 for s in sums]))


def test_more_runs_than_can_be_tried_are_drawn():
    n = MAX_EXACT + 6
    assert sign_flip(np.ones(n)) < 1e-3
    assert sign_flip(np.tile([1.0, -1.0], n // 2)) == 1.0


def test_holm_multiplies_the_smallest_p_by_the_number_of_pairs():
    shared = RNG.normal(0, 0.2, len(RUNS))  # splits differ by much more than methods: pairs take that out
    found = differences({"a": runs(0.5, shared), "b": runs(0.4, shared), "c": runs(0.4, shared)})
    smallest = 2 / 2 ** len(RUNS)
    assert [d.p for d in found] == pytest.approx([3 * smallest, 3 * smallest, 1.0])
    assert [(d.better, d.worse, d.is_clear) for d in found[:2]] == [("a", "b", True), ("a", "c", True)]
    assert found[0].mean == pytest.approx(0.1)
    assert not found[2].is_clear


def test_no_difference_is_found_in_noise():
    n_found = 0
    for _ in range(40):
        scores = {name: runs(0.5, RNG.normal(0, 0.1, len(RUNS))) for name in "abc"}
        n_found += any(d.is_clear for d in differences(scores))
    assert n_found <= 40 * LEVEL * 3


def test_the_sentence_names_clear_and_unclear_leads():
    noise = RNG.normal(0, 0.1, len(RUNS))
    text = sentence("mAP", {"ours": runs(0.6), "itq": runs(0.4), "near": runs(0.599, noise - noise.mean()), "none": {}})
    assert text == (
        "mAP: best is ours, ahead of itq (+0.200) by more than the noise; "
        "ahead of near (+0.001) by no more than the noise"
    )
    few = {name: dict(list(scores.items())[:4]) for name, scores in {"a": runs(0.9), "b": runs(0.1)}.items()}
    assert sentence("mAP", few) == (
        "mAP: best is a, but 4 runs are too few to tell any difference between 2 methods from noise; 6 are needed, so "
        "use more --seeds or --splits"
    )
    assert sentence("mAP", {"alone": runs(0.5)}) == ""


def test_methods_are_compared_on_the_runs_that_all_have():
    easy = {run: 0.49 + 0.2 * (run[0] == "0") for run in RUNS}
    some = {run: easy[run] - 0.04 for run in RUNS if run[0] in "01"}  # the larger mean, since it failed in hard runs
    assert np.mean(list(some.values())) > np.mean(list(easy.values()))
    assert sentence("mAP", {"some": some, "whole": easy}) == (
        "mAP: best is whole on the 6 runs that all methods have, ahead of some (+0.040) by more than the noise"
    )
    assert sentence("mAP", {"a": {("0", 0): 0.5}, "b": {("1", 0): 0.5}}) == (
        "mAP: no run of all methods, so nothing can be compared"
    )
