"""`combemb export`: what other tools read finds the same as `combemb search`."""

import json
from pathlib import Path

import faiss
import numpy as np
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from combemb import methods
from combemb.collection.exported import export
from combemb.collection.indexed import Collection
from combemb.search import from_lance, from_parquet
from tests.commands import done, fitted, refused


@pytest.fixture(scope="module")
def run(items: Path) -> Path:
    """An indexed run of CombEmb; entries were removed, so that numbers and ids do not go together by chance."""
    folder = fitted(items, items.parent / "exported", "--method", "combemb", "--set=epochs=2", "--set=check=False")
    done("index", folder, "--quiet")
    done("index", folder, "--remove", "item-0", "--remove", "item-17", "--quiet")
    return folder


@pytest.fixture(scope="module")
def entries(run: Path) -> dict[str, list]:
    return Collection.open(run).entries.to_pydict()


def test_faiss_finds_the_ids_and_scores_of_a_search(run: Path, items: Path, tmp_path: Path):
    out = tmp_path / "codes.faiss"
    said = done("export", run, "--to", "faiss", "--out", out).stdout
    assert f"what FAISS's numbers mean: id, path and label of each `number` in {tmp_path / 'codes.ids.csv'}" in said
    done("embed", run, items, "--out", tmp_path / "z.npy")
    scores, numbers = faiss.read_index(str(out)).search(np.load(tmp_path / "z.npy"), 9)
    table = csv.read_csv(tmp_path / "codes.ids.csv").to_pydict()
    id_of = dict(zip(table["number"], table["id"], strict=True))
    results = json.loads(done("search", run, items, "--json", "-k", 1000).stdout)
    for found, row_scores, row in zip(results, scores, numbers, strict=True):
        expected = {hit["id"]: hit["score"] for hit in found["hits"]}
        np.testing.assert_allclose(row_scores, list(expected.values())[:9], atol=1e-5)
        np.testing.assert_allclose([expected[id_of[number]] for number in row], row_scores, atol=1e-5)


def test_the_table_of_numbers_has_id_path_and_label(run: Path, entries: dict[str, list], tmp_path: Path):
    done("export", run, "--to", "faiss", "--out", tmp_path / "codes.faiss")
    table = csv.read_csv(
        tmp_path / "codes.ids.csv", convert_options=csv.ConvertOptions(strings_can_be_null=True)
    ).to_pydict()
    assert table == {"number": list(range(len(entries["id"]))), **entries}


def test_parquet_and_lance_have_ids_paths_labels_and_codes(run: Path, entries: dict[str, list], tmp_path: Path):
    import lance  # an extra that the tests install

    codes = Collection.open(run).to_index().codes()
    done("export", run, "--to", "parquet", "--out", tmp_path / "codes.parquet")
    done("export", run, "--to", "lance", "--out", tmp_path / "codes.lance")
    tables = pq.read_table(tmp_path / "codes.parquet"), lance.dataset(str(tmp_path / "codes.lance")).to_table()
    for table in tables:
        assert table.to_pydict() == {**entries, "code": codes.tolist()}
    for index in (from_parquet(tmp_path / "codes.parquet"), from_lance(tmp_path / "codes.lance")):
        assert index.ids.tolist() == entries["id"]
        np.testing.assert_array_equal(index.codes(), codes)
        np.testing.assert_array_equal(index.codebook.words, methods.load(run).codebook.words)


def test_csv_has_a_column_for_each_part_of_a_code(run: Path, entries: dict[str, list], tmp_path: Path):
    out = tmp_path / "codes.csv"
    done("export", run, "--to", "csv", "--out", out)
    table = csv.read_csv(out)
    codes = Collection.open(run).to_index().codes()
    assert table.schema.names == ["id", "path", "label", *(f"code_{i}" for i in range(codes.shape[1]))]
    assert table["id"].to_pylist() == entries["id"]
    np.testing.assert_array_equal(np.stack([table[f"code_{i}"] for i in range(codes.shape[1])], axis=1), codes)


def test_an_export_is_not_overwritten_unless_asked(run: Path, tmp_path: Path):
    for name, out in (("csv", "codes.csv"), ("lance", "codes.lance"), ("faiss", "codes.faiss")):
        done("export", run, "--to", name, "--out", tmp_path / out)
        message = refused("export", run, "--to", name, "--out", tmp_path / out)
        assert f"{tmp_path / out} exists; use --overwrite to replace it" in message
        done("export", run, "--to", name, "--out", tmp_path / out, "--overwrite")
    (tmp_path / "codes.faiss").unlink()
    assert "codes.ids.csv exists" in refused("export", run, "--to", "faiss", "--out", tmp_path / "codes.faiss")


def test_what_cannot_be_exported_is_refused(run: Path, plain_run: Path, tmp_path: Path):
    for arguments, message in (
        ((run, "--to", "xml", "--out", "x.xml"), "--to xml: unknown format; choose one of faiss, parquet, lance, csv"),
        ((run, "--to", "csv", "--out", tmp_path / "x.txt"), "unknown suffix '.txt'; use .csv"),
        ((plain_run, "--to", "csv", "--out", tmp_path / "x.csv"), "has no index yet; make one: combemb index"),
    ):
        assert message in refused("export", *arguments)
    assert not list(tmp_path.iterdir())


def test_a_faiss_file_and_its_table_are_replaced_both_or_not_at_all(run: Path, tmp_path: Path):
    out, numbers = tmp_path / "codes.faiss", tmp_path / "codes.ids.csv"
    out.write_text("old")
    (numbers / "in the way").mkdir(parents=True)
    with pytest.raises(OSError, match="irectory"):
        export(Collection.open(run), out, "faiss")
    assert out.read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {out.name, numbers.name}
