import os
import tempfile
import tracemalloc
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from combemb.data import embeddings, read_embeddings, read_labels
from combemb.data.embeddings import as_array, check_finite

X = np.arange(24, dtype=np.float32).reshape(4, 2, 3)  # (N, V, F)
FORMATS = [".npy", ".npz", "-compressed.npz", ".parquet", ".pq"]


def nested_lists(x, is_fixed=True):
    """The (N, F) or (N, V, F) array as an arrow column of lists."""
    column = pa.array(x.ravel())
    for size in reversed(x.shape[1:]):
        if is_fixed:
            column = pa.FixedSizeListArray.from_arrays(column, size)
        else:
            column = pa.ListArray.from_arrays(pa.array(np.arange(0, len(column) + 1, size, dtype=np.int32)), column)
    return column


def write(folder, suffix, x, labels=None, ids=None):
    path = folder / f"file{suffix}"
    given_arrays = {name: a for name, a in (("labels", labels), ("ids", ids)) if a is not None}
    if suffix == ".npy":
        np.save(path, x)
    elif suffix.endswith(".npz"):
        (np.savez_compressed if "compressed" in suffix else np.savez)(path, x=x, **given_arrays)
    else:
        columns = {{"labels": "label", "ids": "id"}[name]: array for name, array in given_arrays.items()}
        pq.write_table(pa.table({"embedding": nested_lists(x), **columns}), path, row_group_size=3)
    return path


@pytest.mark.parametrize("memory_limit", [0, 2**20])
@pytest.mark.parametrize("suffix", FORMATS)
@settings(deadline=None, max_examples=25)
@given(
    x=hnp.arrays(
        st.sampled_from([np.float16, np.float32, np.float64, np.uint8, np.int64]),
        hnp.array_shapes(min_dims=2, max_dims=3, max_side=5),
    ),
    is_fortran=st.booleans(),
)
def test_what_is_written_is_read(tmp_path_factory, suffix, memory_limit, x, is_fortran):
    given_x = np.asfortranarray(x) if is_fortran and "parquet" not in suffix and "pq" not in suffix else x
    path = write(tmp_path_factory.mktemp("files"), suffix, given_x)
    found = read_embeddings(path, memory_limit=memory_limit)
    np.testing.assert_array_equal(found.x, x)
    assert found.x.dtype == x.dtype
    assert found.labels is None
    assert found.ids is None
    assert isinstance(found.x, np.memmap) == (suffix == ".npy" or x.nbytes > memory_limit)


@pytest.mark.parametrize("suffix", FORMATS[1:])
def test_labels_and_ids_come_along(tmp_path, suffix):
    path = write(tmp_path, suffix, X, labels=np.array(["b", "", "a", "b"]), ids=np.arange(4))
    found = read_embeddings(str(path))
    assert found.labels.tolist() == ["b", "", "a", "b"]
    assert found.ids.tolist() == [0, 1, 2, 3]


def test_npz_labels_of_several_classes_are_read(tmp_path):
    labels = np.array([[1, 0], [1, 1], [-1, -1], [0, 1]])
    found = read_embeddings(write(tmp_path, ".npz", X, labels=labels))
    np.testing.assert_array_equal(found.labels, labels)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([3, None, 1, 3], pa.uint8()), [3, -1, 1, 3]),
        (pa.array([3.0, None, 1.0, 3.0]), [3, -1, 1, 3]),
        (pa.array(["b", None, "a", ""]), ["b", None, "a", None]),
        (pa.array(["b", None, "a|c", "b"], pa.large_string()), ["b", None, "a|c", "b"]),
        (pa.array(["b", None, "a", "b"]).dictionary_encode(), ["b", None, "a", "b"]),
        (pa.nulls(4), [None] * 4),
    ],
)
def test_gaps_of_parquet_labels_are_unlabelled(tmp_path, column, expected):
    path = tmp_path / "file.parquet"
    pq.write_table(pa.table({"embedding": nested_lists(X), "labels": column}), path)
    labels = read_labels(read_embeddings(path).labels, 4)
    assert labels.names(labels.values).tolist() == expected


@pytest.mark.parametrize("memory_limit", [0, 2**20])
def test_parquet_lists_without_a_fixed_size_are_read(tmp_path, memory_limit):
    path = tmp_path / "file.parquet"
    x = np.random.default_rng(0).normal(size=(1300, 2, 3))  # several batches
    pq.write_table(pa.table({"embedding": nested_lists(x, is_fixed=False)}), path, row_group_size=700)
    np.testing.assert_array_equal(read_embeddings(path, memory_limit).x, x)


def test_reading_a_large_row_group_takes_little_memory(tmp_path, monkeypatch):
    x = np.random.default_rng(0).random((16_384, 256), dtype=np.float32)  # 16 MB
    pq.write_table(pa.table({"embedding": nested_lists(x)}), tmp_path / "file.parquet", row_group_size=len(x))
    allocated, before, spill = [], pa.total_allocated_bytes(), embeddings._spill

    def watched(blocks, *args):
        return spill((allocated.append(pa.total_allocated_bytes()) or block for block in blocks), *args)

    monkeypatch.setattr(embeddings, "_spill", watched)
    np.testing.assert_array_equal(read_embeddings(tmp_path / "file.parquet", memory_limit=0).x, x)
    assert max(allocated) - before < x.nbytes / 2


@pytest.mark.parametrize("suffix", ["-compressed.npz", ".parquet"])
def test_large_arrays_lie_in_a_file_that_vanishes(tmp_path, monkeypatch, suffix):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    path = write(tmp_path, suffix, X)
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    opened, open_one = [], tempfile.TemporaryFile
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: opened.append(open_one()) or opened[-1])
    found = read_embeddings(path, memory_limit=X.nbytes - 1)
    assert len(opened) == 1
    assert opened[0].closed
    assert isinstance(found.x, np.memmap)
    assert list(scratch.iterdir()) == []
    np.testing.assert_array_equal(found.x, X)


def test_a_stored_npz_is_mapped_in_place(tmp_path):
    path = write(tmp_path, ".npz", X, labels=np.arange(4))
    found = read_embeddings(path, memory_limit=X.nbytes - 1)
    assert os.fspath(found.x.filename) == str(path)
    content = bytearray(path.read_bytes())
    position = content.index(X.tobytes())
    content[position : position + 4] = np.float32(99).tobytes()
    with path.open("r+b") as file:
        file.write(content)
    assert found.x[0, 0, 0] == 99  # the array shows the file, not a copy


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("memory_limit", [0, 2**20])
def test_damaged_files_say_which(tmp_path, suffix, memory_limit):
    whole = write(tmp_path, suffix, np.random.default_rng(0).normal(size=(50, 8))).read_bytes()
    path = tmp_path / f"damaged{suffix}"
    for content in (b"", b"not embeddings", whole[:6], whole[: len(whole) // 2], whole[:-1]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"cannot read .*damaged.*; expected .*"):
            read_embeddings(path, memory_limit)


@pytest.mark.parametrize("suffix", FORMATS)
def test_missing_files_and_folders_say_so(tmp_path, suffix):
    with pytest.raises(ValueError, match=rf"cannot read .*none{suffix}: .*No such file"):
        read_embeddings(tmp_path / f"none{suffix}")
    (tmp_path / f"folder{suffix}").mkdir()
    with pytest.raises(ValueError, match=rf"cannot read .*folder{suffix}"):
        read_embeddings(tmp_path / f"folder{suffix}")


def test_a_changed_byte_in_an_npz_is_noticed(tmp_path):
    path = write(tmp_path, ".npz", X)
    content = bytearray(path.read_bytes())
    content[content.index(X.tobytes()) + 5] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="Bad CRC-32"):
        read_embeddings(path)


def test_an_npz_whose_header_promises_more_is_refused(tmp_path):
    path = tmp_path / "short.npz"
    np.save(tmp_path / "x.npy", X)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", (tmp_path / "x.npy").read_bytes()[:-8])
    for memory_limit in (0, 2**20):
        with pytest.raises(ValueError, match=r"`x` of shape \(4, 2, 3\) and float32 does not fit its"):
            read_embeddings(path, memory_limit)


def test_unknown_suffixes_list_the_choices(tmp_path):
    with pytest.raises(ValueError, match=r"unknown suffix '.csv'; choose one of .npy, .npz, .parquet, .pq"):
        read_embeddings(tmp_path / "file.csv")
    np.save(tmp_path / "file.npy", X)
    (tmp_path / "file.npy").rename(tmp_path / "FILE.NPY")
    assert read_embeddings(tmp_path / "FILE.NPY").x.shape == X.shape


def test_missing_arrays_list_what_is_there(tmp_path):
    np.savez(tmp_path / "file.npz", features=X, y=np.arange(4))
    with pytest.raises(ValueError, match=r"found no `x`, only \['features', 'y'\]; expected `x`"):
        read_embeddings(tmp_path / "file.npz")
    pq.write_table(pa.table({"vector": [1.0], "name": ["a"]}), tmp_path / "file.parquet")
    with pytest.raises(ValueError, match=r"found no `embedding`, only \['vector', 'name'\]; expected `embedding`"):
        read_embeddings(tmp_path / "file.parquet")


def test_objects_are_never_unpickled(tmp_path):
    np.savez(tmp_path / "file.npz", x=X, labels=np.array(["a", None, "b", "c"], dtype=object))
    with pytest.raises(ValueError, match=r"`labels` holds Python objects.*save strings as a unicode array"):
        read_embeddings(tmp_path / "file.npz")
    np.save(tmp_path / "file.npy", X.astype(object))
    with pytest.raises(ValueError, match="Python objects in dtype"):
        read_embeddings(tmp_path / "file.npy")


@pytest.mark.parametrize(
    ("name", "message"), [("labels", r"labels have shape \(3,\)"), ("ids", r"ids have shape \(3,\)")]
)
def test_lengths_must_agree(tmp_path, name, message):
    np.savez(tmp_path / "file.npz", x=X, **{name: np.arange(3)})
    with pytest.raises(ValueError, match=message + " for 4 items"):
        read_embeddings(tmp_path / "file.npz")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"embedding": pa.array([[1.0, 2.0], [1.0]])}, "`embedding` is ragged: its rows differ in length"),
        ({"embedding": pa.array([[1.0]] * 600 + [[1.0, 2.0]] * 600)}, "`embedding` is ragged"),
        ({"embedding": pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2))}, "`embedding` holds nulls"),
        ({"embedding": pa.array([[1.0, None]], pa.list_(pa.float32(), 2))}, "`embedding` holds nulls"),
        ({"embedding": pa.array([[1.0, 2.0], None])}, "`embedding` holds nulls"),
        ({"embedding": pa.array([1.0, 2.0])}, "`embedding` has type double"),
        ({"embedding": pa.array([["a"], ["b"]])}, r"`embedding` has type list<.*string>"),
        ({"embedding": pa.array([[[[1.0]]]])}, r"x has shape \(1, 1, 1, 1\)"),
        ({"embedding": pa.array([[], []], pa.list_(pa.float32()))}, r"x has shape \(2, 0\), which is empty"),
        ({"embedding": pa.array([], pa.list_(pa.float32(), 2))}, "`embedding` has no rows"),
        ({"embedding": pa.array([[1.0], [2.0]]), "id": pa.array(["a", None])}, "`id` holds nulls"),
        ({"embedding": pa.array([[1.0], [2.0]]), "label": pa.array([[1], [2]])}, r"`label` has type list<.*strings or"),
    ],
)
def test_parquet_columns_that_cannot_be_read_say_why(tmp_path, columns, message):
    pq.write_table(pa.table(columns), tmp_path / "file.parquet")
    with pytest.raises(ValueError, match=f"cannot read .*file.parquet: {message}.*expected `embedding` as lists"):
        read_embeddings(tmp_path / "file.parquet")


def test_arrays_and_tensors_are_not_copied():
    assert as_array(X) is X
    tensor = torch.ones(2, 3, requires_grad=True)
    assert np.shares_memory(as_array(tensor), tensor.detach().numpy())


@pytest.mark.parametrize(
    "form",
    [
        [[1.0, 2.0]],
        [np.array([1, 2])],
        torch.tensor([[1, 2]]),
        torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16),
        np.array([[1, 2]], ">f4"),
    ],
)
def test_all_forms_of_the_same_numbers_are_read_alike(form):
    array = as_array(form)
    assert array.tolist() == [[1, 2]]
    assert array.dtype.isnative


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros(3), r"x has shape \(3,\); give embeddings \(N, F\) or \(N, V, F\)"),
        (3.0, r"x has shape \(\)"),
        (
            np.zeros((2, 8, 8, 3), np.uint8),
            r"shape \(2, 8, 8, 3\) and dtype uint8; give emb",
        ),
        (np.zeros((0, 3)), r"x has shape \(0, 3\), which is empty"),
        (np.zeros((3, 0)), r"x has shape \(3, 0\), which is empty"),
        (np.zeros((3, 0, 2)), r"x has shape \(3, 0, 2\), which is empty"),
        (np.zeros((2, 2), bool), r"x has dtype bool; give real numbers"),
        (np.zeros((2, 2), complex), r"x has dtype complex128"),
        (np.zeros((2, 2), object), r"x has dtype object"),
        ([["a", "b"]], r"x has dtype <U1"),
        ([[1.0, 2.0], [3.0]], r"rows of x differ in length"),
    ],
)
def test_arrays_that_are_no_embeddings_say_why(x, message):
    with pytest.raises(ValueError, match=message):
        as_array(x)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("chunk_bytes", [1, 30, 2**20])
def test_numbers_that_are_not_finite_are_counted(bad, chunk_bytes):
    x = np.random.default_rng(0).normal(size=(20, 3, 2)).astype(np.float32)
    check_finite(x, chunk_bytes=chunk_bytes)
    x[7, 2, 1] = x[7, 0, 0] = x[15, 1, 0] = bad
    with pytest.raises(ValueError, match="2 of 20 rows of x hold NaN or infinity, the first is row 7"):
        check_finite(x, chunk_bytes=chunk_bytes)


@pytest.mark.parametrize("chunk_bytes", [1, 2**20])
def test_constant_features_are_refused(chunk_bytes):
    x = np.random.default_rng(0).normal(size=(5, 3, 2))
    x[:, 0] = x[0, 0]  # the clean view alone decides
    with pytest.raises(ValueError, match="all 5 items have the same features"):
        check_finite(x, chunk_bytes=chunk_bytes)
    check_finite(x, allow_constant=True)
    x[4, 0, 1] += 1
    check_finite(x, chunk_bytes=chunk_bytes)


def test_one_item_and_ints_are_fine():
    check_finite(np.ones((1, 4)))
    check_finite(np.array([[1, 2], [3, 4]], dtype=np.uint8))


def test_checking_a_memory_map_takes_little_memory(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(40_000, 25)))  # 8 MB
    x = read_embeddings(tmp_path / "x.npy").x
    tracemalloc.start()
    check_finite(x, chunk_bytes=2**16)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**17
