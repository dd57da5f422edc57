"""Eq. 3: the soft assignment against loops, at both ends of its sharpness, and its gradient."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from combemb.learning.objectives.prototypes import CombinatorialNetwork, prototype_matrix, similarities, soft_assignment
from combemb.search.codebook import ProductCodebook
from combemb.system.arrays import unit
from tests.reference import naive

SHAPES = [(2, 5, 3), (4, 6, 12), (8, 3, 4), (16, 2, 5), (4, 1, 1)]  # K, M, d


def random_units(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return unit(torch.randn(*shape, generator=generator, dtype=torch.float64))


def embed(z: Tensor, prototypes: Tensor, sharpness: float) -> Tensor:
    """pi of sub-vectors z (B, M, d)."""
    matrix = prototype_matrix(prototypes)
    return soft_assignment(similarities(z.flatten(1), matrix, len(prototypes)), matrix, sharpness)


@pytest.mark.parametrize(("K", "M", "d"), SHAPES)
@pytest.mark.parametrize("sharpness", [1.0, 10.0])
def test_soft_assignment_equals_the_loops(K, M, d, sharpness):
    z, prototypes = random_units(7, M, d), random_units(M, K, d, seed=1)
    loops = [naive.combinatorial_embedding(item, prototypes.tolist(), sharpness) for item in z.tolist()]
    torch.testing.assert_close(embed(z, prototypes, sharpness), torch.tensor(loops, dtype=torch.float64))


@pytest.mark.parametrize(("K", "M", "d"), SHAPES)
def test_similarities_are_the_inner_products_within_each_set(K, M, d):
    z, prototypes = random_units(7, M, d), random_units(M, K, d, seed=1)
    cosines = similarities(z.flatten(1), prototype_matrix(prototypes), M)
    assert cosines.shape == (7, K, M)
    for b in range(7):
        for k in range(K):
            for m in range(M):
                product = naive.dot(z[b, m].tolist(), prototypes[m, k].tolist())
                assert float(cosines[b, k, m]) == pytest.approx(product, abs=1e-12)


@pytest.mark.parametrize(("K", "M", "d"), SHAPES)
def test_without_sharpness_it_is_the_mean_of_the_prototypes(K, M, d):
    z, prototypes = random_units(4, M, d), random_units(M, K, d, seed=1)
    torch.testing.assert_close(embed(z, prototypes, 0.0), prototypes.mean(dim=1).flatten().expand(4, -1))


@pytest.mark.parametrize(("K", "M", "d"), [shape for shape in SHAPES if shape[2] > 1])
def test_with_endless_sharpness_it_is_the_decoded_hard_code(K, M, d):
    z, prototypes = random_units(50, M, d), random_units(M, K, d, seed=1)
    codebook = ProductCodebook(prototypes)
    codes = codebook.encode(z.flatten(1))
    assert len(codes.unique()) == K  # else the test would not tell the words apart
    torch.testing.assert_close(embed(z, prototypes, 1e7), codebook.decode(codes).double(), rtol=0, atol=1e-6)


def test_an_embedding_is_a_convex_combination_so_no_longer_than_the_prototypes():
    z, prototypes = random_units(30, 6, 12), random_units(6, 4, 12, seed=1)
    lengths = embed(z, prototypes, 10.0).unflatten(1, (6, 12)).norm(dim=2)
    assert lengths.max() <= 1 + 1e-12
    assert lengths.min() < 0.99  # and it is not normalised


def test_the_prototype_matrix_is_block_diagonal():
    prototypes = random_units(3, 4, 5)
    matrix = prototype_matrix(prototypes).view(3, 5, 4, 3)  # (M, d, K, M)
    for m in range(3):
        for other in range(3):
            expected = prototypes[m].T if m == other else torch.zeros(5, 4, dtype=torch.float64)
            assert torch.equal(matrix[m, :, :, other], expected)


@pytest.mark.parametrize("K", [2, 4])
def test_gradient_of_the_soft_assignment(K):
    z, prototypes = random_units(3, 2, 3).requires_grad_(), random_units(2, K, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda z, prototypes: embed(unit(z), unit(prototypes), 5.0), (z, prototypes))


@settings(deadline=None, max_examples=25)
@given(items=st.permutations(range(6)), words=st.permutations(range(4)))
def test_the_order_of_items_and_the_numbering_of_prototypes_do_not_matter(items, words):
    z, prototypes = random_units(6, 3, 4), random_units(3, 4, 4, seed=1)
    expected = embed(z, prototypes, 10.0)[items]
    torch.testing.assert_close(embed(z[items], prototypes[:, words], 10.0), expected)


def test_unit_scales_to_length_one_and_keeps_the_direction():
    x = 7 * random_units(5, 3, 4)
    torch.testing.assert_close(unit(x), x / 7)


# The network


def test_the_projection_starts_with_the_cosines_of_the_features():
    network = CombinatorialNetwork(20, 5, (6, 4, 12), 18)  # D = 72 is more than 20
    x = random_units(9, 20).float()
    out = network.project(x)
    torch.testing.assert_close(out @ out.T, x @ x.T)


def test_fewer_outputs_than_features_are_orthogonal_directions():
    network = CombinatorialNetwork(20, 5, (2, 4, 3), 2)
    weight = network.project.weight
    torch.testing.assert_close(weight @ weight.T, torch.eye(6))
    assert not network.project.bias.any()


def test_the_network_gives_sub_vectors_of_equal_length_in_rows_of_unit_length():
    network = CombinatorialNetwork(20, 5, (6, 4, 3), 18)
    z = network(random_units(9, 20).float())
    torch.testing.assert_close(z.unflatten(1, (6, 3)).norm(dim=2), torch.full((9, 6), 6**-0.5))
    torch.testing.assert_close(network.prototypes.norm(dim=2), torch.ones(6, 4))


def test_the_predictor_normalises_its_hidden_layer():
    network = CombinatorialNetwork(20, 5, (6, 4, 3), 8).train()
    x = 100 * random_units(9, 18).float()  # far above the epsilon of the norm
    before = network.predictor(x)
    with torch.no_grad():
        network.predictor[0].weight.mul_(3)
    torch.testing.assert_close(network.predictor(x), before, rtol=1e-3, atol=1e-4)
