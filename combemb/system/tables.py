"""Tables as Parquet files, written atomically; reading verifies them."""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from combemb.system.files import CHECKSUM, write_atomically

METADATA_KEY = b"combemb"  # of JSON in the schema


def write_table(path: Path, table: pa.Table, about: dict[str, Any] | None = None) -> None:
    """Write a table with checksums of its pages and of its content, and what else is to be known about it as JSON."""
    about = about or {}
    metadata = {METADATA_KEY: json.dumps({**about, CHECKSUM: _checksum(table, about)})}
    table = table.replace_schema_metadata(metadata)
    write_atomically(
        path, lambda temporary: pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)
    )


def read_table(path: Path) -> tuple[pa.Table, dict[str, Any]]:
    """Return what `write_table` wrote; raise a ValueError that names the file if it is missing or damaged."""
    try:
        table = pq.read_table(path, page_checksum_verification=True)
        metadata = table.schema.metadata or {}
        if METADATA_KEY not in metadata:
            raise ValueError("it has no checksum; another program or an earlier combemb wrote it")
        about = dict(json.loads(metadata[METADATA_KEY]))
        is_whole = about.pop(CHECKSUM) == _checksum(table, about)
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        problem = (str(error).splitlines() or [""])[0]
        raise ValueError(f"cannot read {path}: {problem}; the file is missing or damaged") from error
    if not is_whole:
        raise ValueError(f"cannot read {path}: its checksum is wrong, the file is damaged")
    return table.replace_schema_metadata(None), about


def read_about(path: Path) -> dict[str, Any]:
    """Return what is to be known about a table, without reading it; raise a ValueError if it is missing or damaged."""
    try:
        return dict(json.loads(pq.read_schema(path).metadata[METADATA_KEY]))
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise ValueError(f"cannot read {path}: the file is missing or damaged") from error


def _checksum(table: pa.Table, about: dict[str, Any]) -> int:
    """Return the CRC-32 of `about` and of names, types, lengths and values of all columns."""
    crc = zlib.crc32(json.dumps(about, sort_keys=True).encode())
    for name, column in zip(table.column_names, table.columns, strict=True):
        crc = zlib.crc32(f"{name} {column.type} {len(column)}".encode(), crc)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            lengths = pc.fill_null(pc.binary_length(column), -1)  # None is not an empty text
            crc = zlib.crc32(lengths.to_numpy().astype(np.int64).tobytes(), crc)
            for chunk in pc.fill_null(column, "").cast(pa.large_string()).chunks:
                crc = zlib.crc32(_text(chunk), crc)
        else:
            crc = zlib.crc32(column.to_numpy().tobytes(), crc)
    return crc


def _text(strings: pa.LargeStringArray) -> memoryview:
    """Return the bytes of all strings, one after the other."""
    _, offsets, text = strings.buffers()
    if text is None or len(strings) == 0:
        return memoryview(b"")
    places = np.frombuffer(offsets, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    return memoryview(text)[places[0] : places[-1]]
