"""Clusters of any size: many small ones by k-means, merged as long as two are more likely one class than two."""

import numpy as np

from combemb.discovery.gaussians import log_same
from combemb.discovery.kmeans import kmeans
from combemb.discovery.points import class_means

MAX_PIECES, ITEMS_PER_PIECE = 250, 3
MAX_DIRECTIONS = 64  # those in which classes differ most decide about merging
MIN_ITEMS = 3  # of a cluster that counts as a class, unless all are smaller
REFINEMENTS = 10  # steps of k-means after merging to a known number
OUTLIER_SHARE = 0.1  # of the mean size of a cluster, by default; smaller ones are outliers if the number is known


class Pieces:
    """Items cut into many small clusters, which `merged` joins again.

    Parameters
    ----------
    y : array of shape (n, d)
        Points of the items, as `Points` makes them.
    between : array of shape (d,)
        Variances of class means.
    z : array of shape (n, D), optional
        Embeddings, by which items are cut together with their points: both at unit length, where clusters are round.
    n_least : int
        Least number of pieces.
    seed : int
        Seed of k-means.
    """

    def __init__(
        self, y: np.ndarray, between: np.ndarray, z: np.ndarray | None = None, n_least: int = 1, seed: int = 0
    ):
        joined = np.asarray(y, np.float32) if z is None else np.concatenate([_unit(y), _unit(z)], axis=1)
        n_pieces = min(len(np.unique(joined, axis=0)), max(n_least, min(-(-len(y) // ITEMS_PER_PIECE), MAX_PIECES)))
        self.joined = joined
        found = kmeans(joined, n_pieces, seed=seed, n_starts=1, n_iterations=30, progress=False)
        self.of_item, self.between = found.assignment, between[:MAX_DIRECTIONS]
        self.means, self.sizes = (
            class_means(y[:, :MAX_DIRECTIONS], self.of_item, n_pieces),
            np.bincount(self.of_item) * 1.0,
        )

    def merged(self, grain: float, n_clusters: int | None = None, outlier_share: float = OUTLIER_SHARE) -> np.ndarray:
        """Return the cluster (n,) of each item, 0 to K-1.

        Parameters
        ----------
        grain : float
            Items of a cluster say as much about its class as this number of independent items, at most: real classes
            have parts, so that the mean of a part is never known better than that.
        n_clusters : int, optional
            Merge down to this number of clusters that are no mere outliers, instead of until no pair looks like one
            class.
        outlier_share : float
            Clusters below this share of the mean size are outliers then.

        Returns
        -------
        int64 array of shape (n,)
        """
        K, means, sizes, group = len(self.means), self.means.copy(), self.sizes.copy(), np.arange(len(self.means))
        score = np.full((K, K), -np.inf)

        def scores(i: int, others: np.ndarray) -> np.ndarray:
            known = sizes / (1 + sizes / grain)
            return log_same(means[i], known[i], means[others], known[others], self.between)

        for i in range(K - 1):
            score[i, i + 1 :] = score[i + 1 :, i] = scores(i, np.arange(i + 1, K))
        best = score.argmax(axis=1)
        alive, last = np.ones(K, bool), (group, means.copy(), sizes.copy())
        n_large = max(MIN_ITEMS, outlier_share * sizes.sum() / (n_clusters or 1))
        while alive.sum() > (n_clusters or 1):
            value = np.where(alive, score[np.arange(K), best], -np.inf)
            i = int(value.argmax())
            if n_clusters is None and value[i] < 0:
                break
            i, j = sorted((i, int(best[i])))
            means[i] = (sizes[i] * means[i] + sizes[j] * means[j]) / (sizes[i] + sizes[j])
            sizes[i] += sizes[j]
            alive[j], group = False, np.where(group == j, i, group)
            if n_clusters is not None and (sizes[alive] >= n_large).sum() >= n_clusters:
                last = group, means.copy(), sizes.copy()
            score[j] = score[:, j] = -np.inf
            others = np.flatnonzero(alive & (np.arange(K) != i))
            score[i, others] = score[others, i] = scores(i, others)
            stale = np.flatnonzero(alive & ((best == i) | (best == j)))
            best[stale] = score[stale].argmax(axis=1)
            best[i] = score[i].argmax()
            better = others[score[others, i] > score[others, best[others]]]
            best[better] = i
        if n_clusters is not None and len(np.unique(last[0])) < K:
            group, means, sizes = last
        group = self._without_small(group, means, sizes, grain, n_clusters)
        clusters = np.unique(group[self.of_item], return_inverse=True)[1]
        if n_clusters is None:
            return clusters
        start = class_means(self.joined, clusters, n_clusters)
        return kmeans(self.joined, n_clusters, start=start, n_iterations=REFINEMENTS, progress=False).assignment

    def _without_small(
        self, group: np.ndarray, means: np.ndarray, sizes: np.ndarray, grain: float, n_clusters: int | None
    ) -> np.ndarray:
        """Return the groups with each that is too small for a class joined to the large one it resembles most."""
        kept = np.unique(group)
        n_large = n_clusters or max(int((sizes[kept] >= MIN_ITEMS).sum()), 1)
        large = kept[np.argsort(-sizes[kept], kind="stable")[:n_large]]
        known = sizes / (1 + sizes / grain)
        for i in np.setdiff1d(kept, large):
            to = large[log_same(means[i], known[i], means[large], known[large], self.between).argmax()]
            group = np.where(group == i, to, group)
        return group


def _unit(x: np.ndarray) -> np.ndarray:
    """Return rows at unit length, as float32."""
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-30), np.float32)
