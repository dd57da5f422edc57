"""Discovery of classes in the items of a run folder, and its tables."""

import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv
from torch import Tensor

from combemb import methods
from combemb.collection.class_log import Change, read_log
from combemb.collection.classes import Classes, applied
from combemb.collection.folders import check_folders
from combemb.collection.indexed import given_or_fitted
from combemb.collection.named import confidence_in, named
from combemb.data.entries import listed
from combemb.data.given import Given, Loaded, item_names
from combemb.data.labels import Labels
from combemb.discovery.class_number import check_count_by
from combemb.discovery.clusters import Clusters
from combemb.discovery.result import Discovery
from combemb.learning.method import Method
from combemb.learning.run_folder import BROKEN, TABLE, TEXT, RunFolder
from combemb.learning.saving import was_fitted_with
from combemb.system.errors import Note, require
from combemb.system.files import write_atomically
from combemb.system.tables import read_about, read_table, write_table

N_CHANGES = "n_changes"  # in the table: how many changes of classes.jsonl it shows
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
    cannot be read, with the reasons. features (N, F): those that discovery used, if it did. run: the run folder, if
    results are written elsewhere.
    """

    folder: Path
    found: Discovery
    entries: pa.Table
    files: list[Path] | None
    z: np.ndarray
    broken: dict[str, str]
    features: np.ndarray | None = None
    run: Path | None = None

    @cached_property
    def classes(self) -> Classes:
        """What people made of the clusters."""
        columns = {
            "id": self.entries["id"],
            "path": self.entries["path"],
            "cluster": pa.array([str(name) for name in self.found.clusters], pa.string()),
            "is_novel": self.found.is_novel,
            "confidence": self.found.confidence,
        }
        return applied(pa.table(columns), self.log)

    @cached_property
    def log(self) -> list[Change]:
        """What people have said, as far as tables and page show it."""
        return read_log(self.folder if self.run is None else self.run)

    @cached_property
    def confidence(self) -> np.ndarray:
        """Confidence in the class of each item, (N,) float32."""
        if not self.classes.changes:
            return self.found.confidence
        return confidence_in(self.found, self.classes, self.found.probabilities(self.z, self.features))

    @cached_property
    def named(self) -> tuple[Clusters, np.ndarray]:
        """The classes as people named them, and the rows of the items that are in one."""
        return named(self.found, self.classes, self.confidence)


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
        read_log(run)  # raises an error if it is damaged, before the long part
        model = methods.load(run)
        check_count_by(count_by, model.codebook)
        given, entries = listed(given_or_fitted(x, labels, model, run))
        if to_folders:
            check_folders(to_folders, given)
        require_one_label(given.labels)
        if x is None and labels is None and not was_fitted_with(run, given.labels):
            warnings.warn(OTHER_LABELS, OtherLabels, stacklevel=2)
        data, given, entries, z = _embedded(model, given, entries, progress)
        found = model.discover(data, given.labels, n_novel, count_by=count_by, z=z, progress=progress)
        found.save(folder.discovery)
        files, features = _files(given), data.discovery_features
        return DiscoveredItems(folder.folder, found, entries, files, z.numpy(), data.broken, features, Path(run))


def stored_discovery(run: Path, *, labels: Any = None, progress: bool | None = None) -> DiscoveredItems:
    """Return what `discover_in` stored in a run folder for the data of the fit, whose items are embedded again.

    Raises
    ------
    ValueError
        If nothing was discovered there, or in other items.
    """
    model = methods.load(run)
    require(
        hasattr(model, "discovery_"), f"nothing was discovered in {run} yet; discover first: combemb discover {run}"
    )
    data, given, entries, z = _embedded(model, *listed(given_or_fitted(None, labels, model, run)), progress)
    is_same = len(entries) == len(model.discovery_)
    require(is_same, f"the discovery in {run} is one of other items; discover again: combemb discover {run}")
    files, features = _files(given), data.discovery_features
    return DiscoveredItems(Path(run), model.discovery_, entries, files, z.numpy(), data.broken, features, Path(run))


def require_one_label(labels: Labels) -> None:
    """Raise a ValueError if items may have several labels."""
    require(not labels.is_multi, "discovery takes one label per item, but these may have several; give one each")


def is_outdated(run: Path) -> bool:
    """Return whether people have said something since the tables of a discovery were written."""
    return bool(read_about(run / TABLE).get(N_CHANGES) != len(read_log(run)))


def is_discovered(run: Path) -> bool:
    """Return whether a run folder has the discovery of its fit, which a new fit removes, with its table."""
    return RunFolder(run).discovery.exists() and (run / TABLE).exists()


def new_and_gone(run: Path, given: Given) -> tuple[int, int] | None:
    """Return how many items are new and how many are gone since the discovery of a run; None if that is not known."""
    if not (run / TABLE).exists():
        return None
    names, before = item_names(given)[0], set(read_table(run / TABLE)[0]["id"].to_pylist())
    if (run / BROKEN).exists() and given.ids is not None:  # has ids as they are below the folder
        unread = set(csv.read_csv(run / BROKEN)["id"].to_pylist())
        before |= {name for name, own in zip(names, given.ids.tolist(), strict=True) if str(own) in unread}
    now = set(names)
    return len(now - before), len(before - now)


def _embedded(
    model: Method, given: Given, entries: pa.Table, progress: bool | None
) -> tuple[Loaded, Given, pa.Table, Tensor]:
    """Return the items that can be read, as loaded and as given, their entries, and their embeddings."""
    data = model.read(given, progress=progress)
    if data.broken and data.rows is not None:
        given, entries = given.take(data.rows), entries.take(data.rows)
    return data, given, entries, model.embed(data, progress=progress)


def _files(given: Given) -> list[Path] | None:
    return None if given.images is None or given.images.files is None else list(given.images.files)


def write_tables(result: DiscoveredItems) -> None:
    """Write id, path, cluster, is_novel, confidence and class of every item as Parquet and as CSV.

    The cluster is that of the discovery. The class is what people made of it, null if they rejected the item; the
    confidence is that of the class.
    """
    table = result.classes.table.set_column(4, "confidence", pa.array(result.confidence))
    table = table.append_column("class", pa.array(result.classes.names.tolist(), pa.string()))
    with RunFolder(result.folder).written():
        write_table(result.folder / TABLE, table, {N_CHANGES: len(result.log)})
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
