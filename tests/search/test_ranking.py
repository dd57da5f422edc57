"""Average precision, precision and recall are means over all orders of tied items."""

import math
from itertools import permutations
from statistics import mean

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from combemb.search.ranking import average_precision, mean_average_precision, precision_recall
from combemb.system.machine import limited_threads


def naive_ap(ranked: list[bool], at: int | None) -> float:
    """The usual average precision of one ranking, from its definition."""
    found, total = 0, 0.0
    for place, is_relevant in enumerate(ranked[:at], start=1):
        if is_relevant:
            found += 1
            total += found / place
    return total / min(sum(ranked), at or len(ranked))


def naive_tied_ap(scores: list[float], relevant: list[bool], at: int | None) -> float:
    """The mean of `naive_ap` over all orders of the items; sorting keeps each order inside the ties."""
    orders = permutations(range(len(scores)))
    return mean(naive_ap([relevant[i] for i in sorted(order, key=lambda i: -scores[i])], at) for order in orders)


def naive_tied_hits(scores: list[float], relevant: list[bool], k: int) -> float:
    """The mean over all orders of the relevant items among the first k."""
    orders = permutations(range(len(scores)))
    return mean(sum(relevant[i] for i in sorted(order, key=lambda i: -scores[i])[:k]) for order in orders)


def naive_group_ap(scores: list[float], relevant: list[bool], at: int | None) -> float:
    """The expectation place by place: r/n a hit, which then follows s + (i - 1) rho hits; for cases beyond orders."""
    total, t, s = 0.0, 0, 0
    for score in sorted(set(scores), reverse=True):
        tied = [hit for value, hit in zip(scores, relevant, strict=True) if value == score]
        n, r = len(tied), sum(tied)
        rho = (r - 1) / (n - 1) if n > 1 else 0.0
        for i in range(1, n + 1):
            if at is None or t + i <= at:
                total += r / n * (s + 1 + (i - 1) * rho) / (t + i)
        t, s = t + n, s + r
    return total / min(sum(relevant), at or len(relevant))


def ap(scores: list[float], relevant: list[bool], at: int | None = None) -> float:
    return average_precision(torch.tensor([scores]), torch.tensor([relevant]), at).item()


items = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.booleans()), min_size=1, max_size=6).filter(
    lambda pairs: any(hit for _, hit in pairs)
)


@pytest.mark.parametrize("at", [None, 1, 2, 4])
def test_seven_items_equal_the_mean_over_all_orders(at):
    rng = np.random.default_rng(0)
    for levels in (1, 2, 3, 7):
        scores = rng.integers(levels, size=7).astype(float).tolist()
        relevant = rng.permutation([True, True, True, False, False, False, False]).tolist()
        assert ap(scores, relevant, at) == pytest.approx(naive_tied_ap(scores, relevant, at), abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(pairs=items, at=st.none() | st.integers(1, 8))
def test_ties_are_averaged_over_all_orders(pairs, at):
    scores, relevant = [list(column) for column in zip(*pairs, strict=True)]
    expected = naive_tied_ap(scores, relevant, at)
    assert ap(scores, relevant, at) == pytest.approx(expected, abs=1e-12)
    assert naive_group_ap(scores, relevant, at) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(pairs=items, k=st.integers(1, 8))
def test_precision_and_recall_are_averaged_over_all_orders(pairs, k):
    scores, relevant = [list(column) for column in zip(*pairs, strict=True)]
    hits = naive_tied_hits(scores, relevant, k)
    precision, recall = precision_recall(torch.tensor([scores]), torch.tensor([relevant]), k)
    assert precision.item() == pytest.approx(hits / k, abs=1e-12)
    assert recall.item() == pytest.approx(hits / sum(relevant), abs=1e-12)


def test_without_ties_it_is_the_usual_average_precision():
    rng = np.random.default_rng(0)
    scores = rng.permuted(np.tile(np.arange(300.0), (8, 1)), axis=1)
    relevant = rng.random((8, 300)) < 0.2
    expected = [average_precision_score(r, s) for r, s in zip(relevant, scores, strict=True)]
    np.testing.assert_allclose(average_precision(scores, relevant), expected, rtol=1e-12)


@pytest.mark.parametrize(("n", "r"), [(1, 1), (5, 1), (10, 4), (1000, 999), (1000, 1000)])
def test_everything_tied_has_a_closed_form(n, r):
    rho = (r - 1) / (n - 1) if n > 1 else 0.0
    harmonic = sum(1 / i for i in range(1, n + 1))
    assert ap([0.0] * n, [True] * r + [False] * (n - r)) == pytest.approx(rho + (1 - rho) * harmonic / n, rel=1e-12)


@given(n=st.integers(0, 30), r=st.integers(1, 30), at=st.none() | st.integers(1, 60))
def test_relevant_items_first_give_one(n, r, at):
    assert ap([1.0] * r + [0.0] * n, [True] * r + [False] * n, at) == pytest.approx(1.0, abs=1e-12)
    assert ap([*range(r + n, 0, -1)], [True] * r + [False] * n, at) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("at", [None, 1, 7, 50, 1000])
def test_groups_stand_for_their_items(at):
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 9, size=25)
    relevant = rng.integers(0, sizes + 1, size=(6, 25))
    scores = rng.integers(6, size=(6, 25)) / 4  # several groups share a score
    grouped = average_precision(scores, relevant, at, sizes)
    precision, recall = precision_recall(scores, relevant, at or 3, sizes)
    for q in range(6):
        hits = [i < relevant[q, g] for g in range(25) for i in range(sizes[g])]
        spread = np.repeat(scores[q], sizes).tolist()
        assert grouped[q].item() == pytest.approx(ap(spread, hits, at), abs=1e-12)
        assert grouped[q].item() == pytest.approx(naive_group_ap(spread, hits, at), abs=1e-12)
        expected = precision_recall(np.array([spread]), np.array([hits]), at or 3)
        assert (precision[q].item(), recall[q].item()) == pytest.approx([e.item() for e in expected], abs=1e-12)


@settings(deadline=None)
@given(pairs=items, data=st.data())
def test_order_of_items_changes_nothing(pairs, data):
    shuffled = data.draw(st.permutations(pairs))
    first, second = (ap(*map(list, zip(*p, strict=True))) for p in (pairs, shuffled))
    assert first == second


@settings(deadline=None)
@given(pairs=items)
def test_only_the_order_of_scores_counts(pairs):
    scores, relevant = [list(column) for column in zip(*pairs, strict=True)]
    assert ap([math.exp(3 * s) - 7 for s in scores], relevant) == ap(scores, relevant)


def test_nothing_relevant_gives_nan_for_that_query_alone():
    scores, relevant = torch.tensor([[2.0, 1.0], [2.0, 1.0]]), torch.tensor([[0, 0], [0, 1]])
    assert average_precision(scores, relevant).isnan().tolist() == [True, False]
    precision, recall = precision_recall(scores, relevant, k=2)
    assert precision.tolist() == [0.0, 0.5]
    assert recall.isnan().tolist() == [True, False]


def test_results_are_float64_even_where_there_are_none():
    none = torch.zeros(1, 2, dtype=torch.bool)
    assert average_precision(torch.ones(1, 2), none).dtype == torch.float64
    assert average_precision(torch.ones(0, 2), none[:0]).dtype == torch.float64


@pytest.mark.parametrize("at", [None, 2])
def test_the_mean_leaves_out_queries_without_relevant_items(at):
    rng = np.random.default_rng(0)
    scores, relevant = rng.integers(4, size=(5, 9)), rng.random((5, 9)) < 0.3
    relevant[1], relevant[3, 2] = False, True
    kept = [q for q in range(5) if relevant[q].any()]
    expected = mean(naive_group_ap(scores[q].tolist(), relevant[q].tolist(), at) for q in kept)
    assert mean_average_precision(scores, relevant, at) == pytest.approx(expected, abs=1e-12)
    with pytest.raises(ValueError, match="nothing is relevant to any of 5 queries"):
        mean_average_precision(scores, np.zeros_like(relevant), at)


def test_a_table_too_large_for_one_piece_is_ranked_in_several():
    rng = np.random.default_rng(0)
    scores, relevant = rng.integers(1_000, size=(41, 100_000)), rng.random((41, 100_000)) < 0.01
    with limited_threads(3):
        found = average_precision(scores, relevant)
    for q in (0, 39, 40):
        assert found[q].item() == average_precision(scores[[q]], relevant[[q]]).item()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"relevant": torch.ones(2, 4, dtype=torch.bool)}, r"scores \(2, 3\) and relevant \(2, 4\); give \(Q, G\)"),
        ({"scores": torch.ones(3), "relevant": torch.ones(3, dtype=torch.bool)}, r"give \(Q, G\)"),
        ({"scores": torch.ones(2, 0), "relevant": torch.ones(2, 0, dtype=torch.bool)}, "G > 0"),
        (
            {"sizes": torch.ones(2, dtype=torch.int64)},
            r"sizes have shape \(2,\); give one per column of scores, \(3,\)",
        ),
        ({"relevant": torch.ones(2, 3)}, "counts of items are bool or integers"),
        ({"relevant": torch.full((2, 3), 2)}, "0 <= relevant <= sizes"),
        ({"sizes": torch.tensor([1, 0, 1])}, "sizes >= 1"),
        ({"scores": torch.tensor([[1.0, torch.nan, 0.0]] * 2)}, "NaN, which has no rank"),
        ({"at": 0}, "at=0; a cut-off counts places from 1"),
    ],
)
def test_rankings_that_make_no_sense(arguments, message):
    fine = {"scores": torch.rand(2, 3, generator=torch.Generator().manual_seed(0)), "relevant": torch.eye(3).bool()[:2]}
    with pytest.raises(ValueError, match=message):
        average_precision(**(fine | arguments))


def test_precision_needs_a_place():
    with pytest.raises(ValueError, match="k=0; a cut-off counts places from 1"):
        precision_recall(torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool), k=0)
