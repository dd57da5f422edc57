"""Names to suggest for the classes of a run folder: those of near seen classes, and those that people gave."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from combemb.collection.class_log import Change
from combemb.collection.classes import Classes
from combemb.discovery.clusters import Clusters, distances

N_SEEN, N_SUGGESTIONS = 3, 6  # of seen classes, and in total


@dataclass(frozen=True)
class Suggestion:
    """A name, and the reason for suggesting it."""

    name: str
    reason: str


def class_centres(found: Clusters, classes: Classes) -> dict[str, np.ndarray]:
    """Return the centre (d,) of each class: the mean of the centres of the clusters of its items."""
    names = [name for name in classes.order if name is not None]
    place = {name: k for k, name in enumerate(names)}
    own = np.array([place.get(name, -1) for name in classes.names], dtype=np.int64)
    shares = np.zeros((len(names), len(found.names)))
    np.add.at(shares, (own[own >= 0], found.assignment[own >= 0]), 1.0)
    centres = shares @ found.centres / np.maximum(shares.sum(axis=1, keepdims=True), 1)
    return dict(zip(names, centres, strict=True))


def suggestions(found: Clusters, classes: Classes, log: Iterable[Change]) -> dict[str, list[Suggestion]]:
    """Suggest names for every class that has none of the labels.

    Parameters
    ----------
    found, classes : Clusters, Classes
        What was discovered, and what people made of it.
    log : iterable of Change
        All changes, including those that were undone: their names may be wanted again.

    Returns
    -------
    dict
        Class -> names, first the nearest seen classes, then those that people gave, the nearest first.
    """
    centres = class_centres(found, classes)
    given = dict.fromkeys(change.to for change in log if change.kind == "name" and change.to is not None)
    given = {name: None for name in given if name not in classes.seen}
    seen = [name for name in centres if name in classes.seen]
    placed = [name for name in given if name in centres]
    lost = [name for name in given if name not in centres]
    suggested = {}
    for name in centres.keys() - classes.seen:
        near = _nearest(centres, name, seen)[:N_SEEN]
        before = [*_nearest(centres, name, [other for other in placed if other != name]), *lost[::-1]]
        both = [Suggestion(other, "nearest seen class") for other in near]
        both += [Suggestion(other, "given before") for other in before]
        suggested[name] = both[:N_SUGGESTIONS]
    return suggested


def _nearest(centres: dict[str, np.ndarray], name: str, others: list[str]) -> list[str]:
    """Return the names of other classes, the nearest first."""
    if not others:
        return []
    away = distances(centres[name][None], np.stack([centres[other] for other in others]))[0]
    return [others[k] for k in np.argsort(away, kind="stable")]
