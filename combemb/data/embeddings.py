"""Embeddings (N, F) or (N, V, F) from arrays and files; large ones are mapped from disk, not held in memory."""

import math
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from combemb.system.progress import tracked

BLOCK_BYTES = 2**20  # what one read of a file takes at a time
BATCH_ROWS = 512  # of a Parquet file: 4 MB at F = 2,048


@dataclass(frozen=True, eq=False)
class Embeddings:
    """What an embedding file holds.

    x: (N, F) or (N, V, F), any float or int dtype, possibly read-only and a memory map.
    labels: as stored, for `read_labels` to interpret. ids: (N,).
    """

    x: np.ndarray
    labels: np.ndarray | None = None
    ids: np.ndarray | None = None


def read_embeddings(path: str | Path, memory_limit: int = 256 * 2**20) -> Embeddings:
    """Read `.npy`; `.npz` with `x`, optional `labels`, `ids`; or Parquet with `embedding`, optional `label`, `id`.

    `.npy` is always a memory map. Elsewhere, an `x` of more than `memory_limit` bytes becomes one: of the file itself
    where it lies there uncompressed, else of an unnamed temporary file (in TMPDIR), which vanishes with the array.
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"cannot read {path}: unknown suffix {path.suffix!r}; choose one of {', '.join(FORMATS)}")
    read, expected = FORMATS[path.suffix.lower()]
    try:
        found = read(path, memory_limit)
        found = Embeddings(as_array(found.x), found.labels, found.ids)
        for name, rows in (("labels", found.labels), ("ids", found.ids)):
            if rows is not None and rows.shape[:1] != (len(found.x),):
                raise ValueError(f"{name} have shape {rows.shape} for {len(found.x)} items")
    except Exception as error:  # a damaged file makes zipfile, numpy and pyarrow raise nearly anything
        raise ValueError(f"cannot read {path}: {error}; expected {expected}") from error
    return found


def as_array(x: Any) -> np.ndarray:
    """Embeddings (N, F) or (N, V, F) as a numpy array, of a numpy array, torch tensor or nested list.

    Copies lists, bfloat16 (numpy has none) and foreign byte orders only.
    """
    if isinstance(x, torch.Tensor):
        on_cpu = x.detach().cpu()
        array = np.asarray((on_cpu.float() if on_cpu.dtype == torch.bfloat16 else on_cpu).numpy())
    elif isinstance(x, np.ndarray):
        array = x  # np.asarray would hide that it is a memory map
    else:
        try:
            array = np.asarray(x)
        except ValueError as error:
            raise ValueError("the rows of x differ in length; give embeddings (N, F) or (N, V, F)") from error
    if array.ndim == 4:
        raise ValueError(
            f"x has shape {array.shape} and dtype {array.dtype}; give embeddings (N, F) or (N, V, F), or images as a "
            "folder, a manifest or a numpy array (N, H, W, 3) of uint8"
        )
    if array.ndim not in (2, 3):
        raise ValueError(f"x has shape {array.shape}; give embeddings (N, F) or (N, V, F), one item as x[None]")
    if array.dtype.kind not in "iuf":
        raise ValueError(f"x has dtype {array.dtype}; give real numbers, such as float32")
    if array.size == 0:
        raise ValueError(f"x has shape {array.shape}, which is empty; give at least one item and one feature")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def check_finite(
    x: np.ndarray, *, allow_constant: bool = False, chunk_bytes: int = 16 * 2**20, progress: bool | None = False
) -> None:
    """Refuse NaN and infinity in any view, and (unless allowed) several items whose clean views are all the same.

    Looks at `chunk_bytes` at a time, so that a memory map larger than the memory passes through.
    """
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
    if n_bad > 0:
        raise ValueError(f"{n_bad} of {len(x)} rows of x hold NaN or infinity, the first is row {first_bad}; drop them")
    if is_constant and not allow_constant:
        raise ValueError(f"all {len(x)} items have the same features; nothing can be learned, check how x was made")


def _read_npy(path: Path, _: int) -> Embeddings:
    return Embeddings(np.lib.format.open_memmap(path, mode="r"))


def _read_npz(path: Path, memory_limit: int) -> Embeddings:
    with zipfile.ZipFile(path) as archive:
        there = [name.removesuffix(".npy") for name in archive.namelist()]
        if "x" not in there:
            raise ValueError(f"found no `x`, only {there}")
        labels, ids = (_read_member(archive, name) if name in there else None for name in ("labels", "ids"))
        return Embeddings(_read_member(archive, "x", memory_limit), labels, ids)


def _read_member(archive: zipfile.ZipFile, name: str, memory_limit: int | None = None) -> np.ndarray:
    """One array of an .npz; a memory map if it has more bytes than `memory_limit`."""
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as member:
        shape, is_fortran, dtype = _read_npy_header(member)
        if dtype.hasobject:
            raise ValueError(
                f"`{name}` holds Python objects, which are never unpickled; save strings as a unicode array"
            )
        n_bytes = math.prod(shape) * dtype.itemsize
        if member.tell() + n_bytes != info.file_size:
            raise ValueError(f"`{name}` of shape {shape} and {dtype} does not fit its {info.file_size} bytes")
        order: Literal["C", "F"] = "F" if is_fortran else "C"
        if memory_limit is None or n_bytes <= memory_limit:
            return np.frombuffer(member.read(), dtype).reshape(shape, order=order)
        if info.compress_type == zipfile.ZIP_STORED:
            start = _data_offset(archive, info) + member.tell()  # mapped bytes are not checked against the zip's CRC
            return np.memmap(str(archive.filename), dtype, "r", start, shape, order)
        return _spill(iter(partial(member.read, BLOCK_BYTES), b""), dtype, shape, order)


def _read_npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(file)
    raise ValueError(f"npy format {version} holds structured arrays")


def _data_offset(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> int:
    """Where a member's bytes begin: its local header has 30 bytes, then a name and an extra field of stated lengths."""
    with Path(str(archive.filename)).open("rb") as file:
        file.seek(info.header_offset + 26)
        lengths = np.frombuffer(file.read(4), "<u2")
    return info.header_offset + 30 + int(lengths.sum())


def _spill(
    blocks: Iterable[Any], dtype: np.dtype[Any], shape: tuple[int, ...], order: Literal["C", "F"] = "C"
) -> np.ndarray:
    """Memory map of a temporary file without a name that holds these blocks (bytes or arrays) one after the other.

    Written, not assigned through the map: a full disk is then an error and not a dead process.
    """
    with tempfile.TemporaryFile() as file:
        for block in blocks:
            file.write(block)
        file.flush()
        return np.memmap(file, dtype, "r", shape=shape, order=order)  # keeps the file alive after it is closed


def _read_parquet(path: Path, memory_limit: int) -> Embeddings:
    with pq.ParquetFile(path, buffer_size=BLOCK_BYTES, pre_buffer=False) as file:  # else it reads whole row groups
        there = file.schema_arrow.names
        if "embedding" not in there:
            raise ValueError(f"found no `embedding`, only {there}")
        label = next((name for name in ("label", "labels") if name in there), None)
        labels = _plain_column(file, label) if label else None
        ids = _plain_column(file, "id", allow_null=False) if "id" in there else None
        return Embeddings(_read_embedding_column(file, memory_limit), labels, ids)


def _read_embedding_column(file: pq.ParquetFile, memory_limit: int) -> np.ndarray:
    blocks = _dense_blocks(file)
    first = next(blocks, None)
    if first is None:
        raise ValueError("`embedding` has no rows")
    shape = (file.metadata.num_rows, *first.shape[1:])

    def same_shaped() -> Iterator[np.ndarray]:
        yield first
        for block in blocks:
            if block.shape[1:] != first.shape[1:]:
                raise ValueError("`embedding` is ragged: its rows differ in length")
            yield block

    if math.prod(shape) * first.dtype.itemsize > memory_limit:
        return _spill(same_shaped(), first.dtype, shape)
    x = np.empty(shape, first.dtype)
    start = 0
    for block in same_shaped():
        x[start : start + len(block)] = block
        start += len(block)
    return x


def _dense_blocks(file: pq.ParquetFile) -> Iterator[np.ndarray]:
    """The `embedding` column as blocks (n, F) or (n, V, F) of a few rows each."""
    for batch in file.iter_batches(BATCH_ROWS, columns=["embedding"]):
        values = batch.column(0)
        shape = [len(values)]
        while _is_list(values.type):
            if values.null_count > 0:
                raise ValueError("`embedding` holds nulls")
            fixed = pa.types.is_fixed_size_list(values.type)
            lengths = [values.type.list_size] if fixed else np.unique(values.value_lengths())
            if len(lengths) > 1:
                raise ValueError("`embedding` is ragged: its rows differ in length")
            shape.append(int(lengths[0]))
            values = values.flatten()
        if len(shape) == 1 or not (pa.types.is_floating(values.type) or pa.types.is_integer(values.type)):
            raise ValueError(f"`embedding` has type {batch.column(0).type}")
        if values.null_count > 0:
            raise ValueError("`embedding` holds nulls")
        yield values.to_numpy(zero_copy_only=False).reshape(shape)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _plain_column(file: pq.ParquetFile, name: str, allow_null: bool = True) -> np.ndarray:
    """(N,) int64 with -1 for null, float with NaN for null, or objects: str with None for null."""
    column = file.read(columns=[name]).column(0)
    if column.null_count > 0 and not allow_null:
        raise ValueError(f"`{name}` holds nulls")
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
    ".npy": (_read_npy, "one array of numbers (N, F) or (N, V, F)"),
    ".npz": (_read_npz, "`x` (N, F) or (N, V, F) with optional `labels` and `ids`"),
    ".parquet": (_read_parquet, _PARQUET),
    ".pq": (_read_parquet, _PARQUET),
}
