"""What a person can say about the classes of a run folder: each function checks it and returns the change."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from combemb.collection.class_log import Change, append
from combemb.collection.classes import Classes, classes_of
from combemb.data.labels import LABEL_SEPARATOR, MARKERS_AS_STRINGS
from combemb.discovery.clusters import NEITHER
from combemb.discovery.discovering import NOVEL
from combemb.learning.run_folder import TABLE
from combemb.system.errors import require

RESERVED = re.compile(rf"{NOVEL}-\d+|{NEITHER}(-\d+)?|{'|'.join(MARKERS_AS_STRINGS)}")


def name(classes: Classes, cluster: str, to: str) -> Change:
    """Return the change that gives a class a name; the name of another class joins the two."""
    rows, to = classes.rows(cluster), to.strip()
    require(bool(to), "the name is empty; give one such as 'red-tailed hawk'")
    is_usable = to.isprintable() and LABEL_SEPARATOR not in to
    require(is_usable, f"{to!r} cannot be a name: it has {LABEL_SEPARATOR!r} or a control character; leave it out")
    is_free = to in classes.seen or not RESERVED.fullmatch(to)
    require(is_free, f"{to!r} cannot be a name: combemb uses it for items without one; choose another")
    if cluster in classes.seen and to != cluster:
        raise ValueError(f"{cluster!r} is a class of the labels; rename it there, and fit again")
    return Change("name", [cluster], [_unlabelled(classes, rows)], to)


def merge(classes: Classes, clusters: Sequence[str]) -> Change:
    """Return the change that makes one class of several, which gets the name of the first."""
    require(len(set(clusters)) > 1, "a merge needs two different clusters or more")
    first, *others = dict.fromkeys(clusters)
    rows = [classes.rows(cluster) for cluster in (first, *others)]
    for cluster in others:
        if cluster in classes.seen:
            raise ValueError(f"{cluster!r} is a class of the labels, and keeps its name; name it first in the merge")
        if classes.has_name(cluster) and not classes.has_name(first):
            raise ValueError(f"{cluster!r} has a name and {first!r} has none; name {cluster!r} first in the merge")
    joining = rows[1:] if classes.has_name(first) else rows  # unnamed ones must also stay together
    ids = [item for some in joining for item in _unlabelled(classes, some)]
    return Change("merge", [first, *others], [ids], *_target(classes, first))


def split(classes: Classes, cluster: str, groups: Sequence[Sequence[str]]) -> Change:
    """Return the change that makes a new class of each group of items of a class; other items stay in it."""
    inside = set(_unlabelled(classes, classes.rows(cluster)))
    outside = [item for group in groups for item in group if item not in inside]
    require(not outside, f"{outside[:1]} is not an unlabelled item of {cluster!r}; choose items of it")
    n = sum(map(len, groups))
    require(0 < n < len(classes.rows(cluster)), f"{n} of the items of {cluster!r} were chosen; choose some, not all")
    return Change("split", [cluster], [list(group) for group in groups])


def move(classes: Classes, to: str, items: Sequence[str]) -> Change:
    """Return the change that moves items into a class."""
    classes.rows(to)
    require(len(items) > 0, "no items were given; give the ids of those to move")
    return Change("move", [to], [_movable(classes, items)], *_target(classes, to))


def reject(classes: Classes, cluster: str, items: Sequence[str] = ()) -> Change:
    """Return the change that takes the items of a class out of it, or only some of them; they belong to none then."""
    mine = _unlabelled(classes, classes.rows(cluster))
    outside = set(_movable(classes, items)) - set(mine)
    require(not outside, f"{next(iter(outside), '')!r} is not an item of {cluster!r}")
    require(len(mine) > 0, f"all items of {cluster!r} are labelled, and keep their label; change it in the data")
    return Change("reject", [cluster], [list(items) or mine])


def undo(classes: Classes) -> Change:
    """Return the change that takes back the last one that stands."""
    require(len(classes.changes) > 0, "there is no change to undo")
    return Change("undo", classes.changes[-1].clusters)


@dataclass(frozen=True)
class Effect:
    """What a change did to a group of items; target is the class that they are in now, None for rejected items."""

    n: int
    source: str
    target: str | None

    def __str__(self) -> str:
        source = f": {self.source}" if self.source else ""
        return f"{self.n:,} item{'' if self.n == 1 else 's'}{source} -> {self.target or 'no class'}"


def effects(made: Change, after: Classes) -> list[Effect]:
    """Return what a change did to each of its groups of items.

    Parameters
    ----------
    made : Change
    after : Classes
        What the classes are with it.

    Returns
    -------
    list of Effect
        Empty for an undo.
    """
    classes = dict(zip(after.ids, after.names, strict=True))
    source = "" if made.kind == "move" else " ".join(made.clusters)
    return [Effect(len(group), source, classes.get(group[0]) if group else made.to) for group in made.groups]


def store(run: str | Path, change: Change) -> Classes:
    """Append a change to the log of a run folder, and return the classes that follow.

    Parameters
    ----------
    run : path
        The run folder.
    change : Change
        What `name`, `merge`, `split`, `move`, `reject` or `undo` returned.

    Returns
    -------
    Classes
    """
    append(run, change)
    return classes_of(run)


def _target(classes: Classes, cluster: str) -> tuple[str | None, list[str]]:
    """Return `to` and `beside` of a change into a class: by its name, or by its items if it has none."""
    if classes.has_name(cluster):
        return cluster, []
    return None, classes.ids[classes.rows(cluster)].tolist()


def _unlabelled(classes: Classes, rows: np.ndarray) -> list[str]:
    """Return the ids of the unlabelled items of these rows."""
    ids: list[str] = classes.ids[rows[~classes.is_labelled[rows]]].tolist()
    return ids


def _movable(classes: Classes, items: Sequence[str]) -> list[str]:
    """Return the items; raise a ValueError if one is unknown or labelled."""
    labelled = dict(zip(classes.ids, classes.is_labelled, strict=True))
    unknown = [item for item in items if item not in labelled]
    if unknown:
        raise ValueError(f"there is no item {unknown[0]!r}; ids look like {classes.ids[0]!r}, {TABLE} lists them")
    for item in items:
        require(not labelled[item], f"{item} is labelled, and keeps its label; change it in the data")
    return list(items)
