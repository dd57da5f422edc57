"""ITQ alternates signs and the Procrustes step, as naive loops and FAISS do."""

import faiss
import numpy as np
import pytest
import torch
from scipy.linalg import orthogonal_procrustes

from combemb.methods.itq import ITQ

BITS = 6


def items(seed=0, n=200, F=10):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(5, F))
    x = centres[rng.integers(0, 5, n)] + 0.5 * rng.normal(size=(n, F)) @ rng.normal(size=(F, F)) / 2 + 2
    return x.astype(np.float32)


def fitted(x, iterations, **settings):
    return ITQ(bits=BITS, unit_length=False, iterations=iterations, **settings).fit(x)


def start(x, seed=0):
    """V (N, bits), and the first rotation, which the seed draws."""
    rotation = torch.linalg.qr(torch.randn(BITS, BITS, generator=torch.Generator().manual_seed(seed))).Q.numpy()
    return fitted(x, 0, seed=seed).embed(x).numpy() @ rotation.T, rotation


def quantisation_error(z):
    return float(np.square(np.where(z >= 0, 1, -1) - z).sum(axis=1).mean())


def test_items_are_centred_and_projected_to_the_leading_components():
    x = items()
    V, _ = start(x)
    expected = np.linalg.svd(x - x.mean(axis=0, dtype=np.float64))[1][:BITS] ** 2
    np.testing.assert_allclose(V.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(V.T @ V, np.diag(expected), atol=1e-4 * expected[0])


@pytest.mark.parametrize("iterations", [1, 2, 7])
def test_iterations_are_those_of_loops(iterations):
    x = items()
    V, rotation = start(x)
    for _ in range(iterations):
        signs = np.where(rotation.T @ V.T >= 0, 1.0, -1.0).T
        rotation = orthogonal_procrustes(V, signs)[0]
    np.testing.assert_allclose(fitted(x, iterations).embed(x), V @ rotation, atol=1e-4)


def test_the_error_never_rises_and_falls_in_the_end():
    x = items(1)
    errors = [quantisation_error(fitted(x, n).embed(x).numpy()) for n in range(12)]
    assert (np.diff(errors) <= 1e-5 * errors[0]).all()
    assert errors[-1] < 0.95 * errors[0]


def test_the_map_is_a_projection_and_a_rotation():
    rotation = fitted(items(), 5).rotation_
    torch.testing.assert_close(rotation.T @ rotation, torch.eye(BITS), atol=1e-5, rtol=0)


def test_the_error_is_that_of_faiss():
    x = items(2)
    V, rotation = start(x)
    theirs = faiss.ITQMatrix(BITS)
    theirs.max_iter = 50
    faiss.copy_array_to_vector(np.ascontiguousarray(rotation.T, np.float64).ravel(), theirs.init_rotation)
    theirs.train(np.ascontiguousarray(V))
    same_start = quantisation_error(theirs.apply(np.ascontiguousarray(V)))
    ours = quantisation_error(fitted(x, 50).embed(x).numpy())
    assert ours <= 1.0001 * same_start


def test_a_query_is_binarised_unless_asymmetric():
    x = items(3)
    model, real = fitted(x, 10), fitted(x, 10, asymmetric=True)
    codes, z = model.encode(x), model.embed(x)
    assert torch.equal(codes, (z >= 0).to(torch.uint8))
    assert torch.equal(real.encode(x), codes)
    words = 2 * codes.double() - 1
    assert torch.equal(model.codebook.scores(z[:5], codes), torch.where(z[:5] >= 0, 1.0, -1.0).double() @ words.T)
    torch.testing.assert_close(real.codebook.scores(z[:5], codes), z[:5].double() @ words.T)


def test_unit_length_ignores_the_lengths_of_items():
    x = items(4)
    longer = x * np.random.default_rng(0).uniform(1, 5, (len(x), 1)).astype(np.float32)
    first, second = (ITQ(bits=BITS).fit(x).embed(given) for given in (x, longer))
    torch.testing.assert_close(first, second, atol=1e-5, rtol=0)
    assert not torch.allclose(fitted(x, 3).embed(x), fitted(x, 3).embed(longer), atol=1e-2)


@pytest.mark.parametrize("bits", [12, 24, 48, 72])
def test_codes_have_the_bits_that_were_asked_for_and_are_the_signs_of_the_embedding(bits):
    x = items(F=80)
    model = ITQ(bits=bits, iterations=5).fit(x)
    assert model.codebook.bits == bits
    assert torch.equal(model.encode(x), (model.embed(x) >= 0).to(torch.uint8))
    assert model.encode(x).shape == (len(x), bits)
