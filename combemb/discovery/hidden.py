"""Hide some seen classes and treat them as novel: what they look like tells what novel classes will look like."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax

from combemb.discovery.gaussians import Mixture
from combemb.discovery.merging import Pieces
from combemb.discovery.points import Components, Points, class_means
from combemb.discovery.regions import Regions
from combemb.system.progress import tracked

FOLDS = 4
TEST_SHARE = 0.2  # of the labelled items of a class that stays visible, which a fold's model does not see
GRAINS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  # that merging tries
DEFAULT_GRAIN = 0.5
GRAIN_TOLERANCE = 0.05  # of the agreement; hidden classes are small, and a finer grain cuts large ones
MAX_MERGED_ITEMS = 3_000
TEMPERATURES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08, 0.05)
DEFAULT_TEMPERATURE = 0.25
GUESS = 0.65, 0.25  # share of the unlabelled items that belong to seen classes, and its error, before any evidence
MAX_SPREAD = 25.0  # of the novelty ratio, whose slope is guessed from it; classes far apart need no flat slope
PRIOR_ITEMS = 1.0  # weight of the guess at slope and offset, in items
LOCAL_SLOPE = 0.5  # guess at the weight of the regions
FEW_LABELS = 2  # of the median class
CLEARLY_SEEN, LOOK_SEEN = (0.2, 0.3, 0.4, 0.5), (0.7, 0.8, 0.9)  # quantiles of the tested items; those below are
STRANGER = 0.05  # share of items by which novel classes must be stranger than hidden ones to count as such
MIN_COMPARED, COMPARED_ENOUGH = 20, 50  # tested and hidden items, to compare with at all, and as well as by EM
MAX_LOST = 0.08  # of the items of seen classes, which would be put right, but are called novel
ONE_CLASS_SHARE = 0.9  # of the items of the only seen class that should stay in it


@dataclass(frozen=True)
class Lesson:
    """What hidden seen classes teach.

    Attributes
    ----------
    slope, local_slope, offset : float
        Turn the two kinds of evidence of `Mixture` into log-odds, for as many items of seen as of novel classes.
    threshold : float
        Least log-odds that an item must exceed to be called novel: with less, too many items of seen classes that are
        put into the right one would be lost.
    temperature : float
        That of `Mixture`.
    seen_share, share_error : float
        Share of the unlabelled items that belong to seen classes, and its standard error.
    grain, agreement : float
        Best grain of `Pieces.merged`, and how well its clusters agree with the hidden classes (adjusted Rand index).
    has_few_labels : bool
        Whether a fold that tests one item of a class usually leaves no more than one, so that folds teach little.
    """

    slope: float
    local_slope: float
    offset: float
    threshold: float
    temperature: float
    seen_share: float
    share_error: float
    grain: float
    agreement: float
    has_few_labels: bool


@dataclass(frozen=True, eq=False)
class _Fold:
    """A model that knows some classes only; its evidence (N, 2) on all items, and which are hidden or tested."""

    y: np.ndarray
    evidence: np.ndarray
    between: np.ndarray
    is_hidden: np.ndarray
    is_tested: np.ndarray
    is_right: np.ndarray  # whether the likeliest class of each tested item is its own
    visible_share: float  # of the labelled items
    losses: np.ndarray  # of the tested items, for each temperature


def seen_mixture(components: Components, labels: np.ndarray, seed: int) -> tuple[Points, np.ndarray, Mixture]:
    """Return what makes points for labels 0 to C-1 (N,), -1 if unlabelled, the points (N, d), and the seen classes."""
    points, y = components.points(labels)
    rows, C = labels >= 0, int(labels.max()) + 1
    counts = np.bincount(labels[rows], minlength=C)
    regions = Regions.fit(y, rows, seed)
    return points, y, Mixture(class_means(y[rows], labels[rows], C), counts, points.between, C, regions=regions)


def learn(
    components: Components,
    labels: np.ndarray,
    evidence: np.ndarray,
    z: np.ndarray | None,
    *,
    seed: int = 0,
    progress: bool | None = False,
) -> Lesson:
    """Hide each seen class once and learn from it.

    Parameters
    ----------
    components : Components
        Of the features, which must not have been trained on these labels.
    labels : int array of shape (N,)
        Classes 0 to C-1, or -1 if unlabelled; at least one item is labelled.
    evidence : array of shape (N, 2)
        Of novelty, by the mixture of all seen classes.
    z : array of shape (N, D), optional
        Embeddings, which are clustered together with the features.
    seed, progress : int, bool, optional
        Seed of the folds, and whether to show progress.

    Returns
    -------
    Lesson
    """
    n_folds = min(FOLDS, int(labels.max()) + 1)
    folds = list(tracked(_folds(components, labels, n_folds, seed), "hiding classes", n_folds, progress))
    seen = np.concatenate([f.evidence[f.is_tested] for f in folds])
    hidden = np.concatenate([f.evidence[f.is_hidden] for f in folds])
    slope_guess = float(2 / np.clip(np.mean([f.evidence[:, 0].std() for f in folds]), 2, MAX_SPREAD))
    line = _calibrated(seen, hidden, np.array([slope_guess, LOCAL_SLOPE]))
    has_few_labels = bool(np.median(np.bincount(labels[labels >= 0])) <= FEW_LABELS)
    shared_by = folds if len(folds) > 1 and not has_few_labels else []
    free, *by_fold = (log_odds(e[labels < 0], line) for e in (evidence, *(f.evidence for f in shared_by)))
    visible = np.array([f.visible_share for f in shared_by])
    share, error = _share(free, by_fold, visible, log_odds(seen, line), log_odds(hidden, line))
    losses = np.sum([f.losses for f in folds], axis=0)
    temperature = TEMPERATURES[int(losses.argmin())] if np.any(losses) else DEFAULT_TEMPERATURE
    grain, agreement = _best_grain(folds, labels, z, line, seed)
    is_right = np.concatenate([f.is_right for f in folds])
    threshold = -np.inf if has_few_labels else _threshold(log_odds(seen[is_right], line), len(seen))
    slope, local_slope, offset = line.tolist()
    return Lesson(
        slope,
        local_slope,
        offset,
        threshold,
        temperature,
        share,
        error,
        grain,
        agreement,
        has_few_labels=has_few_labels,
    )


def _folds(components: Components, labels: np.ndarray, n_folds: int, seed: int) -> Iterator[_Fold]:
    """Yield the folds; with one seen class, a single one in which nothing is hidden."""
    rng = np.random.default_rng(seed)
    counts = np.bincount(labels[labels >= 0])
    group = rng.permutation(len(counts)) % n_folds
    for fold in range(n_folds):
        is_visible = (group != fold) | (n_folds == 1)
        is_hidden = np.isin(labels, np.flatnonzero(~is_visible))
        is_tested = np.zeros(len(labels), bool)
        for c in np.flatnonzero(is_visible & (counts >= 2)):
            rows = np.flatnonzero(labels == c)
            n = max(1, round(TEST_SHARE * len(rows))) if len(rows) > 2 else int(rng.random() < 0.5)
            is_tested[rng.permutation(rows)[:n]] = True
        _, known = np.unique(np.where(is_hidden | is_tested, -1, labels), return_inverse=True)
        known = known - 1 if (is_hidden | is_tested | (labels < 0)).any() else known
        _, y, mixture = seen_mixture(components, known, seed)
        joint = mixture.log_joint(y)
        place = np.cumsum(is_visible) - 1
        right = np.arange(int(is_tested.sum())), place[labels[is_tested]]
        tempered = [log_softmax(mixture.tempered(joint[is_tested], t), axis=1) for t in TEMPERATURES]
        losses = np.array([-p[right].sum() for p in tempered])
        is_right = tempered[int(losses.argmin())].argmax(axis=1) == right[1]
        evidence = mixture.evidence(y, joint)
        share = counts[is_visible].sum() / counts.sum()
        yield _Fold(y.astype(np.float32), evidence, mixture.between, is_hidden, is_tested, is_right, share, losses)


def _calibrated(seen: np.ndarray, hidden: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """Return both slopes and the offset of the log-odds by logistic regression, both kinds with the same weight.

    The model's own zero and the guessed slopes count as a few items, so that few labels move them little.
    """
    if len(hidden) == 0:
        return np.append(slopes, -max(float(np.quantile(seen @ slopes, ONE_CLASS_SHARE)), 0) if len(seen) else 0.0)
    x, y = np.concatenate([seen, hidden]) * slopes, np.repeat([0.0, 1.0], [len(seen), len(hidden)])
    weight = np.where(y == 1, 0.5 / len(hidden), 0.5 / max(len(seen), 1)) * len(x)

    def loss(v: np.ndarray) -> float:
        fit = np.logaddexp(0, np.where(y == 1, -1, 1) * (x @ np.exp(v[:2]) + v[2]))
        return float(weight @ fit + PRIOR_ITEMS * (np.square(v[:2]).sum() + np.square(v[2]) / 4))

    best = minimize(loss, np.zeros(3), method="Nelder-Mead").x
    return np.append(slopes * np.exp(best[:2]), best[2])


def log_odds(evidence: np.ndarray, line: np.ndarray) -> np.ndarray:
    """Return the log-odds (n,) of novelty, for evidence (n, 2), two slopes and an offset."""
    return np.asarray(evidence @ line[:2] + line[2])


def _threshold(log_odds: np.ndarray, n_tested: int) -> float:
    """Return the log-odds that at most `MAX_LOST` of the tested items exceed, given those that are put right."""
    n_lost = int(MAX_LOST * n_tested)
    return float(np.sort(log_odds)[::-1][n_lost]) if n_lost < len(log_odds) else -np.inf


def _seen_share(free: np.ndarray, seen: np.ndarray, hidden: np.ndarray) -> tuple[float, float]:
    """Return the share of items of seen classes among unlabelled ones, given log-odds for equal shares; and its doubt.

    Two estimates are averaged. The likeliest share (EM) uses all log-odds but is biased where these are not exact: it
    was too large on most tuning splits. The number of items that look seen, corrected by how many tested and hidden
    items do, is right on average; it counts the more, the more of these there are. Both hold if novel classes look like
    hidden ones. If they are stranger, the likeliest share falls below what items that clearly look seen allow, as it
    explains the many strange items by a larger share of novel ones. Then the middle of these bounds is taken, unless
    the bounds by all items that look seen, which are narrow where classes are far apart, exclude it.
    """
    share, ratio = 0.5, np.exp(np.clip(free, -30, 30))
    for _ in range(300):
        last, share = share, float(np.mean(share / (share + (1 - share) * ratio))) if len(ratio) else 1.0
        if abs(share - last) < 1e-9:
            break
    n = min(len(seen), len(hidden))
    if n < MIN_COMPARED:
        return share, 0.0
    low, high = _bounds(free, seen, hidden, CLEARLY_SEEN)
    corrected, most = _bounds(free, seen, hidden, LOOK_SEEN)
    if share < low - STRANGER:
        noise = 0.5 / np.sqrt(n)
        return float(np.clip((low + high) / 2, corrected - noise, most + noise)), (high - low) / 2
    return (n * corrected + COMPARED_ENOUGH * share) / (n + COMPARED_ENOUGH), 0.0


def _bounds(
    free: np.ndarray, seen: np.ndarray, hidden: np.ndarray, quantiles: tuple[float, ...]
) -> tuple[float, float]:
    """Return the share of seen items if novel ones look seen as often as hidden ones do, and if they never do.

    Items look seen if their log-odds are below these quantiles of the tested items.
    """
    at = np.quantile(seen, quantiles)
    f, s, h = (np.searchsorted(np.sort(part), at, side="right") / len(part) for part in (free, seen, hidden))
    low = float(np.clip(np.median((f - h) / np.maximum(s - h, 0.05)), 0, 1))
    return low, float(np.clip(np.median(f / s), low, 1))


def _share(
    free: np.ndarray, by_fold: list[np.ndarray], visible: np.ndarray, seen: np.ndarray, hidden: np.ndarray
) -> tuple[float, float]:
    """Return the share of the unlabelled items that belong to seen classes, and its standard error.

    Each fold estimates the share of its visible classes, and so does the model of all classes, whose scores are a
    little off, as the calibration was learned with fewer classes. A guess counts where labels are too few for both.
    free, seen and hidden are the log-odds of unlabelled items, by the model of all classes, and of those that were
    tested and hidden; by_fold are those of the unlabelled items by each fold, which sees a share `visible` of labels.
    """
    if len(free) == 0:
        return 1.0, 0.0
    noise = 1 / np.sqrt(max(len(seen) + len(hidden), 1))
    share, doubt = _seen_share(free, seen, hidden)
    means, errors = [GUESS[0], share], [GUESS[1], 0.12 + noise + doubt]
    if len(by_fold) > 0:
        shares, doubts = np.array([_seen_share(odds, seen, hidden) for odds in by_fold]).T / visible
        middle = float(np.median(shares))  # where the largest class is hidden, the share of the others says little
        means.append(min(middle, 1.0))
        spread = 1.5 * float(np.median(np.abs(shares - middle))) / np.sqrt(len(by_fold))
        errors.append(spread + 0.5 * noise + float(np.median(doubts)))
    weights = 1 / np.square(errors)
    return float(weights @ means / weights.sum()), float(1 / np.sqrt(weights.sum()))


def _best_grain(
    folds: list[_Fold], labels: np.ndarray, z: np.ndarray | None, line: np.ndarray, seed: int
) -> tuple[float, float]:
    """Return the grain whose clusters agree best with the hidden classes, and how well they do."""
    from sklearn.metrics import adjusted_rand_score  # noqa: PLC0415 - takes a second

    found = np.zeros((0, len(GRAINS)))
    for fold in folds:
        is_called = (log_odds(fold.evidence, line) > 0) & ((labels < 0) | fold.is_hidden | fold.is_tested)
        rows = np.flatnonzero(is_called)[:: -(-max(int(is_called.sum()), 1) // MAX_MERGED_ITEMS)]
        is_judged = fold.is_hidden[rows]
        if is_judged.sum() < 2:
            continue
        pieces = Pieces(fold.y[rows], fold.between, None if z is None else z[rows], seed=seed)
        clusters = [pieces.merged(grain)[is_judged] for grain in GRAINS]
        scores = [adjusted_rand_score(labels[rows][is_judged], c) for c in clusters]
        found = np.append(found, [scores], axis=0)
    if len(found) == 0:
        return DEFAULT_GRAIN, 0.0
    scores = found.mean(axis=0)
    best = int(np.flatnonzero(scores >= scores.max() - GRAIN_TOLERANCE)[0])
    return GRAINS[best], float(scores[best])
