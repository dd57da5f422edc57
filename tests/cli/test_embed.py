"""`combemb embed` and `combemb encode` on real files."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from combemb import methods
from combemb.data import read_embeddings
from tests.cli.found import BROKEN
from tests.commands import done, refused
from tests.pictures import IDS


@pytest.fixture(scope="module")
def run(items: Path) -> Path:
    done("fit", items, "--out", items.parent / "run", "--bits", "12", "--set", "epochs=3", "--set", "batch_size=64")
    return items.parent / "run"


@pytest.mark.parametrize(("verb", "column"), [("embed", "embedding"), ("encode", "code")])
def test_embed_and_encode_write_what_the_model_gives(run: Path, items: Path, tmp_path: Path, verb: str, column: str):
    expected = getattr(methods.load(run), verb)(items).numpy()
    done(verb, run, items, "--out", tmp_path / "rows.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "rows.npy"), expected)
    done(verb, run, items, "--out", tmp_path / "rows.parquet")
    table = pq.read_table(tmp_path / "rows.parquet")
    assert table["id"].to_pylist()[:2] == ["item-0", "item-1"]
    np.testing.assert_array_equal(np.array(table[column].to_pylist(), dtype=expected.dtype), expected)


def test_embeddings_written_as_parquet_can_be_fitted_again(run: Path, items: Path, tmp_path: Path):
    done("embed", run, items, "--out", tmp_path / "z.parquet")
    again = read_embeddings(tmp_path / "z.parquet")
    np.testing.assert_array_equal(again.x, methods.load(run).embed(items).numpy())


@pytest.mark.parametrize(("verb", "column"), [("embed", "embedding"), ("encode", "code")])
def test_images_get_rows_with_ids_and_broken_ones_are_told(
    plain_photo_run: Path, photos: Path, tmp_path: Path, verb: str, column: str
):
    model = methods.load(plain_photo_run)
    expected = getattr(model, verb)(model.read(photos)).numpy()
    result = done(verb, plain_photo_run, photos, "--out", tmp_path / "rows.parquet")
    assert f"unreadable images left out of {tmp_path / 'rows.parquet'}: 1" in result.stderr
    assert f"{BROKEN}: " in result.stderr
    assert "71 rows" in result.stdout
    table = pq.read_table(tmp_path / "rows.parquet")
    assert table["id"].to_pylist() == [name for name in IDS if name != BROKEN]
    np.testing.assert_array_equal(np.array(table[column].to_pylist(), dtype=expected.dtype), expected)
    quiet = done(verb, plain_photo_run, photos, "--out", tmp_path / "rows.npy", "--quiet")
    assert quiet.stdout == ""
    assert BROKEN in quiet.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "rows.npy"), expected)


def test_a_file_is_kept_without_overwrite(run: Path, items: Path, tmp_path: Path):
    target = tmp_path / "z.npy"
    target.write_text("mine")
    assert f"{target} exists; use --overwrite to replace it" in refused("embed", run, items, "--out", target)
    assert target.read_text() == "mine"
    done("embed", run, items, "--out", target, "--overwrite")
    assert len(np.load(target)) == len(read_embeddings(items).x)


@pytest.mark.parametrize("name", ["z.csv", "z", "nowhere/z.npy"])
def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path: Path, name: str):
    message = refused("encode", tmp_path / "no run", tmp_path / "no data", "--out", tmp_path / name)
    assert f"cannot write {tmp_path / name}: " in message
