"""Items around centres that are far apart, of which a part is labelled."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Blobs:
    x: np.ndarray
    targets: np.ndarray
    labels: np.ndarray  # the first half of each seen class; -1 else
    n_seen: int


def blobs(
    n_seen: int, n_novel: int, *, n_each: int = 40, spread: float = 0.1, D: int = 12, signs: bool = False, seed: int = 0
) -> Blobs:
    """`signs`: every coordinate of every centre is far from zero, so that binary codes tell the classes."""
    rng = np.random.default_rng(seed)
    n = n_seen + n_novel
    centres = rng.normal(size=(n, D))
    centres = np.sign(centres) if signs else centres
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    targets = np.repeat(np.arange(n), n_each)
    x = centres[targets] + spread * rng.normal(size=(len(targets), D))
    is_labelled = (targets < n_seen) & (np.arange(len(targets)) % n_each < n_each // 2)
    return Blobs(x.astype(np.float32), targets, np.where(is_labelled, targets, -1), n_seen)
