"""The map of all items: those outside the sample, what is stored, and when it is not used."""

from pathlib import Path

import numpy as np
import pytest

from combemb.explorer import discovery_map
from combemb.explorer.discovery_map import map_of, map_of_all
from combemb.explorer.stored_map import StoredMap, store_map
from combemb.learning.run_folder import DISCOVERY, PLACES
from tests.blobs import blobs
from tests.commands import done


def test_few_items_are_all_in_the_sample():
    z = blobs(3, 2, n_each=10).x
    np.testing.assert_array_equal(map_of_all(z), map_of(z)[0])


def test_items_outside_the_sample_are_near_their_own_kind(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(discovery_map, "MAX_ITEMS", 60)
    monkeypatch.setattr(discovery_map, "STEPS", (100, 100))
    monkeypatch.setattr(discovery_map, "BLOCK_ROWS", 50)
    pile = blobs(3, 2, spread=0.02)
    rows = map_of(pile.x)[1]
    places = map_of_all(pile.x)
    assert places.shape == (200, 2)
    centres = np.stack([np.median(places[rows][pile.targets[rows] == c], axis=0) for c in range(5)])
    nearest = ((places[:, None] - centres) ** 2).sum(axis=-1).argmin(axis=1)
    np.testing.assert_array_equal(nearest, pile.targets)


def test_what_is_stored_is_that_of_this_discovery(run: Path):
    stored = StoredMap.open(run)
    n, rng = len(stored.places), np.random.default_rng(0)
    assert np.isfinite(stored.embedding(3)).all()
    places, z = rng.normal(size=(n, 2)).astype(np.float32), rng.normal(size=(n, 5)).astype(np.float32)
    places[7] = z[7] = np.nan
    store_map(run, places, z)
    again = StoredMap.open(run)
    np.testing.assert_array_equal(again.embedding(3), z[3])
    assert np.isnan(again.places[7]).all()
    kept = np.delete(np.arange(n), 7)
    np.testing.assert_allclose(np.ptp(again.places[kept], axis=0).max(), 2, rtol=1e-5)
    scale = np.ptp(places[kept], axis=0).max() / 2
    np.testing.assert_allclose(np.diff(again.places[kept], axis=0) * scale, np.diff(places[kept], axis=0), atol=1e-5)
    file = run / PLACES
    whole = file.read_bytes()
    file.write_bytes(whole[:-8] + b"\x01" * 8)
    assert StoredMap.open(run) is None, "damaged"
    file.write_bytes(whole)
    done("discover", run, "--n-novel", "1", "--no-page")
    assert not file.exists(), "of another discovery"
    file.write_bytes(whole)
    assert StoredMap.open(run) is None
    (run / DISCOVERY).unlink()
    assert StoredMap.open(run) is None
