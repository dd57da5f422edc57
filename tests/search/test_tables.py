"""An index as a table: Parquet files and Lance datasets, written here or by other tools."""

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from combemb.search.exchange import from_lance, from_parquet, to_lance, to_parquet
from tests.search.exchanged import INDEXES, an_index, assert_same


@settings(max_examples=40, deadline=None)
@given(**INDEXES)
def test_an_index_comes_back_from_parquet(tmp_path_factory, **form):
    index = an_index(**form)
    path = tmp_path_factory.mktemp("parquet") / "codes"
    to_parquet(index, path)
    assert_same(from_parquet(path), index)
    assert list(path.parent.iterdir()) == [path]


def changed_table(tmp_path, **columns):
    """The table of an index of 5 entries with 2 sets of 4 and 2 words, some columns replaced; None removes."""
    to_parquet(an_index(sizes=(4, 2), n=5), tmp_path / "whole")
    table = pq.read_table(tmp_path / "whole")
    for name, values in columns.items():
        place = table.schema.names.index(name)
        table = table.remove_column(place) if values is None else table.set_column(place, name, values)
    return table


LISTS = pa.list_(pa.uint8(), 2)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"id": None}, r"found no `id`, only \['code'\]"),
        ({"code": None}, r"found no `code`, only \['id'\]"),
        ({"id": pa.array([1.0, 2, 3, 4, 5])}, "`id` has type double, not whole numbers or strings"),
        ({"id": pa.array([1, 2, None, 4, 5])}, r"rows 0\.\.4 hold nulls"),
        ({"id": pa.array(["a", "b", "c", "d", "a"])}, "1 ids would be there twice, such as 'a'"),
        ({"code": pa.array([[0, 0]] * 4 + [None], LISTS)}, r"rows 0\.\.4 hold nulls"),
        ({"code": pa.array([[0, 0]] * 4 + [[0, None]], LISTS)}, r"rows 0\.\.4 hold nulls"),
        ({"code": pa.array([[0, 0]] * 4 + [[0, 2]], LISTS)}, r"codes of set 1 span 0\.\.2"),
        ({"code": pa.array([[0, 0]] * 4 + [[0, 300]])}, "`code` has type list<.*>, not 2 small numbers per row .*300"),
        ({"code": pa.array([[0, 0, 0]] * 5)}, "`code` has type list<.*>, not 2 small numbers per row"),
        ({"code": pa.array([0, 1, 2, 3, 4])}, "`code` has type int64, not 2 small numbers per row"),
    ],
)
def test_tables_that_are_no_index_say_why(tmp_path, columns, message):
    pq.write_table(changed_table(tmp_path, **columns), tmp_path / "table.parquet")
    with pytest.raises(ValueError, match=rf"(?s)cannot read .*table.parquet: .*{message}.*; expected a Parquet file"):
        from_parquet(tmp_path / "table.parquet")


def test_a_table_without_its_codebook_says_so(tmp_path):
    table = changed_table(tmp_path)
    metadata = table.schema.metadata
    codebook = metadata[b"combemb_codebook"]
    for changes, message in (
        (None, "it has no codebook, `combemb_codebook` in the metadata of its schema"),
        ({b"combemb_codebook": codebook.replace(b"cosine", b"inner")}, "the checksum of its codebook is wrong"),
        ({b"combemb_crc32": b""}, "the checksum of its codebook is wrong"),
    ):
        changed = table.replace_schema_metadata(None if changes is None else metadata | changes)
        pq.write_table(changed, tmp_path / "table.parquet")
        with pytest.raises(ValueError, match=message):
            from_parquet(tmp_path / "table.parquet")


@pytest.mark.parametrize("ids", [pa.array([9, 8, 7, 6, 5], pa.uint16()), pa.array(["a", "b", "c", "d", "e"])])
def test_tables_that_other_tools_wrote_again_are_read(tmp_path, ids):
    codes = [[3, 1], [0, 0], [1, 1], [3, 1], [2, 0]]
    table = changed_table(tmp_path, id=ids, code=pa.array(codes)).append_column("year", pa.array([2001] * 5))
    pq.write_table(table, tmp_path / "table.parquet", row_group_size=2)
    index = from_parquet(tmp_path / "table.parquet")
    assert (index.ids.tolist(), index.codes().tolist()) == (ids.to_pylist(), codes)


@pytest.fixture(scope="module")
def elsewhere():
    """Call a function in another process: after `import lance` a process warns of every fork, and other tests fork."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield lambda function, *args: pool.submit(function, *args).result()


def write_to_lance(path: Path, form: dict) -> None:
    to_lance(an_index(**form), path)


def check_lance(path: Path, form: dict) -> None:
    assert_same(from_lance(path), an_index(**form))


def write_without_codebook(path: Path) -> None:
    import lance

    lance.write_dataset(pa.table({"id": [1], "code": pa.array([[0]], pa.list_(pa.uint8(), 1))}), str(path))


FORMS = [
    {"sizes": sizes, "metric": metric, "strings": strings, "n": n}
    for sizes, metric, strings, n in [
        ((2, 16, 4, 8, 2), "cosine", True, 150),
        ((4,) * 6, "inner", False, 9_000),
        ((16,), "l2", True, 1),
        ((8, 8), "cosine", False, 0),
    ]
]


def test_an_index_comes_back_from_lance_and_takes_the_place_of_another(tmp_path, elsewhere):
    for number, form in enumerate(FORMS):
        for path in (tmp_path / str(number), tmp_path / "again"):
            elsewhere(write_to_lance, path, form)
            elsewhere(check_lance, path, form)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2", "3", "again"]


@pytest.mark.parametrize("content", ["file", "empty folder", "folder"])
def test_lance_takes_the_place_of_nothing_else(tmp_path, elsewhere, content):
    path = tmp_path / "mine"
    path.write_text("text") if content == "file" else path.mkdir()
    if content == "folder":
        (path / "photo.jpg").write_text("text")
    with pytest.raises(ValueError, match=r"mine exists and is no Lance dataset; remove it or give another path"):
        elsewhere(write_to_lance, path, {})
    left = {"file": ["mine"], "empty folder": ["mine"], "folder": ["mine", "mine/photo.jpg"]}[content]
    assert sorted(found.relative_to(tmp_path).as_posix() for found in tmp_path.rglob("*")) == left


def test_lance_datasets_that_are_no_index_say_why(tmp_path, elsewhere):
    elsewhere(write_to_lance, tmp_path / "damaged", {})
    for file in (tmp_path / "damaged" / "data").iterdir():
        file.write_bytes(file.read_bytes()[:-200])
    elsewhere(write_without_codebook, tmp_path / "foreign")
    for name, message in (("damaged", ""), ("foreign", "it has no codebook"), ("none", ".*not found")):
        with pytest.raises(
            ValueError, match=rf"cannot read .*{name}: {message}.*; expected a Lance dataset of to_lance"
        ):
            elsewhere(from_lance, tmp_path / name)


def test_without_pylance_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(ValueError, match=r"Lance datasets need pylance .*; pip install combemb\[lance\]"):
        to_lance(an_index(), tmp_path / "codes")
    with pytest.raises(ValueError, match=r"Lance datasets need pylance .*; pip install combemb\[lance\]"):
        from_lance(tmp_path / "codes")
    assert list(tmp_path.iterdir()) == []
