"""Eq. 3 to 8 and the pair rules as loops over Python floats, written from the formulas; it imports nothing of ours.

An item is its sub-vectors z (M, d), a batch a list of items, Theta the prototypes (M, K, d): lists of lists of floats.
pi is a flat list of M*d floats. Sets of indices stand for masks.
"""

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence

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


def nearest_first(features: Matrix) -> list[list[int]]:
    """For each item all others, the nearest first, by cosine."""
    rows = [unit(row) for row in features]
    found = []
    for i in range(len(rows)):
        others = [j for j in range(len(rows)) if j != i]
        others.sort(key=lambda j: dot(rows[i], rows[j]), reverse=True)
        found.append(others)
    return found


def mutual_neighbours(features: Matrix, ranks: Sequence[int]) -> list[set[int]]:
    """For each item those among its nearest that have it among theirs; item i has ranks[i] of them; no ties."""
    near = [set(others[:rank]) for others, rank in zip(nearest_first(features), ranks, strict=True)]
    return [{j for j in near[i] if i in near[j]} for i in range(len(near))]


def similarity_loss(z: Matrix, pi: Matrix, positive: Mapping[int, float], temperature: float) -> float:
    """Eq. 6 of one anchor; the paper has temperature 1 and weights of 1. Without positives 0."""
    scores = [dot(unit(flat(z)), unit(other)) / temperature for other in pi]
    total = sum(positive.values())
    loss = 0.0
    for j, weight in positive.items():
        loss -= weight * log_softmax(scores, j) / total
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


def class_shares(classes: Sequence[Sequence[int]]) -> dict[int, float]:
    """The shares of classes among labelled items; an item of n classes is one n-th of an item of each."""
    shares: dict[int, float] = {}
    for own in classes:
        for c in own:
            shares[c] = shares.get(c, 0.0) + 1 / len(own) / len(classes)
    return shares


def item_shares(features: Matrix, classes: Mapping[int, Sequence[int]]) -> list[float]:
    """The share of each item's class, of the mean of its classes, or of that with the nearest mean if unlabelled.

    classes: those of the labelled items, by position. An item of n classes counts one n-th in the mean of each.
    """
    shares = class_shares(list(classes.values()))
    means = {}
    for c in shares:
        total = [0.0] * len(features[0])
        for i, own in classes.items():
            if c in own:
                total = [t + value / len(own) for t, value in zip(total, features[i], strict=True)]
        means[c] = total
    found = []
    for i, row in enumerate(features):
        if i in classes:
            found.append(mean([shares[c] for c in classes[i]]))
        else:
            found.append(shares[max(means, key=lambda c: cosine(row, means[c]))])
    return found


def uneven_item_shares(features: Matrix, classes: Mapping[int, Sequence[int]]) -> list[float]:
    """`item_shares`; for unlabelled items the density around them counts, as far as the labelled classes are uneven."""
    by_class = item_shares(features, classes)
    logs = [math.log(share) for share in class_shares(list(classes.values())).values()]
    spread = math.sqrt(sum((log - mean(logs)) ** 2 for log in logs) / (len(logs) - 1))
    weight = 0.75 * min(spread / 0.5, 1.0)
    slope, offset = line_of_pairs(features, classes)
    dense = [math.log(sum(sigmoid(slope * dot(row, other) + offset) for other in features)) for row in features]
    parts = parts_of_classes(classes)
    by_size = [
        sum(part * (dense[i] - math.log(by_class[i])) for i, part in own.items()) / sum(own.values())
        for own in parts.values()
    ]
    found = []
    for i, share in enumerate(by_class):
        mixed = math.exp(weight * (dense[i] - mean(by_size)) + (1 - weight) * math.log(share))
        found.append(share if i in classes else min(max(mixed, 1 / len(features)), 0.5))
    return found


def parts_of_classes(classes: Mapping[int, Sequence[int]]) -> dict[int, dict[int, float]]:
    """For each class the items that belong to it, one n-th if to n classes."""
    parts: dict[int, dict[int, float]] = {}
    for i, own in classes.items():
        for c in own:
            parts.setdefault(c, {})[i] = 1 / len(own)
    return parts


def line_of_pairs(features: Matrix, classes: Mapping[int, Sequence[int]]) -> tuple[float, float]:
    """Slope and offset of the log-odds that two labelled items share a class, by cosine; classes count equally."""
    parts = parts_of_classes(classes)
    pairs = []
    for i, own in classes.items():
        importance = sum(1 / len(own) / max(sum(parts[c].values()), 1) for c in own)
        for j, others in classes.items():
            if i != j:
                same = len(set(own) & set(others)) / len(own) / len(others)
                pairs.append((dot(features[i], features[j]), same, importance))
    slope, offset = 0.0, 0.0
    for _ in range(30):
        g0, g1, a, b, d = -1e-3 * slope, -1e-3 * offset, 1e-3, 0.0, 1e-3
        for x, y, importance in pairs:
            p = sigmoid(slope * x + offset)
            curve = importance * (p * (1 - p) + 1e-6)
            g0, g1 = g0 + importance * x * (y - p), g1 + importance * (y - p)
            a, b, d = a + curve * x * x, b + curve * x, d + curve
        determinant = a * d - b * b
        slope += min(max((d * g0 - b * g1) / determinant, -5.0), 5.0)
        offset += min(max((a * g1 - b * g0) / determinant, -5.0), 5.0)
    return slope, offset


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def pull(feature_pull: float, trusted: float) -> float:
    """Features count more where labels are trusted less, down to 0.4."""
    return feature_pull / max(trusted, 0.4)


def rank(nearest_share: float, size: float) -> int:
    """How many neighbours an item has whose class has this size: a share of it, at least one."""
    return max(round(nearest_share * size), 1)


def n_averaged(classes: Sequence[Sequence[int]], n_items: int) -> int:
    """A quarter of the items of a class of median size, at most 10 and at most a tenth of all, at least one."""
    shares = sorted(class_shares(classes).values())
    middle = len(shares) // 2
    median = shares[middle] if len(shares) % 2 else (shares[middle - 1] + shares[middle]) / 2
    return max(min(int(n_items * median / 4), 10, n_items // 10), 1)


def trust(classes: Sequence[Sequence[int]], label_trust: float) -> float:
    """n / label_trust but at most 1, n the number of labelled items per class."""
    n = len(classes) / len(class_shares(classes))
    return min(n / label_trust, 1.0) if label_trust > 0 else 1.0


def half(value: float) -> float:
    """The nearest number of 16 bits."""
    return float(struct.unpack("e", struct.pack("e", value))[0])


def scatter(x: Matrix) -> list[list[float]]:
    """Sum of the outer products of the rows."""
    F = len(x[0])
    return [[sum(row[i] * row[j] for row in x) for j in range(F)] for i in range(F)]


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


def smoothed(x: Matrix, landmarks: Matrix, n_neighbours: int) -> list[list[float]]:
    """For each item the mean of the landmarks nearest to it by cosine; all are of unit length, before and after."""
    landmarks = [unit(row) for row in landmarks]
    found = []
    for row in x:
        own = unit(row)
        near = sorted(landmarks, key=lambda other: dot(own, other), reverse=True)[:n_neighbours]
        found.append(unit([mean(values) for values in zip(*near, strict=True)]))
    return found


def largest(z: Sequence[float], k: int) -> set[int]:
    """The places of the k largest values."""
    return set(sorted(range(len(z)), key=lambda i: -z[i])[:k])


def pairs_of_rules(
    pi: Matrix,
    clean: Matrix,
    features: Matrix,
    lists: Sequence[set[int]],
    *,
    z: Matrix,
    clusters: Sequence[int],
    rules: Sequence[str],
    threshold: float,
    ranks: Sequence[int],
    n_neighbours: int,
    n_ranked: int,
    cosine_threshold: float,
) -> list[set[int]]:
    """The pairs of every item of a batch, itself included, by the union of the rules.

    clean: pi of the clean view; lists: the neighbours of an item among all items that are in the batch; z: not pi.
    """
    nearest = mutual_neighbours(clean, ranks)
    neighbours = mutual_neighbours(features, [min(n_neighbours, rank) for rank in ranks])
    found = []
    for i in range(len(pi)):
        own = {i}
        if "similar" in rules:
            own |= positives(pi, i, threshold)
        if "nearest" in rules:
            own |= nearest[i]
        if "neighbours" in rules:
            own |= neighbours[i] | lists[i]
        if "kmeans" in rules:
            own |= {j for j in range(len(pi)) if clusters[j] == clusters[i]}
        if "rank_statistics" in rules:
            own |= {j for j in range(len(pi)) if largest(z[j], n_ranked) == largest(z[i], n_ranked)}
        if "cosine" in rules:
            own |= {j for j in range(len(pi)) if dot(unit(z[i]), unit(z[j])) >= cosine_threshold}
        found.append(own)
    return found


def positive_weights(
    pairs: Sequence[set[int]],
    classes: Sequence[Sequence[int]],
    features: Matrix,
    *,
    include_self: bool,
    feature_pull: float,
    feature_temperature: float,
) -> list[dict[int, float]]:
    """The weights of the positives of every item of a batch, the labelled ones first; classes: those of each of them.

    The pairs of two labelled items are decided by their labels, others by the rules. Unlabelled items also have all
    items as positives, to the degree to which their features are similar.
    """
    found = []
    for i in range(len(pairs)):
        own = set(pairs[i])
        if i < len(classes):
            own = {j for j in own if j >= len(classes)}
            own |= {j for j in range(len(classes)) if set(classes[i]) & set(classes[j])}
        own = own | {i} if include_self else own - {i}
        weights = dict.fromkeys(own, 1.0)
        if i >= len(classes) and feature_pull > 0:
            scores = [cosine(features[i], other) / feature_temperature for other in features]
            for j in range(len(pairs)):
                weights[j] = weights.get(j, 0.0) + feature_pull * math.exp(log_softmax(scores, j))
        found.append(weights)
    return found


def total_loss(
    z: Sequence[Matrix],
    other: Sequence[Matrix],
    theta: Sequence[Matrix],
    table: Sequence[Sequence[int]],
    classes: Sequence[Sequence[int]],
    *,
    h: Callable[[Matrix], Matrix],
    positive: Sequence[Mapping[int, float]],
    trust: float,
    labelled_anchors: float,
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
    Eq. 5 and 6 see the first view of every item; labels count as much as they are trusted. For derivatives, what
    gradients must not flow through can be given: pi of Eq. 6 and pi of the second view in Eq. 7.
    """
    M, n_labelled = len(theta), len(classes)
    pi = [combinatorial_embedding(item, theta, sharpness) for item in z]
    contrasted = pi if pi_of_positives is None else pi_of_positives
    second = [combinatorial_embedding(item, theta, sharpness) for item in other] if pi_of_other is None else pi_of_other
    meta = [meta_loss_of_classes(z[i], theta, table, classes[i], temperature) for i in range(n_labelled)]
    similarity = [similarity_loss(z[i], contrasted, positive[i], similarity_temperature) for i in range(len(z))]
    anchored = trust * labelled_anchors * mean(similarity[:n_labelled]) + mean(similarity[n_labelled:])
    predictions = h(pi)
    consistency = [consistency_loss(predictions[i], second[i]) for i in range(len(z))]
    alpha, beta = M * similarity_weight * ramp, M * consistency_weight * ramp
    return {
        "meta": trust * mean(meta) / M,
        "similarity": alpha * anchored / M,
        "consistency": beta * mean(consistency) / M,
    }
