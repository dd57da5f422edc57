"""What a run folder holds for other tools: the index in their formats, and the labels that people gave."""

from pathlib import Path
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from combemb.collection.classes import Classes
from combemb.collection.indexed import Collection
from combemb.search.exchange import to_faiss, to_lance, to_parquet
from combemb.system.errors import require
from combemb.system.files import write_atomically, written_together

ExportFormat = Literal["faiss", "parquet", "lance", "csv"]


def export(collection: Collection, path: str | Path, to: ExportFormat) -> list[Path]:
    """Write all entries with their ids, paths, labels and codes for other tools; existing files are replaced.

    Parameters
    ----------
    collection : Collection
    path : str or Path
        File to write; for Lance a folder.
    to : {"faiss", "parquet", "lance", "csv"}
        "faiss" writes an `IndexPQ`, whose ids are numbers, and beside it `table_of_numbers(path)` with the id, path and
        label of each number. "parquet" and "lance" have columns id, path, label and code, and the codebook in the
        metadata of the schema: `combemb.search.from_parquet` and `from_lance` read them, with `model.codebook` if that
        is no product. "csv" has id, path, label and a column for each part of the code, `code_0`, `code_1`, ...

    Returns
    -------
    list of Path
        What was written.
    """
    path = Path(path)
    require(to in get_args(ExportFormat), f"unknown format {to!r}; choose one of {', '.join(get_args(ExportFormat))}")
    entries = collection.entries
    if to == "faiss":
        index = collection.to_index(numbered=True)
        with written_together():  # numbers must not be looked up in the table of another export
            to_faiss(index, path)
            _write_csv(entries.add_column(0, "number", pa.array(index.ids)), table_of_numbers(path))
        return [path, table_of_numbers(path)]
    index = collection.to_index()
    if to == "csv":
        codes = index.codes()
        for column in range(codes.shape[1]):
            entries = entries.append_column(f"code_{column}", pa.array(codes[:, column]))
        _write_csv(entries, path)
    else:
        (to_parquet if to == "parquet" else to_lance)(index, path, entries.select(["path", "label"]))
    return [path]


def label_table(classes: Classes) -> pa.Table:
    """Return id and label of every item, as `combemb fit --labels` takes them; the label is null if nothing says it."""
    return pa.table({"id": classes.table["id"], "label": pa.array(classes.labels(), pa.string())})


def manifest_table(classes: Classes) -> pa.Table:
    """Return path and label of every item, the manifest that `combemb fit` takes; a ValueError without image files."""
    is_file = classes.table["path"].to_pylist() == classes.table["id"].to_pylist()
    require(is_file, "these items are not image files; export their labels instead")
    return pa.table({"path": classes.table["path"], "label": pa.array(classes.labels(), pa.string())})


def write_exported(table: pa.Table, path: Path) -> None:
    """Write a table as Parquet or as CSV, by the suffix of the file."""
    write = pq.write_table if path.suffix.lower() == ".parquet" else csv.write_csv
    write_atomically(path, lambda temporary: write(table, temporary))


def table_of_numbers(path: Path) -> Path:
    """Return the file beside a FAISS file that says what its numbers mean."""
    return path.with_suffix(".ids.csv")


def _write_csv(table: pa.Table, path: Path) -> None:
    write_atomically(path, lambda temporary: csv.write_csv(table, temporary))
