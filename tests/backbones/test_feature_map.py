"""The feature map against an explicit computation: unit rows, whitened within classes, principal components."""

from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

from combemb.backbones.feature_map import FeatureMap, fit_feature_map
from combemb.data.embeddings import read_embeddings
from combemb.data.items import ArrayItems, chunks
from combemb.data.labels import read_labels
from combemb.learning.batches import MappedItems
from combemb.system.arrays import unit


def features(N: int = 300, F: int = 12, seed: int = 0) -> np.ndarray:
    """Correlated columns of different sizes and means."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, F)) @ rng.normal(size=(F, F)) + rng.normal(size=F)
    return (x * np.geomspace(0.1, 10, F)).astype(np.float32)


def fit(x: np.ndarray, max_features: int = 256, n_rows: int = 1000) -> FeatureMap:
    return fit_feature_map(torch.from_numpy(x).split(n_rows), max_features)


def fit_with(
    x: np.ndarray, labels: np.ndarray, ridge: float | None = None, n_rows: int = 1000, **fields: int
) -> FeatureMap:
    chunked = torch.from_numpy(x).split(n_rows)
    return fit_feature_map(chunked, **{"max_features": 256, **fields}, labels=read_labels(labels, len(x)), ridge=ridge)


def centred(x: np.ndarray) -> np.ndarray:
    rows = x.astype(np.float64)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return rows - rows.mean(axis=0)


def explicit(x: np.ndarray, n_features: int) -> np.ndarray:
    """The same in numpy without labels, by a singular value decomposition; the signs of the columns are free."""
    rows = centred(x)
    _, singular, directions = np.linalg.svd(rows, full_matrices=False)
    return rows @ directions[:n_features].T / (singular[0] / np.sqrt(len(x)))


def explicit_with(x: np.ndarray, labels: np.ndarray, ridge: float) -> np.ndarray:
    """The same in numpy with labels, as a generalised eigenproblem: the covariance against the scatter and the ridge.

    The scatter is the mean of that within classes and that of the differences between near neighbours, both at the
    trace of the unit matrix: n differences within classes count n times, those of neighbours F times.
    """
    rows, F = centred(x), x.shape[1]
    within = np.zeros((F, F))
    classes = np.unique(labels[labels >= 0])
    for c in classes:
        own = rows[labels == c] - rows[labels == c].mean(axis=0)
        within += own.T @ own
    n = (labels >= 0).sum() - len(classes)
    length = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    near = np.zeros((F, F))
    for i in range(len(rows)):
        nearest = [j for j in np.argsort(-length @ length[i]) if j != i][:3]
        differences = rows[i] - rows[nearest]
        near += differences.T @ differences
    both = (n * within * F / np.trace(within) + F * near * F / np.trace(near)) / (n + F)
    values, vectors = scipy.linalg.eigh(rows.T @ rows / len(rows), both + ridge * np.eye(F))
    return rows @ vectors[:, ::-1] / np.sqrt(values[-1])


def grouped(N: int = 300, F: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Correlated features of nine classes; half of the items of six are labelled."""
    rng = np.random.default_rng(4)
    classes = rng.integers(9, size=N)
    x = features(N, F, seed=1) + (4 * rng.normal(size=(9, F)))[classes].astype(np.float32)
    return x, np.where((rng.random(N) < 0.5) & (classes < 6), classes, -1)


def rotation(F: int, seed: int = 0) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(F, F)))[0]


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
    assert found.components[[0, 6, 14]].abs().max() < 1e-6
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


# With labels


@pytest.mark.parametrize("ridge", [0.02, 0.2, 5.0])
def test_with_labels_the_map_is_the_explicit_computation(ridge):
    x, labels = grouped()
    found = fit_with(x, labels, ridge)
    assert_same_up_to_signs(found(torch.from_numpy(x)), explicit_with(x, labels, ridge))


def test_hidden_classes_choose_the_ridge_and_a_trained_map_whitens_five_times_as_much(monkeypatch):
    x, labels = grouped()
    monkeypatch.setattr("combemb.backbones.feature_map.choose_ridge", lambda *_: 2.5)
    assert_same_up_to_signs(fit_with(x, labels)(torch.from_numpy(x)), explicit_with(x, labels, 0.5))


def test_a_large_ridge_does_not_whiten():
    x, labels = grouped()
    found = fit_with(x, labels, 1e6)
    assert_same_up_to_signs(found(torch.from_numpy(x)), explicit(x, 12))


def test_with_labels_the_first_component_has_variance_one_and_the_others_less_in_order():
    x, labels = grouped()
    mapped = fit_with(x, labels)(torch.from_numpy(x)).double()
    covariance = torch.cov(mapped.T, correction=0)
    variances = covariance.diagonal()
    assert variances[0].item() == pytest.approx(1, abs=1e-3)
    assert (variances.diff() < 0).all()
    torch.testing.assert_close(covariance, torch.diag(variances), rtol=0, atol=1e-3)
    assert mapped.mean(dim=0).abs().max() < 1e-3


@pytest.mark.parametrize("multi", [False, True])
@pytest.mark.parametrize("ridge", [None, 0.1])
def test_rotated_features_give_the_same_map_up_to_signs(multi, ridge):
    x, labels = grouped()
    if multi:
        labels = np.where(labels[:, None] >= 0, np.eye(6)[labels], -1)
    turned = (x.astype(np.float64) @ rotation(12)).astype(np.float32)
    expected = fit_with(x, labels, ridge)(torch.from_numpy(x))
    found = fit_with(turned, labels, ridge)(torch.from_numpy(turned))
    assert_same_up_to_signs(found, expected.double().numpy())
    torch.testing.assert_close(found @ found.T, expected @ expected.T, rtol=0, atol=1e-3)


def test_without_labels_too():
    x = features()
    turned = (x.astype(np.float64) @ rotation(12)).astype(np.float32)
    expected = fit(x)(torch.from_numpy(x)).double().numpy()
    assert_same_up_to_signs(fit(turned)(torch.from_numpy(turned)), expected)


def test_with_labels_the_order_of_the_items_does_not_matter():
    x, labels = grouped()
    order = np.random.default_rng(2).permutation(len(x))
    expected = fit_with(x, labels)(torch.from_numpy(x)).double().numpy()
    assert_same_up_to_signs(fit_with(x[order], labels[order])(torch.from_numpy(x)), expected)


@pytest.mark.parametrize("n_rows", [1, 7, 299])
def test_with_labels_chunks_do_not_matter(n_rows):
    x, labels = grouped()
    expected = fit_with(x, labels)(torch.from_numpy(x)).double().numpy()
    assert_same_up_to_signs(fit_with(x, labels, n_rows=n_rows)(torch.from_numpy(x)), expected)


def test_the_names_of_the_classes_do_not_matter():
    """The chosen ridge may depend on which classes are hidden together, the rest does not."""
    x, labels = grouped()
    expected = fit_with(x, labels, 0.2)(torch.from_numpy(x)).double().numpy()
    renamed = np.where(labels >= 0, (labels + 2) % 6 + 10, -1)
    assert_same_up_to_signs(fit_with(x, renamed, 0.2)(torch.from_numpy(x)), expected)


def test_classes_are_told_apart_better_than_before():
    """Directions in which items of one class vary most, but classes do not differ, lose their weight."""
    rng = np.random.default_rng(0)
    classes = rng.integers(8, size=400)
    x = 2 * rng.normal(size=(8, 16))[classes] + 0.5 * rng.normal(size=(400, 16))
    x = np.concatenate([x, 8 * rng.normal(size=(400, 4))], axis=1).astype(np.float32)
    labels = np.where((classes < 5) & (rng.random(400) < 0.5), classes, -1)
    novel = torch.from_numpy(classes >= 5)
    same = torch.from_numpy(classes[classes >= 5][:, None] == classes[classes >= 5])

    def margin(mapped: Tensor) -> float:
        cosines = unit(mapped[novel]) @ unit(mapped[novel]).T
        return float((cosines[same].mean() - cosines[~same].mean()) / cosines[~same].std())

    assert margin(fit_with(x, labels)(torch.from_numpy(x))) > 2 * margin(fit(x)(torch.from_numpy(x)))


@pytest.mark.parametrize(
    ("x", "labels"),
    [
        (features(), np.where(np.arange(300) < 6, np.arange(300), -1)),
        (features(), np.full(300, -1)),
        (features(), np.arange(300) % 5),
        (features(), np.where(np.arange(300) < 9, np.arange(300) % 3, -1)),
        (features(N=20, F=50), np.arange(20) % 6 - 1),
        (np.repeat(features(N=10), 4, axis=0), np.repeat(np.arange(10) % 4 - 1, 4)),
        (np.repeat(features(N=3), 20, axis=0), np.repeat(np.arange(3), 20)),
        (features(N=2), np.array([0, 1])),
        (features(F=1500, N=40), np.arange(40) % 6 - 1),
    ],
    ids=[
        "one label per class",
        "no labels",
        "all labels",
        "three classes",
        "F > N",
        "duplicates",
        "three distinct items",
        "two items",
        "very many features",
    ],
)
def test_a_map_of_little(x, labels):
    found = fit_with(x, labels)
    mapped = found(torch.from_numpy(x))
    assert 0 < found.n_features <= min(len(np.unique(x, axis=0)) - 1, x.shape[1])
    assert mapped.isfinite().all()
    assert mapped[:, 0].double().var(correction=0).item() == pytest.approx(1, abs=1e-2)


def test_classes_and_neighbours_that_do_not_vary_leave_the_principal_components():
    x, labels = np.repeat(features(N=10), 5, axis=0), np.repeat(np.arange(10), 5)
    assert_same_up_to_signs(fit_with(x, labels, 0.2)(torch.from_numpy(x)), explicit(x, 9))


@pytest.mark.parametrize("labels", [np.arange(20) % 5, np.full(20, -1)], ids=["labels", "no labels"])
@pytest.mark.parametrize(
    "x",
    [np.ones((20, 4)), np.arange(1, 21)[:, None], np.zeros((20, 4)), np.outer(np.arange(1, 21), [1, 2])],
    ids=["constant", "one feature", "zeros", "one direction"],
)
def test_items_that_do_not_differ_are_refused(x, labels):
    with pytest.raises(ValueError, match=r"all items have the same features .* give features that differ in direction"):
        fit_with(x.astype(np.float32), labels)


def test_few_components_are_the_first_of_many():
    x, labels = grouped()
    many, few = fit_with(x, labels), fit_with(x, labels, max_features=5)
    assert few.n_features == 5
    torch.testing.assert_close(few.components, many.components[:, :5])
