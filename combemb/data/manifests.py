"""Manifests: tables with the path of each image, and optionally its label, split and id."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from combemb.data.images import Images
from combemb.data.labels import LABEL_SEPARATOR
from combemb.system.errors import require

PARQUET_SUFFIXES = (".parquet", ".pq")
MANIFEST_SUFFIXES = (".csv", *PARQUET_SUFFIXES)
MANIFEST_COLUMNS = ("path", "label", "labels", "split", "id")
UNLABELLED_CELL = "-1"  # an empty cell means the same
TEXT_OR_INTEGER = (pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_null)


def read_manifest(path: str | Path) -> Images:
    """Read a table with `path` (absolute, or relative to the table's folder) and optional `label`, `split` and `id`.

    `label` (or `labels`): text, empty or -1 if unlabelled; if a row has several, joined by `|`, the labels become a
    table (N, C) of 0/1. `split`: train or test. `id`: the path as written, unless given.
    """
    path = Path(path)
    read = _read_parquet if path.suffix.lower() in PARQUET_SUFFIXES else _read_csv
    try:
        return _interpret(read(path), path.parent)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise ValueError(f"cannot read {path}: {str(error).splitlines()[0]}") from error


def _read_csv(path: Path) -> dict[str, list[str]]:
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    with pyarrow.csv.open_csv(path, parse_options=parse) as reader:
        names = _with_path(reader.schema.names)
    as_text = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    return _columns(pyarrow.csv.read_csv(path, parse_options=parse, convert_options=as_text))


def _read_parquet(path: Path) -> dict[str, list[str]]:
    with pq.ParquetFile(path) as file:
        names = _with_path(file.schema_arrow.names)
        return _columns(file.read(columns=[name for name in names if name.strip() in MANIFEST_COLUMNS]))


def _with_path(names: list[str]) -> list[str]:
    has_path = "path" in [name.strip() for name in names]
    require(has_path, f"found no column `path`, only {names}; `label`, `split` and `id` are optional")
    return names


def _columns(table: pa.Table) -> dict[str, list[str]]:
    """Return the known columns as text; a null becomes an empty string."""
    columns: dict[str, list[str]] = {}
    for given_name, column in zip(table.column_names, table.columns, strict=True):
        name = given_name.strip()
        if name not in MANIFEST_COLUMNS:
            continue
        require(name not in columns, f"there are two columns `{name}`")
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)  # noqa: PLW2901
        is_known = any(is_kind(column.type) for is_kind in TEXT_OR_INTEGER)
        require(is_known, f"`{name}` has type {column.type}; give strings")
        columns[name] = pc.fill_null(column.cast(pa.large_string()), "").to_pylist()
    return columns


def _interpret(columns: dict[str, list[str]], folder: Path) -> Images:
    require(not columns.keys() >= {"label", "labels"}, "there are both `label` and `labels`; keep one of the two")
    paths = columns["path"]
    require(len(paths) > 0, "there are no rows")
    if "" in paths:
        raise ValueError(f"`path` is empty in row {paths.index('') + 1}")
    files = [folder / path for path in paths]
    ids = columns.get("id", paths)
    for name, values in (("path", [os.path.abspath(file) for file in files]), ("id", ids)):  # noqa: PTH100
        first: dict[str, int] = {}
        for row, value in enumerate(values):
            if first.setdefault(value, row) != row:
                rows = f"rows {first[value] + 1} and {row + 1}"
                raise ValueError(f"{rows} have the same `{name}`, {value!r}; list it once")
    return Images(
        files=files,
        ids=np.array(ids),
        is_test=_read_split(columns["split"]) if "split" in columns else None,
        **_read_labels(columns.get("label", columns.get("labels", []))),
    )


def _read_split(values: list[str]) -> np.ndarray:
    split = np.array([value.strip() for value in values])
    strange = np.flatnonzero(~np.isin(split, ("train", "test")))
    if len(strange) > 0:
        raise ValueError(f"`split` is {str(split[strange[0]])!r} in row {strange[0] + 1}; use train or test")
    return np.asarray(split == "test")


def _read_labels(values: list[str]) -> dict[str, Any]:
    """Return the fields `labels` and `class_names` of `Images`; none if no image has a label."""
    values = ["" if value.strip() == UNLABELLED_CELL else value for value in values]
    names = [[name.strip() for name in value.split(LABEL_SEPARATOR)] if value.strip() else [] for value in values]
    for row, several in enumerate(names):
        if "" in several:
            raise ValueError(f"label {values[row]!r} in row {row + 1} holds an empty name; write it as a|b")
    class_names = sorted({name for several in names for name in several})
    if not class_names:
        return {}
    if all(len(several) <= 1 for several in names):
        labels = np.array([several[0] if several else None for several in names], dtype=object)
    else:
        position = {name: i for i, name in enumerate(class_names)}
        labels = np.zeros((len(names), len(class_names)), dtype=np.int8)
        for row, several in enumerate(names):
            labels[row, [position[name] for name in several] or slice(None)] = 1 if several else -1
    return {"labels": labels, "class_names": np.array(class_names)}
