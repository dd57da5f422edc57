"""Average precision in a pile of which a part is labelled, against the truth of constructed piles."""

import numpy as np
import pytest

from combemb.search.partly_labelled import estimated_precisions, seen_share


def pile(n_classes: int, n_each: int, spread: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    targets = np.repeat(np.arange(n_classes), n_each)
    x = rng.normal(size=(n_classes, 8))[targets] + spread * rng.normal(size=(len(targets), 8))
    return x / np.linalg.norm(x, axis=1, keepdims=True), targets


def partly(targets: np.ndarray, n_seen: int, share: float, seed: int = 0) -> np.ndarray:
    """Labels of a random share of the items of the first classes."""
    is_labelled = (targets < n_seen) & (np.random.default_rng(seed).random(len(targets)) < share)
    return np.where(is_labelled, targets, -1)


def naive_precision(scores: np.ndarray, relevant: np.ndarray) -> float:
    """The mean precision at the places of the relevant items, without ties."""
    hits, found = 0, []
    for place, i in enumerate(np.argsort(-scores)):
        hits += relevant[i]
        if relevant[i]:
            found.append(hits / (place + 1))
    return float(np.mean(found))


def true_precision(x: np.ndarray, targets: np.ndarray, queries: np.ndarray) -> float:
    """Of these queries in the whole pile, with all targets known; the mean over classes."""
    found: dict[int, list[float]] = {}
    for q in queries:
        others = np.delete(np.arange(len(x)), q)
        found.setdefault(targets[q], []).append(naive_precision(x[others] @ x[q], targets[others] == targets[q]))
    return float(np.mean([np.mean(values) for values in found.values()]))


@pytest.mark.parametrize(("share", "error"), [(0.5, 0.01), (0.1, 0.04), (0.04, 0.18)])
@pytest.mark.parametrize("spread", [0.3, 0.8, 1.5])
def test_a_labelled_part_estimates_the_whole_pile(share, spread, error):
    """A quarter of the classes is novel: unlabelled, as many other items are."""
    x, targets = pile(40, 50, spread)
    labels = partly(targets, 30, share)
    queries = np.flatnonzero(labels >= 0)
    found = estimated_precisions(x[queries] @ x.T, queries, labels, np.full(30, 50))
    assert np.mean(list(found.values())) == pytest.approx(true_precision(x, targets, queries), abs=error)


def test_items_of_equal_score_are_in_the_middle_of_each_other():
    """One relevant item among four others of its score: two of them come before it."""
    labels = np.array([0, 0, -1, -1, -1, -1])
    found = estimated_precisions(np.zeros((1, 6)), np.array([0]), labels, np.array([2]))
    assert found == {0: pytest.approx(1 / 3)}


def test_if_all_items_are_labelled_it_is_the_average_precision():
    x, targets = pile(5, 20, 1.0)
    queries = np.arange(0, 100, 7)
    found = estimated_precisions(x[queries] @ x.T, queries, targets, np.full(5, 20))
    assert np.mean(list(found.values())) == pytest.approx(true_precision(x, targets, queries))


def test_a_query_without_another_item_of_its_class_says_nothing():
    assert estimated_precisions(np.zeros((1, 3)), np.array([0]), np.array([0, 1, 1]), np.array([1, 2])) == {}


def test_classes_count_equally():
    """Two queries of a class that is found, one of a class that is not: the classes are reported one by one."""
    x, targets = pile(2, 30, 0.05)
    scores = np.where(targets == 0, x @ x[0], -(x @ x[0]))[None].repeat(3, axis=0)
    found = estimated_precisions(scores, np.array([0, 1, 30]), targets, np.array([30, 30]))
    assert found[0] > 0.9
    assert found[1] < 0.7


@pytest.mark.parametrize("n_seen", [10, 30, 40])
@pytest.mark.parametrize("spread", [0.2, 0.8])
def test_neighbours_tell_how_much_of_a_pile_is_seen(n_seen, spread):
    x, targets = pile(40, 50, spread)
    assert seen_share(x, partly(targets, n_seen, 0.5)) == pytest.approx(n_seen / 40, abs=0.1)


def test_uneven_classes_do_not_mislead_it():
    """One class without labels is larger than all others together."""
    x, targets = pile(40, 50, 0.3)
    rows = np.flatnonzero((targets >= 30) | (np.arange(len(targets)) % 5 == 0))
    targets = np.where(targets[rows] >= 30, 30, targets[rows])
    assert seen_share(x[rows], partly(targets, 30, 0.5)) == pytest.approx(300 / 800, abs=0.1)


def test_few_labels_leave_the_guess():
    """Two labels for each of seven classes among a thousand items: two thirds of the rest are taken for seen."""
    x, targets = pile(10, 100, 0.5)
    labels = np.where((np.arange(1000) % 100 < 2) & (targets < 7), targets, -1)
    assert seen_share(x, labels) == pytest.approx(0.014 + 0.65 * 0.986, abs=0.1)


def test_all_labelled_or_alone_is_all_seen():
    assert seen_share(np.eye(3), np.array([0, 1, 1])) == 1
    assert seen_share(np.ones((1, 2)), np.array([0])) == 1
