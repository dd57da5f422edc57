"""Principal components, eigenvalue allocation and the Procrustes step, against other implementations."""

import numpy as np
import pytest
import torch
from scipy.linalg import orthogonal_procrustes

from combemb.learning.objectives.rotations import (
    balanced_components,
    balanced_order,
    nearest_rotation,
    principal_components,
)


def test_the_nearest_rotation_is_scipys():
    x, y = torch.randn(2, 40, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = nearest_rotation(x, y)
    np.testing.assert_allclose(found, orthogonal_procrustes(x.numpy(), y.numpy())[0], atol=1e-12)
    torch.testing.assert_close(found @ found.T, torch.eye(6, dtype=torch.float64))


def test_a_rotation_is_found_again():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(30, 5, generator=generator)
    rotation = torch.linalg.qr(torch.randn(5, 5, generator=generator)).Q
    torch.testing.assert_close(nearest_rotation(x, x @ rotation), rotation, atol=1e-5, rtol=0)


def test_principal_components_are_those_of_the_whole():
    x = torch.randn(60, 7, generator=torch.Generator().manual_seed(2)) * torch.arange(1, 8) + 3
    mean, components, variances = principal_components(x.split(17))
    centred = x.double() - x.double().mean(dim=0)
    _, lengths, vectors = np.linalg.svd(centred.numpy(), full_matrices=False)
    np.testing.assert_allclose(mean, x.double().mean(dim=0))
    np.testing.assert_allclose(variances, lengths**2 / len(x), rtol=1e-6)
    np.testing.assert_allclose(np.abs(vectors @ components.numpy()), np.eye(7), atol=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])  # factors below one must not make full sets attractive
def test_variances_are_allocated_to_the_smallest_product_with_room(scale):
    assert balanced_order(scale * torch.tensor([8.0, 4, 2, 1]), 2).tolist() == [0, 3, 1, 2]
    assert balanced_order(scale * torch.tensor([1.0, 2, 4, 8]), 2).tolist() == [3, 0, 2, 1]
    # 100 | 90 | 2: full sets are left out, so that small ones fill what is left
    assert balanced_order(scale * torch.tensor([100.0, 90, 2, 1.5, 1.2, 1]), 3).tolist() == [0, 5, 1, 4, 2, 3]
    assert balanced_order(scale * torch.tensor([9.0, 8, 7, 1e-20, 0, 0]), 3).tolist() == [0, 5, 1, 4, 2, 3]


def test_products_of_variances_are_nearly_equal():
    variances = torch.from_numpy(np.geomspace(100, 0.01, 64))
    in_order = variances.log().reshape(8, 8).sum(dim=1)
    order = balanced_order(variances, 8)
    assert sorted(order.tolist()) == list(range(64))
    balanced = variances[order].log().reshape(8, 8).sum(dim=1)
    assert balanced.max() - balanced.min() < 0.02 * (in_order.max() - in_order.min())


def test_constant_features_can_be_allocated():
    assert sorted(balanced_order(torch.zeros(6), 3).tolist()) == list(range(6))


def test_the_leading_components_are_balanced_and_no_more_than_fit_the_sets():
    x = torch.randn(500, 9, generator=torch.Generator().manual_seed(3))
    x = x @ torch.diag(torch.tensor([90.0, 4, 3.8, 3.5, 3.2, 3, 0.5, 0.1, 0.01])) + 2
    mean, components, variances = principal_components([x])
    for at_most, D in ((7, 6), (6, 6), (9, 8), (50, 8)):
        found_mean, found = balanced_components(x.split(200), 2, at_most)
        torch.testing.assert_close(found_mean, mean)
        expected = components[:, balanced_order(variances[:D], 2)]
        torch.testing.assert_close((found.T @ expected).abs(), torch.eye(D, dtype=torch.float64))
    assert balanced_order(variances[:6], 2).tolist() != balanced_order(variances[-6:], 2).tolist()
