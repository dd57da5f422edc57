"""LOPQ: cells, local rotations and words are what the paper says, and follow clusters that OPQ cannot."""

import numpy as np
import pytest
import torch

from combemb.collection.exported import export
from combemb.collection.indexed import Collection
from combemb.learning.objectives.rotations import balanced_order
from combemb.learning.objectives.words import fit_words
from combemb.methods import load
from combemb.methods.lopq import ITEMS_PER_WORD, LOPQ
from combemb.methods.opq import OPQ
from combemb.search import from_parquet


def oriented(n=1200, n_clusters=6, D=12, seed=0):
    """Clusters that are flat, each in directions of its own."""
    rng = np.random.default_rng(seed)
    parts = []
    for _ in range(n_clusters):
        axes = np.linalg.qr(rng.normal(size=(D, D)))[0]
        parts.append(3 * rng.normal(size=D) + rng.normal(size=(n // n_clusters, D)) * np.geomspace(2, 0.05, D) @ axes)
    return np.concatenate(parts).astype(np.float32)


def fitted(x, **settings):
    return LOPQ(**{"bits": 12, "unit_length": False, **settings}).fit(x)


def error(model, x):
    """Mean squared distance of items to what their codes stand for, in the space of the features."""
    P, mean = model.rotation_.double(), model.mean_.double()
    found = model.codebook.decode(model.encode(x)).double() @ P.T + mean
    return float((torch.from_numpy(x) - found).square().sum(dim=1).mean())


def halves_and_cells(model, x):
    """Halves (2, N, h) and the nearest centres (2, N)."""
    halves = model.embed(x).unflatten(1, (2, -1)).transpose(0, 1).double()
    return halves, torch.cdist(halves, model.centres_.double()).argmin(dim=2)


def test_vectors_are_principal_components_balanced_over_all_sets():
    x = oriented()
    model = fitted(x, bits=24)
    z = model.embed(x).double().numpy()
    variances = np.linalg.svd(x - x.mean(axis=0, dtype=np.float64))[1] ** 2 / len(x)
    order = balanced_order(torch.from_numpy(variances), 4)
    np.testing.assert_allclose(z.T @ z / len(x), np.diag(variances[order]), atol=1e-3)


@pytest.mark.parametrize("bits", [12, 24])
def test_each_cell_has_its_mean_and_its_balanced_principal_axes(bits):
    x = oriented()
    model = fitted(x, bits=bits)
    m = model.words_.shape[2]
    for half, (items, cells) in enumerate(zip(*halves_and_cells(model, x), strict=True)):
        assert len(cells.unique()) == len(model.centres_[half])
        for v in cells.unique().tolist():
            own = items[cells == v]
            np.testing.assert_allclose(model.origins_[half, v], own.mean(dim=0), atol=1e-4)
            rotation = model.rotations_[half, v].double()
            np.testing.assert_allclose(rotation.T @ rotation, np.eye(len(rotation)), atol=1e-5)
            turned = (own - own.mean(dim=0)) @ rotation
            covariance = (turned.T @ turned / len(own)).numpy()
            np.testing.assert_allclose(covariance, np.diag(np.diag(covariance)), atol=1e-3)
            falling = np.sort(np.diag(covariance))[::-1].copy()
            expected = falling[balanced_order(torch.from_numpy(falling), m)]
            np.testing.assert_allclose(np.diag(covariance), expected, rtol=1e-3)


def test_centres_are_those_of_k_means():
    x = oriented()
    model = fitted(x, bits=12)
    halves, cells = halves_and_cells(model, x)
    for half in (0, 1):
        means = torch.stack([halves[half][cells[half] == v].mean(dim=0) for v in range(4)])
        np.testing.assert_allclose(model.centres_[half], means, atol=0.1)


def test_words_are_means_in_the_axes_of_their_own_cell():
    x = oriented(2400)
    model = fitted(x, bits=12)
    m, K = model.words_.shape[2:4]
    codes = model.encode(x).long().unflatten(1, (2, 1 + m))
    halves, cells = halves_and_cells(model, x)
    assert torch.equal(codes[:, :, 0].T, cells)
    n_checked = 0
    for half in (0, 1):
        for v in range(4):
            of_cell = cells[half] == v
            if of_cell.sum() < ITEMS_PER_WORD * K:
                continue
            turned = (halves[half][of_cell] - model.origins_[half, v]) @ model.rotations_[half, v].double()
            for i in range(m):
                used = codes[of_cell, half, 1 + i]
                parts = turned.unflatten(1, (m, -1))[:, i]
                means = torch.stack([parts[used == k].mean(dim=0) for k in used.unique()])
                np.testing.assert_allclose(model.words_[half, v, i, used.unique()], means, atol=0.1)
                n_checked += 1
    assert n_checked >= 4


def test_shared_words_are_the_same_in_all_cells_and_cost_accuracy():
    x = oriented(2400)
    local, shared = fitted(x), fitted(x, local_words=False)
    assert (shared.words_ == shared.words_[:, :1]).all()
    assert torch.equal(local.rotations_, shared.rotations_)
    assert not torch.equal(local.words_[:, 0], local.words_[:, 1])
    assert error(local, x) < 0.95 * error(shared, x)


def test_words_of_a_cell_start_from_those_that_all_cells_share():
    x = oriented(2400)
    local, shared = fitted(x), fitted(x, local_words=False)
    m, K = local.words_.shape[2:4]
    n_checked = 0
    for half, (items, cells) in enumerate(zip(*halves_and_cells(local, x), strict=True)):
        for v in range(4):
            own = items[cells == v].float()
            if len(own) >= ITEMS_PER_WORD * K:
                turned = ((own - local.origins_[half, v]) @ local.rotations_[half, v]).unflatten(1, (m, -1))
                expected, _ = fit_words(turned, K, start=shared.words_[half, 0])
                torch.testing.assert_close(local.words_[half, v], expected, atol=1e-3, rtol=0)
                n_checked += 1
    assert n_checked >= 4


def test_small_cells_keep_shared_words_and_their_axes():
    x = oriented(60)
    model = fitted(x, bits=24)
    for half, cells in enumerate(halves_and_cells(model, x)[1]):
        sizes = torch.bincount(cells, minlength=16)
        assert (model.words_[half] == model.words_[half, 0]).all()
        assert (sizes < 6).any()
        for v in range(16):
            is_identity = torch.equal(model.rotations_[half, v], torch.eye(6))
            assert is_identity == (sizes[v] < 6)


def test_cells_with_few_items_per_word_keep_shared_words():
    x = oriented(180)
    model = fitted(x, bits=12)
    sizes = [torch.bincount(cells) for cells in halves_and_cells(model, x)[1]]
    for half in (0, 1):
        assert 16 < sizes[half].max() < ITEMS_PER_WORD * 16
        assert (model.words_[half] == model.words_[half, 0]).all()


@pytest.mark.parametrize("bits", [24, 48])
def test_clusters_of_different_directions_are_quantised_better_than_by_opq(bits):
    items = oriented(2000, D=24)
    x, new = items[::2], items[1::2]
    local, whole = fitted(x, bits=bits), OPQ(bits=bits, unit_length=False, iterations=10).fit(x)
    assert error(local, x) < 0.8 * error(whole, x)
    assert error(local, new) < 0.8 * error(whole, new)


@pytest.mark.parametrize(
    ("bits", "n_cells", "n_words", "expected"),
    [
        (12, None, 16, (4, 1)),
        (24, None, 16, (16, 2)),
        (48, None, 16, (16, 5)),
        (72, None, 16, (16, 8)),
        (14, None, 16, (8, 1)),
        (10, None, 16, (2, 1)),
        (48, 2, 4, None),
        (46, 2, 16, None),
        (50, 2, 16, (2, 6)),
        (12, 4, 4, (4, 2)),
    ],
)
def test_cells_and_words_make_up_the_bits(bits, n_cells, n_words, expected):
    method = LOPQ(bits=bits, n_cells=n_cells, n_words=n_words)
    if expected is None:
        with pytest.raises(ValueError, match=f"bits={bits} is not 2 log2"):
            method.check_settings()
        return
    assert method.shape() == expected
    V, m = expected
    assert bits == 2 * np.log2(V) + 2 * m * np.log2(n_words)


@pytest.mark.parametrize("bits", [12, 48, 72])
def test_codes_have_the_bits_that_were_asked_for(bits):
    model = fitted(oriented(200, D=40), bits=bits)
    assert model.codebook.bits == bits
    assert model.encode(oriented(12, D=40)).shape == (12, len(model.codebook.sizes))


@pytest.mark.parametrize(
    ("settings", "x", "message"),
    [
        ({"bits": 13}, oriented(), r"bits=13 is not 2 log2\(V\) \+ 2 m log2\(16\) with V = 16 or 8 or 4 or 2 cells"),
        ({"n_components": 8, "bits": 48}, oriented(), "n_components=8 for 10 sets of words; use at least 10"),
        ({"bits": 72}, oriented(), "bits=72 makes 16 sets of words for 12 features; use fewer bits"),
        ({"bits": 24}, oriented()[:15], "15 items for 16 words or cells; use fewer of them or more items"),
    ],
)
def test_what_does_not_fit_is_refused(settings, x, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        LOPQ(**settings).fit(x, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_few_distinct_items_are_quantised_exactly():
    x = np.repeat(oriented(18), 4, axis=0)
    assert error(fitted(x, bits=24), x) < 1e-6


def test_a_collection_is_searched_stored_and_exported(tmp_path):
    x = oriented(300)
    fitted(x, bits=24).save(tmp_path / "run")
    Collection.build(tmp_path / "run", x).save()
    collection = Collection.open(tmp_path / "run")
    found = [[int(hit.id) for hit in result.hits] for result in collection.search(x[:5], k=7)]
    model = load(tmp_path / "run")
    scores = model.codebook.scores(model.embed(x[:5]), model.encode(x))
    assert found == scores.argsort(dim=1, descending=True, stable=True)[:, :7].tolist()
    export(collection, tmp_path / "codes.csv", "csv")
    export(collection, tmp_path / "codes.parquet", "parquet")
    assert np.array_equal(from_parquet(tmp_path / "codes.parquet", model.codebook).codes(), model.encode(x))
    with pytest.raises(ValueError, match="no product codebook, which FAISS needs"):
        export(collection, tmp_path / "codes.faiss", "faiss")
