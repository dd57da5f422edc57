"""The classes of a run folder: what `discover` found, changed by what a person said about it."""

import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from combemb.collection.class_log import Change, read_log, standing
from combemb.discovery.clusters import free_names
from combemb.discovery.discovering import NOVEL
from combemb.learning.run_folder import TABLE, RunFolder
from combemb.system.errors import Note, require
from combemb.system.tables import read_table

MAX_LISTED = 20  # clusters listed in an error


class NotApplied(Note):
    """Something that a person said about items does not apply to them now."""


@dataclass(frozen=True, eq=False)
class Classes:
    """The classes of N discovered items; made by `applied`.

    Attributes
    ----------
    table : pyarrow.Table
        The table that `discover` wrote: id, path, cluster, is_novel and confidence.
    names : object array of shape (N,)
        Class of each item, None if it was rejected.
    is_said : bool array of shape (N,)
        Which items a person put into a class that has a name.
    given : set of str
        Names that a person gave.
    changes : list of Change
        The changes that stand.
    notes : list of str
        What could not be applied.
    """

    table: pa.Table
    names: np.ndarray
    is_said: np.ndarray
    given: set[str]
    changes: list[Change]
    notes: list[str]

    @cached_property
    def ids(self) -> np.ndarray:
        """Ids of the items, an object array of shape (N,)."""
        return _objects(self.table["id"].to_pylist())

    @cached_property
    def is_labelled(self) -> np.ndarray:
        """Which items had a label, a bool array of shape (N,)."""
        return _is_labelled(self.table)

    @cached_property
    def seen(self) -> set[str]:
        """Names of the seen classes."""
        return _seen(self.table)

    @property
    def order(self) -> list[str]:
        """Names of all classes: novel ones first, then those with a name, both with the largest first."""
        sizes = Counter(self.names.tolist())
        sizes.pop(None, None)
        return sorted(sizes, key=lambda name: (self.has_name(name), -sizes[name], name))

    def has_name(self, name: str) -> bool:
        """Whether a class is a seen one or got its name from a person."""
        return name in self.seen or name in self.given

    def rows(self, cluster: str) -> np.ndarray:
        """Return the rows of the items of a class; raise a ValueError that lists the classes if it is unknown."""
        rows = np.flatnonzero(self.names == cluster)
        if len(rows) == 0:
            order = self.order
            more = f" and {len(order) - MAX_LISTED} more" if len(order) > MAX_LISTED else ""
            raise ValueError(f"there is no cluster {cluster!r}; choose one of {', '.join(order[:MAX_LISTED])}{more}")
        return np.asarray(rows)

    def labels(self) -> list[str | None]:
        """Return the labels that follow: those of labelled items and of named classes; None for all others."""
        is_known = self.is_labelled | self.is_said
        return [name if known else None for name, known in zip(self.names, is_known, strict=True)]

    def of_clusters(self) -> dict[str, str | None]:
        """Return the class of each discovered cluster, None if it was rejected: the one of most of its items."""
        clusters, found = _objects(self.table["cluster"].to_pylist()), {}
        for cluster in dict.fromkeys(clusters):
            most, n = Counter(self.names[clusters == cluster]).most_common(1)[0]
            is_clear = cluster not in self.seen and 2 * n > (clusters == cluster).sum()
            found[cluster] = most if is_clear else cluster
        return found


def applied(table: pa.Table, log: Iterable[Change]) -> Classes:
    """Apply the changes of a log to the table of a discovery.

    Items that were labelled keep their label. An item that a change lists and the table does not is ignored, with a
    note; items that no change lists stay where `discover` put them.

    Parameters
    ----------
    table : pyarrow.Table
        id, cluster, is_novel and confidence of every item.
    log : iterable of Change

    Returns
    -------
    Classes
    """
    changes = standing(log)
    names, is_labelled = _objects(table["cluster"].to_pylist()), _is_labelled(table)
    is_said = np.zeros(len(names), dtype=bool)
    given = {change.to for change in changes if change.to is not None}
    taken = {*names, *given}
    listed = {name for change in changes for group in (*change.groups, change.beside) for name in group}
    place: dict[str, list[int]] = {}
    for row, name in enumerate(table["id"].to_pylist() if listed else []):
        if name in listed:
            place.setdefault(name, []).append(row)
    gone: dict[str, None] = {}
    relabelled: dict[str, None] = {}
    without_class = []
    for change in changes:
        target = change.to
        if target is None and change.kind not in {"split", "reject"}:
            there = Counter(names[row] for name in change.beside for row in place.get(name, []))
            target = max(filter(None, there), key=there.__getitem__, default=None)
            if target is None:
                without_class.append(f"{change.kind} {' '.join(change.clusters)}")
                continue
        for group in change.groups:
            if change.kind == "split":
                target = next(free_names(NOVEL, taken))
                taken.add(target)
            for name in group:
                if name not in place:
                    gone[name] = None
                for row in place.get(name, []):
                    if is_labelled[row]:
                        relabelled.update({name: None} if names[row] != target else {})
                    else:
                        names[row], is_said[row] = target, change.to is not None
    notes = [
        *_note(gone, "sorted by hand but not among the discovered items"),
        *_note(relabelled, "sorted by hand but labelled otherwise now, which counts"),
        *(f"not applied, since no item of that class is left: {change}" for change in without_class),
    ]
    return Classes(table, names, is_said, given, changes, notes)


def classes_of(run: str | Path, table: Path | None = None) -> Classes:
    """Return the classes of a run folder; what could not be applied is warned of as `NotApplied`.

    Parameters
    ----------
    run : path
        The run folder, with a discovery.
    table : Path, optional
        The table of a discovery that was written to another folder.

    Returns
    -------
    Classes
    """
    RunFolder(run).config()
    path = Path(run) / TABLE if table is None else table
    require(path.exists(), f"nothing was discovered in {run} yet; discover first: combemb discover {run}")
    try:
        found = read_table(path)[0].select(["id", "path", "cluster", "is_novel", "confidence"])
    except (ValueError, KeyError) as error:
        raise ValueError(f"{error}; discover again: combemb discover {run}") from error
    classes = applied(found, read_log(run))
    for note in classes.notes:
        warnings.warn(note, NotApplied, stacklevel=2)
    return classes


def _note(items: dict[str, None], what: str) -> list[str]:
    return [f"{what}: {len(items)}, such as {next(iter(items))}"] if items else []


def _is_labelled(table: pa.Table) -> np.ndarray:
    return np.asarray(np.asarray(table["confidence"]) == 1)  # only labelled items are certain


def _seen(table: pa.Table) -> set[str]:
    return set(table["cluster"].filter(pc.invert(table["is_novel"])).to_pylist())


def _objects(values: list[Any]) -> np.ndarray:
    return np.array([*values, None], dtype=object)[:-1]
