"""CombEmb: its loss is Eq. 8 of the loops, its gradients flow where they should, its fields are checked."""

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from combemb.data.labels import read_labels
from combemb.data.partly_labelled import ArrayItems, Batch, PartlyLabelled
from combemb.methods.combemb import CombEmb
from tests.reference import naive

SMALL: dict[str, Any] = {"bits": 12, "sub_vector": 3, "batch_size": 24, "epochs": 1, "device": "cpu"}
GAMMA = 0.8  # some anchors then have positives beside themselves and some have none
FIXED: dict[str, Any] = {"positive_threshold": GAMMA, "pair_rules": ("similar",)}


def problem(multi: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """200 items in 7 blobs: half of the first five are labelled; the other two are novel."""
    rng = np.random.default_rng(0)
    kinds = rng.integers(7, size=200)
    x = (3 * rng.normal(size=(7, 20))[kinds] + rng.normal(size=(200, 20))).astype(np.float32)
    is_labelled = (kinds < 5) & (rng.random(200) < 0.5)
    if not multi:
        return x, np.where(is_labelled, kinds, -1)
    members = np.eye(7)[kinds][:, :5]
    members[np.arange(200), rng.integers(5, size=200)] = 1  # a second class, now and then the same one
    return x, np.where(is_labelled[:, None], members, -1)


def fitted(multi: bool = False, **fields: Any) -> tuple[CombEmb, PartlyLabelled]:
    """A model after one epoch, and the data that it was trained on."""
    x, labels = problem(multi)
    method = CombEmb(**{**SMALL, **fields}).fit(x, labels, progress=False)
    data = PartlyLabelled(
        ArrayItems(x, method.feature_map_),
        read_labels(labels, len(x)),
        method.batch_size,
        method.labelled_share,
        method.seed,
        method.view_noise,
        method.view_dropout,
    )
    return method, data


def training(progress: float = 1.0, multi: bool = False, **fields: Any) -> tuple[CombEmb, Batch]:
    """A model amid training with a batch that it has not seen."""
    method, data = fitted(multi, **fields)
    method.module_.train()
    return method, replace(next(data.epoch(9)), progress=progress)


def classes_of(batch: Batch) -> list[list[int]]:
    labels = batch.labels[: batch.n_labelled]
    return [[int(c)] if labels.dim() == 1 else torch.nonzero(c)[:, 0].tolist() for c in labels]


def naive_z(method: CombEmb, x: Tensor, project: torch.nn.Linear | None = None) -> list[list[list[float]]]:
    layer = project or method.module_.project
    weight, bias = layer.weight.tolist(), layer.bias.tolist()
    return [naive.sub_vectors(row, weight, bias, method.n_sets) for row in x.tolist()]


def naive_pi(method: CombEmb, x: Tensor) -> list[list[float]]:
    theta = method.module_.prototypes.tolist()
    return [naive.combinatorial_embedding(z, theta, method.sharpness) for z in naive_z(method, x)]


def naive_positives(method: CombEmb, batch: Batch, threshold: float) -> list[set[int]]:
    return naive.batch_positives(
        naive_pi(method, batch.x),
        batch.x.tolist(),
        rules=method.pair_rules,
        threshold=threshold,
        n_neighbours=method.n_neighbours,
        include_self=method.include_self,
    )


def predictor(method: CombEmb) -> Callable[[naive.Matrix], naive.Matrix]:
    like = method.module_.prototypes
    return lambda pi: method.module_.predictor(torch.tensor(pi, dtype=like.dtype)).tolist()


def weights_of(method: CombEmb) -> dict[str, Any]:
    names = ("anchors", "temperature", "sharpness", "similarity_temperature", "similarity_weight", "consistency_weight")
    return {name: getattr(method, name) for name in names}


def naive_losses(method: CombEmb, batch: Batch, threshold: float, ramp: float = 1.0) -> dict[str, float]:
    return naive.total_loss(
        naive_z(method, batch.x),
        naive_z(method, batch.other),
        method.module_.prototypes.tolist(),
        method.module_.meta_classes.tolist(),
        classes_of(batch),
        h=predictor(method),
        positive=naive_positives(method, batch, threshold),
        ramp=ramp,
        **weights_of(method),
    )


def assert_terms(found: dict[str, Tensor], expected: dict[str, float], tolerance: float) -> None:
    assert {name: term.item() for name, term in found.items()} == pytest.approx(expected, rel=tolerance, abs=tolerance)


# Eq. 8


@pytest.mark.parametrize(
    "fields",
    [
        FIXED,
        {"positive_threshold": GAMMA},
        {"pair_rules": ("neighbours",)},
        {**FIXED, "include_self": False},
        {"positive_threshold": GAMMA, "include_self": False},
        {**FIXED, "anchors": "all"},
        {**FIXED, "positive_gradient": True},
        {**FIXED, "n_meta_classes": 2},
        {**FIXED, "temperature": 0.5, "sharpness": 3.0, "similarity_temperature": 1.0},
        {**FIXED, "similarity_weight": 1.0, "consistency_weight": 2.0},
    ],
    ids=lambda fields: ",".join(f"{name}={value}" for name, value in fields.items()),
)
def test_losses_are_eq_8_of_the_loops(fields):
    method, batch = training(**fields)
    assert (batch.n_labelled, len(batch.x)) == (12, 24)
    assert_terms(method.losses(batch), naive_losses(method, batch, GAMMA), 1e-4)


def test_losses_are_eq_8_of_the_loops_in_double_precision():
    method, batch = training(positive_threshold=GAMMA)
    method.module_.double()
    batch = replace(batch, x=batch.x.double(), other=batch.other.double())
    assert_terms(method.losses(batch), naive_losses(method, batch, GAMMA), 1e-10)


def test_losses_of_items_with_several_labels():
    method, batch = training(multi=True, **FIXED)
    assert {len(own) for own in classes_of(batch)} == {1, 2}
    assert_terms(method.losses(batch), naive_losses(method, batch, GAMMA), 1e-4)


def test_the_pair_rules_of_these_tests_find_pairs_and_not_only_pairs():
    """Else the comparisons above would say little; without the item itself some anchors have no positive."""
    method, batch = training(**FIXED, include_self=False)
    sizes = [len(own) for own in naive_positives(method, batch, GAMMA)]
    assert min(sizes) == 0
    assert 1 < max(sizes) < 23
    similar = naive_positives(method, batch, GAMMA)
    method.pair_rules = ("neighbours",)
    near = naive_positives(method, batch, GAMMA)
    assert any(a - b for a, b in zip(similar, near, strict=True))
    assert any(b - a for a, b in zip(similar, near, strict=True))


@pytest.mark.parametrize(("progress", "ramp_share"), [(0.0, 0.3), (0.1, 0.3), (0.29, 0.3), (0.3, 0.3), (0.0, 0.0)])
def test_pair_losses_come_up_over_the_ramp(progress, ramp_share):
    method, batch = training(progress, **FIXED, ramp_share=ramp_share)
    ramp = naive.ramp(progress, ramp_share)
    assert_terms(method.losses(batch), naive_losses(method, batch, GAMMA, ramp), 1e-4)
    full = method.losses(replace(batch, progress=1.0))
    now = method.losses(batch)
    assert now["similarity"].item() == pytest.approx(ramp * full["similarity"].item(), rel=1e-5)
    assert now["meta"].item() == pytest.approx(full["meta"].item(), rel=1e-6)


def test_the_calibrated_threshold_moves_its_share_of_the_way_every_fourth_step():
    method, batch = training()
    net = method.module_
    net.threshold.fill_(0.95)
    pi = [naive.unit(row) for row in naive_pi(method, batch.x[: batch.n_labelled])]
    cosines = [[naive.dot(a, b) for b in pi] for a in pi]
    classes = classes_of(batch)
    same = [[a == b for b in classes] for a in classes]
    on_grid = (gamma / 1000 - 1 for gamma in range(2001))
    found = next(gamma for gamma in on_grid if naive.precision_at(cosines, same, gamma) >= method.threshold_precision)
    losses = method.losses(batch)
    moved = 0.95 + method.threshold_rate * (found - 0.95)
    assert -1 < found < 0.9
    assert net.threshold.item() == pytest.approx(moved, abs=1e-5)
    assert_terms(losses, naive_losses(method, batch, moved), 1e-4)
    for step in (1, 2, 3):
        method.losses(dataclasses.replace(batch, step=step))
        assert net.threshold.item() == pytest.approx(moved, abs=1e-5)
    method.losses(dataclasses.replace(batch, step=4))
    assert net.threshold.item() != pytest.approx(moved, abs=1e-5)


def test_the_published_form_has_none_of_our_additions():
    method = CombEmb.as_published(24, seed=3)
    assert (method.bits, method.seed, method.pair_rules) == (24, 3, ("similar",))
    assert (method.similarity_temperature, method.ramp_share, method.positive_gradient) == (1.0, 0.0, True)
    assert CombEmb.as_published(24, positive_threshold=0.7).positive_threshold == 0.7


def test_a_fixed_threshold_stays():
    method, batch = training(**FIXED)
    method.losses(batch)
    assert method.module_.threshold.item() == pytest.approx(GAMMA)


# Gradients


def directional_derivatives(method: CombEmb, batch: Batch, freeze_pi: bool) -> dict[str, float]:
    """Of the terms of Eq. 8 along a random direction of projection and prototypes, by central differences.

    pi of the second view stands still, and with `freeze_pi` also the pi that Eq. 6 contrasts with.
    """
    fixed = {"pi_of_other": naive_pi(method, batch.other)}
    if freeze_pi:
        fixed["pi_of_positives"] = naive_pi(method, batch.x)
    positive = naive_positives(method, batch, GAMMA)
    step = 1e-6
    values = []
    for sign in (1, -1):
        move(method, sign * step)
        values.append(
            naive.total_loss(
                naive_z(method, batch.x),
                naive_z(method, batch.other),
                method.module_.prototypes.tolist(),
                method.module_.meta_classes.tolist(),
                classes_of(batch),
                h=predictor(method),
                positive=positive,
                **weights_of(method),
                **fixed,
            )
        )
        move(method, -sign * step)
    return {name: (values[0][name] - values[1][name]) / (2 * step) for name in values[0]}


def moving(method: CombEmb) -> list[Tensor]:
    return [method.module_.project.weight, method.module_.project.bias, method.module_.prototypes]


def direction(parameter: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(parameter.numel())
    return torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)


@torch.no_grad()
def move(method: CombEmb, step: float) -> None:
    for parameter in moving(method):
        parameter.add_(step * direction(parameter))


@pytest.mark.parametrize("positive_gradient", [False, True])
def test_gradients_are_the_derivatives_of_the_loops(positive_gradient):
    method, batch = training(positive_threshold=GAMMA, positive_gradient=positive_gradient)
    method.module_.double()
    batch = replace(batch, x=batch.x.double(), other=batch.other.double())
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
        (grad,) = torch.autograd.grad(term, [method.module_.prototypes], allow_unused=True)
        assert (grad is not None and bool(grad.any())) == positive_gradient


def test_eq_7_sends_no_gradient_through_the_second_view():
    method, batch = training(**FIXED)
    first, other = batch.x.clone().requires_grad_(), batch.other.clone().requires_grad_()
    sum(method.losses(replace(batch, x=first, other=other)).values()).backward()
    assert first.grad.any()
    assert other.grad is None


# Fields


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bits": 13}, r"bits=13 is not a multiple of log2\(n_meta_classes\)=2; use 12 or 14"),
        ({"bits": 13, "n_meta_classes": 8}, r"bits=13 .* log2\(n_meta_classes\)=3; use 12 or 15"),
        ({"bits": 0}, "bits=0 "),
        ({"n_meta_classes": 3}, "n_meta_classes=3 is not a size of a meta-class set; use 2, 4, 8 or 16"),
        ({"n_meta_classes": 1}, "n_meta_classes=1 .* use 2, 4, 8 or 16"),
        ({"n_meta_classes": 8}, "found 5 seen classes, n_meta_classes=8 needs at least 8; use fewer meta-classes"),
        ({"pair_rules": ("alike",)}, "'alike'.*choose one or more of similar, neighbours"),
        ({"pair_rules": ()}, "choose one or more of similar, neighbours"),
        ({"pair_rules": ("similar", "alike")}, "choose one or more of similar, neighbours"),
        ({"anchors": "labelled"}, "anchors='labelled'; choose one of unlabelled, all"),
        ({"temperature": 0.0}, "temperature=0.0 must be above 0"),
        ({"temperature": float("nan")}, "temperature=nan must be a finite number"),
        ({"similarity_temperature": 0.0}, "similarity_temperature=0.0 must be above 0"),
        ({"sharpness": 0}, "sharpness=0 must be above 0"),
        ({"sub_vector": 0}, "sub_vector=0 must be above 0"),
        ({"subspace": 0}, "subspace=0 must be above 0"),
        ({"n_neighbours": 0}, "n_neighbours=0 must be above 0"),
        ({"similarity_weight": -1.0}, "similarity_weight=-1.0 must not be negative"),
        ({"consistency_weight": -1.0}, "consistency_weight=-1.0 must not be negative"),
        ({"threshold_precision": 1.1}, "threshold_precision=1.1 must lie between 0 and 1"),
        ({"ramp_share": -0.1}, "ramp_share=-0.1 must lie between 0 and 1"),
        ({"batch_size": 0}, "batch_size=0 must be above 0"),
        ({"epochs": 0}, "epochs=0 must be above 0"),
        ({"learning_rate": 0.0}, "learning_rate=0.0 must be above 0"),
        ({"clip_norm": 0.0}, "clip_norm=0.0 must be above 0"),
        ({"max_features": 0}, "max_features=0 must be above 0"),
        ({"threads": 0}, "threads=0 must be above 0"),
        ({"labelled_share": 1.0}, "labelled_share=1.0 must lie between 0 and 1"),
        ({"view_dropout": 1.0}, "view_dropout=1.0 must be at least 0 and below 1"),
        ({"view_noise": -0.1}, "view_noise=-0.1 must not be negative"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1 must not be negative"),
        ({"warmup_share": 1.0}, "warmup_share=1.0 must be at least 0 and below 1"),
        ({"device": "gpu"}, "device='gpu'; choose one of auto, cuda, mps, cpu"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_fields_that_make_no_sense_are_refused_before_the_fit(fields, message):
    method = CombEmb(**{**SMALL, **fields})
    with pytest.raises(ValueError, match=message):
        method.fit(*problem())
    assert not hasattr(method, "classes_")


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ([], "label"),
        ([2], "only one class has labels"),
        ([0, 1, 2], "found 3 seen classes, n_meta_classes=4 needs at least 4"),
    ],
)
def test_too_few_seen_classes_are_refused(kept, message):
    x, labels = problem()
    with pytest.raises(ValueError, match=message):
        CombEmb(**SMALL).fit(x, np.where(np.isin(labels, kept), labels, -1))


def test_labels_without_gaps_are_refused():
    x, _ = problem()
    with pytest.raises(ValueError, match="add unlabelled items"):
        CombEmb(**SMALL).fit(x, np.arange(200) % 5)


# After a fit


@pytest.mark.parametrize(("bits", "K", "M"), [(12, 4, 6), (12, 2, 12), (12, 8, 4)])
def test_embeddings_and_codes(bits, K, M):
    x, labels = problem()
    labels = np.where(labels >= 0, np.arange(200) % 9, -1)  # enough classes for K = 8
    method = CombEmb(**{**SMALL, "bits": bits, "n_meta_classes": K}).fit(x, labels, progress=False)
    z, codes = method.embed(x), method.encode(x)
    assert z.shape == (200, 3 * M)
    torch.testing.assert_close(z.norm(dim=1), torch.ones(200))
    torch.testing.assert_close(z.unflatten(1, (M, 3)).norm(dim=2), torch.full((200, M), M**-0.5))
    assert method.codebook.bits == bits
    assert codes.dtype == torch.uint8
    assert torch.equal(codes, method.codebook.encode(z))
    torch.testing.assert_close(method.codebook.words.norm(dim=2), torch.ones(M, K))
    scores = torch.einsum("nmd,mkd->nmk", z.unflatten(1, (M, 3)), method.codebook.words)
    assert torch.equal(codes.long(), scores.argmax(dim=2))


def test_the_embedding_is_z_of_the_loops():
    method, data = fitted()
    x, _ = problem()
    loops = [naive.flat(z) for z in naive_z(method, data.items.take(torch.arange(200)))]
    torch.testing.assert_close(method.embed(x), torch.tensor(loops) / 6**0.5, rtol=0, atol=1e-5)


def test_a_fit_with_several_labels_per_item():
    x, labels = problem(multi=True)
    method = CombEmb(**{**SMALL, "epochs": 3}).fit(x, labels, progress=False)
    assert method.classes_.tolist() == [0, 1, 2, 3, 4]
    assert method.meta_classes_.table.shape == (6, 5)
    assert np.isfinite([record["loss"] for record in method.log_]).all()
    assert method.embed(x).isfinite().all()
    assert len(method.encode(x).unique(dim=0)) > 1


def test_a_label_column_without_items_does_no_harm():
    x, labels = problem(multi=True)
    wide = np.insert(labels, 2, np.where(labels[:, 0] == -1, -1, 0), axis=1)
    method = CombEmb(**SMALL).fit(x, wide, progress=False)
    narrow = CombEmb(**SMALL).fit(x, labels, progress=False)
    assert method.meta_classes_.table.shape == (6, 5)
    assert torch.equal(method.embed(x), narrow.embed(x))


def test_the_log_diagnoses_the_last_batch_of_an_epoch():
    method, data = fitted(**FIXED)
    record = method.log_[-1]
    for batch in data.epoch(0):
        last = batch
    positive = naive_positives(method, last, GAMMA)
    n, classes = last.n_labelled, classes_of(last)
    assert record["positives_per_anchor"] == pytest.approx(naive.mean([len(own) for own in positive[n:]]))
    taken = [classes[i] == classes[j] for i in range(n) for j in positive[i] if j < n and j != i]
    true = [(i, j) for i in range(n) for j in range(n) if i != j and classes[i] == classes[j]]
    assert record["pair_precision"] == pytest.approx(sum(taken) / len(taken))
    assert record["pair_recall"] == pytest.approx(sum(taken) / len(true))
    assert record["threshold"] == pytest.approx(GAMMA)
    assert 0 < record["pair_recall"] < 1


def test_the_log_counts_the_codes():
    method, _ = fitted()
    record, codes = method.log_[-1], method.encode(problem()[0])
    assert record["n_codes"] == len(codes.unique(dim=0)) > 1
    assert record["n_coded"] == 200
    assert [len(shares) for shares in record["code_use"]] == [4] * 6
    for m, shares in enumerate(record["code_use"]):
        assert sum(shares) == pytest.approx(1, abs=4e-4)
        assert shares == pytest.approx([float((codes[:, m] == k).float().mean()) for k in range(4)], abs=1e-4)


def test_the_calibrated_threshold_moves_over_the_epochs():
    method, _ = fitted(epochs=4)
    thresholds = [record["threshold"] for record in method.log_]
    assert len(set(thresholds)) == 4
    assert all(-1 <= threshold < 1 for threshold in thresholds)
    assert method.module_.threshold.item() == thresholds[-1]


def test_the_meta_classes_of_the_loss_are_the_drawn_ones():
    method, _ = fitted()
    assert torch.equal(method.module_.meta_classes, method.meta_classes_.table)
    assert method.meta_classes_.table.shape == (6, 5)
