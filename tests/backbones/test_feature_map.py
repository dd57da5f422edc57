"""The feature map against an explicit computation: unit rows, standardised columns, principal components."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from combemb.backbones.feature_map import FeatureMap, fit_feature_map
from combemb.data.embeddings import read_embeddings
from combemb.data.items import ArrayItems, chunks
from combemb.learning.batches import MappedItems


def features(N: int = 300, F: int = 12, seed: int = 0) -> np.ndarray:
    """Correlated columns of different sizes and means."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, F)) @ rng.normal(size=(F, F)) + rng.normal(size=F)
    return (x * np.geomspace(0.1, 10, F)).astype(np.float32)


def fit(x: np.ndarray, max_features: int = 256, n_rows: int = 1000) -> FeatureMap:
    return fit_feature_map(torch.from_numpy(x).split(n_rows), max_features)


def explicit(x: np.ndarray, n_features: int) -> np.ndarray:
    """The same in numpy, by a singular value decomposition; the signs of the columns are free."""
    rows = x.astype(np.float64)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    centred = rows - rows.mean(axis=0)
    spread = centred.std(axis=0)
    varies = spread > 1e-5 * spread.max()
    standard = centred[:, varies] / spread[varies]
    _, singular, directions = np.linalg.svd(standard, full_matrices=False)
    return standard @ directions[:n_features].T / (singular[0] / np.sqrt(len(x)))


def assert_same_up_to_signs(found: Tensor, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    signs = np.sign((found.numpy() * expected).sum(axis=0))
    np.testing.assert_allclose(found.numpy() * signs, expected, atol=2e-4)


@pytest.mark.parametrize(("F", "max_features"), [(12, 256), (12, 5), (3, 3), (40, 10)])
def test_the_map_is_the_explicit_computation(F, max_features):
    x = features(F=F)
    found = fit(x, max_features)
    assert found.n_features == min(F, max_features)
    assert_same_up_to_signs(found(torch.from_numpy(x)), explicit(x, min(F, max_features)))


def test_the_first_component_has_variance_one_and_the_others_less_in_order():
    x = features()
    mapped = fit(x)(torch.from_numpy(x)).double()
    covariance = torch.cov(mapped.T, correction=0)
    variances = covariance.diagonal()
    assert variances[0].item() == pytest.approx(1, abs=1e-4)
    assert (variances.diff() < 0).all()
    torch.testing.assert_close(covariance, torch.diag(variances), rtol=0, atol=1e-4)
    torch.testing.assert_close(mapped.mean(dim=0), torch.zeros(12, dtype=torch.float64), rtol=0, atol=1e-4)


def test_the_scale_of_an_item_does_not_matter():
    x = features()
    scale = np.random.default_rng(1).uniform(0.1, 10, size=(len(x), 1)).astype(np.float32)
    found = fit(x)
    torch.testing.assert_close(found(torch.from_numpy(x * scale)), found(torch.from_numpy(x)), rtol=0, atol=1e-4)


def test_columns_of_zeros_drop_out():
    x = features()
    wide = np.insert(x, [0, 5, 12], 0, axis=1)
    found = fit(wide)
    assert (found.n_features, len(found.mean)) == (12, 15)
    assert not found.components[[0, 6, 14]].any()
    assert_same_up_to_signs(found(torch.from_numpy(wide)), explicit(x, 12))
    noisy = wide.copy()
    noisy[:, [0, 6, 14]] = 1e-3  # what was constant in training is not looked at, but for the length of the row
    assert found(torch.from_numpy(noisy)).isfinite().all()


def test_a_column_that_is_constant_at_unit_length_drops_out():
    x = features(F=6)
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    x = np.concatenate([x, lengths], axis=1)  # always 1/sqrt(2) of the row
    found = fit(x)
    assert found.n_features == 6
    assert found.components[6].abs().max() < 1e-6
    assert_same_up_to_signs(found(torch.from_numpy(x)), explicit(x, 6))


def test_columns_that_repeat_others_add_no_component():
    x = features(F=6)
    assert fit(np.concatenate([x, x[:, :4]], axis=1)).n_features == 6


def test_fewer_items_than_features():
    x = features(N=8, F=30)
    found = fit(x)
    assert found.n_features == 7
    assert_same_up_to_signs(found(torch.from_numpy(x)), explicit(x, 7))


@pytest.mark.parametrize("n_rows", [1, 7, 299])
def test_chunks_do_not_matter(n_rows):
    x = features()
    found, expected = fit(x, n_rows=n_rows), fit(x)
    assert_same_up_to_signs(found(torch.from_numpy(x)), expected(torch.from_numpy(x)).double().numpy())


def test_the_order_of_the_items_does_not_matter():
    x = features()
    expected = fit(x)(torch.from_numpy(x)).double().numpy()
    assert_same_up_to_signs(fit(x[::-1].copy())(torch.from_numpy(x)), expected)


def test_a_memory_map_of_half_precision(tmp_path: Path):
    x = features().astype(np.float16)
    np.save(tmp_path / "x.npy", x)
    mapped = read_embeddings(tmp_path / "x.npy").x
    assert isinstance(mapped, np.memmap)
    assert mapped.dtype == np.float16
    found = fit_feature_map(chunks(ArrayItems(mapped)), 256)
    assert found.mean.dtype == torch.float32
    items = MappedItems(mapped, found).in_memory()
    assert_same_up_to_signs(items.take(torch.arange(300)), explicit(x, 12))


def test_the_map_is_stored_with_its_sizes():
    found = fit(features(), 5)
    stored = found.state_dict()
    again = FeatureMap(*stored["components"].shape)
    again.load_state_dict(stored)
    x = torch.from_numpy(features(seed=1))
    assert torch.equal(again(x), found(x))
    assert list(found.parameters()) == []  # nothing to train
