"""Eq. 3 to 8 and the pair rules as loops over Python floats, written from the formulas; it imports nothing of ours.

An item is its sub-vectors z (M, d), a batch a list of items, Theta the prototypes (M, K, d): lists of lists of floats.
pi is a flat list of M*d floats. Sets of indices stand for masks.
"""

import math
from collections.abc import Callable, Iterable, Sequence

Vector = Sequence[float]
Matrix = Sequence[Vector]


def dot(a: Vector, b: Vector) -> float:
    total = 0.0
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


def unit(a: Vector) -> list[float]:
    length = math.sqrt(dot(a, a))
    return [value / length for value in a]


def cosine(a: Vector, b: Vector) -> float:
    return dot(unit(a), unit(b))


def flat(parts: Iterable[Vector]) -> list[float]:
    return [value for part in parts for value in part]


def log_softmax(scores: Vector, chosen: int) -> float:
    largest = max(scores)  # the paper's quotient, shortened by exp(largest) so that nothing overflows
    total = 0.0
    for score in scores:
        total += math.exp(score - largest)
    return scores[chosen] - largest - math.log(total)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def soft_assignment(z_m: Vector, theta_m: Matrix, sharpness: float) -> list[float]:
    """Phi(z^m, Theta^m), Eq. 3."""
    scores = [sharpness * dot(unit(z_m), unit(theta)) for theta in theta_m]
    phi = [0.0] * len(z_m)
    for k, theta in enumerate(theta_m):
        weight = math.exp(log_softmax(scores, k))
        for i, value in enumerate(unit(theta)):
            phi[i] += weight * value
    return phi


def combinatorial_embedding(z: Matrix, theta: Sequence[Matrix], sharpness: float) -> list[float]:
    """pi(z; Theta): the soft assignments of the sets side by side."""
    return flat(soft_assignment(z[m], theta[m], sharpness) for m in range(len(theta)))


def meta_loss(z: Matrix, theta: Sequence[Matrix], meta_labels: Sequence[int], temperature: float) -> float:
    """Eq. 4 of one item."""
    loss = 0.0
    for m in range(len(theta)):
        scores = [dot(unit(z[m]), unit(prototype)) / temperature for prototype in theta[m]]
        loss -= log_softmax(scores, meta_labels[m])
    return loss


def meta_loss_of_classes(
    z: Matrix, theta: Sequence[Matrix], table: Sequence[Sequence[int]], classes: Sequence[int], temperature: float
) -> float:
    """Eq. 4 of one item of one or more classes, averaged over them; table (M, C)."""
    return mean([meta_loss(z, theta, [row[c] for row in table], temperature) for c in classes])


def positives(pi: Matrix, anchor: int, threshold: float) -> set[int]:
    """P_z, Eq. 5, over the whole batch; the anchor itself is in it, as its cosine is one."""
    return {j for j in range(len(pi)) if j == anchor or cosine(pi[anchor], pi[j]) >= threshold}


def mutual_neighbours(features: Matrix, anchor: int, n_neighbours: int) -> set[int]:
    """The anchor and those that are among its nearest and have it among theirs, by cosine; no two may be equal."""

    def nearest(i: int) -> set[int]:
        others = [j for j in range(len(features)) if j != i]
        others.sort(key=lambda j: cosine(features[i], features[j]), reverse=True)
        return set(others[:n_neighbours])

    return {anchor} | {j for j in nearest(anchor) if anchor in nearest(j)}


def similarity_loss(z: Matrix, pi: Matrix, positive: set[int], temperature: float) -> float:
    """Eq. 6 of one anchor; the paper has temperature 1. Without positives 0."""
    scores = [dot(unit(flat(z)), unit(other)) / temperature for other in pi]
    loss = 0.0
    for j in positive:
        loss -= log_softmax(scores, j) / len(positive)
    return loss


def consistency_loss(prediction: Vector, pi: Vector) -> float:
    """Eq. 7 of one item: prediction = h(pi(z)), pi = pi(z') of the other view."""
    return -cosine(prediction, pi)


def precision_at(cosines: Matrix, same: Sequence[Sequence[bool]], threshold: float) -> float:
    """Share of pairs of one class among the pairs i != j that Eq. 5 takes; NaN if it takes none."""
    taken = [
        bool(same[i][j])
        for i in range(len(cosines))
        for j in range(len(cosines))
        if i != j and cosines[i][j] >= threshold
    ]
    return sum(taken) / len(taken) if taken else math.nan


def smallest_threshold(cosines: Matrix, same: Sequence[Sequence[bool]], precision: float) -> float:
    """The infimum of all gamma at which Eq. 5 takes at least one right pair and has the precision; 1 if there is none.

    Between two neighbouring cosines Eq. 5 takes the same pairs, so each interval is tried once.
    """
    n = len(cosines)
    steps = sorted({cosines[i][j] for i in range(n) for j in range(n) if i != j})
    for below, gamma in zip([-1.0, *steps], steps, strict=False):
        found = precision_at(cosines, same, gamma)
        if found > 0 and found >= precision:
            return below
    return 1.0


def ramp(progress: float, ramp_share: float) -> float:
    """Weight of Eq. 6 and 7 while they come up: exp(-5 (1 - t)^2)."""
    if progress >= ramp_share:
        return 1.0
    return math.exp(-5 * (1 - progress / ramp_share) ** 2)


def sub_vectors(x: Vector, weight: Matrix, bias: Vector, n_sets: int) -> list[list[float]]:
    """z of one item: a linear map of its features, cut into sub-vectors of unit length."""
    out = [dot(row, x) + b for row, b in zip(weight, bias, strict=True)]
    d = len(out) // n_sets
    return [unit(out[m * d : (m + 1) * d]) for m in range(n_sets)]


def default_similarity_temperature(n_classes: int) -> float:
    """0.33 / C^(1/4), C the classes that have labels."""
    return 0.33 / math.sqrt(math.sqrt(n_classes))


def class_share(classes: Sequence[Sequence[int]]) -> float:
    """Sum of squared class shares among labelled items; an item of n classes is one n-th of an item of each."""
    shares: dict[int, float] = {}
    for own in classes:
        for c in own:
            shares[c] = shares.get(c, 0.0) + 1 / len(own) / len(classes)
    return sum(share**2 for share in shares.values())


def nearest_rank(nearest_share: float, classes: Sequence[Sequence[int]], batch_size: int) -> int:
    """A share of the number of items that a batch has of one class, at least one."""
    return max(round(nearest_share * class_share(classes) * batch_size), 1)


def eigenvectors(matrix: Matrix) -> list[tuple[float, list[float]]]:
    """Eigenvalues of a symmetric matrix with their vectors, the largest first, by Jacobi's rotations."""
    n = len(matrix)
    a = [list(row) for row in matrix]
    v = [[float(i == j) for j in range(n)] for i in range(n)]  # columns are the vectors
    for _ in range(60):
        if sum(a[p][q] ** 2 for p in range(n) for q in range(p)) <= 1e-28 * sum(a[p][p] ** 2 for p in range(n)):
            break
        for p in range(n):
            for q in range(p + 1, n):
                angle = 0.5 * math.atan2(2 * a[p][q], a[q][q] - a[p][p])
                c, s = math.cos(angle), math.sin(angle)
                for row in (*a, *v):
                    row[p], row[q] = c * row[p] - s * row[q], s * row[p] + c * row[q]
                a[p], a[q] = (
                    [c * x - s * y for x, y in zip(a[p], a[q], strict=True)],
                    [s * x + c * y for x, y in zip(a[p], a[q], strict=True)],
                )
    found = [(a[i][i], [row[i] for row in v]) for i in range(n)]
    return sorted(found, key=lambda pair: pair[0], reverse=True)


def scatter(x: Matrix) -> list[list[float]]:
    """Mean of the outer products of the rows."""
    F = len(x[0])
    return [[mean([row[i] * row[j] for row in x]) for j in range(F)] for i in range(F)]


def within_classes(x: Matrix, classes: Sequence[Sequence[int]]) -> list[list[float]]:
    """Items as seen from the mean of their classes' means; an item of n classes counts one n-th in each."""
    weight: dict[int, float] = {}
    total: dict[int, list[float]] = {}
    for row, own in zip(x, classes, strict=True):
        for c in own:
            weight[c] = weight.get(c, 0.0) + 1 / len(own)
            total[c] = [t + value / len(own) for t, value in zip(total.get(c, [0.0] * len(row)), row, strict=True)]
    means = {c: [value / weight[c] for value in total[c]] for c in total}
    return [
        [value - mean([means[c][i] for c in own]) for i, value in enumerate(row)]
        for row, own in zip(x, classes, strict=True)
    ]


def discriminant_directions(
    labelled: Matrix, classes: Sequence[Sequence[int]], everyone: Matrix, n_features: int
) -> list[list[float]]:
    """Directions (d, F): whiten by the scatter within classes plus its mean variance, then principal components.

    The components are those of everyone, labelled or not, around their mean.
    """
    F = len(everyone[0])
    within = scatter(within_classes(labelled, classes))
    ridge = max(mean([within[i][i] for i in range(F)]), 1e-12)
    for i in range(F):
        within[i][i] += ridge
    whitening = [[value / math.sqrt(size) for value in vector] for size, vector in eigenvectors(within)]
    middle = [mean([row[i] for row in everyone]) for i in range(F)]
    white = [[dot(w, row) - dot(w, middle) for w in whitening] for row in everyone]
    return [
        [sum(part[k] * whitening[k][i] for k in range(F)) for i in range(F)]
        for _, part in eigenvectors(scatter(white))[:n_features]
    ]


def smoothed(x: Matrix, landmarks: Matrix, n_neighbours: int) -> list[list[float]]:
    """For each item the mean of the landmarks nearest to it by cosine; all are of unit length, before and after."""
    landmarks = [unit(row) for row in landmarks]
    found = []
    for row in x:
        own = unit(row)
        near = sorted(landmarks, key=lambda other: dot(own, other), reverse=True)[:n_neighbours]
        found.append(unit([mean(values) for values in zip(*near, strict=True)]))
    return found


def batch_positives(
    pi: Matrix,
    clean: Matrix,
    features: Matrix,
    *,
    rules: Sequence[str],
    threshold: float,
    rank: int,
    n_neighbours: int,
    include_self: bool,
) -> list[set[int]]:
    """The positives of every item of a batch by the union of the rules; clean: pi of the clean view."""
    found = []
    for i in range(len(pi)):
        own = {i}
        if "similar" in rules:
            own |= positives(pi, i, threshold)
        if "nearest" in rules:
            own |= mutual_neighbours(clean, i, rank)
        if "neighbours" in rules:
            own |= mutual_neighbours(features, i, n_neighbours)
        found.append(own if include_self else own - {i})
    return found


def total_loss(
    z: Sequence[Matrix],
    other: Sequence[Matrix],
    theta: Sequence[Matrix],
    table: Sequence[Sequence[int]],
    classes: Sequence[Sequence[int]],
    *,
    h: Callable[[Matrix], Matrix],
    positive: Sequence[set[int]],
    anchors: str,
    temperature: float,
    sharpness: float,
    similarity_temperature: float,
    similarity_weight: float,
    consistency_weight: float,
    ramp: float = 1.0,
    pi_of_positives: Matrix | None = None,
    pi_of_other: Matrix | None = None,
) -> dict[str, float]:
    """Eq. 8 of a batch divided by M, as its three terms: alpha = M similarity_weight, beta = M consistency_weight.

    z, other: the two views of B items, the labelled ones first; classes: those of each labelled item; table (M, C).
    Eq. 5 and 6 see the first view of every item. For derivatives, what gradients must not flow through can be given:
    pi of Eq. 6 and pi of the second view in Eq. 7.
    """
    M, n_labelled = len(theta), len(classes)
    pi = [combinatorial_embedding(item, theta, sharpness) for item in z]
    contrasted = pi if pi_of_positives is None else pi_of_positives
    second = [combinatorial_embedding(item, theta, sharpness) for item in other] if pi_of_other is None else pi_of_other
    meta = [meta_loss_of_classes(z[i], theta, table, classes[i], temperature) for i in range(n_labelled)]
    chosen = range(n_labelled if anchors == "unlabelled" else 0, len(z))
    similarity = [similarity_loss(z[i], contrasted, positive[i], similarity_temperature) for i in chosen]
    predictions = h(pi)
    consistency = [consistency_loss(predictions[i], second[i]) for i in range(len(z))]
    alpha, beta = M * similarity_weight * ramp, M * consistency_weight * ramp
    return {
        "meta": mean(meta) / M,
        "similarity": alpha * mean(similarity) / M,
        "consistency": beta * mean(consistency) / M,
    }
