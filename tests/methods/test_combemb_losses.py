"""CombEmb's loss is Eq. 8 of the loops, with every pair rule, and its gradients flow where they should."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from combemb.discovery.class_number import Pile, count_novel
from combemb.discovery.kmeans import kmeans
from combemb.learning.batches import Batch, MappedItems
from combemb.learning.objectives.positives import PAIR_RULES
from combemb.methods.combemb import CombEmb
from tests.methods.small_model import (
    ABLATED,
    ALL_RULES,
    FIXED,
    GAMMA,
    SIMILAR,
    classes_of,
    doubled,
    fitted,
    flat,
    labelled_classes,
    mapped_items,
    naive_features,
    naive_lists,
    naive_losses,
    naive_pairs,
    naive_pi,
    naive_positives,
    naive_shares,
    naive_z,
    training,
)
from tests.reference import naive

NEAREST = {"pair_rules": ("nearest",)}
NEIGHBOURS = {"pair_rules": ("neighbours",)}
RULES = {rule: {"pair_rules": (rule,), "positive_threshold": GAMMA, **ABLATED} for rule in PAIR_RULES}


def assert_terms(found: dict[str, Tensor], expected: dict[str, float], tolerance: float) -> None:
    assert {name: term.item() for name, term in found.items()} == pytest.approx(expected, rel=tolerance, abs=tolerance)


# Eq. 8


@pytest.mark.parametrize(
    "fields",
    [
        {},
        FIXED,
        NEAREST,
        {**NEAREST, "nearest_share": 1.0},
        {**NEAREST, "nearest_share": 0.01},
        NEIGHBOURS,
        {**NEIGHBOURS, "n_neighbours": 8},
        {**NEIGHBOURS, "neighbour_features": 4, "smoothing": 3},
        ALL_RULES,
        RULES["kmeans"],
        {**RULES["kmeans"], "n_clusters": 3, "include_self": False},
        RULES["rank_statistics"],
        {**RULES["rank_statistics"], "n_ranked": 2},
        RULES["cosine"],
        {**RULES["cosine"], "cosine_threshold": 0.7},
        {"include_self": False},
        {**FIXED, "include_self": False},
        {**NEIGHBOURS, "n_listed": 2},
        {"labelled_anchors": 0.0},
        {"labelled_anchors": 2.0, "label_trust": 0.0},
        {"label_trust": 100.0},
        {"feature_pull": 0.0},
        {"feature_pull": 0.0, "include_self": False, "labelled_anchors": 1.0},
        {"feature_pull": 20.0, "feature_temperature": 0.5},
        {"balanced_labels": False, "n_together": 1},
        {"positive_gradient": True},
        {**FIXED, "positive_gradient": True},
        {**FIXED, "n_meta_classes": 2},
        {**FIXED, "temperature": 0.5, "sharpness": 3.0, "similarity_temperature": 1.0},
        {"similarity_weight": 1.0, "consistency_weight": 2.0},
    ],
    ids=lambda fields: ",".join(f"{name}={value}" for name, value in fields.items()) or "default",
)
def test_losses_are_eq_8_of_the_loops(fields):
    method, batch = training(**fields)
    assert (batch.n_labelled, len(batch.x)) == (12, 24)
    assert_terms(method.losses(batch), naive_losses(method, batch), 1e-4)


@pytest.mark.parametrize("fields", [{}, FIXED, ALL_RULES], ids=["default", "similar", "all"])
def test_losses_are_eq_8_of_the_loops_in_double_precision(fields):
    """Without the pull towards the features, which are kept in half precision."""
    method, batch = training(**fields, feature_pull=0.0)
    batch = doubled(method, batch)
    assert_terms(method.losses(batch), naive_losses(method, batch), 1e-10)


def test_without_a_clean_view_both_views_together_tell_what_is_nearest():
    method, batch = training(**NEAREST, nearest_share=1.0)
    without = replace(batch, clean=None)
    assert naive_pairs(method, without) != naive_pairs(method, batch)
    assert_terms(method.losses(without), naive_losses(method, without), 1e-4)


@pytest.mark.parametrize("fields", [{}, FIXED], ids=["default", "similar"])
def test_losses_of_items_with_several_labels(fields):
    method, batch = training(multi=True, **fields)
    assert {len(own) for own in classes_of(batch.labels[: batch.n_labelled])} == {1, 2}
    assert_terms(method.losses(batch), naive_losses(method, batch), 1e-4)


def test_the_pair_rules_of_these_tests_find_pairs_and_not_only_pairs():
    """Else the comparisons above would say little; for each rule, some anchors have no positive but themselves."""
    method, batch = training(**ALL_RULES)
    found = {}
    for rule in PAIR_RULES:
        method.pair_rules = (rule,)
        found[rule] = naive_pairs(method, batch)
        sizes = [len(own) for own in found[rule]]
        assert min(sizes) == 1
        assert 2 < max(sizes) < 24
    for one, other in [(a, b) for a in PAIR_RULES for b in PAIR_RULES if a != b]:
        assert any(a - b for a, b in zip(found[one], found[other], strict=True)), f"{other} finds all of {one}"


@pytest.mark.parametrize(("progress", "ramp_share"), [(0.0, 0.3), (0.1, 0.3), (0.29, 0.3), (0.3, 0.3), (0.0, 0.0)])
def test_pair_losses_come_up_over_the_ramp(progress, ramp_share):
    method, batch = training(progress, **FIXED, ramp_share=ramp_share)
    ramp = naive.ramp(progress, ramp_share)
    assert_terms(method.losses(batch), naive_losses(method, batch, ramp=ramp), 1e-4)
    full = method.losses(replace(batch, fraction_done=1.0))
    now = method.losses(batch)
    assert now["similarity"].item() == pytest.approx(ramp * full["similarity"].item(), rel=1e-5)
    assert now["meta"].item() == pytest.approx(full["meta"].item(), rel=1e-6)


# What the pair rules look at


@pytest.mark.parametrize("rule", PAIR_RULES)
def test_each_rule_has_a_witness_of_its_own(rule):
    """similar: the view of the loss; nearest: the clean view; neighbours: the items as they were before training.

    kmeans: the clusters of the items; rank_statistics and cosine: the view of the loss.
    """
    method, batch = training(**RULES[rule], feature_pull=0.0)
    if rule in {"nearest", "neighbours"}:
        method.scratch.near.shares.fill_(0.2)  # else ranks would follow the items too
    expected = method.losses(batch)["similarity"].item()
    shuffled = torch.randperm(len(batch.x), generator=torch.Generator().manual_seed(0))
    with_clean = method.losses(replace(batch, clean=batch.clean[shuffled]))["similarity"].item()
    with_rows = method.losses(replace(batch, rows=batch.rows[shuffled]))["similarity"].item()
    assert (with_clean != pytest.approx(expected, rel=1e-4)) == (rule == "nearest")
    assert (with_rows != pytest.approx(expected, rel=1e-4)) == (rule in {"neighbours", "kmeans"})


@pytest.mark.parametrize("rule", ["rank_statistics", "cosine"])
def test_ranks_and_cosines_are_those_of_z_and_not_of_pi(rule):
    """Other prototypes move pi but not z, so that the pairs stay; those of Eq. 5 do not."""
    found = {}
    for name in (rule, "similar"):
        method, batch = training(**RULES[name])
        before = method.diagnostics(batch, fitted(**RULES[name])[1])
        with torch.no_grad():
            shape, drawn = method.network_.prototypes.shape, torch.Generator().manual_seed(0)
            method.network_.prototypes.copy_(torch.randn(shape, generator=drawn))
        after = method.diagnostics(batch, fitted(**RULES[name])[1])
        found[name] = before["positives_per_anchor"] == after["positives_per_anchor"]
    assert found == {rule: True, "similar": False}


def test_the_clusters_are_those_of_z_of_the_clean_items():
    method, data = fitted(**RULES["kmeans"])
    z = [flat(z) for z in naive_z(method, mapped_items(method))]
    expected = kmeans(np.array(z, np.float32), 30, seed=0, progress=False).assignment
    clusters = method.kept["clusters"].numpy()
    together, same = clusters[:, None] == clusters, expected[:, None] == expected
    assert (together == same).mean() > 0.995  # a loop rounds in another way
    assert clusters.max() == 29
    method.epochs_per_clustering = 4
    with torch.no_grad():
        method.network_.project.weight.copy_(torch.randn(method.network_.project.weight.shape))
    for epoch in (1, 2, 3, 5, 7):
        method.on_epoch(data, epoch)
        assert np.array_equal(method.kept["clusters"], clusters)
    method.on_epoch(data, 8)
    assert not np.array_equal(method.kept["clusters"], clusters)


def test_the_number_of_clusters_is_estimated_or_at_most_that_of_the_items_and_said():
    method, data = fitted(pair_rules=("kmeans",))
    pile = Pile(mapped_items(method).numpy(), data.labels.values, seed=0)
    n = 5 + count_novel(pile).n
    assert n in {7, 8}
    assert method.facts()["n_clusters"] == n
    assert f"rule kmeans: {n} clusters (estimated)" in method.summary()
    method, _ = fitted(pair_rules=("kmeans",), n_clusters=1_000)
    assert method.facts()["n_clusters"] == 200
    assert "rule kmeans: 200 clusters (given)" in method.summary()
    other, _ = fitted()
    assert "n_clusters" not in other.facts()
    assert not [line for line in other.summary() if "clusters" in line]
    with pytest.raises(ValueError, match="cannot be estimated if items have several labels; set n_clusters"):
        fitted(multi=True, pair_rules=("kmeans",))
    fitted(multi=True, pair_rules=("kmeans",), n_clusters=7)


@pytest.mark.parametrize("n_views", [1, 3])
def test_the_clean_view_of_a_batch_is_the_one_that_nothing_was_done_to(n_views):
    method, data = fitted()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, n_views, 20)).astype(np.float32)
    data = replace(data, items=MappedItems(x, method.feature_map_))
    batch = next(data.epoch(0))
    torch.testing.assert_close(batch.clean, method.feature_map_(torch.from_numpy(x[batch.rows.numpy(), 0])))
    assert (batch.clean != batch.x).any(dim=1).sum() >= (24 if n_views == 1 else 8)


@pytest.mark.parametrize("multi", [False, True])
@pytest.mark.parametrize("fields", [{}, {"neighbour_features": 4, "smoothing": 3}, {"smoothing": 1}], ids=str)
def test_neighbours_are_sought_in_the_features_of_the_loops(multi, fields):
    method, _ = fitted(multi, **fields)
    found, loops = method.scratch.near.features, torch.tensor(naive_features(method, multi))
    assert found.dtype == torch.float16
    assert found.shape == (200, fields.get("neighbour_features", 20))
    found = found.float()  # directions have no sign, but cosines do
    torch.testing.assert_close(found @ found.T, loops @ loops.T, rtol=0, atol=2e-3)


def test_the_items_of_a_small_set_are_not_averaged_away():
    method, data = fitted()
    values = data.labels.values
    few = np.concatenate([np.flatnonzero(values == c)[:2] for c in range(5)])  # ten, as many as are averaged
    items = MappedItems(data.items.x[few], data.items.transform)
    method.prepare(replace(data, items=items, labels=data.labels.take(few)))
    assert len(method.scratch.near.features.unique(dim=0)) == 10


def test_neighbours_are_sought_by_cosine_however_roughly_the_features_are_kept():
    """In float16 a row is not quite of unit length, and items near each other differ by less than that."""
    method, batch = training(**NEIGHBOURS)
    expected = method.losses(batch)["similarity"].item()
    method.scratch.near.features *= 2.0 ** torch.randint(-3, 3, (200, 1), generator=torch.Generator().manual_seed(0))
    assert method.losses(batch)["similarity"].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("multi", [False, True])
def test_how_near_the_nearest_must_be_follows_from_the_size_of_each_class(multi):
    method, _ = fitted(multi)
    found = method.scratch.near.shares
    torch.testing.assert_close(found, torch.tensor(naive_shares(method, multi)))
    assert len(found.unique()) >= 5
    assert found.mean().item() == pytest.approx(0.2, abs=0.05)  # 1/5 for five classes of one size


@pytest.mark.parametrize("multi", [False, True])
@pytest.mark.parametrize("fields", [{}, {"n_listed": 3}, {"nearest_share": 0.05}], ids=str)
def test_the_lists_of_neighbours_are_those_of_the_loops(multi, fields):
    method, data = fitted(multi, **fields)
    found = [set(row[row >= 0].tolist()) for row in method.scratch.near.lists]
    assert found == naive_lists(method, multi)
    assert torch.equal(data.neighbours, method.scratch.near.lists)
    assert max(map(len, found)) <= fields.get("n_listed", 10)


# How far labels are trusted


@pytest.mark.parametrize("multi", [False, True])
@pytest.mark.parametrize("label_trust", [0.0, 5.0, 50.0])
def test_eq_4_counts_by_the_labels_per_class(multi, label_trust):
    method, _ = fitted(multi, label_trust=label_trust)
    n = len(labelled_classes(multi)) / 5
    assert method.scratch.trust == pytest.approx(min(n / label_trust, 1) if label_trust else 1)


def test_pairs_of_labelled_items_are_decided_by_their_labels():
    """A rule that pairs everything leaves the positives of labelled anchors wrong only among unlabelled items."""
    method, batch = training(pair_rules=("similar",), positive_threshold=-1.0, feature_pull=0.0, labelled_anchors=1.0)
    n, classes = batch.n_labelled, batch.labels[: batch.n_labelled]
    expected = torch.ones(24, 24)
    expected[:n, :n] = (classes[:, None] == classes).float()
    positives = [dict.fromkeys(torch.nonzero(row)[:, 0].tolist(), 1.0) for row in expected]
    assert_terms(method.losses(batch), naive_losses(method, batch, positives), 1e-4)


def test_the_pull_towards_features_counts_as_so_many_positives():
    """At a high temperature it is even: an anchor of p positives has pull / (p + pull) of them all over the batch."""
    method, batch = training(**FIXED, feature_pull=3.0, feature_temperature=1e6, label_trust=0.0)
    rules_only = with_even_pull(naive_pairs(method, batch), batch, 3.0)
    assert_terms(method.losses(batch), naive_losses(method, batch, rules_only), 1e-4)


def with_even_pull(pairs: list[set[int]], batch: Batch, pull: float) -> list[dict[int, float]]:
    """Weights of the pairs by rules and, for unlabelled anchors, of an even pull; labelled ones by their labels."""
    n = batch.n_labelled
    found = []
    for i, own in enumerate(pairs):
        if i < n:
            same = {j for j in range(n) if batch.labels[i] == batch.labels[j]}
            found.append(dict.fromkeys(same | {j for j in own if j >= n}, 1.0))
        else:
            found.append({j: (j in own) + pull / 24 for j in range(24)})
    return found


# The calibration of gamma


def test_the_calibrated_threshold_moves_its_share_of_the_way_every_fourth_step():
    method, batch = training(**SIMILAR)
    net = method.network_
    net.threshold.fill_(0.95)
    pi = [naive.unit(row) for row in naive_pi(method, batch.x[: batch.n_labelled])]
    cosines = [[naive.dot(a, b) for b in pi] for a in pi]
    classes = classes_of(batch.labels[: batch.n_labelled])
    same = [[a == b for b in classes] for a in classes]
    on_grid = (gamma / 1000 - 1 for gamma in range(2001))
    found = next(gamma for gamma in on_grid if naive.precision_at(cosines, same, gamma) >= method.threshold_precision)
    losses = method.losses(batch)
    moved = 0.95 + method.threshold_rate * (found - 0.95)
    assert -1 < found < 0.9
    assert net.threshold.item() == pytest.approx(moved, abs=1e-5)
    assert_terms(losses, naive_losses(method, batch, naive_positives(method, batch, moved)), 1e-4)
    for step in (1, 2, 3):
        method.losses(replace(batch, step=step))
        assert net.threshold.item() == pytest.approx(moved, abs=1e-5)
    method.losses(replace(batch, step=4))
    assert net.threshold.item() != pytest.approx(moved, abs=1e-5)


@pytest.mark.parametrize("fields", [FIXED, NEAREST, NEIGHBOURS], ids=str)
def test_a_threshold_that_is_given_or_not_used_stays(fields):
    method, batch = training(**fields)
    before = method.network_.threshold.item()
    method.losses(batch)
    assert method.network_.threshold.item() == before == pytest.approx(fields.get("positive_threshold", 1.0))


# Gradients


def directional_derivatives(method: CombEmb, batch: Batch, freeze_pi: bool) -> dict[str, float]:
    """Of the terms of Eq. 8 along a random direction of projection and prototypes, by central differences.

    pi of the second view stands still, and with `freeze_pi` also the pi that Eq. 6 contrasts with.
    """
    fixed = {"pi_of_other": naive_pi(method, batch.other)}
    if freeze_pi:
        fixed["pi_of_positives"] = naive_pi(method, batch.x)
    positive = naive_positives(method, batch)
    step = 1e-6
    values = []
    for sign in (1, -1):
        move(method, sign * step)
        values.append(naive_losses(method, batch, positive, **fixed))
        move(method, -sign * step)
    return {name: (values[0][name] - values[1][name]) / (2 * step) for name in values[0]}


def moving(method: CombEmb) -> list[Tensor]:
    return [method.network_.project.weight, method.network_.project.bias, method.network_.prototypes]


def direction(parameter: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(parameter.numel())
    return torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)


@torch.no_grad()
def move(method: CombEmb, step: float) -> None:
    for parameter in moving(method):
        parameter.add_(step * direction(parameter))


@pytest.mark.parametrize("positive_gradient", [False, True])
@pytest.mark.parametrize("fields", [{}, ALL_RULES], ids=["default", "all rules"])
def test_gradients_are_the_derivatives_of_the_loops(fields, positive_gradient):
    method, batch = training(**fields, positive_gradient=positive_gradient)
    batch = doubled(method, batch)
    found = {}
    for name, term in method.losses(batch).items():
        grads = torch.autograd.grad(term, moving(method), retain_graph=True, allow_unused=True)
        found[name] = sum(
            (grad * direction(parameter)).sum().item()
            for grad, parameter in zip(grads, moving(method), strict=True)
            if grad is not None
        )
    expected = directional_derivatives(method, batch, freeze_pi=not positive_gradient)
    other = directional_derivatives(method, batch, freeze_pi=positive_gradient)
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-7)
    assert abs(expected["similarity"] - other["similarity"]) > 1e-2  # the field makes a difference


def test_eq_6_moves_the_prototypes_only_when_the_positives_may_move():
    for positive_gradient in (False, True):
        method, batch = training(**FIXED, positive_gradient=positive_gradient)
        term = method.losses(batch)["similarity"]
        (grad,) = torch.autograd.grad(term, [method.network_.prototypes], allow_unused=True)
        assert (grad is not None and bool(grad.any())) == positive_gradient


def test_only_the_first_view_has_a_gradient():
    method, batch = training(**ALL_RULES)
    views = {name: getattr(batch, name).clone().requires_grad_() for name in ("x", "other", "clean")}
    sum(method.losses(replace(batch, **views)).values()).backward()
    assert views["x"].grad.any()
    assert views["other"].grad is None
    assert views["clean"].grad is None
