"""Embeddings (N, F) or (N, V, F) from arrays and files; large ones are memory-mapped."""

import math
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from combemb.system.arrays import to_numpy
from combemb.system.errors import reading, require
from combemb.system.progress import tracked

Order = Literal["C", "F"]
BLOCK_BYTES = 2**20  # size of one read
LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
PARQUET_ROWS = 512  # rows decoded at a time: 4 MB at F = 2,048
NPY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@dataclass(frozen=True, eq=False)
class Embeddings:
    """The content of an embedding file.

    Parameters
    ----------
    x : array (N, F) or (N, V, F)
        Any float or int dtype; may be a read-only memory map.
    labels : array (N,) or (N, C), optional
        As stored, to be interpreted by `read_labels`.
    ids : array (N,), optional
        Names of the items.
    """

    x: np.ndarray
    labels: np.ndarray | None = None
    ids: np.ndarray | None = None


def read_embeddings(path: str | Path, memory_limit: int = 256 * 2**20) -> Embeddings:
    """Read embeddings from a file.

    Parameters
    ----------
    path : str or Path
        `.npy`; `.npz` with `x` and optional `labels` and `ids`; or Parquet with `embedding` and optional `label` and
        `id`.
    memory_limit : int
        A larger `x`, in bytes, becomes a memory map: of the file itself if it is stored there uncompressed, otherwise
        of an unnamed temporary file in TMPDIR, which is deleted with the array. `.npy` is always mapped.

    Returns
    -------
    Embeddings
    """
    path = Path(path)
    kind, known = path.suffix.lower(), ", ".join(FORMATS)
    require(kind in FORMATS, f"cannot read {path}: unknown suffix {path.suffix!r}; choose one of {known}")
    read, expected = FORMATS[kind]
    with reading(path, Exception, hint=f"expected {expected}"):  # a damaged file makes libraries raise nearly anything
        found = read(path, memory_limit)
        found = replace(found, x=as_array(found.x))
        for name, rows in (("labels", found.labels), ("ids", found.ids)):
            if rows is not None:
                require(rows.shape[:1] == found.x.shape[:1], f"{name} have shape {rows.shape} for {len(found.x)} items")
        return found


def as_array(x: Any) -> np.ndarray:
    """Return embeddings (N, F) or (N, V, F) of an array, tensor or nested list as a checked numpy array.

    Copies lists, bfloat16 (numpy has none) and foreign byte orders only.
    """
    try:
        array = to_numpy(x)
    except ValueError as error:
        raise ValueError("the rows of x differ in length; give embeddings (N, F) or (N, V, F)") from error
    shape, dtype, wanted = array.shape, array.dtype, "give embeddings (N, F) or (N, V, F)"
    images = "images as a folder, a manifest or a numpy array (N, H, W, 3) of uint8"
    require(array.ndim != 4, f"x has shape {shape} and dtype {dtype}; {wanted}, or {images}")
    require(array.ndim in (2, 3), f"x has shape {shape}; {wanted}, one item as x[None]")
    require(dtype.kind in "iuf", f"x has dtype {dtype}; give real numbers, such as float32")
    require(array.size > 0, f"x has shape {shape}, which is empty; give at least one item and one feature")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def check_finite(
    x: np.ndarray, *, allow_constant: bool = False, chunk_bytes: int = 16 * 2**20, progress: bool | None = False
) -> None:
    """Refuse NaN and infinity in any view, and (unless allowed) several items whose clean views are all the same."""
    clean = x if x.ndim == 2 else x[:, 0]  # (N, F)
    rows = max(1, chunk_bytes // x[0].nbytes)
    n_bad, first_bad, is_constant = 0, -1, len(x) > 1
    starts = range(0, len(x), rows)
    for start in tracked(starts, "checking", len(starts), progress):
        with np.errstate(over="ignore"):  # float64 beyond the range of float32 is infinite to every method
            chunk = x[start : start + rows]
            chunk = chunk.astype(np.float32) if chunk.dtype.itemsize > 4 else chunk
        bad = np.flatnonzero(~np.isfinite(chunk).all(axis=tuple(range(1, x.ndim))))
        if n_bad == 0 and len(bad) > 0:
            first_bad = start + int(bad[0])
        n_bad += len(bad)
        is_constant = is_constant and bool((clean[start : start + rows] == clean[0]).all())
    n = len(x)
    require(n_bad == 0, f"{n_bad} of {n} rows of x hold NaN or infinity, the first is row {first_bad}; drop them")
    is_fine = allow_constant or not is_constant
    require(is_fine, f"all {n} items have the same features; nothing can be learned, check how x was made")


def _read_npz(path: Path, memory_limit: int) -> Embeddings:
    with zipfile.ZipFile(path) as archive:
        there = [name.removesuffix(".npy") for name in archive.namelist()]
        require("x" in there, f"found no `x`, only {there}")
        labels, ids = (_read_member(archive, name) if name in there else None for name in ("labels", "ids"))
        return Embeddings(_read_member(archive, "x", memory_limit), labels, ids)


def _read_member(archive: zipfile.ZipFile, name: str, memory_limit: int | None = None) -> np.ndarray:
    """Read one array of an .npz, as a memory map if it has more bytes than `memory_limit`."""
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        require(version in NPY_HEADERS, f"npy format {version} holds structured arrays")
        shape, is_fortran, dtype = NPY_HEADERS[version](member)
        hint = "which are never unpickled; save strings as a unicode array"
        require(not dtype.hasobject, f"`{name}` holds Python objects, {hint}")
        n_bytes = math.prod(shape) * dtype.itemsize
        fits = member.tell() + n_bytes == info.file_size
        require(fits, f"`{name}` of shape {shape} and {dtype} does not fit its {info.file_size} bytes")
        order: Order = "F" if is_fortran else "C"
        if memory_limit is None or n_bytes <= memory_limit:
            return np.frombuffer(member.read(), dtype).reshape(shape, order=order)
        if info.compress_type == zipfile.ZIP_STORED:
            start = _data_offset(archive, info) + member.tell()  # mapped bytes are not checked against the zip's CRC
            return np.memmap(str(archive.filename), dtype, "r", start, shape, order)
        return _spill(iter(partial(member.read, BLOCK_BYTES), b""), dtype, shape, order)


def _data_offset(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> int:
    """Return where a member's bytes start: after a header of 30 bytes, a name and an extra field of stated lengths."""
    with Path(str(archive.filename)).open("rb") as file:
        file.seek(info.header_offset + 26)
        lengths = np.frombuffer(file.read(4), "<u2")
    return info.header_offset + 30 + int(lengths.sum())


def _spill(blocks: Iterable[Any], dtype: np.dtype[Any], shape: tuple[int, ...], order: Order = "C") -> np.ndarray:
    """Write blocks (bytes or arrays) to an unnamed temporary file and map it.

    Assigning through a map instead would kill the process when the disk is full.
    """
    with tempfile.TemporaryFile() as file:
        for block in blocks:
            file.write(block)
        file.flush()
        return np.memmap(file, dtype, "r", shape=shape, order=order)  # the map keeps the file after it is closed


def _read_parquet(path: Path, memory_limit: int) -> Embeddings:
    with pq.ParquetFile(path, buffer_size=BLOCK_BYTES, pre_buffer=False) as file:  # not whole row groups
        there = file.schema_arrow.names
        require("embedding" in there, f"found no `embedding`, only {there}")
        label = next((name for name in ("label", "labels") if name in there), None)
        labels = _plain_column(file, label) if label else None
        ids = _plain_column(file, "id", allow_null=False) if "id" in there else None
        return Embeddings(_read_embedding_column(file, memory_limit), labels, ids)


def _read_embedding_column(file: pq.ParquetFile, memory_limit: int) -> np.ndarray:
    require(file.metadata.num_rows > 0, "`embedding` has no rows")
    blocks = _dense_blocks(file)
    first = next(blocks)
    shape, blocks = (file.metadata.num_rows, *first.shape[1:]), chain([first], blocks)
    if math.prod(shape) * first.dtype.itemsize > memory_limit:
        return _spill(blocks, first.dtype, shape)
    x, start = np.empty(shape, first.dtype), 0
    for block in blocks:
        x[start : start + len(block)] = block
        start += len(block)
    return x


def _dense_blocks(file: pq.ParquetFile) -> Iterator[np.ndarray]:
    """Yield the `embedding` column as blocks (n, F) or (n, V, F) of a few rows each."""
    row_shape = None
    for batch in file.iter_batches(PARQUET_ROWS, columns=["embedding"]):
        block = dense(batch.column(0))
        row_shape = row_shape or block.shape[1:]
        require(block.shape[1:] == row_shape, "`embedding` is ragged: its rows differ in length")
        yield block


def dense(column: pa.Array) -> np.ndarray:
    """Return an `embedding` column of lists of numbers as an array (n, F) or (n, V, F)."""
    values, shape = column, [len(column)]
    while isinstance(values.type, LISTS):
        require(values.null_count == 0, "`embedding` holds nulls")
        fixed = pa.types.is_fixed_size_list(values.type)
        lengths = [values.type.list_size] if fixed else np.unique(values.value_lengths())
        require(len(lengths) == 1, "`embedding` is ragged: its rows differ in length")
        shape.append(int(lengths[0]))
        values = values.flatten()
    is_real = pa.types.is_floating(values.type) or pa.types.is_integer(values.type)
    require(is_real and len(shape) > 1, f"`embedding` has type {column.type}")
    require(values.null_count == 0, "`embedding` holds nulls")
    return np.asarray(values.to_numpy(zero_copy_only=False).reshape(shape))


def _plain_column(file: pq.ParquetFile, name: str, allow_null: bool = True) -> np.ndarray:
    """Read (N,) int64 with -1 for null, float with NaN for null, or objects: str with None for null."""
    column = file.read(columns=[name]).column(0)
    require(allow_null or column.null_count == 0, f"`{name}` holds nulls")
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if pa.types.is_integer(kind):
        return np.asarray(column.cast(pa.int64()).fill_null(-1))
    if pa.types.is_floating(kind):
        return np.asarray(column)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind):
        return np.array(column.to_pylist(), dtype=object)
    raise ValueError(f"`{name}` has type {kind}; give strings or integers")


_PARQUET = "`embedding` as lists of numbers, all of one length and without nulls, with optional `label` and `id`"
FORMATS: dict[str, tuple[Callable[[Path, int], Embeddings], str]] = {
    ".npy": (lambda path, _: Embeddings(np.lib.format.open_memmap(path, mode="r")), "one array (N, F) or (N, V, F)"),
    ".npz": (_read_npz, "`x` (N, F) or (N, V, F) with optional `labels` and `ids`"),
    ".parquet": (_read_parquet, _PARQUET),
    ".pq": (_read_parquet, _PARQUET),
}
