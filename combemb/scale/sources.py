"""What is encoded at scale: image folders, manifests, and tables of paths or embeddings, at paths or URLs of fsspec."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from combemb.data.entries import listed
from combemb.data.folders import RUN_MARKER, UNLABELLED_FOLDERS, is_images
from combemb.data.given import read_given
from combemb.data.images import image_suffixes
from combemb.data.labels import MARKERS_AS_STRINGS
from combemb.data.manifests import PARQUET_SUFFIXES
from combemb.scale.plan import Kind, Table
from combemb.scale.store import Store, is_local, opened
from combemb.system.errors import require

LISTING = "listing"  # folder of the results with the paths of the images
LISTING_ROWS = 2**20  # paths in a file of the listing
TABLE_SUFFIXES = (*PARQUET_SUFFIXES, ".npy")
NPY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_source(source: str, store: Store, *, training_part: bool = False) -> tuple[Kind, tuple[Table, ...]]:
    """Find out what a user gave, and list it.

    Parameters
    ----------
    source : str
        An image folder; a manifest; a Parquet file with `embedding` or with `path`; `.npy` with embeddings; a folder of
        such tables, or a pattern such as `s3://bucket/features/*.parquet`.
    store : Store
        Where a listing of the images is written. Tables are used as they are.
    training_part : bool
        Leave out a test split of local images.

    Returns
    -------
    {"images", "embeddings"}, tuple of Table
    """
    system, path = opened(source)
    files = _table_files(system, path)
    if files and not (len(files) == 1 and is_local(system) and Path(files[0]).suffix != ".npy" and is_images(files[0])):
        tables, kinds = zip(*(_table(system, file) for file in files), strict=True)
        require(len(set(kinds)) == 1, f"{source} has tables of paths and tables of embeddings; give them one by one")
        return kinds[0], tables
    if is_local(system):
        require(Path(path).exists(), f"cannot read {source}: there is no such file or folder")
        given = read_given(Path(path))
        given = given.training_part() if training_part else given
        is_listed = given.images is not None and given.images.files is not None
        require(is_listed, f"{source} is an array of images; give an image folder, a manifest, or embeddings")
        entries = listed(given)[1]
    else:
        entries = _remote_images(system, path, source)
    return "images", _listing(store, entries)


def _table_files(system: Any, path: str) -> list[str]:
    """Return the tables at a path, in the order of their names: of a pattern, in a folder, or the one file."""
    if any(sign in path for sign in "*?["):
        found = sorted(system.glob(path))
        require(len(found) > 0, f"there is no file {path}; check the pattern")
    elif system.isdir(path):
        found = sorted(str(about["name"]) for about in system.ls(path, detail=True) if about["type"] == "file")
        found = [name for name in found if not name.rpartition("/")[2].startswith(".")]
    else:
        found = [path]
    return [name for name in found if Path(name).suffix.lower() in TABLE_SUFFIXES]


def _table(system: Any, file: str) -> tuple[Table, Kind]:
    url, n_bytes = system.unstrip_protocol(file), int(system.size(file))
    with system.open(file) as raw:
        if Path(file).suffix.lower() == ".npy":
            shape, _ = _npy_header(raw, url)
            return Table(url, shape[0], n_bytes), "embeddings"
        with pq.ParquetFile(raw) as table:
            names = table.schema_arrow.names
            require(table.metadata.num_rows > 0, f"{url} has no rows; leave it out")
            is_known = "embedding" in names or "path" in names
            require(is_known, f"{url} has neither `embedding` nor `path`, only {names}; give one of them")
            return Table(url, table.metadata.num_rows, n_bytes), "embeddings" if "embedding" in names else "images"


def _remote_images(system: Any, path: str, source: str) -> pa.Table:
    """Return path and label of the images of a folder or a CSV manifest that is on another file system."""
    if Path(path).suffix.lower() == ".csv":
        with system.open(path) as raw:
            table = csv.read_csv(io.BytesIO(raw.read()))
        require("path" in table.column_names, f"{source} has no column `path`, only {table.column_names}")
        paths, labels = paths_and_labels(table, system.unstrip_protocol(path))
        return pa.table({"path": paths, "label": pa.nulls(len(paths)) if labels is None else labels})
    root = path.rstrip("/") + "/"
    names = [name.removeprefix(root) for name in system.find(path)]
    names = sorted(name for name in names if not any(part.startswith(".") for part in name.split("/")))
    inside = [name.rpartition("/")[0] for name in names if name.rpartition("/")[2] == RUN_MARKER]
    names = [name for name in names if Path(name).suffix.lower() in image_suffixes()]
    names = [name for name in names if not any(name.startswith(f"{folder}/") for folder in inside)]
    require(len(names) > 0, f"{source} holds no images and no tables; give an image folder, a manifest or Parquet")
    tops = {name.split("/")[0] for name in names if "/" in name}
    is_divided = "train" in tops and tops & {"test", "val"}
    require(not is_divided, f"{source} holds {', '.join(sorted(tops))}; give one of them, such as {source}/train")
    labels = [name.split("/")[0] if "/" in name else None for name in names]
    labels = [None if label is None or label.lower() in UNLABELLED_FOLDERS else label for label in labels]
    return pa.table({"path": [system.unstrip_protocol(root + name) for name in names], "label": labels})


def _listing(store: Store, entries: pa.Table) -> tuple[Table, ...]:
    """Write the paths and labels of images into the store, so that all workers see the same ones for ever."""
    entries = entries.select(["path", "label"]).cast(pa.schema([(name, pa.string()) for name in ("path", "label")]))
    tables = []
    for number, start in enumerate(range(0, len(entries), LISTING_ROWS)):
        some, buffer = entries.slice(start, LISTING_ROWS), io.BytesIO()
        pq.write_table(some, buffer, compression="zstd")
        written = store.write(f"{LISTING}/{number:05}.parquet", buffer.getvalue())
        tables.append(Table(written.name, len(some), written.n_bytes, is_own=True))
    return tuple(tables)


def rows_of(table: Table, store: Store, start: int, n_rows: int) -> tuple[pa.Table | None, np.ndarray | None]:
    """Return rows of a table: of a Parquet file as such, of an array file as an array."""
    system, path = (store.fs, store.path(table.url)) if table.is_own else opened(table.url)
    n_bytes = int(system.size(path))
    require(n_bytes == table.n_bytes, f"{table.url} has changed since the blocks were planned; use overwrite")
    with system.open(path) as raw:
        if path.lower().endswith(".npy"):
            return None, _npy_rows(raw, table.url, start, n_rows)
        with pq.ParquetFile(raw) as file:
            return _parquet_rows(file, start, n_rows), None


def _parquet_rows(file: pq.ParquetFile, start: int, n_rows: int) -> pa.Table:
    """Return some rows; row groups without any of them are not read."""
    ends = np.cumsum([file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)])
    groups = np.flatnonzero((ends > start) & (np.append(0, ends[:-1]) < start + n_rows)).tolist()
    first = int(ends[groups[0] - 1]) if groups[0] else 0
    columns = [name for name in ("embedding", "path", "id", "label", "labels") if name in file.schema_arrow.names]

    def batches() -> Iterator[pa.RecordBatch]:
        place = first
        for batch in file.iter_batches(8_192, row_groups=groups, columns=columns):
            begin, end = max(start - place, 0), min(start + n_rows - place, len(batch))
            if begin < end:
                yield batch.slice(begin, end - begin)
            place += len(batch)
            if place >= start + n_rows:
                return

    return pa.Table.from_batches(list(batches()))


def _npy_header(raw: Any, url: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(raw)
    require(version in NPY_HEADERS, f"{url} holds structured arrays; give embeddings (N, F)")
    shape, is_fortran, dtype = NPY_HEADERS[version](raw)
    is_fit = len(shape) in (2, 3) and shape[0] > 0 and dtype.kind in "fiu" and not (is_fortran or dtype == np.uint8)
    found = f"{url} has shape {shape} and dtype {dtype}"
    require(is_fit, f"{found}; give embeddings (N, F) or (N, V, F) of real numbers, with the rows one after the other")
    return shape, dtype


def _npy_rows(raw: Any, url: str, start: int, n_rows: int) -> np.ndarray:
    shape, dtype = _npy_header(raw, url)
    n_bytes = int(np.prod(shape[1:])) * dtype.itemsize
    raw.seek(raw.tell() + start * n_bytes)
    return np.frombuffer(raw.read(n_rows * n_bytes), dtype).reshape(n_rows, *shape[1:])


def paths_and_labels(table: pa.Table, url: str) -> tuple[list[str], list[str | None] | None]:
    """Return the paths in a table, relative to its URL unless they are absolute, and the labels; -1 or "" is none."""
    base = url.rpartition("/")[0]
    written = [str(path) for path in table["path"].to_pylist()]
    paths = [path if "://" in path or path.startswith("/") else f"{base}/{path}" for path in written]
    name = next((name for name in ("label", "labels") if name in table.column_names), None)
    if name is None:
        return paths, None
    texts = [None if label is None else str(label) for label in table[name].to_pylist()]
    return paths, [None if text in (None, "", *MARKERS_AS_STRINGS) else text for text in texts]


def stored_labels(tables: tuple[Table, ...]) -> np.ndarray | None:
    """Return the labels in tables of embeddings, as `read_labels` takes them; None if there are none."""
    found, has_any = [], False
    for table in tables:
        system, path = opened(table.url)
        column = None
        if not path.lower().endswith(".npy"):
            with system.open(path) as raw, pq.ParquetFile(raw) as file:
                name = next((name for name in ("label", "labels") if name in file.schema_arrow.names), None)
                column = None if name is None else plain_labels(file.read(columns=[name]).column(0))
        has_any = has_any or column is not None
        found.append(np.full(table.n_rows, None) if column is None else column)
    return np.concatenate(found) if has_any else None


def plain_labels(column: pa.ChunkedArray) -> np.ndarray:
    """Return a column of labels as `read_labels` takes them: int64 with -1, or objects with None, if unlabelled."""
    if pa.types.is_integer(column.type):
        return np.asarray(column.cast(pa.int64()).fill_null(-1))
    return np.array([*column.to_pylist(), None], dtype=object)[:-1]
