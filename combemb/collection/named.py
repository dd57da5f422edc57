"""A discovery as people see it: clusters merged, named and rejected, with the confidence in each class."""

from dataclasses import dataclass

import numpy as np

from combemb.collection.classes import Classes
from combemb.discovery.clusters import Clusters
from combemb.discovery.gaussians import MAX_PROBABILITY
from combemb.discovery.result import Discovery


@dataclass(frozen=True, eq=False)
class ClassProbabilities:
    """Probabilities of M classes, each the sum over the clusters that the class is made of.

    Attributes
    ----------
    names : list of str or None
        Names of the classes; None stands for all clusters that were rejected.
    is_seen : bool array of shape (M,)
        Which of them are seen classes.
    of_cluster : int array of shape (K,)
        Class of each cluster.
    values : float32 array of shape (n, M)
        The probabilities.
    """

    names: list[str | None]
    is_seen: np.ndarray
    of_cluster: np.ndarray
    values: np.ndarray

    def assign(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the class (n,) of each item, decided as seen or novel first as clusters are, and its probability."""
        seen = self.values[:, self.is_seen].sum(axis=1)
        is_other = self.is_seen != (seen >= 0.5)[:, None]
        best = np.where(is_other, -1, self.values).argmax(axis=1)
        return best, np.take_along_axis(self.values, best[:, None], axis=1)[:, 0]


def class_probabilities(found: Discovery, classes: Classes, probabilities: np.ndarray) -> ClassProbabilities:
    """Sum the probabilities of clusters over each class.

    Parameters
    ----------
    found, classes : Discovery, Classes
        K clusters, and what people made of them.
    probabilities : array of shape (n, K)
        What `Discovery.probabilities` returned.

    Returns
    -------
    ClassProbabilities
    """
    classes_of = classes.of_clusters()
    each = [classes_of.get(str(cluster), str(cluster)) for cluster in found.names]
    names = list(dict.fromkeys(each))
    of_cluster = np.array([names.index(name) for name in each], dtype=np.int64)
    values = np.minimum(probabilities @ np.eye(len(names), dtype=np.float32)[of_cluster], MAX_PROBABILITY)
    return ClassProbabilities(names, np.array([name in classes.seen for name in names]), of_cluster, values)


def confidence_in(found: Discovery, classes: Classes, probabilities: np.ndarray) -> np.ndarray:
    """Return the confidence (N,) in the class of each discovered item.

    Where a class is one cluster it is that of the cluster, where it is several the sum of their probabilities. A class
    of a few items that a person singled out has no probability; these items keep what they had.
    """
    of_classes = class_probabilities(found, classes, probabilities)
    place = {name: k for k, name in enumerate(of_classes.names)}
    own = np.array([place.get(name, -1) for name in classes.names])
    n_clusters = np.bincount(of_classes.of_cluster, minlength=len(place))
    is_other = (own >= 0) & ((own != of_classes.of_cluster[found.assignment]) | (n_clusters[own] > 1))
    sums = np.take_along_axis(of_classes.values, np.maximum(own, 0)[:, None], axis=1)[:, 0]
    return np.where(is_other & ~found.is_labelled, sums, found.confidence).astype(np.float32)


def named(found: Discovery, classes: Classes, confidence: np.ndarray) -> tuple[Clusters, np.ndarray]:
    """Return the classes as `combemb classes` lists them, and the rows of the items that are in one.

    Parameters
    ----------
    found, classes : Discovery, Classes
        Clusters of N items, and what people made of them.
    confidence : array of shape (N,)
        Confidence in the class of each item.

    Returns
    -------
    Clusters
        Of the n items that nobody rejected; seen classes first, then the others, the largest first.
    int64 array of shape (n,)
    """
    if not classes.changes:
        return found, np.arange(len(found))
    seen = [str(name) for name in found.names[: found.n_seen]]
    others = sorted(set(classes.order) - set(seen), key=lambda name: -int((classes.names == name).sum()))
    place: dict[str | None, int] = {name: k for k, name in enumerate([*seen, *others])}
    rows = np.flatnonzero([name is not None for name in classes.names])
    assignment = np.array([place[name] for name in classes.names[rows]], dtype=np.int64)
    of_clusters = classes.of_clusters()
    moved = np.array([place.get(of_clusters.get(str(name), str(name)), -1) for name in found.names], dtype=np.int64)
    centres = np.zeros((len(place), found.centres.shape[1]), np.float32)
    centres[: len(seen)] = found.centres[: len(seen)]
    for k in range(len(seen), len(place)):  # the mean of the centres of its items
        centres[k] = found.centres[found.assignment[rows[assignment == k]]].mean(axis=0)
    is_same_number = len(others) == found.n_novel
    return Clusters(
        names=np.array([*found.names[: found.n_seen], *others, None], dtype=object)[:-1],
        n_seen=found.n_seen,
        n_novel_interval=found.n_novel_interval if is_same_number else (len(others), len(others)),
        assignment=assignment,
        nearest=moved[found.nearest[rows]],
        distance=found.distance[rows],
        confidence=confidence[rows],
        is_labelled=found.is_labelled[rows],
        centres=centres,
    ), rows
