"""Classes found in a sample, and the class of every item by blocks."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from combemb import discover, methods
from combemb.discovery.class_number import MIN_LABELLED_PER_CLASS, counted_rows
from combemb.discovery.metrics import matched
from combemb.discovery.result import Discovery
from combemb.scale import discover_sharded
from combemb.scale.discovering import FOUND
from tests.scale.toy_run import N, contents, features, labels


def classes_of(found) -> np.ndarray:
    return np.concatenate([found.block(number)["class"].to_numpy() for number in range(len(found.receipts))])


def test_every_item_gets_the_class_that_the_sample_predicts(toy, tmp_path):
    x, y = features(), labels()
    found = discover_sharded(
        str(toy / "x.npy"), str(tmp_path), y, sample_items=600, block_items=300, seed=3, progress=False
    )
    assert np.array_equal(found.rows, counted_rows(y, 3, 600))
    expected = discover(x[found.rows], y[found.rows], seed=3, progress=False)
    np.testing.assert_array_equal(found.sample.assignment, expected.assignment)
    names = np.where(y >= 0, y, expected.predict(x)).astype(str)
    assert classes_of(found).tolist() == names.tolist()
    assert found.sizes() == dict(zip(*np.unique(names, return_counts=True), strict=True))
    confidence = np.concatenate([found.block(number)["confidence"].to_numpy() for number in range(7)])
    np.testing.assert_array_equal(confidence[y >= 0], 1)
    _, places = np.unique(names, return_inverse=True)
    assert matched(places, np.arange(N) % 7).mean() > 0.95
    assert Discovery.load(tmp_path / FOUND).names.tolist() == found.sample.names.tolist()


def test_labels_and_ids_come_from_parquet_files(toy, tmp_path):
    y = labels()
    for number, rows in enumerate(np.array_split(np.arange(N), 3)):
        table = {"embedding": list(features()[rows]), "label": y[rows], "id": [f"item-{row}" for row in rows]}
        pq.write_table(pa.table(table), tmp_path / f"{number}.parquet")
    options = {"n_novel": 2, "sample_items": 600, "block_items": 300, "progress": False}
    found = discover_sharded(str(tmp_path / "*.parquet"), str(tmp_path / "a"), **options)
    given = discover_sharded(str(toy / "x.npy"), str(tmp_path / "b"), y, **options)
    assert classes_of(found).tolist() == classes_of(given).tolist()
    ids = [name for number in range(len(found.receipts)) for name in found.block(number)["id"].to_pylist()]
    assert ids == [f"item-{row}" for row in range(N)]


def test_a_run_embeds_the_features(toy, tmp_path):
    """As `Method.discover` does, when the sample is everything."""
    found = discover_sharded(
        str(toy / "x.npy"), str(tmp_path), labels(), run=toy / "run", sample_items=N, block_items=300, progress=False
    )
    model = methods.load(toy / "run")
    expected = model.discover(features(), labels(), progress=False)
    assert found.sample.names.tolist() == expected.names.tolist()
    assert np.mean(found.sample.assignment == expected.assignment) > 0.99  # threads may change the last bits


def test_a_stopped_assignment_continues(toy, tmp_path):
    options = {"n_novel": 2, "sample_items": 600, "block_items": 300, "progress": False}
    discover_sharded(str(toy / "x.npy"), str(tmp_path), labels(), **options)
    whole = contents(tmp_path)
    (tmp_path / "classes/receipts/00000004.json").unlink()
    discover_sharded(str(toy / "x.npy"), str(tmp_path), labels(), **options)
    assert contents(tmp_path) == whole
    with pytest.raises(ValueError, match=r"cannot continue .*: labels changed; undo this, or use overwrite"):
        discover_sharded(str(toy / "x.npy"), str(tmp_path), labels() * 0, **options)


@pytest.mark.parametrize("n_items", [1, 5, 20, 50])
def test_a_sample_has_labelled_items_of_each_class(n_items):
    y = np.full(1_000, -1)
    y[:12], y[12:15] = 0, 1
    rows = counted_rows(y, 0, n_items)
    assert len(rows) <= n_items + 8
    assert np.bincount(y[rows][y[rows] >= 0]).min() >= min(3, MIN_LABELLED_PER_CLASS)
    assert np.array_equal(rows, np.unique(rows))
