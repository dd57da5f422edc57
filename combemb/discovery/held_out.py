"""Estimate the share of novel items with the help of seen classes that are held out as if they were novel."""

import numpy as np
import torch

from combemb.backbones.feature_map import fit_feature_map
from combemb.discovery.points import N_COMPONENTS
from combemb.system.progress import tracked

FOLDS, ROUNDS = 5, 3
MIN_LABELLED = 3  # classes with fewer labelled items take no part
SHRINKAGE = 0.1  # of the covariance within classes, towards a multiple of the identity
TEST_SHARE = 0.2  # of the labelled items of a class, which a fold's model does not see
BINS = 20
EM_STEPS, EM_TOLERANCE = 1_000, 1e-7


def held_out(features: np.ndarray, labels: np.ndarray, seed: int = 0, progress: bool | None = False) -> np.ndarray:
    """Return estimates of the number of novel classes, two for each fold, or none if there are too few labels.

    features (N, F) must not have been trained on these labels (N,). Each fold holds out a fifth of the seen classes and
    fits Gaussians to the others. Two numbers tell how well an item fits. Labelled items show how these are distributed
    in known and in held-out classes; the unlabelled items are a mixture of both, whose proportion is found by maximum
    likelihood. It tells how many unlabelled items a seen class has. The rest is novel, in classes of the same size.
    """
    n_each = np.bincount(labels[labels >= 0])
    counted = np.flatnonzero(n_each >= MIN_LABELLED)  # classes with fewer labels take no part
    C, n_labelled, n_unlabelled = len(counted), int(n_each[counted].sum()), int((labels < 0).sum())
    x = _mapped(features) if C >= FOLDS else None
    if x is None:
        return np.empty(0)
    rng = np.random.default_rng(seed)
    found = []
    for fold in tracked(range(FOLDS * ROUNDS), "holding classes out", FOLDS * ROUNDS, progress):
        if fold % FOLDS == 0:
            group = rng.permutation(C) % FOLDS
        is_known = group != fold % FOLDS
        for share in _known_shares(x, labels, counted[is_known], counted[~is_known], rng):
            per_class = share * n_unlabelled / is_known.sum()  # unlabelled items of a seen class
            found.append((n_unlabelled - len(n_each) * per_class) / (n_labelled / C + per_class))
    return np.array(found)


def _known_shares(
    x: np.ndarray, labels: np.ndarray, known: np.ndarray, unknown: np.ndarray, rng: np.random.Generator
) -> list[float]:
    """Return the share of the unlabelled items that belongs to known classes, by each of the two numbers."""
    rows = np.flatnonzero(np.isin(labels, known))
    place = rng.permutation(len(rows))
    order = place[np.argsort(labels[rows][place], kind="stable")]  # by class, at random inside
    sizes = np.bincount(labels[rows])[known]
    rank = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # 0, 1, ... in each class
    is_tested = np.empty(len(rows), bool)
    is_tested[order] = rank < np.maximum(1, np.round(TEST_SHARE * sizes)).repeat(sizes)
    fits = _fits(x[rows[~is_tested]], np.searchsorted(known, labels[rows[~is_tested]]), x)
    return [_mixed(fit[rows[is_tested]], fit[np.isin(labels, unknown)], fit[labels < 0]) for fit in fits]


def _fits(x: np.ndarray, classes: np.ndarray, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distance of items to the nearest class mean, and the log-odds of that class (Gaussians of x)."""
    n_classes = int(classes.max()) + 1
    means = np.stack([x[classes == c].mean(axis=0) for c in range(n_classes)])
    rest = x - means[classes]
    covariance = rest.T @ rest / len(x)
    scale = np.trace(covariance) / len(covariance) + 1e-6 * x.var()
    covariance = (1 - SHRINKAGE) * covariance + SHRINKAGE * scale * np.eye(x.shape[1])
    whiten = np.linalg.inv(np.linalg.cholesky(covariance)).T
    y, centres = items @ whiten, means @ whiten
    distances = np.square(y).sum(axis=1)[:, None] - 2 * y @ centres.T + np.square(centres).sum(axis=1)  # squared
    nearest = distances.min(axis=1)
    others = np.exp((nearest[:, None] - distances) / 2).sum(axis=1) - 1
    return nearest, -np.log(np.maximum(others, 1e-300))


def _mixed(known: np.ndarray, unknown: np.ndarray, unlabelled: np.ndarray) -> float:
    """Return the most likely share of `known` in the mixture `unlabelled`, by histograms and EM."""
    edges = np.quantile(np.concatenate([known, unknown]), np.linspace(0, 1, BINS + 1)[1:-1])
    counts = [np.bincount(np.searchsorted(edges, sample), minlength=BINS) for sample in (known, unknown, unlabelled)]
    p, q = ((count + 0.5) / (count + 0.5).sum() for count in counts[:2])
    share = 0.5
    for _ in range(EM_STEPS):
        before, share = share, float(counts[2] @ (share * p / (share * p + (1 - share) * q)) / counts[2].sum())
        if abs(before - share) < EM_TOLERANCE:
            break
    return share


def _mapped(features: np.ndarray) -> np.ndarray | None:
    """Return standardised principal components, as the heads of deep methods see them; None if all items are equal."""
    x = torch.from_numpy(np.array(features, np.float32))  # copied: may be read-only
    try:
        feature_map = fit_feature_map([x], N_COMPONENTS)
    except ValueError:
        return None
    with torch.no_grad():
        return np.asarray(feature_map(x).double().numpy())
