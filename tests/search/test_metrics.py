"""Retrieval equals a brute-force ranking of every item; pairs are counted as by a naive loop."""

import math
from statistics import mean

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from combemb.search import metrics
from combemb.search.codebook import ProductCodebook, binary_codebook
from combemb.search.metrics import Retrieval, code_retrieval, float_retrieval, pair_precision_recall
from combemb.search.ranking import precision_recall
from tests.search.test_ranking import naive_group_ap

CUT_OFFS = [None, 1, 3, 100]
PLACES = (1, 5, 200)


class Case:
    """Short codes of a small database, with many ties and many equal codes; the last class has no database items."""

    def __init__(self, seed: int = 0, n: int = 90, n_queries: int = 21) -> None:
        generator = torch.Generator().manual_seed(seed)
        words = torch.nn.functional.normalize(torch.randn(2, 4, 3, generator=generator), dim=2)
        self.codebook = ProductCodebook(words)
        self.queries = torch.randn(n_queries, 6, generator=generator)
        self.codes = torch.randint(4, (n, 2), generator=generator).to(torch.uint8)
        self.vectors = self.codebook.decode(self.codes)
        self.query_targets = torch.randint(6, (n_queries,), generator=generator)
        self.targets = torch.randint(5, (n,), generator=generator)
        self.query_labels = torch.randint(2, (n_queries, 4), generator=generator)
        self.labels = torch.randint(2, (n, 4), generator=generator)

    def naive(self, scores: torch.Tensor, relevant: torch.Tensor, at: int | None = None) -> Retrieval:
        kept = [q for q in range(len(scores)) if relevant[q].any()]
        precisions = [naive_group_ap(scores[q].tolist(), relevant[q].tolist(), at) for q in kept]
        chance = relevant[kept].double().mean().item()
        by_k = {k: precision_recall(scores[kept], relevant[kept], k) for k in PLACES}
        precision, recall = ({k: found[i].mean().item() for k, found in by_k.items()} for i in (0, 1))
        return Retrieval(mean(precisions), chance, len(kept), len(scores) - len(kept), precision, recall)


def assert_same(found: Retrieval, expected: Retrieval) -> None:
    assert (found.map, found.chance) == pytest.approx((expected.map, expected.chance), abs=1e-12)
    assert (found.n_queries, found.n_skipped) == (expected.n_queries, expected.n_skipped)
    assert found.precision == pytest.approx(expected.precision, abs=1e-12)
    assert found.recall == pytest.approx(expected.recall, abs=1e-12)


@pytest.mark.parametrize("at", CUT_OFFS)
@pytest.mark.parametrize("scores_at_once", [1, 1_000, 16_000_000])
def test_code_retrieval_equals_brute_force(monkeypatch, at, scores_at_once):
    monkeypatch.setattr(metrics, "SCORES_AT_ONCE", scores_at_once)
    case, options = Case(), {"at": at, "k": PLACES}
    scores = case.codebook.scores(case.queries, case.codes)
    single = case.query_targets[:, None] == case.targets
    found = code_retrieval(case.codebook, case.queries, case.codes, case.query_targets, case.targets, **options)
    assert_same(found, case.naive(scores, single, at))
    assert found.n_skipped > 0
    several = (case.query_labels[:, None] & case.labels).any(dim=2)
    found = code_retrieval(case.codebook, case.queries, case.codes, case.query_labels, case.labels, **options)
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
    found = float_retrieval(case.queries, database, case.query_targets, case.targets, at=at, k=PLACES)
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
    found = Retrieval(0.5834, 0.1, 540, 0, {5: 0.8, 10: 0.7}, {5: 0.04, 10: 0.07})
    assert str(found).endswith("; at 5 precision 0.800, recall 0.040; at 10 precision 0.700, recall 0.070")


@pytest.mark.parametrize(
    ("query_targets", "targets", "message"),
    [
        ([0, 1], [0, 1, 2], "2 and 3 targets for 3 queries and 3 database items; give one per item"),
        ([0, 1, 2], [0, 1], "3 and 2 targets"),
        ([0, 1, 2], [3, 4, 5], "none of 3 queries shares a class with the 3 database items"),
        ([0, 1, 2], ["0", "1", "2"], "integers or strings for both"),
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
        (torch.ones(2, 3), torch.eye(3), {"at": 0}, "at=0"),
        (torch.ones(2, 3), torch.eye(3), {"k": (5, 0)}, "k=0; a cut-off counts places from 1"),
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
