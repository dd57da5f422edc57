"""CombEmb: settings are checked before the fit, and its codes, diagnosis and report are right."""

import numpy as np
import pytest
import torch

from combemb.learning.objectives.positives import PAIR_RULES
from combemb.methods.combemb import CombEmb
from tests.methods.small_model import (
    ALL_RULES,
    FIXED,
    SIMILAR,
    SMALL,
    classes_of,
    fitted,
    naive_pairs,
    naive_z,
    problem,
)
from tests.reference import naive

# Fields


def test_the_published_form_has_none_of_our_additions():
    method = CombEmb.as_published(24, seed=3)
    assert (method.bits, method.seed, method.pair_rules) == (24, 3, ("similar",))
    assert (method.similarity_temperature, method.ramp_share, method.positive_gradient) == (1.0, 0.0, True)
    assert (method.labelled_anchors, method.feature_pull, method.label_trust) == (0, 0, 0)
    assert (method.n_meta_classes, method.balanced_labels) == (4, False)
    assert CombEmb.as_published(24, positive_threshold=0.7).positive_threshold == 0.7


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bits": 13, "n_meta_classes": 4}, r"bits=13 is not a multiple of log2\(n_meta_classes\)=2; use 12 or 14"),
        ({"bits": 13, "n_meta_classes": 8}, r"bits=13 .* log2\(n_meta_classes\)=3; use 12 or 15"),
        ({"bits": 0}, "bits=0 "),
        ({"n_meta_classes": 3}, "n_meta_classes=3 must be one of 2, 4, 8, 16"),
        ({"n_meta_classes": 1}, "n_meta_classes=1 must be one of 2, 4, 8, 16"),
        ({"n_meta_classes": 8}, "found 5 seen classes, n_meta_classes=8 needs at least 8; use fewer meta-classes"),
        ({"pair_rules": ("alike",)}, "'alike'.* must be a tuple of one or more of similar, nearest, neighbours"),
        ({"pair_rules": "nearest"}, "pair_rules='nearest' must be a tuple of one or more of similar"),
        ({"pair_rules": ()}, "must be a tuple of one or more of similar, nearest, neighbours"),
        ({"pair_rules": ("similar", "alike")}, "must be a tuple of one or more of similar, nearest, neighbours"),
        ({"labelled_anchors": -0.1}, "labelled_anchors=-0.1 must be at least 0"),
        ({"feature_pull": -0.1}, "feature_pull=-0.1 must be at least 0"),
        ({"feature_temperature": 0.0}, "feature_temperature=0.0 must be above 0"),
        ({"label_trust": -1.0}, "label_trust=-1.0 must be at least 0"),
        ({"n_listed": 0}, "n_listed=0 must be above 0"),
        ({"n_together": 0}, "n_together=0 must be above 0, or None"),
        ({"whitening_ridge": 0.0}, "whitening_ridge=0.0 must be above 0, or None"),
        ({"temperature": 0.0}, "temperature=0.0 must be above 0"),
        ({"temperature": float("nan")}, "temperature=nan must be a finite number"),
        ({"similarity_temperature": 0.0}, "similarity_temperature=0.0 must be above 0, or None"),
        ({"positive_threshold": 1.5}, "positive_threshold=1.5 must be at least -1 and at most 1, or None"),
        ({"sharpness": 0}, "sharpness=0 must be above 0"),
        ({"sub_vector": 0}, "sub_vector=0 must be above 0"),
        ({"subspace": 0}, "subspace=0 must be above 0"),
        ({"nearest_share": 0.0}, "nearest_share=0.0 must be above 0"),
        ({"n_neighbours": 0}, "n_neighbours=0 must be above 0"),
        ({"neighbour_features": 0}, "neighbour_features=0 must be above 0"),
        ({"smoothing": 0}, "smoothing=0 must be above 0, or None"),
        ({"similarity_weight": -1.0}, "similarity_weight=-1.0 must be at least 0"),
        ({"consistency_weight": -1.0}, "consistency_weight=-1.0 must be at least 0"),
        ({"threshold_precision": 1.1}, "threshold_precision=1.1 must be at least 0 and at most 1"),
        ({"threshold_rate": 1.1}, "threshold_rate=1.1 must be at least 0 and at most 1"),
        ({"ramp_share": -0.1}, "ramp_share=-0.1 must be at least 0 and at most 1"),
        ({"batch_size": 0}, "batch_size=0 must be above 0"),
        ({"epochs": 0}, "epochs=0 must be above 0"),
        ({"learning_rate": 0.0}, "learning_rate=0.0 must be above 0"),
        ({"clip_norm": 0.0}, "clip_norm=0.0 must be above 0"),
        ({"max_features": 0}, "max_features=0 must be above 0"),
        ({"threads": 0}, "threads=0 must be above 0"),
        ({"labelled_share": 1.0}, "labelled_share=1.0 must be above 0 and below 1"),
        ({"view_dropout": 1.0}, "view_dropout=1.0 must be at least 0 and below 1"),
        ({"view_noise": -0.1}, "view_noise=-0.1 must be at least 0"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1 must be at least 0"),
        ({"warmup_share": 1.0}, "warmup_share=1.0 must be at least 0 and below 1"),
        ({"device": "gpu"}, "device='gpu' must be one of auto, cuda, mps, cpu"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_fields_that_make_no_sense_are_refused_before_the_fit(fields, message):
    method = CombEmb(**{**SMALL, **fields})
    with pytest.raises(ValueError, match=message):
        method.fit(*problem())
    assert not hasattr(method, "classes_")


@pytest.mark.parametrize(
    ("kept", "fields", "message"),
    [
        ([], {}, "label"),
        ([0, 1, 2], {"n_meta_classes": 4}, "found 3 seen classes, n_meta_classes=4 needs at least 4"),
    ],
)
def test_too_few_seen_classes_are_refused(kept, fields, message):
    x, labels = problem()
    with pytest.raises(ValueError, match=message):
        CombEmb(**SMALL, **fields).fit(x, np.where(np.isin(labels, kept), labels, -1))


@pytest.mark.parametrize(
    ("n_seen", "bits", "K"), [(2, 12, 2), (3, 12, 2), (4, 12, 4), (5, 13, 2), (15, 12, 4), (16, 12, 8), (32, 12, 16)]
)
def test_meta_classes_are_as_many_as_suit_the_seen_classes_and_the_bits(n_seen, bits, K):
    """The most for so many classes whose log2 divides the bits."""
    x, labels = problem()
    labels = np.where(np.arange(200) % 2 == 0, np.arange(200) // 2 % n_seen, -1)
    method = CombEmb(**{**SMALL, "bits": bits}).fit(x, labels, progress=False)
    assert method.codebook.words.shape[1] == K
    assert method.codebook.bits == bits
    assert len(set(method.meta_classes_.table[0].tolist())) == K
    assert method.embed(x).isfinite().all()


@pytest.mark.filterwarnings("ignore::combemb.data.first_look.OddLabels")
def test_labels_of_all_items_or_of_one_class_are_learned_from():
    x, labels = problem()
    table = np.where(labels[:, None] == 2, [0, 1, 0], -1)  # the other columns have no item
    for given in (np.arange(200) % 5, table, np.where(labels == 2, 2, -1)):
        method = CombEmb(**SMALL).fit(x, given)
        assert method.embed(x).isfinite().all()
        assert len(method.summary()) >= 4
    assert "one seen class" in method.summary()[-1]


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


def scratch_of(monkeypatch, x, labels, **fields):
    """What only training needs, at the end of a fit."""
    found = []
    monkeypatch.setattr(CombEmb, "on_end", lambda self, _: found.append(self.scratch))
    CombEmb(**{**SMALL, **fields}).fit(x, labels, progress=False)
    return found[0]


def test_rotated_features_have_the_same_neighbours(monkeypatch):
    """Their components differ in signs only; training starts from random directions, which do not turn with them."""
    x, labels = problem()
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(20, 20)))[0].astype(np.float32)
    one, other = (scratch_of(monkeypatch, given, labels) for given in (x, x @ turn))
    torch.testing.assert_close(one.near.shares, other.near.shares)
    torch.testing.assert_close(one.near.lists, other.near.lists)
    cosines = [part.near.features.float() @ part.near.features.float().T for part in (one, other)]
    torch.testing.assert_close(*cosines, rtol=0, atol=2e-3)


@pytest.mark.parametrize(
    ("fields", "n_together"),
    [({}, 3), ({"batch_size": 200}, 1), ({"batch_size": 8}, 4), ({"n_together": 2}, 2), (SIMILAR, 1)],
    ids=str,
)
def test_neighbours_come_together_where_a_batch_has_few_items_of_a_class(fields, n_together):
    """16 of a class are enough, for five seen classes; without the rule neighbours, nothing is listed."""
    _, data = fitted(**fields)
    assert data.n_together == n_together
    assert (data.neighbours is None) == (fields == SIMILAR)


def test_no_item_is_near_to_a_label_column_without_items(monkeypatch):
    """Its mean is zero, so it would be nearer than classes at an obtuse angle."""
    rng = np.random.default_rng(0)
    kinds = np.arange(80) % 4
    x = np.eye(4)[kinds] - 0.25 + 0.01 * rng.normal(size=(80, 4))  # a tetrahedron, of which two corners are novel
    labels = np.where((kinds[:, None] < 2) & (np.arange(80)[:, None] < 40), np.eye(4)[kinds][:, [0, 1, 2]], -1)
    found = scratch_of(monkeypatch, x.astype(np.float32), labels).near.shares
    torch.testing.assert_close(found, torch.full((80,), 0.5))


def test_the_sizes_of_classes_are_those_of_all_labels_however_few_are_looked_at(monkeypatch):
    x, labels = problem()
    is_rare = (labels == 0) & (np.cumsum(labels == 0) > 3)
    labels = np.where(is_rare, -1, labels)
    monkeypatch.setattr("combemb.learning.objectives.neighbours.DENSITY_WEIGHT", 0)
    expected = scratch_of(monkeypatch, x, labels).near.shares
    monkeypatch.setattr("combemb.methods.combemb.MAX_CLASSIFIER_ITEMS", 20)
    found = scratch_of(monkeypatch, x, labels).near.shares
    assert found.unique().tolist() == expected.unique().tolist()
    assert found[torch.from_numpy(labels == 0)].tolist() == pytest.approx([3 / (labels >= 0).sum()] * 3)


@pytest.mark.filterwarnings("ignore::combemb.data.first_look.OddLabels")
@pytest.mark.parametrize(
    ("n_items", "per_class", "fields"),
    [
        (200, 1, {}),
        (200, 1, {"neighbour_features": 3}),
        (40, 2, {"smoothing": 50}),
        (200, 4, {"n_neighbours": 500, "nearest_share": 50.0}),
    ],
    ids=["one label per class", "few directions", "fewer items than are averaged", "more neighbours than items"],
)
def test_a_fit_on_little(n_items, per_class, fields):
    x, labels = problem()
    kept = [row for c in range(5) for row in np.flatnonzero(labels == c)[:per_class]]
    rows = np.union1d(kept, np.flatnonzero(labels < 0))[:n_items]
    few = np.full(200, -1)
    few[kept] = labels[kept]
    method = CombEmb(**{**SMALL, "n_meta_classes": 2, **fields}).fit(x[rows], few[rows], progress=False)
    assert np.isfinite([record["loss"] for record in method.log_]).all()
    assert method.embed(x).isfinite().all()


@pytest.mark.parametrize("fields", [{}, SIMILAR], ids=["default", "similar"])
def test_a_fit_is_a_function_of_its_seed(fields):
    x, labels = problem()
    one, same, other = (CombEmb(**SMALL, **fields, seed=seed).fit(x, labels, progress=False) for seed in (1, 1, 2))
    assert torch.equal(one.embed(x), same.embed(x))
    assert not torch.equal(one.embed(x), other.embed(x))


def test_what_only_training_needs_is_gone_after_it():
    x, labels = problem()
    method = CombEmb(**SMALL).fit(x, labels, progress=False)
    assert [name for name, value in vars(method).items() if isinstance(value, torch.Tensor)] == []


def test_a_stopped_fit_lets_go_of_what_only_training_needs(monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    x, labels = problem()
    method = CombEmb(**SMALL)
    monkeypatch.setattr(method, "diagnostics", stop)
    with pytest.raises(KeyboardInterrupt):
        method.fit(x, labels, progress=False)
    assert [name for name, value in vars(method).items() if isinstance(value, torch.Tensor)] == []


@pytest.mark.parametrize("fields", [{"seed": 9}, FIXED], ids=["default", "similar"])
def test_the_log_diagnoses_the_last_batch_of_an_epoch(fields):
    method, data = fitted(**fields)
    record = method.log_[-1]
    *_, last = data.epoch(0)
    positive = naive_pairs(method, last)
    n = last.n_labelled
    classes = classes_of(last.labels[:n])
    assert record["positives_per_anchor"] == pytest.approx(naive.mean([len(own) for own in positive[n:]]))
    taken = [classes[i] == classes[j] for i in range(n) for j in positive[i] if j < n and j != i]
    true = [(i, j) for i in range(n) for j in range(n) if i != j and classes[i] == classes[j]]
    assert record["pair_precision"] == pytest.approx(sum(taken) / len(taken))
    assert record["pair_recall"] == pytest.approx(sum(taken) / len(true))
    given = fields.get("positive_threshold")
    assert record.get("threshold") == (None if given is None else pytest.approx(given))
    assert 0 < record["pair_recall"] < 1


@pytest.mark.parametrize("rule", PAIR_RULES)
def test_the_log_has_the_precision_of_each_rule(rule):
    method, _ = fitted(**ALL_RULES)
    alone, data = fitted(**ALL_RULES)
    alone.pair_rules = (rule,)
    *_, last = data.epoch(0)
    expected = alone.diagnostics(last, data)["pair_precision"]
    assert method.log_[-1][f"{rule}_precision"] == pytest.approx(expected)


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
    method, _ = fitted(**SIMILAR, epochs=16)
    thresholds = [record["threshold"] for record in method.log_ if "threshold" in record]
    assert len(set(thresholds)) == len(thresholds) >= 4
    assert all(-1 <= threshold < 1 for threshold in thresholds)
    assert method.network_.threshold.item() == thresholds[-1]


def test_the_meta_classes_of_the_loss_are_the_drawn_ones():
    method, _ = fitted()
    assert torch.equal(method.network_.meta_classes, method.meta_classes_.table)
    assert method.meta_classes_.table.shape == (6, 5)


@pytest.mark.parametrize(("per_class", "pull"), [(2, 5.0), (5, 4.0), (20, 2.0)])
def test_the_features_count_more_where_labels_are_few(monkeypatch, per_class, pull):
    x, labels = problem()
    place = np.array([np.sum(labels[:i] == c) for i, c in enumerate(labels)])
    found = scratch_of(monkeypatch, x, np.where(place < per_class, labels, -1), label_trust=10.0)
    assert found.pull == pytest.approx(pull)


@pytest.mark.parametrize(("n_labelled", "n_features"), [(60, 64), (600, 100), (1_790, 256)])
def test_the_network_sees_one_direction_for_six_labels(n_labelled, n_features):
    x = np.random.default_rng(0).normal(size=(1_800, 300)).astype(np.float32)
    labels = np.where(np.arange(1_800) < n_labelled, np.arange(1_800) % 5, -1)
    model = CombEmb(bits=12, epochs=1, check=False, device="cpu").fit(x, labels, progress=False)
    assert model.feature_map_.n_features == n_features
