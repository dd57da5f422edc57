"""SDH: each step of its alternation against loops and brute force, its kernel, and what it learns."""

import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from combemb.data import datasets, open_set_split
from combemb.data.labels import read_labels
from combemb.methods.itq import ITQ
from combemb.methods.sdh import SDH, best_signs, class_table, ridged
from combemb.search.metrics import code_retrieval
from tests.blobs import blobs

N, C, BITS = 40, 3, 6
SETTINGS = {"bits": BITS, "class_ridge": 0.7, "fit_weight": 0.3, "kernel_ridge": 0.5, "iterations": 6}
SEPARATE = blobs(4, 2, n_each=20, D=16)


def problem(seed=0):
    """phi (N, 8) with a constant, and Y (N, C) of 0/1 with one or two ones in a row."""
    rng = np.random.default_rng(seed)
    phi = np.hstack([rng.random((N, 7)), np.ones((N, 1))])
    Y = np.eye(C)[rng.integers(C, size=N)]
    Y[np.arange(N), rng.integers(C, size=N)] = 1
    return torch.from_numpy(phi), torch.from_numpy(Y)


def item_loss(b, f, y, W, nu):
    """||y - W^T b||^2 + nu ||b - f||^2 of one item, in loops."""
    loss = sum(nu * (b[k] - f[k]) ** 2 for k in range(len(b)))
    return loss + sum((y[c] - sum(W[k][c] * b[k] for k in range(len(b)))) ** 2 for c in range(len(y)))


def objective(method, phi, Y, step):
    """Return the paper's objective with both ridge terms, in loops."""
    phi, Y, P, W, B = (part.tolist() for part in (phi, Y, *step))
    total = method.class_ridge * sum(w * w for row in W for w in row)
    total += method.fit_weight * method.kernel_ridge * sum(p * p for row in P for p in row)
    for features, y, b in zip(phi, Y, B, strict=True):
        f = [sum(value * row[k] for value, row in zip(features, P, strict=True)) for k in range(len(b))]
        total += item_loss(b, f, y, W, method.fit_weight)
    return total


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_step_increases_the_objective_and_each_kind_of_step_decreases_it(seed):
    phi, Y = problem(seed)
    method = SDH(**SETTINGS, seed=seed)
    steps = list(method.steps(phi, Y))
    assert len(steps) == 1 + 3 * method.iterations
    assert all(set(B.unique().tolist()) == {-1.0, 1.0} for _, _, B in steps)
    values = np.array([objective(method, phi, Y, step) for step in steps])
    assert (np.diff(values) <= 1e-9 * values[:-1]).all()
    assert (np.diff(values)[:3] < 0).all()  # W, B, P


def test_p_and_w_are_the_minima_of_their_ridge_regressions():
    phi, Y = problem()
    method = SDH(**SETTINGS)
    steps = list(method.steps(phi, Y))
    (P, _, B), (_, W, _) = steps[0], steps[1]
    for x, target, ridge, found in ((phi, B, 0.5, P), (B, Y, 0.7, W)):
        stacked = np.vstack([x, math.sqrt(ridge) * np.eye(x.shape[1])])
        expected = np.linalg.lstsq(stacked, np.vstack([target, np.zeros((x.shape[1], target.shape[1]))]))[0]
        np.testing.assert_allclose(found, expected, atol=1e-9)
    last, _, signs = steps[-1]  # P fits the last B
    np.testing.assert_allclose(ridged(phi, 0.5) @ last, phi.T @ signs, atol=1e-8)


def test_the_bits_of_a_step_are_those_of_brute_force_over_one_bit_at_a_time():
    rng, nu = np.random.default_rng(0), 0.3
    B, F, W = np.sign(rng.normal(size=(N, BITS))), rng.normal(size=(N, BITS)), rng.normal(size=(BITS, C))
    Y = np.eye(C)[rng.integers(C, size=N)]
    found = best_signs(*map(torch.from_numpy, (B, Y @ W.T + nu * F, W)), sweeps=1)
    naive = B.copy()
    for bit in range(BITS):
        for i in range(N):
            losses = []
            for sign in (1.0, -1.0):
                naive[i, bit] = sign
                losses.append(item_loss(naive[i], F[i], Y[i], W, nu))
            naive[i, bit] = 1.0 if losses[0] <= losses[1] else -1.0
    np.testing.assert_array_equal(found, naive)
    assert (naive != B).any()


def test_sweeps_end_where_no_single_bit_is_better():
    rng = np.random.default_rng(1)
    W, Y = rng.normal(size=(BITS, C)), np.eye(C)[rng.integers(C, size=N)]
    start = torch.from_numpy(np.sign(rng.normal(size=(N, BITS))))
    found = best_signs(start, torch.from_numpy(Y @ W.T), torch.from_numpy(W), sweeps=50).numpy()
    for b, y in zip(found, Y, strict=True):
        own = item_loss(b, b, y, W, 0)
        for bit in range(BITS):
            flipped = np.where(np.arange(BITS) == bit, -b, b)
            assert item_loss(flipped, b, y, W, 0) >= own - 1e-12
    assert not torch.equal(start, torch.from_numpy(found))


def test_a_bit_that_makes_no_difference_is_plus_one():
    zero = torch.zeros(2, 1, dtype=torch.float64)
    assert best_signs(zero - 1, zero, torch.zeros(1, 3, dtype=torch.float64), sweeps=1).tolist() == [[1], [1]]


def naive_embedding(model, x):
    anchors, P, sigma = model.anchors_.tolist(), model.projection_.tolist(), float(model.width_)
    found = []
    for item in x.tolist():
        length = math.sqrt(sum(value * value for value in item))
        phi = [
            math.exp(-sum((a / length - b) ** 2 for a, b in zip(item, anchor, strict=True)) / (2 * sigma**2))
            for anchor in anchors
        ]
        found.append([sum(p * row[k] for p, row in zip([*phi, 1.0], P, strict=True)) for k in range(len(P[0]))])
    return found


def test_embeddings_are_those_of_loops_over_anchors():
    x, labels = SEPARATE.x, SEPARATE.labels
    model = SDH(bits=BITS, n_anchors=10).fit(x, labels)
    anchors = (x / np.linalg.norm(x, axis=1, keepdims=True))[labels >= 0]
    gaps = np.abs(model.anchors_.numpy()[:, None] - anchors).max(axis=2)
    assert len(model.anchors_) == 10
    assert (gaps.min(axis=1) < 1e-6).all()  # each is one of the labelled items
    assert len(np.unique(gaps.argmin(axis=1))) == 10
    assert model.projection_[-1].abs().min() > 0  # of the constant
    np.testing.assert_allclose(model.embed(x[:7]), naive_embedding(model, x[:7]), atol=1e-4)


def test_anchors_are_drawn_from_all_classes_if_items_are_sorted_by_class():
    items = blobs(5, 0, n_each=40, D=16)
    assert (np.diff(items.targets) >= 0).all()
    at_unit_length, drawn = items.x / np.linalg.norm(items.x, axis=1, keepdims=True), []
    for seed in (0, 1):
        anchors = SDH(bits=BITS, n_anchors=20, seed=seed).fit(items.x, items.targets).anchors_.numpy()
        drawn.append(np.abs(anchors[:, None] - at_unit_length).max(axis=2).argmin(axis=1))
        assert len(set(items.targets[drawn[-1]])) >= 4
    assert set(drawn[0]) != set(drawn[1])


def test_a_fit_ends_with_the_last_p_of_its_steps():
    known = SEPARATE.labels >= 0
    x, labels = SEPARATE.x[known], SEPARATE.labels[known]
    model = SDH(bits=BITS, n_anchors=10, seed=4).fit(x, labels)
    phi = model._kernel(torch.from_numpy(x))
    *_, (P, _, B) = model.steps(phi, torch.from_numpy(np.eye(4)[labels]))
    torch.testing.assert_close(model.projection_, P)
    assert torch.equal(model.codebook.decode(model.encode(x)).double(), B)  # separable: F has the signs of B


@pytest.mark.parametrize("scale", [0.02, 0.3, 0.5, 20.0])
def test_the_width_is_that_of_the_release_unless_the_distances_are_of_another_scale(scale):
    x = scale * np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    model = SDH(bits=4, n_anchors=60, unit_length=False).fit(x, np.arange(60) % 3)
    squares = [sum((a - b) ** 2) for a in x.astype(float) for b in x.astype(float)]
    distance = math.sqrt(sum(squares) / len(squares))
    is_near = 0.2 <= distance <= 0.8
    assert is_near == (scale == 0.3)
    assert float(model.width_) == pytest.approx(0.4 if is_near else distance, rel=1e-5)
    assert float(SDH(bits=4, kernel_width=0.7).fit(x, np.arange(60) % 3).width_) == 0.7


def test_classes_are_a_table_of_zeros_and_ones():
    assert class_table(read_labels([2, 0, 2], 3)).tolist() == [[0, 1], [1, 0], [0, 1]]
    several = np.array([[1, 1, 0], [0, 1, 1]])
    assert class_table(read_labels(several, 2)).tolist() == several.tolist()


def test_items_with_several_labels_retrieve_those_that_share_one():
    rng = np.random.default_rng(0)
    sets = np.array([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [1, 0, 0, 1]])
    kinds = rng.integers(4, size=120)
    x = rng.normal(size=(4, 12))[kinds] + 0.3 * rng.normal(size=(120, 12))
    model = SDH(bits=24).fit(x.astype(np.float32), sets[kinds])
    codes = model.encode(x.astype(np.float32))
    assert code_retrieval(model.codebook, model.embed(x.astype(np.float32)), codes, sets[kinds], sets[kinds]).map > 0.95


@pytest.mark.parametrize("bits", [12, 24, 48, 72])
def test_codes_of_all_lengths_tell_200_labelled_items_apart(bits):
    many = blobs(5, 0, n_each=40, D=16)
    model = SDH(bits=bits).fit(many.x, many.targets)
    codes = model.encode(many.x)
    assert codes.shape == (200, bits)
    assert code_retrieval(model.codebook, model.embed(many.x), codes, many.targets, many.targets).map > 0.95
    assert torch.equal(model.codebook.encode(model.codebook.decode(codes)), codes)


def test_asymmetric_scores_use_the_query_as_it_is():
    x = SEPARATE.x
    model = SDH(bits=BITS, asymmetric=True).fit(x, SEPARATE.labels)
    z, codes, signs = model.embed(x), model.encode(x), SDH(bits=BITS).fit(x, SEPARATE.labels)
    assert torch.equal(codes, signs.encode(x))
    expected = z.double() @ (2.0 * codes.double() - 1).T
    torch.testing.assert_close(model.codebook.scores(z, codes), expected, atol=1e-5, rtol=1e-5)
    hamming = (codes[:, None] != codes).sum(dim=2)
    assert torch.equal(signs.codebook.scores(z, codes), (BITS - 2 * hamming).double())


def test_another_seed_gives_another_embedding():
    first, other = (SDH(bits=BITS, seed=seed).fit(SEPARATE.x, SEPARATE.labels).embed(SEPARATE.x) for seed in (3, 4))
    assert not torch.equal(first, other)


def test_it_beats_itq_on_queries_of_seen_digits():
    data = datasets.load("digits", None)
    known = open_set_split(data.train_targets, "tune-0", seed=0)
    seen = ~known.is_novel(data.test_targets)
    x, queries, targets = data.train_x[:, 0], data.test_x[seen], (data.test_targets[seen], data.train_targets)
    found = []
    for method in (ITQ(bits=24), SDH(bits=24)):
        model = method.fit(x, known.labels)
        found.append(code_retrieval(model.codebook, model.embed(queries), model.encode(x), *targets).map)
    assert found[1] > found[0] + 0.1


class Largest(TorchDispatchMode):
    """Record the number of elements of the largest tensor that any operation returns."""

    n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for part in out if isinstance(out, tuple | list) else [out]:
            self.n = max(self.n, part.numel() if isinstance(part, torch.Tensor) else 0)
        return out


def test_no_tensor_has_an_entry_for_each_pair_of_items():
    x = np.random.default_rng(0).normal(size=(1_000, 30)).astype(np.float32)
    with Largest() as largest:
        SDH(bits=12, n_anchors=100).fit(x, np.arange(1_000) % 5)
    assert 1_000 * 101 <= largest.n <= 2 * 1_000 * 101


def test_equal_items_and_one_class_are_refused():
    labels = np.arange(20) % 2
    lengths = np.outer(np.arange(1, 21), np.ones(3)).astype(np.float32)  # the same at unit length
    with pytest.raises(ValueError, match="same features"):
        SDH(bits=4).fit(lengths, labels)
    with pytest.raises(ValueError, match="at least two classes"):
        SDH(bits=4).fit(np.random.default_rng(0).normal(size=(20, 3)), np.zeros(20, int))
