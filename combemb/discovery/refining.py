"""Class means that unlabelled items move: two labels say little about a class, the items around them say more."""

from dataclasses import replace

import numpy as np

from combemb.discovery.gaussians import Mixture
from combemb.discovery.points import class_means

STEPS = 3  # of k-means; more of them let seen classes drift into novel ones
FREE_ITEMS = 10  # items that the unlabelled ones of a seen class count as, at most


def refined(mixture: Mixture, y: np.ndarray, labels: np.ndarray) -> Mixture:
    """Return the mixture with means that follow the unlabelled items, by a few steps of k-means over all classes.

    Points y (N, d) are compared at unit length. Labelled items, of classes 0 to C-1 in labels (N,), keep their class.
    """
    K, is_free = len(mixture.means), labels < 0
    is_seen = np.arange(K) < mixture.n_seen
    unit = y / np.maximum(np.linalg.norm(y, axis=1, keepdims=True), 1e-30)
    classes, _ = mixture.assign(y)
    for _ in range(STEPS):
        classes[~is_free] = labels[~is_free]
        centres = class_means(unit, classes, K)
        classes = (unit @ centres.T - np.square(centres).sum(axis=1) / 2).argmax(axis=1)
    sizes = np.bincount(classes[is_free], minlength=K)
    known, free = np.where(is_seen, mixture.counts, 0), np.where(is_seen, np.minimum(sizes, FREE_ITEMS), sizes)
    known = np.where(known + free == 0, 1, known)  # a novel class that lost all items stays where it was
    shares = (free / (known + free))[:, None]
    means = (1 - shares) * mixture.means + shares * class_means(y[is_free], classes[is_free], K)
    return replace(mixture, means=means, counts=known + free)
