"""The classes of new items: known ones, found ones with the names that people gave them, or neither."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from combemb import methods
from combemb.collection.classes import Classes, classes_of
from combemb.collection.folders import check_folders
from combemb.collection.named import class_probabilities
from combemb.data.entries import listed
from combemb.data.given import Loaded, read_given
from combemb.discovery.result import Discovery
from combemb.learning.method import Method
from combemb.learning.run_folder import RunFolder
from combemb.system.arrays import Array
from combemb.system.errors import require

Kind = Literal["known", "found", "neither"]
By = Literal["clusters", "head"]


@dataclass(frozen=True)
class Prediction:
    """The class of one item.

    Attributes
    ----------
    id, path : str, str or None
        As in the table of `discover`.
    name : str
        A known class, a found one by the name that a person gave it or as "novel-1", ..., or "neither". By a head, the
        novel classes are its outputs, which have no names of people.
    kind : str
        Whether that is a known class, a found one, or neither.
    confidence : float, optional
        Probability of the class, as calibrated on hidden labels: the sum over its clusters; None for neither, and by a
        head, which is not calibrated.
    """

    id: str
    path: str | None
    name: str
    kind: Kind
    confidence: float | None


@dataclass(frozen=True, eq=False)
class Predictions:
    """The classes of items, in their order.

    files: one per item if they are image files, otherwise None. broken: images that cannot be read, with the reasons.
    """

    items: list[Prediction]
    files: list[Path] | None
    broken: dict[str, str]


def predict_in(
    run: str | Path,
    x: Any,
    *,
    by: By = "clusters",
    to_folders: Path | None = None,
    progress: bool | None = None,
) -> Predictions:
    """Put new items into the classes of a run folder, by its discovery or by the head of its method.

    Parameters
    ----------
    run : path
        The run folder, with a discovery unless `by` is "head".
    x
        New items, as for `Method.fit`.
    by : {"clusters", "head"}
        Whether to use the clusters that `discover` found, or the head of a `HeadMethod` over all classes.
    to_folders : Path, optional
        Folder that you will give to `write_folders`: raise its errors before the long part.
    progress : bool, optional
        None shows it on a terminal only.

    Returns
    -------
    Predictions
    """
    model, classes = RunFolder(run).read_unchanged(lambda: _model_and_classes(run, by))
    given, entries = listed(read_given(x))
    if to_folders:
        check_folders(to_folders, given)
    data = model.read(given, progress=progress)
    if data.broken and data.rows is not None:
        given, entries = given.take(data.rows), entries.take(data.rows)
    if classes is None:
        placed = _by_head(model, data)
    else:
        z = model.embed(data, progress=progress)
        placed = classes_of_embedded(model.discovery_, classes, z, data.discovery_features)
    items = [
        Prediction(entry["id"], entry["path"], *what) for entry, what in zip(entries.to_pylist(), placed, strict=True)
    ]
    files = None if given.images is None or given.images.files is None else list(given.images.files)
    return Predictions(items, files, data.broken)


def classes_of_embedded(
    found: Discovery, classes: Classes, z: Array, features: Array | None = None
) -> list[tuple[str, Kind, float | None]]:
    """Put embedded items into classes as `predict_in` does.

    Parameters
    ----------
    found, classes : Discovery, Classes
        What was discovered, and what people made of it.
    z, features : arrays of shape (n, D) and (n, F)
        As for `Discovery.predict`.

    Returns
    -------
    list of tuples
        Name, kind and confidence of each item, as in `Prediction`.
    """
    is_near = found.predict(z, features) != found.neither
    probabilities = class_probabilities(found, classes, found.probabilities(z, features))
    placed: list[tuple[str, Kind, float | None]] = []
    for near, k, probability in zip(is_near, *probabilities.assign(), strict=True):
        name = probabilities.names[k] if near else None
        if name is None:
            placed.append((found.neither, "neither", None))
        else:
            placed.append((name, "known" if name in classes.seen else "found", float(probability)))
    return placed


def _by_head(model: Method, data: Loaded) -> list[tuple[str, Kind, float | None]]:
    """Return the class of each item by the method's own head, and whether it is a known one."""
    known = set(model.classes_.tolist())
    return [(str(name), "known" if name in known else "found", None) for name in model.predict(data)]  # by its head


def _model_and_classes(run: str | Path, by: By) -> tuple[Method, Classes | None]:
    model = methods.load(run)
    if by == "head":
        to_do = "use the clusters, or fit a method that has a head, such as orca"
        require(model.predicts_by == "head", f"{type(model).__name__} has no head of its own; {to_do}")
        return model, None
    command = f"combemb discover {shlex.quote(str(run))}"
    require(hasattr(model, "discovery_"), f"nothing was discovered in {run} yet; discover first: {command}")
    return model, classes_of(run)
