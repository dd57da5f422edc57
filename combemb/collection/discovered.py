"""Discovery of classes in the items of a run folder, and its tables."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv

from combemb import methods
from combemb.collection.folders import check_folders
from combemb.collection.indexed import given_or_fitted
from combemb.data.entries import listed
from combemb.discovery.class_number import check_count_by
from combemb.discovery.result import Discovery
from combemb.learning.run_folder import TABLE, TEXT, RunFolder
from combemb.learning.saving import was_fitted_with
from combemb.system.errors import Note, require
from combemb.system.files import write_atomically
from combemb.system.tables import write_table

OTHER_LABELS = (
    "the run was fitted with other labels than those that are stored with its data now; if this is not intended, "
    "give the labels"
)


class OtherLabels(Note):
    """The labels are not those of the fit."""


@dataclass(frozen=True, eq=False)
class DiscoveredItems:
    """The classes discovered in items, with their entries (id, path, label) and embeddings z (N, D).

    folder: where results are written. files: one per item if they are image files, otherwise None. broken: images that
    cannot be read, with the reasons.
    """

    folder: Path
    found: Discovery
    entries: pa.Table
    files: list[Path] | None
    z: np.ndarray
    broken: dict[str, str]


def discover_in(
    run: Path,
    x: Any = None,
    *,
    labels: Any = None,
    n_novel: int | None = None,
    count_by: str = "merging",
    to_folders: Path | None = None,
    out: Path | None = None,
    overwrite: bool = False,
    progress: bool | None = None,
) -> DiscoveredItems:
    """Discover classes in items, or in the data of the fit, and store the result in the run folder.

    The discovery of a run folder is what `predict` uses; one of other items than those of the fit replaces it only
    with `overwrite`.

    Parameters
    ----------
    run : Path
        The run folder.
    x, labels : optional
        As for `Method.fit`; by default the data of the fit without a test split, and the labels stored with them.
    n_novel, count_by
        See `combemb.discover`.
    to_folders : Path, optional
        Folder that you will give to `write_folders`: raise its errors before the long part.
    out : Path, optional
        Folder to store the result in instead; it is made if necessary.
    overwrite : bool
        Replace a discovery that exists there.
    progress : bool, optional
        None shows it on a terminal only.

    Returns
    -------
    DiscoveredItems
    """
    folder = RunFolder(run if out is None else out)
    _check_replaced(Path(run), folder.folder, x, overwrite)
    with folder.written():
        _check_replaced(Path(run), folder.folder, x, overwrite)  # another writer may just have finished
        model = methods.load(run)
        check_count_by(count_by, model.codebook)
        given, entries = listed(given_or_fitted(x, labels, model, run))
        if to_folders:
            check_folders(to_folders, given)
        require(
            not given.labels.is_multi, "discovery takes one label per item, but these may have several; give one each"
        )
        data = model.read(given, progress=progress)
        if x is None and labels is None and not was_fitted_with(run, given.labels):
            warnings.warn(OTHER_LABELS, OtherLabels, stacklevel=2)
        if data.broken and data.rows is not None:
            given, entries = given.take(data.rows), entries.take(data.rows)
        files = None if given.images is None or given.images.files is None else list(given.images.files)
        z = model.embed(data, progress=progress)
        found = model.discover(data, given.labels, n_novel, count_by=count_by, z=z, progress=progress)
        found.save(folder.discovery)
        return DiscoveredItems(folder.folder, found, entries, files, z.numpy(), data.broken)


def write_tables(result: DiscoveredItems) -> None:
    """Write id, path, cluster, is_novel and confidence of every item as Parquet and as CSV."""
    found, entries = result.found, result.entries
    table = pa.table(
        {
            "id": entries["id"],
            "path": entries["path"],
            "cluster": pa.array([str(name) for name in found.clusters], pa.string()),
            "is_novel": found.is_novel,
            "confidence": found.confidence,
        }
    )
    with RunFolder(result.folder).written():
        write_table(result.folder / TABLE, table)
        write_atomically(result.folder / TEXT, lambda path: csv.write_csv(table, path))


def _check_replaced(run: Path, folder: Path, x: Any, overwrite: bool) -> None:
    """Raise a ValueError if a discovery of other items would be replaced, unless that is intended."""
    fitted = RunFolder(run).config()["path"]
    is_elsewhere = folder.resolve() != run.resolve()
    if is_elsewhere and RunFolder(folder).has_config():
        raise ValueError(f"{folder} is another run folder; choose a folder of its own for this discovery")
    is_path = isinstance(x, str | Path)
    is_other = x is not None and not (is_path and fitted and Path(x).resolve() == Path(fitted).resolve())
    if (is_other or is_elsewhere) and not overwrite and RunFolder(folder).discovery.exists():
        use = "" if is_elsewhere else f", which `predict` uses; to sort new items, use combemb predict {run}"
        raise ValueError(
            f"{folder} has a discovery already{use}; use --out to write this one into another folder, or --overwrite "
            "to replace it"
        )
