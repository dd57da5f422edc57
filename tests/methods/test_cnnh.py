"""CNNH: its factorisation against one that builds L, its targets in their rows, its losses, and what it learns."""

import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch

from combemb.data import datasets, open_set_split
from combemb.data.items import ArrayItems
from combemb.data.labels import read_labels
from combemb.learning.batches import Batches
from combemb.methods.cnnh import CNNH, factorise, label_sets, sign_agreement
from combemb.methods.itq import ITQ
from combemb.search.metrics import code_retrieval
from tests.blobs import blobs

SMALL = {"bits": 12, "epochs": 2, "batch_size": 32, "device": "cpu"}
ONE = np.random.default_rng(5).integers(3, size=15)
SEVERAL = np.array([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 0, 1, 1]])[
    np.random.default_rng(6).integers(5, size=15)
]
MANY = blobs(5, 0, n_each=40, D=16)


def naive_similarity(labels):
    """Return S (n, n) of labels (n,) or (n, C), in loops."""
    kinds = [{c} if np.ndim(c) == 0 else set(np.flatnonzero(c).tolist()) for c in labels]
    return np.array([[1.0 if a & b else -1.0 for b in kinds] for a in kinds])


def objective(H, S):
    """||q S - H H^T||^2."""
    return (H.shape[1] * S - H @ H.T).square().sum()


def naive_factorisation(labels, bits, passes, rng):
    """Newton steps with the derivatives of the whole objective along each entry; all n x n pairs are in memory."""
    n, S = len(labels), torch.from_numpy(naive_similarity(labels))
    H = torch.from_numpy(rng.uniform(-1, 1, (n, bits)))
    for _ in range(passes):
        for j in range(bits):
            for i in rng.permutation(n).tolist():
                entry = H[i, j].clone().requires_grad_(True)
                place = torch.zeros_like(H)
                place[i, j] = 1.0
                (first,) = torch.autograd.grad(objective(H + place * (entry - H[i, j]), S), entry, create_graph=True)
                (second,) = torch.autograd.grad(first, entry)
                step = -first / second if second > 0 else -2 * torch.sign(first)
                H[i, j] = (H[i, j] + step.detach()).clamp(-1, 1)
    return H.numpy()


@pytest.mark.parametrize("labels", [ONE, SEVERAL], ids=["one label", "several labels"])
@pytest.mark.parametrize("bits", [3, 9])  # with 9 bits for 15 items, some second derivatives are negative
def test_the_factorisation_is_that_of_newton_steps_on_all_pairs(labels, bits):
    expected = naive_factorisation(labels, bits, 2, np.random.default_rng(9))
    found = factorise(*label_sets(read_labels(labels, len(labels))), bits, 2, np.random.default_rng(9))
    np.testing.assert_allclose(found, expected, atol=1e-9)
    start, S = np.random.default_rng(9).uniform(-1, 1, found.shape), naive_similarity(labels)
    values = [float(objective(torch.from_numpy(H), torch.from_numpy(S))) for H in (start, found)]
    assert values[1] < 0.7 * values[0]


def test_derivatives_are_negative_somewhere_in_the_test_above():
    H = np.random.default_rng(9).uniform(-1, 1, (15, 9))
    bends = (H**2).sum(axis=0) + H**2 + (H**2).sum(axis=1, keepdims=True) - 9
    assert bends.min() < 0 < bends.max()


@pytest.mark.parametrize("labels", [ONE, SEVERAL], ids=["one label", "several labels"])
def test_sets_of_labels_hold_the_similarity_of_all_pairs(labels):
    hidden = np.concatenate([labels, -np.ones_like(labels[:2])])  # unlabelled items have no row
    item_sets, similarity = label_sets(read_labels(hidden, 17))
    np.testing.assert_array_equal(similarity[np.ix_(item_sets, item_sets)], naive_similarity(labels))
    assert len(similarity) == len(np.unique(labels, axis=0))


@pytest.mark.parametrize("bits", [12, 24, 48, 72])
def test_codes_of_separable_classes_reconstruct_their_similarity(bits):
    labels = np.arange(120) % 4
    item_sets, similarity = label_sets(read_labels(labels, 120))
    H = factorise(item_sets, similarity, bits, 10, np.random.default_rng(0))
    assert H.shape == (120, bits)
    assert np.abs(H).max() <= 1
    codes, S = np.where(H >= 0, 1, -1), naive_similarity(labels)
    share = np.mean([[(sum(a * b) > 0) == (S[i, j] > 0) for j, b in enumerate(codes)] for i, a in enumerate(codes)])
    assert share > 0.99
    assert sign_agreement(codes, item_sets, similarity, np.random.default_rng(0)) == share
    assert (np.sign(H @ H.T) == S).mean() > 0.99


def test_the_agreement_counts_pairs_with_the_right_sign():
    codes, similarity = np.array([[1, 1], [1, 1], [-1, 1]]), np.array([[1, -1], [-1, 1]])
    found = sign_agreement(codes, np.array([0, 1, 1]), similarity, np.random.default_rng(0))
    assert found == 3 / 9  # a product of zero has no sign


def test_passes_end_when_nothing_moves():
    sets = label_sets(read_labels([0, 0, 1, 1], 4))
    few, many = (factorise(*sets, 1, passes, np.random.default_rng(0)) for passes in (20, 10_000_000))
    np.testing.assert_array_equal(few, many)
    np.testing.assert_array_equal(few[:, 0] * few[0, 0], [1, 1, -1, -1])


def test_no_array_has_an_entry_for_each_pair_of_items():
    n = 2_000
    for labels in (np.arange(n) % 7, SEVERAL[np.arange(n) % 15]):
        sets = label_sets(read_labels(labels, n))
        assert len(sets[1]) <= 7
        tracemalloc.start()
        factorise(*sets, 4, 1, np.random.default_rng(0))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < n * n / 4  # bytes


def prepared(labels, **settings):
    """A method after stage 1, and its data: a number per item as its only feature."""
    n = len(labels)
    items = ArrayItems(np.arange(n, dtype=np.float32)[:, None])
    data = Batches(items, read_labels(labels, n), 32, 0.5, seed=0)
    method = CNNH(**{**SMALL, "bits": 24, **settings})
    method.prepare(data)
    return method, data


def require_aligned(method, data):
    """Require that the targets of each batch reconstruct the similarity of its labels, and that x is that item."""
    for batch in data.epoch(3):
        n = batch.n_labelled
        assert torch.equal(batch.x[:n, 0].long(), batch.rows[:n])
        targets = method._targets(batch)
        assert set(targets.unique().tolist()) == {-1.0, 1.0}
        assert targets.shape == (n, method.bits)
        np.testing.assert_array_equal(torch.sign(targets @ targets.T), naive_similarity(batch.labels[:n].numpy()))


@pytest.mark.parametrize("is_multi", [False, True])
@pytest.mark.parametrize("n_unlabelled", [0, 40])
def test_targets_stay_with_their_items(is_multi, n_unlabelled):
    rng = np.random.default_rng(2)
    labels = rng.integers(4, size=160)
    hidden = rng.permutation(160)[:n_unlabelled]
    if is_multi:
        labels = np.array([[1, 0, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]])[labels]
    labels[hidden] = -1
    method, data = prepared(labels)
    require_aligned(method, data)
    method.scratch.targets = method.scratch.targets[torch.from_numpy(rng.permutation(160))]
    with pytest.raises(AssertionError):  # the check notices targets in another order
        require_aligned(method, data)


def test_targets_are_the_signs_of_stage_1():
    method, _ = prepared(ONE, seed=3, passes=2)
    H = factorise(*label_sets(read_labels(ONE, 15)), 24, 2, np.random.default_rng(3))
    np.testing.assert_array_equal(method.scratch.targets, np.sign(H))


@pytest.mark.parametrize("is_multi", [False, True])
@pytest.mark.parametrize("class_weight", [0.0, 0.4])
def test_losses_are_those_of_loops(is_multi, class_weight):
    labels = SEVERAL if is_multi else ONE
    x = np.random.default_rng(0).normal(size=(15, 6)).astype(np.float32)
    method = CNNH(**SMALL, class_weight=class_weight, hidden=8).fit(x, labels)
    data = Batches(ArrayItems(x), read_labels(labels, 15), 32, 0.5, seed=0, noise=0.3)
    method.prepare(data)
    batch = next(data.epoch(0))
    batch = replace(batch, x=method.feature_map_(batch.x))
    terms, net = method.losses(batch), method.network_
    outputs = net(batch.x).tolist()
    errors, classes = [], []
    for i, row in enumerate(batch.rows.tolist()):
        target = method.scratch.targets[row].tolist()
        errors += [(f - t) ** 2 for f, t in zip(outputs[i], target, strict=True)]
        if class_weight:
            hidden = [max(v, 0.0) for v in net.trunk[0](batch.x[i]).tolist()]
            scores = net.classify(torch.tensor(hidden)).tolist()
            total = math.log(sum(math.exp(score) for score in scores))
            own = np.flatnonzero(labels[row]) if is_multi else [labels[row]]
            classes.append(sum(total - scores[c] for c in own) / len(own))
    assert float(terms["codes"].detach()) == pytest.approx(np.mean(errors), rel=1e-4)
    assert set(terms) == ({"codes", "classes"} if class_weight else {"codes"})
    if class_weight:
        assert float(terms["classes"].detach()) == pytest.approx(class_weight * np.mean(classes), rel=1e-4)
    else:
        assert net.classify is None
    assert np.abs(outputs).max() < 1  # of tanh


def retrieved(model, x, labels):
    return code_retrieval(model.codebook, model.embed(x), model.encode(x), labels, labels).map


@pytest.mark.parametrize("settings", [{}, {"class_weight": 0.5}, {"asymmetric": True}])
def test_200_labelled_items_are_learned_whatever_their_order(settings):
    order = np.random.default_rng(1).permutation(200)
    x, labels = MANY.x[order], MANY.targets[order]
    model = CNNH(bits=24, epochs=60, **settings).fit(x, labels)
    assert retrieved(model, x, labels) > 0.95
    assert model.log_[-1]["bits_right"] > 0.95
    stage_1, stage_2 = model.report()
    assert f"{model.agreement_:.1%}" in stage_1
    assert f"{model.log_[-1]['bits_right']:.1%}" in stage_2


def test_items_with_several_labels_retrieve_those_that_share_one():
    rng = np.random.default_rng(0)
    sets = np.array([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]])
    kinds = rng.integers(3, size=120)
    x = (rng.normal(size=(3, 12))[kinds] + 0.3 * rng.normal(size=(120, 12))).astype(np.float32)
    assert retrieved(CNNH(bits=24, epochs=60).fit(x, sets[kinds]), x, sets[kinds]) > 0.95


def test_it_learns_where_some_items_are_unlabelled_during_the_check_on_hidden_classes():
    model = CNNH(bits=24, epochs=30, check=True).fit(MANY.x, MANY.targets)
    assert model.check_.codes > 0.3
    assert retrieved(model, MANY.x, MANY.targets) > 0.95


def test_asymmetric_scores_use_the_query_as_it_is():
    model = CNNH(**SMALL, asymmetric=True).fit(MANY.x, MANY.labels)
    z, codes = model.embed(MANY.x), model.encode(MANY.x)
    assert torch.equal(codes, (z >= 0).byte())
    expected = z.double() @ (2.0 * codes.double() - 1).T
    torch.testing.assert_close(model.codebook.scores(z, codes), expected, atol=1e-5, rtol=1e-5)


def test_it_beats_itq_on_queries_of_seen_digits():
    data = datasets.load("digits", None)
    known = open_set_split(data.train_targets, "tune-0", seed=0)
    seen = ~known.is_novel(data.test_targets)
    x, queries, targets = data.train_x[:, 0], data.test_x[seen], (data.test_targets[seen], data.train_targets)
    found = []
    for method in (ITQ(bits=24), CNNH(bits=24, epochs=100)):
        model = method.fit(x, known.labels)
        found.append(code_retrieval(model.codebook, model.embed(queries), model.encode(x), *targets).map)
    assert found[1] > found[0] + 0.1


def test_labels_without_a_dissimilar_pair_are_refused():
    x = np.random.default_rng(0).normal(size=(30, 5))
    everywhere = np.stack([np.ones(30), np.arange(30) % 2], axis=1)
    with pytest.raises(ValueError, match="any two labelled items share a label"):
        CNNH(**SMALL).fit(x, everywhere)
    with pytest.raises(ValueError, match="at least two classes"):
        CNNH(**SMALL).fit(x, np.zeros(30, int))
