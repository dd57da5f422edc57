"""CombEmb: settings are checked before the fit, and its codes, diagnosis and report are right."""

import numpy as np
import pytest
import torch

from combemb.methods.combemb import PAIR_RULES, CombEmb
from tests.methods.small_model import (
    FIXED,
    GAMMA,
    SIMILAR,
    SMALL,
    classes_of,
    fitted,
    naive_positives,
    naive_z,
    problem,
)
from tests.reference import naive

# Fields


def test_the_published_form_has_none_of_our_additions():
    method = CombEmb.as_published(24, seed=3)
    assert (method.bits, method.seed, method.pair_rules) == (24, 3, ("similar",))
    assert (method.similarity_temperature, method.ramp_share, method.positive_gradient) == (1.0, 0.0, True)
    assert CombEmb.as_published(24, positive_threshold=0.7).positive_threshold == 0.7


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bits": 13}, r"bits=13 is not a multiple of log2\(n_meta_classes\)=2; use 12 or 14"),
        ({"bits": 13, "n_meta_classes": 8}, r"bits=13 .* log2\(n_meta_classes\)=3; use 12 or 15"),
        ({"bits": 0}, "bits=0 "),
        ({"n_meta_classes": 3}, "n_meta_classes=3 must be one of 2, 4, 8, 16"),
        ({"n_meta_classes": 1}, "n_meta_classes=1 must be one of 2, 4, 8, 16"),
        ({"n_meta_classes": 8}, "found 5 seen classes, n_meta_classes=8 needs at least 8; use fewer meta-classes"),
        ({"pair_rules": ("alike",)}, "'alike'.* must be a tuple of one or more of similar, nearest, neighbours"),
        ({"pair_rules": "nearest"}, "pair_rules='nearest' must be a tuple of one or more of similar"),
        ({"pair_rules": ()}, "must be a tuple of one or more of similar, nearest, neighbours"),
        ({"pair_rules": ("similar", "alike")}, "must be a tuple of one or more of similar, nearest, neighbours"),
        ({"anchors": "labelled"}, "anchors='labelled' must be one of unlabelled, all"),
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
        ({"smoothing": 0}, "smoothing=0 must be above 0"),
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
    positive = naive_positives(method, last)
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
    method, _ = fitted(pair_rules=PAIR_RULES, positive_threshold=GAMMA)
    alone, data = fitted(pair_rules=PAIR_RULES, positive_threshold=GAMMA)
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
    method, _ = fitted(**SIMILAR, epochs=4)
    thresholds = [record["threshold"] for record in method.log_]
    assert len(set(thresholds)) == 4
    assert all(-1 <= threshold < 1 for threshold in thresholds)
    assert method.network_.threshold.item() == thresholds[-1]


def test_the_meta_classes_of_the_loss_are_the_drawn_ones():
    method, _ = fitted()
    assert torch.equal(method.network_.meta_classes, method.meta_classes_.table)
    assert method.meta_classes_.table.shape == (6, 5)
