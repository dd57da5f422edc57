"""Average precision is the mean over all orders of tied items; retrieval equals a brute-force ranking."""

import math
from itertools import permutations
from statistics import mean

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from combemb.codes import Codebook, binary_codebook
from combemb.metrics import (
    Retrieval,
    average_precision,
    code_retrieval,
    float_retrieval,
    pair_precision_recall,
)

CUT_OFFS = [None, 1, 3, 100]


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


def naive_run_ap(scores: list[float], relevant: list[bool], at: int | None) -> float:
    """The expectation place by place: r/n a hit, which then follows s + (i - 1) rho hits; for cases beyond orders."""
    total, t, s = 0.0, 0, 0
    for score in sorted(set(scores), reverse=True):
        run = [hit for value, hit in zip(scores, relevant, strict=True) if value == score]
        n, r = len(run), sum(run)
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
    assert naive_run_ap(scores, relevant, at) == pytest.approx(expected, abs=1e-12)


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
    for q in range(6):
        hits = [i < relevant[q, g] for g in range(25) for i in range(sizes[g])]
        spread = np.repeat(scores[q], sizes).tolist()
        assert grouped[q].item() == pytest.approx(ap(spread, hits, at), abs=1e-12)
        assert grouped[q].item() == pytest.approx(naive_run_ap(spread, hits, at), abs=1e-12)


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
    result = average_precision(torch.tensor([[2.0, 1.0], [2.0, 1.0]]), torch.tensor([[0, 0], [0, 1]]))
    assert result.isnan().tolist() == [True, False]
    assert result.dtype == torch.float64


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


class Case:
    """Short codes of a small database, with many ties and many equal codes; the last class has no database items."""

    def __init__(self, seed: int = 0, n: int = 90, n_queries: int = 21) -> None:
        generator = torch.Generator().manual_seed(seed)
        words = torch.nn.functional.normalize(torch.randn(2, 4, 3, generator=generator), dim=2)
        self.codebook = Codebook(words)
        self.queries = torch.randn(n_queries, 6, generator=generator)
        self.codes = torch.randint(4, (n, 2), generator=generator).to(torch.uint8)
        self.vectors = self.codebook.decode(self.codes)
        self.query_targets = torch.randint(6, (n_queries,), generator=generator)
        self.targets = torch.randint(5, (n,), generator=generator)
        self.query_labels = torch.randint(2, (n_queries, 4), generator=generator)
        self.labels = torch.randint(2, (n, 4), generator=generator)

    def naive(self, scores: torch.Tensor, relevant: torch.Tensor, at: int | None = None) -> Retrieval:
        kept = [q for q in range(len(scores)) if relevant[q].any()]
        precisions = [naive_run_ap(scores[q].tolist(), relevant[q].tolist(), at) for q in kept]
        return Retrieval(mean(precisions), relevant[kept].double().mean().item(), len(kept), len(scores) - len(kept))


def assert_same(found: Retrieval, expected: Retrieval) -> None:
    assert (found.map, found.chance) == pytest.approx((expected.map, expected.chance), abs=1e-12)
    assert (found.n_queries, found.n_skipped) == (expected.n_queries, expected.n_skipped)


@pytest.mark.parametrize("at", CUT_OFFS)
@pytest.mark.parametrize("chunk", [1, 8, 64])
def test_code_retrieval_equals_brute_force(at, chunk):
    case = Case()
    scores = case.codebook.scores(case.queries, case.codes)
    single = case.query_targets[:, None] == case.targets
    found = code_retrieval(
        case.codebook, case.queries, case.codes, case.query_targets, case.targets, at=at, chunk=chunk
    )
    assert_same(found, case.naive(scores, single, at))
    assert found.n_skipped > 0
    several = (case.query_labels[:, None] & case.labels).any(dim=2)
    found = code_retrieval(case.codebook, case.queries, case.codes, case.query_labels, case.labels, at=at, chunk=chunk)
    assert_same(found, case.naive(scores, several, at))


@pytest.mark.parametrize("at", CUT_OFFS)
def test_float_retrieval_equals_brute_force(at):
    case = Case()
    generator = torch.Generator().manual_seed(1)
    database = torch.randn(90, 6, generator=generator)
    database[60:] = database[:30]  # equal vectors tie
    unit = torch.nn.functional.normalize
    scores = unit(case.queries.double(), dim=1) @ unit(database[:60].double(), dim=1).T
    scores = torch.cat([scores, scores[:, :30]], dim=1)
    found = float_retrieval(case.queries, database, case.query_targets, case.targets, at=at, chunk=8)
    assert_same(found, case.naive(scores, case.query_targets[:, None] == case.targets, at))


def test_one_class_each_equals_one_hot_labels():
    case = Case()
    q, db = (torch.nn.functional.one_hot(t, 6) for t in (case.query_targets, case.targets))
    assert code_retrieval(case.codebook, case.queries, case.codes, q, db) == code_retrieval(
        case.codebook, case.queries, case.codes, case.query_targets, case.targets
    )


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_order_of_the_database_changes_nothing(seed):
    case = Case(seed % 5)
    order = torch.randperm(90, generator=torch.Generator().manual_seed(seed))
    for q, db in ((case.query_targets, case.targets), (case.query_labels, case.labels)):
        assert code_retrieval(case.codebook, case.queries, case.codes, q, db) == code_retrieval(
            case.codebook, case.queries, case.codes[order], q, db[order]
        )
        assert float_retrieval(case.queries, case.vectors, q, db) == float_retrieval(
            case.queries, case.vectors[order], q, db[order]
        )


@pytest.mark.parametrize(
    "name",
    [
        lambda t: [f"class {c}" for c in t.tolist()],
        lambda t: np.array([f"class {c}" for c in t.tolist()], dtype=object),
        lambda t: t.numpy() * 1000 - 7,
        lambda t: t.tolist(),
    ],
)
def test_targets_may_be_strings_or_any_integers(name):
    case = Case()
    expected = code_retrieval(case.codebook, case.queries, case.codes, case.query_targets, case.targets)
    q, db = name(case.query_targets), name(case.targets)
    assert code_retrieval(case.codebook, case.queries.numpy(), case.codes.numpy(), q, db) == expected


def test_codes_longer_than_an_integer_are_told_apart():
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(2, (40, 90), generator=generator).to(torch.uint8)
    targets = torch.arange(40)
    queries = codes.float() * 2 - 1
    assert code_retrieval(binary_codebook(90), queries, codes, targets, targets).map == 1.0


def test_random_codes_stay_near_chance():
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(2, (4000, 12), generator=generator).to(torch.uint8)
    targets = torch.arange(4000) % 10
    queries = torch.randn(50, 12, generator=generator)
    found = code_retrieval(binary_codebook(12), queries, codes, torch.arange(50) % 10, targets)
    assert found.chance == pytest.approx(0.1, abs=1e-12)
    assert found.map == pytest.approx(0.1, abs=0.01)


def test_zero_vectors_tie_with_everything():
    found = float_retrieval(torch.zeros(1, 3), torch.eye(3), [0], [0, 1, 1])
    assert found.map == pytest.approx((1 + 1 / 2 + 1 / 3) / 3, abs=1e-12)


def test_a_retrieval_says_chance_beside_map():
    assert str(Retrieval(0.5834, 0.1, 540, 0)) == "mAP 0.583 (chance 0.100, 540 queries)"
    assert str(Retrieval(0.5834, 0.1, 540, 3)) == "mAP 0.583 (chance 0.100, 540 queries, 3 skipped)"


@pytest.mark.parametrize(
    ("query_targets", "targets", "message"),
    [
        ([0, 1], [0, 1, 2], "2 and 3 targets for 3 queries and 3 database items; give one per item"),
        ([0, 1, 2], [0, 1], "3 and 2 targets"),
        ([0, 1, 2], [3, 4, 5], "none of 3 queries shares a class with the 3 database items"),
        ([0, 1, 2], ["0", "1", "2"], "integers for both or strings for both"),
        ([0.0, 1.0, 2.0], [0, 1, 2], "targets are of type float64 and int64"),
        (np.array(["a", None, "b"]), ["a", "b", "b"], "type object"),
        ([0, 1, 2], np.eye(3), r"targets have shapes \(3,\) and \(3, 3\)"),
        (np.eye(3), np.eye(3)[:, :2], r"\(n, C\) with the same C"),
        (np.eye(3), 2 * np.eye(3), "values other than 0 and 1"),
    ],
)
def test_targets_that_do_not_fit(query_targets, targets, message):
    for call in (
        lambda *t: code_retrieval(binary_codebook(3), torch.ones(3, 3), torch.eye(3, dtype=torch.uint8), *t),
        lambda *t: float_retrieval(torch.ones(3, 3), torch.eye(3), *t),
    ):
        with pytest.raises(ValueError, match=message):
            call(query_targets, targets)


@pytest.mark.parametrize(
    ("queries", "database", "options", "message"),
    [
        (torch.ones(2, 4), torch.eye(3), {}, "queries have 4 columns and the database 3; embed both alike"),
        (torch.full((2, 3), torch.nan), torch.eye(3), {}, r"queries of shape \(2, 3\) must be \(N, D\) and finite"),
        (torch.ones(2, 3), torch.eye(3) / 0, {}, "database of shape"),
        (torch.ones(2, 3), torch.eye(3), {"chunk": 0}, "chunk=0"),
        (torch.ones(2, 3), torch.eye(3), {"at": 0}, "at=0"),
        (torch.ones(0, 3), torch.eye(3), {}, "none of 0 queries"),
        (torch.ones(2, 3), torch.ones(0, 3), {}, "the database is empty"),
    ],
)
def test_vectors_that_cannot_be_ranked(queries, database, options, message):
    with pytest.raises(ValueError, match=message):
        float_retrieval(queries, database, torch.arange(len(queries)), torch.arange(len(database)), **options)


def test_pairs_of_an_item_with_itself_do_not_count():
    same = torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 1]]).bool()
    assert pair_precision_recall(same, same) == (1.0, 1.0)
    assert pair_precision_recall(torch.ones(3, 3).bool(), same) == (1 / 3, 1.0)
    one_way = torch.tensor([[1, 1, 1], [0, 1, 1], [0, 0, 1]]).bool()
    assert pair_precision_recall(one_way, same) == (1 / 3, 1 / 2)


def test_no_pairs_have_no_precision_and_no_recall():
    alone, both = np.eye(2, dtype=bool), np.ones((2, 2), dtype=bool)
    assert pair_precision_recall(alone, both) == (pytest.approx(math.nan, nan_ok=True), 0.0)
    assert pair_precision_recall(both, alone) == (0.0, pytest.approx(math.nan, nan_ok=True))


@settings(deadline=None)
@given(B=st.integers(1, 6), data=st.data())
def test_pairs_equal_the_naive_loop(B, data):
    mask = st.lists(st.lists(st.booleans(), min_size=B, max_size=B), min_size=B, max_size=B)
    predicted, same = data.draw(mask), data.draw(mask)
    pairs = [(predicted[i][j], same[i][j]) for i in range(B) for j in range(B) if i != j]
    hits, n_said, n_true = sum(p and s for p, s in pairs), sum(p for p, _ in pairs), sum(s for _, s in pairs)
    expected = (hits / n_said if n_said else math.nan, hits / n_true if n_true else math.nan)
    assert pair_precision_recall(np.array(predicted), np.array(same)) == pytest.approx(expected, nan_ok=True)


def test_pair_masks_that_do_not_fit():
    square = torch.eye(3).bool()
    with pytest.raises(ValueError, match=r"shapes \(3, 3\) and \(3, 2\); give \(B, B\)"):
        pair_precision_recall(square, square[:, :2])
    with pytest.raises(ValueError, match=r"torch.float32 and torch.bool; give bool"):
        pair_precision_recall(torch.eye(3), square)
