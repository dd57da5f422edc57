"""Classes as Gaussians whose means are drawn from a Gaussian: how likely an item is in a class, or in a new one.

In the space of `Points` a class has covariance I around its mean, and means have variances b around 0. Given n items
with mean m, a further item of the class has mean m * b / (b + 1/n) and variance 1 + b / (1 + n b); an item of a class
that was never seen has mean 0 and variance 1 + b. Two labels per class are enough, because the shape is shared.
"""

from dataclasses import dataclass, replace

import numpy as np

from combemb.discovery.regions import Regions

MARGIN = 3.0  # log-odds by which a novel class must be likelier than a seen one to count regardless of the offset
MAX_PROBABILITY = np.float32(1 - 1e-6)  # only labelled items are certain
BLOCK_ROWS = 8_192  # rows compared with all classes at a time, which bounds the memory


@dataclass(frozen=True, eq=False)
class Mixture:
    """K classes, C of them seen: what `Discovery` needs to place new items.

    Attributes
    ----------
    means, counts : float32 arrays of shape (K, d) and (K,)
        Mean and number of the items of each class: of the labelled ones for seen classes.
    between : array of shape (d,)
        Variances of class means.
    n_seen : int
        Number of seen classes C.
    slope, offset : float
        Turn the log ratio "new class against best seen class" into log-odds, as learned on hidden seen classes.
    temperature : float
        Log-likelihoods count this much when they are compared; Gaussians in many dimensions are too sure.
    local_slope : float
        Weight of the evidence of `regions` in these log-odds.
    regions : Regions, optional
        Where labels are, and where they are not.
    """

    means: np.ndarray
    counts: np.ndarray
    between: np.ndarray
    n_seen: int
    slope: float = 1.0
    offset: float = 0.0
    temperature: float = 1.0
    local_slope: float = 0.0
    regions: Regions | None = None

    def log_joint(self, y: np.ndarray) -> np.ndarray:
        """Return the log-density of points (n, d) in each class times its share, (n, K), without shared constants."""
        n, b = self.counts[:, None].astype(np.float64), self.between
        centres = self.means * (n * b / (n * b + 1))
        variances = 1 + b / (n * b + 1)
        squares = np.square(y) @ (1 / variances).T - 2 * y @ (centres / variances).T
        squares += (np.square(centres) / variances).sum(axis=1)
        return np.asarray(-(squares + np.log(variances).sum(axis=1)) / 2 + np.log1p(self.counts))

    def tempered(self, joint: np.ndarray, temperature: float) -> np.ndarray:
        """Return the joint log-density (n, K) with tempered densities, but with the shares of classes as they are."""
        shares = np.log1p(self.counts)
        return np.asarray(temperature * (joint - shares) + shares)

    def log_new(self, y: np.ndarray) -> np.ndarray:
        """Return the log-density of points in a class without any item, with the share of the mean seen class."""
        variances = 1 + self.between
        return np.asarray(-(np.square(y) @ (1 / variances) + np.log(variances).sum()) / 2)

    def novelty_ratio(self, y: np.ndarray, joint: np.ndarray) -> np.ndarray:
        """Return the log ratio of a new class, or of a novel one if that is likelier, to the likeliest seen class."""
        seen, novel = np.split(joint, [self.n_seen], axis=1)
        new = self.log_new(y)
        if novel.shape[1] > 0:
            new = np.maximum(new, novel.max(axis=1) - np.log((self.counts[self.n_seen :] + 1).sum()))
        return np.asarray(new - seen.max(axis=1) + np.log((self.counts[: self.n_seen] + 1).sum()))

    def evidence(self, y: np.ndarray, joint: np.ndarray) -> np.ndarray:
        """Return the evidence of novelty (n, 2): the log ratio of the Gaussians, and that of the regions."""
        local = self.regions.evidence(y) if self.regions is not None else np.zeros(len(y))
        return np.stack([self.novelty_ratio(y, joint), local], axis=1)

    def novelty(self, y: np.ndarray) -> np.ndarray:
        """Return the log-odds that points belong to no seen class; 0 without seen classes."""
        return self._log_odds(y, self.log_joint(y)) if self.n_seen > 0 else np.zeros(len(y))

    def _log_odds(self, y: np.ndarray, joint: np.ndarray) -> np.ndarray:
        """Return the calibrated log-odds of novelty, or those of a novel class that was found if these are clearer.

        Where classes are far apart, hidden ones leave the offset anywhere in a wide gap; a comparison of two classes
        does not need it.
        """
        log_odds = self.evidence(y, joint) @ np.array([self.slope, self.local_slope]) + self.offset
        seen, novel = np.split(joint, [self.n_seen], axis=1)
        if novel.shape[1] > 0:
            shares = [np.log((counts + 1).sum()) for counts in np.split(self.counts, [self.n_seen])]
            found = novel.max(axis=1) - shares[1] - seen.max(axis=1) + shares[0]
            log_odds = np.maximum(log_odds, self.temperature * found - MARGIN)
        return np.asarray(log_odds)

    def posterior(self, y: np.ndarray) -> np.ndarray:
        """Return the probability of each class, (n, K)."""
        from scipy.special import expit, log_softmax  # noqa: PLC0415 - a search does not need it, and it takes 0.1 s

        joint, K = self.log_joint(y), len(self.means)
        tempered = self.tempered(joint, self.temperature)
        if self.n_seen in (0, K):
            return np.asarray(np.exp(log_softmax(tempered, axis=1)))
        is_novel = expit(self._log_odds(y, joint))[:, None]
        parts = [log_softmax(part, axis=1) for part in np.split(tempered, [self.n_seen], axis=1)]
        return np.concatenate([(1 - is_novel) * np.exp(parts[0]), is_novel * np.exp(parts[1])], axis=1)

    def assign(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the class (n,) of points, decided as seen or novel first, and its probability (n,) float32."""
        classes, probability = np.empty(len(y), np.int64), np.empty(len(y), np.float32)
        for start in range(0, len(y), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            posterior = self.posterior(y[rows])
            seen = posterior[:, : self.n_seen].sum(axis=1)
            is_other = (np.arange(posterior.shape[1]) < self.n_seen) != (seen >= 0.5)[:, None]
            classes[rows] = np.where(is_other, -1, posterior).argmax(axis=1)
            probability[rows] = np.take_along_axis(posterior, classes[rows][:, None], axis=1)[:, 0]
        return classes, np.minimum(probability, MAX_PROBABILITY)

    def take(self, order: np.ndarray) -> "Mixture":
        """Return the mixture with its classes in this order."""
        return replace(self, means=self.means[order], counts=self.counts[order])


def log_same(mean: np.ndarray, n: float, means: np.ndarray, ns: np.ndarray, between: np.ndarray) -> np.ndarray:
    """Return the log ratio (k,) that a cluster and each of k others are one class against two.

    The mean of n items has variance b + 1/n; the means of two clusters of one class have covariance b.
    """
    a, c = between + 1 / n, between + 1 / ns[:, None]
    determinant = a * c - np.square(between)
    apart = np.square(mean) / a + np.square(means) / c
    together = (c * np.square(mean) + a * np.square(means) - 2 * between * mean * means) / determinant
    return np.asarray((np.log(a * c / determinant) + apart - together).sum(axis=1) / 2)
