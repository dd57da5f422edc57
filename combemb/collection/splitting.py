"""How a discovered class divides by itself, when a person says that it is more than one."""

from pathlib import Path

import numpy as np

from combemb import methods
from combemb.collection.classes import Classes
from combemb.collection.indexed import given_or_fitted
from combemb.data.entries import listed
from combemb.data.given import Given, read_given
from combemb.discovery.kmeans import kmeans
from combemb.learning.method import Method
from combemb.system.errors import require


def parts_of(
    run: str | Path, classes: Classes, cluster: str, n: int = 2, *, progress: bool | None = None
) -> list[list[str]]:
    """Divide the unlabelled items of a class by k-means on the points that were clustered.

    Parameters
    ----------
    run, classes
        The run folder and its classes.
    cluster : str
        The class to divide.
    n : int
        Number of parts.
    progress : bool, optional
        None shows it on a terminal only.

    Returns
    -------
    list of n - 1 lists of str
        Ids of the items of all parts but the largest, which keeps the name; for `combemb.collection.changes.split`.
    """
    rows = classes.rows(cluster)
    rows = rows[~classes.is_labelled[rows]]
    require(n > 1, f"into {n} parts; give 2 or more")
    require(len(rows) >= n, f"{cluster!r} has {len(rows)} unlabelled items, too few for {n} parts")
    model = methods.load(run)
    given, entries = listed(items_of(classes, rows, model, run))
    data = model.read(given, progress=progress)
    ids = np.array(entries["id"].to_pylist(), dtype=object)
    ids = ids if data.rows is None else ids[data.rows]
    x = model._found().points.of(model.embed(data, progress=progress), data.discovery_features)
    assignment = kmeans(x, n, seed=int(model.seed), progress=progress).assignment
    order = np.argsort(-np.bincount(assignment, minlength=n), kind="stable")
    return [part for k in order[1:] if (part := ids[assignment == k].tolist())]


def items_of(classes: Classes, rows: np.ndarray, model: Method, run: str | Path) -> Given:
    """Return the items of these rows of a discovery: image files by their paths, others from the data of the fit.

    Parameters
    ----------
    classes : Classes
    rows : int array of shape (n,)
    model : Method
        The model of the run.
    run : path

    Returns
    -------
    Given
    """
    ids, paths = classes.ids[rows].tolist(), classes.table["path"].take(rows).to_pylist()
    if ids == paths:
        return read_given(paths)
    given, entries = listed(given_or_fitted(None, None, model, run))
    place = {name: row for row, name in enumerate(entries["id"].to_pylist())}
    gone = [name for name in ids if name not in place]
    require(not gone, f"{len(gone)} items are not in the data of the fit, such as {gone[:1]}; discover again")
    return given.take(np.array([place[name] for name in ids]))
