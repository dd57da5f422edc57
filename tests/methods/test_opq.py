"""OPQ alternates k-means and the Procrustes step, and quantises no worse than FAISS."""

import faiss
import numpy as np
import pytest
import torch
from scipy.linalg import orthogonal_procrustes
from sklearn.datasets import load_digits

from combemb.learning.objectives.rotations import balanced_order
from combemb.learning.objectives.words import fit_words
from combemb.methods.opq import OPQ, alternate
from tests.learning.objectives.test_words import naive_step


def correlated(n=400, F=12, seed=0):
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(F, F)))[0]
    return (rng.normal(size=(n, F)) * np.geomspace(4, 0.2, F) @ turn + 1).astype(np.float32)


def clustered(n=600, F=24, seed=0):
    rng = np.random.default_rng(seed)
    centres = 3 * rng.normal(size=(20, F))
    return (centres[rng.integers(0, 20, n)] + rng.normal(size=(n, F))).astype(np.float32)


def fitted(x, **settings):
    return OPQ(unit_length=False, **settings).fit(x)


def quantisation_error(model, x):
    return float((model.embed(x) - model.codebook.decode(model.encode(x))).double().square().sum(dim=1).mean())


def error_of_faiss(x, n_sets, iterations, per_iteration):
    """FAISS's rotation, then its quantiser of the rotated vectors; both with 16 words."""
    x = np.ascontiguousarray(x - x.mean(axis=0))
    D = x.shape[1]
    rotation, inner = faiss.OPQMatrix(D, n_sets), faiss.ProductQuantizer(D, n_sets, 4)
    rotation.pq, rotation.niter, rotation.niter_pq = inner, iterations, per_iteration
    rotation.train(x)
    z = rotation.apply(x)
    quantiser = faiss.ProductQuantizer(D, n_sets, 4)
    quantiser.train(z)
    return float(np.square(z - quantiser.decode(quantiser.compute_codes(z))).sum(axis=1).mean())


def test_half_steps_are_those_of_loops():
    x = torch.from_numpy(correlated(80, 6))
    words, codes = fit_words(x.unflatten(1, (3, 2)), 4)
    rotation, found, losses = alternate(x, words, codes, 2)
    expected = []
    turn = np.eye(6)

    def loss():
        y = np.stack([np.concatenate([words[m, c].numpy() for m, c in enumerate(code)]) for code in codes.numpy()])
        expected.append(np.square(x.numpy() @ turn - y).sum(axis=1).mean())
        return y

    y = loss()
    for _ in range(2):
        turn = orthogonal_procrustes(x.numpy(), y)[0]
        loss()
        words, codes = naive_step((x @ torch.from_numpy(turn).float()).unflatten(1, (3, 2)), words)
        y = loss()
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(rotation, turn, atol=1e-5)
    torch.testing.assert_close(found, words, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("make", [correlated, clustered])
@pytest.mark.parametrize("bits", [8, 24])
def test_the_loss_never_rises_between_half_steps(make, bits):
    x = make()
    model = fitted(x, bits=bits, iterations=12)
    assert len(model.losses_) == 1 + 2 * 12
    assert (np.diff(model.losses_) <= 1e-6 * model.losses_[0]).all()
    assert model.losses_[-1] < 0.995 * model.losses_[0]
    assert quantisation_error(model, x) <= (1 + 1e-5) * model.losses_[-1]  # each item takes its nearest words
    assert model.facts() == {"quantisation_loss": [round(model.losses_[0], 6), round(model.losses_[-1], 6)]}


def test_it_starts_from_balanced_principal_components():
    x = correlated()
    z = fitted(x, bits=12, iterations=0).embed(x).double().numpy()
    variances = np.linalg.svd(x - x.mean(axis=0, dtype=np.float64))[1] ** 2 / len(x)
    order = balanced_order(torch.from_numpy(variances), 3)
    np.testing.assert_allclose(z.T @ z / len(x), np.diag(variances[order]), atol=1e-4)
    products = variances[order].reshape(3, 4).prod(axis=1)
    assert products.max() < 1.5 * products.min()


def test_embeddings_are_rotated_and_queries_stay_real():
    x = correlated()
    model = fitted(x, bits=12, iterations=5)
    z, codes = model.embed(x), model.encode(x)
    torch.testing.assert_close(torch.cdist(z, z), torch.cdist(*2 * [torch.from_numpy(x)]), atol=1e-2, rtol=1e-3)
    np.testing.assert_allclose(z.mean(dim=0), 0, atol=1e-4)
    distances = torch.cdist(z[:4].double(), model.codebook.decode(codes).double()).square()
    torch.testing.assert_close(model.codebook.scores(z[:4], codes), -distances, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("per_iteration", [1, 4])
@pytest.mark.parametrize("bits", [12, 24])
@pytest.mark.parametrize("make", [correlated, clustered])
def test_the_error_is_no_worse_than_that_of_faiss(make, bits, per_iteration):
    x = make(F=24)
    assert quantisation_error(fitted(x, bits=bits, iterations=20), x) <= error_of_faiss(x, bits // 4, 20, per_iteration)


def test_the_error_on_digits_is_no_worse_than_that_of_faiss():
    x = load_digits().data[:800]
    x = (x - x.mean(axis=0)) @ np.linalg.svd(x - x.mean(axis=0))[2].T[:, :24]
    rng = np.random.default_rng(0)
    turns = [np.linalg.qr(rng.normal(size=(24, 24)))[0] for _ in range(4)]  # FAISS starts from the axes that are given
    ours = np.mean(
        [quantisation_error(fitted(x.astype(np.float32), bits=24, iterations=20, seed=s), x) for s in (0, 1)]
    )
    assert ours <= np.mean([error_of_faiss((x @ turn).astype(np.float32), 6, 20, 4) for turn in turns])


@pytest.mark.parametrize(("bits", "n_words", "sizes"), [(12, 16, (16,) * 3), (12, 4, (4,) * 6), (72, 16, (16,) * 18)])
def test_bits_are_sets_times_bits_of_a_word(bits, n_words, sizes):
    model = fitted(correlated(100, 25), bits=bits, n_words=n_words, iterations=1)
    assert model.codebook.sizes == sizes
    assert model.codebook.bits == bits
    assert model.embed(correlated(5, 25)).shape[1] == 25 // len(sizes) * len(sizes)


def test_few_distinct_items_share_words():
    x = np.repeat(correlated(5), 8, axis=0)
    model = fitted(x, bits=12, iterations=2)
    assert quantisation_error(model, x) < 1e-6
    model.encode(correlated(20, seed=1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bits": 13}, "bits=13 is no multiple of the 4 bits of a set with n_words=16; use 16 bits"),
        ({"n_words": 5}, "n_words=5 must be one of 2, 4, 8, 16"),
        ({"n_components": 11}, "n_components=11 for 12 sets of words; use at least 12"),
        ({"bits": 72}, "bits=72 makes 18 sets of words for 12 features; use fewer bits"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        OPQ(**settings).fit(correlated(), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_too_few_items_are_refused():
    with pytest.raises(ValueError, match="n_words=16 for 15 items; use fewer words or more items"):
        OPQ(bits=12).fit(correlated(15))
