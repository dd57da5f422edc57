"""Indexes in the formats of other tools: plain FAISS files, Parquet files, Lance datasets."""

import hashlib
import importlib
import json
import tempfile
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from combemb.search.codebook import WORD_COUNTS, Codebook, Metric, ProductCodebook, same_codebook
from combemb.search.fast_scan import BLOCK, blocks_of, stored_codes
from combemb.search.index import CodeIndex
from combemb.system.arrays import to_numpy
from combemb.system.errors import reading, require
from combemb.system.files import write_atomically

PRODUCT_FORMAT = 1  # holds the words of a product codebook
STATE_FORMAT = 2  # holds the digest of any other codebook, to compare it with
EXCHANGE_COLUMNS = ["id", "code"]
ROWS_AT_ONCE = 2**20  # in work space, and in a row group of Parquet
IN_FAISS = "expected a FAISS file of an IndexPQ of 1 to 4 bits or an IndexPQFastScan, bare or in an IndexIDMap"


def to_faiss(index: CodeIndex, path: str | Path) -> None:
    """Write an `IndexPQ` in an `IndexIDMap2` for `faiss.read_index`.

    FAISS's inner products are our scores, and its L2 distances minus our scores. It does not scale queries: under
    "cosine" give it sub-vectors of length 1 / sqrt(M), as `embed` returns them; the words are stored times sqrt(M).

    Parameters
    ----------
    index : CodeIndex of a ProductCodebook, with ids that are integers
    path : str or Path
    """
    ids = index._ids.values
    if not isinstance(ids, np.ndarray):
        raise ValueError("the ids are strings, which a FAISS file cannot store; use to_parquet, or number the entries")
    codebook = index.codebook
    if not isinstance(codebook, ProductCodebook):
        raise ValueError(f"{codebook!r} is no product codebook, which FAISS needs; use to_parquet or CodeIndex.save")
    words = _filled(codebook.words.numpy()) * _scale(codebook.metric, len(codebook.sizes))
    M, K, d = words.shape
    metric = faiss.METRIC_L2 if codebook.metric == "l2" else faiss.METRIC_INNER_PRODUCT
    inner = faiss.IndexPQ(M * d, M, K.bit_length() - 1, metric)
    outer = faiss.IndexIDMap2(inner)
    faiss.copy_array_to_vector(words.ravel(), inner.pq.centroids)
    packed = np.empty((len(index), inner.code_size), np.uint8)
    for rows in _chunks(len(index)):
        packed[rows] = faiss.pack_bitstrings(index.codes(rows).astype(np.int32), inner.pq.nbits)
    faiss.copy_array_to_vector(packed.ravel(), inner.codes)
    # Set by hand: adding with ids would make a table of ids that is larger than the index and not in the file.
    faiss.copy_array_to_vector(np.ascontiguousarray(ids), outer.id_map)
    inner.ntotal = outer.ntotal = len(index)
    inner.is_trained = outer.is_trained = True
    write_atomically(Path(path), lambda temporary: faiss.write_index(outer, str(temporary)))


def from_faiss(path: str | Path, metric: Literal["cosine", "inner"] = "cosine") -> CodeIndex:
    """Read an `IndexPQ` of 1 to 4 bits or an `IndexPQFastScan`, with the ids of an `IndexIDMap` or numbered from 0.

    Words that repeat the first one of their set and that no code uses are left out.

    Parameters
    ----------
    path : str or Path
    metric : {"cosine", "inner"}
        The meaning of inner products, which is not in the file. Under "cosine" words may differ by a last digit from
        those of `to_faiss`.

    Returns
    -------
    CodeIndex
    """
    if metric not in ("cosine", "inner"):
        raise ValueError(f"metric={metric!r}; give 'cosine' or 'inner' for inner products, L2 is known from the file")
    with reading(path, Exception, hint=IN_FAISS):  # a damaged file makes FAISS, pyarrow and Lance raise nearly anything
        outer: Any = faiss.read_index(str(path))
        has_ids = isinstance(outer, faiss.IndexIDMap)
        inner: Any = faiss.downcast_index(outer.index) if has_ids else outer
        codes = _faiss_codes(inner)
        if inner.metric_type not in (faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT):
            raise ValueError(f"it has FAISS's metric {inner.metric_type}, neither inner products nor L2")
        found: Metric = "l2" if inner.metric_type == faiss.METRIC_L2 else metric
        M, K = inner.pq.M, inner.pq.ksub
        words = faiss.vector_to_array(inner.pq.centroids).reshape(M, K, -1) / _scale(found, M)
        largest = codes.max(axis=0, initial=0)
        index = CodeIndex(ProductCodebook([_own(w, most) for w, most in zip(words, largest, strict=True)], found))
        index.add(codes, faiss.vector_to_array(outer.id_map) if has_ids else None)
        return index


def to_parquet(index: CodeIndex, path: str | Path, more: pa.Table | None = None) -> None:
    """Write columns `id` (int64 or string) and `code` (M uint8 each); the schema's metadata has the codebook.

    Parameters
    ----------
    index : CodeIndex
        Of a codebook that is no `ProductCodebook`, only a digest is written, which `from_parquet` compares.
    path : str or Path
    more : pyarrow.Table, optional
        More columns, a row per entry; `from_parquet` ignores them.
    """
    schema = _schema(index, more)

    def write(temporary: Path) -> None:
        with pq.ParquetWriter(temporary, schema, write_page_checksum=True) as writer:
            for batch in _batches(index, schema, more):
                writer.write_batch(batch, ROWS_AT_ONCE)

    write_atomically(Path(path), write)


def from_parquet(path: str | Path, codebook: Codebook | None = None) -> CodeIndex:
    """Read a file of `to_parquet`.

    Parameters
    ----------
    path : str or Path
    codebook : Codebook, optional
        The codebook that the file must have been made with; required unless that is a `ProductCodebook`.

    Returns
    -------
    CodeIndex
    """
    with (
        reading(path, Exception, hint="expected a Parquet file of to_parquet"),
        pq.ParquetFile(path, page_checksum_verification=True) as file,
    ):
        return _index(file.schema_arrow, codebook, file.metadata.num_rows, file.iter_batches)


def to_lance(index: CodeIndex, path: str | Path, more: pa.Table | None = None) -> None:
    """Write a Lance dataset, which is a folder, with the columns and metadata of `to_parquet`.

    Parameters
    ----------
    index : CodeIndex
    path : str or Path
        An existing Lance dataset gets a new version, and Lance keeps the old ones; anything else there is an error.
    more : pyarrow.Table, optional
        As for `to_parquet`.
    """
    lance, path, schema = _lance(), Path(path), _schema(index, more)
    reader = pa.RecordBatchReader.from_batches(schema, _batches(index, schema, more))
    if path.exists():
        is_dataset = False
        with suppress(ValueError, OSError):
            is_dataset = path.is_dir() and lance.dataset(str(path)) is not None
        require(is_dataset, f"{path} exists and is no Lance dataset; remove it or give another path")
        lance.write_dataset(reader, str(path), mode="overwrite")
        return
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        whole = Path(folder) / path.name
        lance.write_dataset(reader, str(whole), mode="create")
        whole.rename(path)


def from_lance(path: str | Path, codebook: Codebook | None = None) -> CodeIndex:
    """Read the newest version of a dataset of `to_lance`.

    Parameters
    ----------
    path : str or Path
    codebook : Codebook, optional
        As for `from_parquet`.

    Returns
    -------
    CodeIndex
    """
    lance = _lance()
    with reading(path, Exception, hint="expected a Lance dataset of to_lance"):
        dataset = lance.dataset(str(path))
        return _index(dataset.schema, codebook, dataset.count_rows(), dataset.to_batches)


def _lance() -> Any:
    try:
        return importlib.import_module("lance")
    except ImportError as error:
        raise ValueError(f"Lance datasets need pylance ({error}); pip install combemb[lance]") from error


def _chunks(n: int) -> Iterator[np.ndarray]:
    """Yield the rows below n, some at a time."""
    for start in range(0, n, ROWS_AT_ONCE):
        yield np.arange(start, min(start + ROWS_AT_ONCE, n))


def _scale(metric: Metric, M: int) -> np.float32:
    """Return the factor of words in a FAISS file, in float32, so that words of 1 and -1 come back exactly."""
    return np.float32(M**0.5 if metric == "cosine" else 1)


def _filled(words: np.ndarray) -> np.ndarray:
    """Repeat the first word of each set up to 8 words if d = 2, where FAISS refuses to search fewer: (M, K, d)."""
    M, K, d = words.shape
    n_more = 8 - K if d == 2 and K < 8 else 0
    return np.concatenate([words, np.broadcast_to(words[:, :1], (M, n_more, d))], axis=1)


def _faiss_codes(inner: Any) -> np.ndarray:
    """Return the codes (N, M) of an index of FAISS."""
    require(isinstance(inner, faiss.IndexPQ | faiss.IndexPQFastScan), f"it holds an {type(inner).__name__}")
    if not 1 <= inner.pq.nbits <= 4 or not inner.is_trained:
        raise ValueError(f"its codes have {inner.pq.nbits} bits per set{', untrained' * (not inner.is_trained)}")
    if isinstance(inner, faiss.IndexPQFastScan) and inner.bbs != BLOCK:  # FAISS itself reads larger ones wrongly
        raise ValueError(f"its fast scan has blocks of {inner.bbs} codes, not {BLOCK}")
    codes, stored = np.empty((inner.ntotal, inner.pq.M), np.uint8), faiss.vector_to_array(inner.codes)
    for rows in _chunks(len(codes)):
        if isinstance(inner, faiss.IndexPQFastScan):
            codes[rows] = stored_codes(blocks_of(inner), np.arange(inner.M), rows).T
        else:
            packed = stored.reshape(-1, inner.code_size)[rows]
            codes[rows] = faiss.unpack_bitstrings(packed, inner.pq.M, inner.pq.nbits)
    return codes


def _own(words: np.ndarray, largest: int) -> np.ndarray:
    """Return the words (K, d) of a set without repeats of the first that only fill it up; codes are <= `largest`."""
    return next(words[:K] for K in WORD_COUNTS if largest < K and (words[K:] == words[0]).all())


def _schema(index: CodeIndex, more: pa.Table | None) -> Any:
    """Return the columns, with the codebook and its checksum as metadata."""
    codebook = index.codebook
    text = json.dumps(_about(codebook))
    is_int = isinstance(index._ids.values, np.ndarray)
    others = {} if more is None else {field.name: field.type for field in more.schema}
    code = pa.list_(pa.uint8(), len(codebook.sizes))
    return pa.schema(
        {"id": pa.int64() if is_int else pa.large_string(), **others, "code": code},
        {"combemb_codebook": text, "combemb_crc32": str(zlib.crc32(text.encode()))},
    )


def _batches(index: CodeIndex, schema: Any, more: pa.Table | None) -> Iterator[Any]:
    for rows in _chunks(len(index)):
        ids = index._ids.values[rows[0] : rows[-1] + 1]  # `index.ids` would turn every string into an object
        codes = pa.FixedSizeListArray.from_arrays(index.codes(rows).ravel(), len(index.codebook.sizes))
        others = [] if more is None else more.slice(rows[0], len(rows)).columns
        columns = [pa.array(ids) if isinstance(ids, np.ndarray) else ids, *(c.combine_chunks() for c in others), codes]
        yield pa.record_batch(columns, schema=schema)


def _about(codebook: Codebook) -> dict[str, Any]:
    """Return what restores a product codebook, or identifies any other, as JSON."""
    if not isinstance(codebook, ProductCodebook):
        return {"format": STATE_FORMAT, "codebook": repr(codebook), "digest": _digest(codebook)}
    words = [w[:K] for w, K in zip(codebook.words.numpy(), codebook.sizes, strict=True)]
    return {
        "format": PRODUCT_FORMAT,
        "metric": codebook.metric,
        "sizes": codebook.sizes,
        "d": codebook.words.shape[2],
        "words": b64encode(np.concatenate(words).astype("<f4").tobytes()).decode(),
    }


def _digest(codebook: Codebook) -> str:
    digest = hashlib.sha256(repr(codebook.sizes).encode())
    for name, tensor in sorted(codebook.state().items()):
        array = to_numpy(tensor)
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def _codebook(schema: Any, given: Codebook | None) -> Codebook:
    """Return the codebook of a file: the one given, once it is known to be the same, or that of the stored words."""
    metadata = schema.metadata or {}
    text = metadata.get(b"combemb_codebook", b"")
    require(b"combemb_codebook" in metadata, "it has no codebook, `combemb_codebook` in the metadata of its schema")
    crc = str(zlib.crc32(text)).encode()
    require(crc == metadata.get(b"combemb_crc32"), "the checksum of its codebook is wrong")
    about = json.loads(text)
    if about["format"] == PRODUCT_FORMAT:
        words = np.frombuffer(b64decode(about["words"]), "<f4").reshape(sum(about["sizes"]), about["d"])
        found = ProductCodebook(np.split(words, np.cumsum(about["sizes"])[:-1]), about["metric"])
        require(given is None or same_codebook(found, given), f"it was made with {found}, not with {given}")
        return found
    known = f"{PRODUCT_FORMAT} and {STATE_FORMAT}"
    require(about["format"] == STATE_FORMAT, f"it has format {about['format']}, this combemb reads {known}")
    if given is None:
        raise ValueError(f"it has codes of {about['codebook']}, which is not stored with them; give it as codebook=")
    require(about["digest"] == _digest(given), f"it was made with another codebook: {about['codebook']}, not {given}")
    return given


def _index(schema: Any, given: Codebook | None, n: int, batches: Callable[..., Iterable[Any]]) -> CodeIndex:
    """Return an index of n rows; `batches` reads some of their columns."""
    missing = [name for name in EXCHANGE_COLUMNS if name not in schema.names]
    if missing:
        raise ValueError(f"found no `{missing[0]}`, only {schema.names}")
    codebook = _codebook(schema, given)
    kind = schema.field("id").type
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise ValueError(f"`id` has type {kind}, not whole numbers or strings")
    kind = pa.int64() if pa.types.is_integer(kind) else pa.large_string()
    codes, ids, start = np.empty((n, len(codebook.sizes)), np.uint8), [], 0
    for batch in batches(columns=EXCHANGE_COLUMNS):
        column = _lists(batch.column("code"), len(codebook.sizes))
        if column.null_count or column.flatten().null_count or batch.column("id").null_count:
            raise ValueError(f"rows {start}..{start + len(batch) - 1} hold nulls")
        codes[start : start + len(batch)] = column.flatten().to_numpy().reshape(-1, len(codebook.sizes))
        ids.append(batch.column("id").cast(kind))
        start += len(batch)
    index = CodeIndex(codebook)
    index.add(codes, pa.chunked_array(ids, kind))
    return index


def _lists(column: Any, M: int) -> Any:
    """Return codes as lists of M uint8; another tool may have changed the type of the lists."""
    try:
        return column.cast(pa.list_(pa.uint8(), M))
    except pa.ArrowException as error:
        raise ValueError(f"`code` has type {column.type}, not {M} small numbers per row ({error})") from error
