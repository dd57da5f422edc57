"""Labels in a file of their own: one per line, an array, or a table that is joined with the items by id or path."""

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from combemb.data.manifests import MANIFEST_SUFFIXES, PARQUET_SUFFIXES, UNLABELLED_CELL
from combemb.system.errors import Note, require

MAX_LISTED = 5  # ids listed in an error


class Unlisted(Note):
    """Some items have no row in the table of labels."""


@dataclass(frozen=True)
class LabelTable:
    """Labels of items by their names; made by `read_label_file`, and joined with items by `read_given`.

    Parameters
    ----------
    file : Path
        Where it was read from.
    column : str
        `id` or `path`, what the names are.
    labels : dict
        Name -> label as text, empty if unlabelled.
    """

    file: Path
    column: str
    labels: dict[str, str]

    def of_items(self, *names: Sequence[str]) -> np.ndarray:
        """Return one label per item.

        Parameters
        ----------
        *names : sequences of N str
            Names that each item goes by; the first one in the table counts.

        Returns
        -------
        array of shape (N,)
            Ints if all labels are whole numbers, otherwise strings; -1 or None if unlabelled.
        """
        found = [next((name for name in own if name in self.labels), None) for own in zip(*names, strict=True)]
        is_found = set(found)
        missing = [name for name in self.labels if name not in is_found]
        if missing:
            some = ", ".join(missing[:MAX_LISTED]) + (", ..." if len(missing) > MAX_LISTED else "")
            raise ValueError(
                f"{len(missing)} of {len(self.labels)} rows of {self.file} have a `{self.column}` that is missing in "
                f"the data: {some}; {self.column}s in the data look like {names[0][0]}; correct or remove these rows"
            )
        unlisted = [own for own, name in zip(names[0], found, strict=True) if name is None]
        if unlisted:
            note = f"{len(unlisted)} of {len(found)} items have no row in {self.file} and are unlabelled"
            warnings.warn(f"{note}, such as {unlisted[0]}", Unlisted, stacklevel=4)
        return as_labels(["" if name is None else self.labels[name] for name in found])


def read_label_file(path: Path) -> "np.ndarray | LabelTable":
    """Read labels.

    Parameters
    ----------
    path : Path
        `.npy`; text with one label per line; or CSV or Parquet with the columns `label` and `id` or `path`. Empty and
        -1 mean unlabelled. Paths are absolute, relative to the folder of the file, or as ids of the data have them.

    Returns
    -------
    ndarray or LabelTable
        Both are what `read_given` takes as labels.
    """
    expected = ".npy, a label per line, or a table with `label` and `id` or `path`"
    try:
        if path.suffix.lower() == ".npy":
            return np.asarray(np.load(path, allow_pickle=False))
        if path.suffix.lower() in MANIFEST_SUFFIXES and (table := _read_table(path)) is not None:
            return _label_table(path, table)
        return as_labels(path.read_text().splitlines())
    except (OSError, ValueError, pa.ArrowException) as error:
        problem = (str(error).splitlines() or [""])[0]
        raise ValueError(f"cannot read labels from {path}: {problem}; expected {expected}") from error


def as_labels(texts: Sequence[str]) -> np.ndarray:
    """Return labels given as text: as ints if all are whole numbers, otherwise as they are; empty and -1 are gaps.

    >>> as_labels(["7", "", "-1"]).tolist(), as_labels(["07", "-1 "]).tolist()
    ([7, -1, -1], ['07', None])
    """
    lines = [text.strip() for text in texts]
    if all(line in {"", UNLABELLED_CELL} or (line.isdecimal() and str(int(line)) == line) for line in lines):
        return np.array([int(line or UNLABELLED_CELL) for line in lines], dtype=np.int64)
    return np.array([None if line in {"", UNLABELLED_CELL} else line for line in lines], dtype=object)


def _read_table(path: Path) -> pa.Table | None:
    """Return a table as text; None if a CSV file has a single column without the header of one."""
    if path.suffix.lower() in PARQUET_SUFFIXES:
        return pq.read_table(path)
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    with path.open(encoding="utf-8-sig") as file:
        if "," not in (first := file.readline()) and first.strip() not in {"id", "path"}:
            return None
    with pyarrow.csv.open_csv(path, parse_options=parse) as reader:
        as_text = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(reader.schema.names, pa.string()))
    return pyarrow.csv.read_csv(path, parse_options=parse, convert_options=as_text)


def _label_table(path: Path, table: pa.Table) -> LabelTable:
    names = [name.strip() for name in table.column_names]
    column = next((name for name in ("id", "path") if name in names), None)
    if column is None or "label" not in names:
        raise ValueError(f"found the columns {names}")
    keys, labels = (
        pc.fill_null(_plain(table.column(names.index(name))).cast(pa.large_string()), "").to_pylist()
        for name in (column, "label")
    )
    found: dict[str, str] = {}
    for row, (key, label) in enumerate(zip(keys, labels, strict=True), start=1):
        require(key != "", f"`{column}` is empty in row {row}")
        before = found.setdefault(key, label)
        require(before == label, f"{key!r} has two labels, {before!r} and {label!r}")
    return LabelTable(path, column, found)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def written_path(file: str | None, folder: Path) -> str:
    """Return the path of an item's file relative to a folder, as a table in it may have it."""
    try:
        return "" if file is None else os.path.relpath(file, os.path.abspath(folder))  # noqa: PTH100
    except ValueError:  # another drive
        return ""
