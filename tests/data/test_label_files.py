"""Tables of labels are joined with the items by id or by path; what does not fit is named."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from combemb.data.given import read_given
from combemb.data.label_files import LabelTable, Unlisted, read_label_file
from tests.pictures import IDS, write_folder


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture
def items(tmp_path: Path) -> Path:
    path = tmp_path / "items.npz"
    np.savez(path, x=np.eye(4), ids=["a", "b", "c", "d"], labels=["x", "x", "", ""])
    return path


def names(given) -> list:
    return given.labels.names(given.labels.values).tolist()


def test_rows_in_any_order_are_joined_by_id(items: Path, tmp_path: Path):
    table = read_label_file(written(tmp_path / "labels.csv", 'label,id,more\nred,d,1\n,a,2\n-1,b,3\n"big, blue",c,4\n'))
    assert names(read_given(items, table)) == [None, None, "big, blue", "red"]


@pytest.mark.parametrize("kind", [pa.string(), pa.int64(), pa.dictionary(pa.int8(), pa.string())], ids=str)
def test_columns_of_parquet_files_may_have_any_type_of_text_or_number(items: Path, tmp_path: Path, kind: pa.DataType):
    labels = pa.array(["7", "8", None, "7"]).cast(kind)
    pq.write_table(pa.table({"id": ["d", "c", "b", "a"], "label": labels}), tmp_path / "labels.parquet")
    assert names(read_given(items, read_label_file(tmp_path / "labels.parquet"))) == [7, -1, 8, 7]


def test_items_without_a_row_are_unlabelled_and_counted(items: Path, tmp_path: Path):
    table = read_label_file(written(tmp_path / "labels.csv", "id,label\na,red\nb,blue\n"))
    with pytest.warns(Unlisted, match=r"2 of 4 items have no row in .*labels.csv and are unlabelled, such as c"):
        assert names(read_given(items, table)) == ["red", "blue", None, None]


def test_rows_without_an_item_are_named(items: Path, tmp_path: Path):
    table = read_label_file(written(tmp_path / "labels.csv", "id,label\na,red\nB,blue\ne,red\n"))
    message = (
        r"2 of 3 rows of .* have a `id` that is missing in the data: B, e; ids in the data look like a; correct or"
    )
    with pytest.raises(ValueError, match=message):
        read_given(items, table)


def test_items_without_ids_go_by_their_number(tmp_path: Path):
    table = read_label_file(written(tmp_path / "labels.csv", "id,label\n1,red\n0,blue\n"))
    assert names(read_given(np.eye(2), table)) == ["blue", "red"]


@pytest.mark.parametrize(
    ("column", "form"),
    [
        ("id", "absolute"),
        ("id", "below the folder"),
        ("path", "absolute"),
        ("path", "below the folder"),
        ("path", "beside the table"),
    ],
)
def test_photos_go_by_their_paths(tmp_path: Path, column: str, form: str):
    photos = write_folder(tmp_path / "photos", IDS[:3])
    prefix = {"absolute": f"{photos}/", "below the folder": "", "beside the table": "photos/"}[form]
    rows = "".join(f"{prefix}{name},{'odd' if i % 2 else 'even'}\n" for i, name in enumerate(IDS[:3]))
    table = read_label_file(written(tmp_path / "labels.csv", f"{column},label\n{rows}"))
    assert names(read_given(photos, table)) == ["even", "odd", "even"]


def test_the_id_counts_where_there_is_one(items: Path, tmp_path: Path):
    table = read_label_file(written(tmp_path / "labels.csv", "path,id,label\nb,a,1\na,b,2\nx,c,3\ny,d,4\n"))
    assert isinstance(table, LabelTable)
    assert names(read_given(items, table)) == [1, 2, 3, 4]


def test_a_single_column_is_read_line_by_line_whatever_the_suffix(tmp_path: Path):
    assert read_label_file(written(tmp_path / "labels.csv", "cat\n\ndog\n")).tolist() == ["cat", None, "dog"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,class\na,red\n", r"found the columns \['id', 'class'\]; expected .npy, a label per line, or a table with"),
        ("name,label\na,red\n", r"found the columns \['name', 'label'\]"),
        ("id,label\na,red\na,blue\n", "'a' has two labels, 'red' and 'blue'"),
        ("id,label\n,red\n", "`id` is empty in row 1"),
        ("id,label\na,b,c\n", "Expected 2 columns"),
    ],
    ids=str,
)
def test_other_tables_are_refused(tmp_path: Path, text: str, message: str):
    with pytest.raises(ValueError, match=message):
        read_label_file(written(tmp_path / "labels.csv", text))
