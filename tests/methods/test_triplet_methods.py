"""What NINH and SSDH must reach and refuse, both trained on triplets of labelled items."""

from functools import cache

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from combemb import methods
from combemb.search.metrics import code_retrieval
from tests.blobs import blobs

NAMES = ("ninh", "ssdh")
QUICK = {"epochs": 1, "batch_size": 64, "device": "cpu"}
BLOBS = blobs(4, 2, n_each=20, D=16)
every_method = pytest.mark.parametrize("name", NAMES)


def seen_map(model, x, targets, queries, query_targets) -> float:
    return code_retrieval(model.codebook, model.embed(queries), model.encode(x), query_targets, targets).map


@every_method
def test_200_labelled_items_are_learned_by_heart(name):
    rng = np.random.default_rng(0)
    targets = np.arange(200) % 8
    x = (rng.normal(size=(8, 32))[targets] + 1.4 * rng.normal(size=(200, 32))).astype(np.float32)
    others = rng.normal(size=(20, 32)).astype(np.float32)  # SSDH needs unlabelled items too
    labels = np.concatenate([targets, np.full(20, -1)])
    settings = {"bits": 24, "epochs": 80, "batch_size": 128, "learning_rate": 3e-3, "view_noise": 0.1, "device": "cpu"}
    model = methods.get(name)(**settings).fit(np.concatenate([x, others]), labels, progress=False)
    raw = methods.get("itq")(bits=24).fit(x, progress=False)
    assert seen_map(raw, x, targets, x, targets) < 0.7  # the problem is not trivial
    assert seen_map(model, x, targets, x, targets) > 0.95


@cache
def digits() -> tuple[np.ndarray, ...]:
    pixels, targets = load_digits(return_X_y=True)
    x = (pixels / 16).astype(np.float32)
    is_test = np.arange(len(x)) % 5 == 0
    is_labelled = (targets < 7) & (np.random.default_rng(0).random(len(x)) < 0.5)
    return x[~is_test], targets[~is_test], np.where(is_labelled, targets, -1)[~is_test], x[is_test], targets[is_test]


@every_method
def test_queries_of_seen_digits_find_more_than_by_itq(name):
    x, targets, labels, queries, query_targets = digits()
    seen = query_targets < 7
    found = [
        seen_map(model.fit(x, labels, progress=False), x, targets, queries[seen], query_targets[seen])
        for model in (
            methods.get(name)(bits=24, epochs=20, batch_size=64, learning_rate=3e-3, device="cpu"),
            methods.get("itq")(bits=24),
        )
    ]
    assert found[0] > found[1] + 0.1


@every_method
@pytest.mark.parametrize("bits", [12, 24, 48, 72])
def test_codes_have_the_usual_lengths(name, bits):
    model = methods.get(name)(bits=bits, **QUICK).fit(BLOBS.x, BLOBS.labels, progress=False)
    assert model.codebook.bits == bits
    assert torch.equal(model.encode(BLOBS.x), (model.embed(BLOBS.x) >= 0).to(torch.uint8))


@every_method
def test_queries_are_scored_by_hamming_distance_or_by_their_real_values(name):
    for asymmetric in (False, True):
        model = methods.get(name)(bits=12, asymmetric=asymmetric, **QUICK).fit(BLOBS.x, BLOBS.labels, progress=False)
        z, codes = model.embed(BLOBS.x), model.encode(BLOBS.x)
        assert (z.abs() <= 1).all()
        queries, signs = z if asymmetric else torch.where(z >= 0, 1.0, -1.0), 2.0 * codes - 1
        expected = queries.double() @ signs.double().T
        torch.testing.assert_close(model.codebook.scores(z, codes), expected, rtol=1e-5, atol=1e-5)


@every_method
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([-1] * 8, "none of the 8 items is labelled"),
        ([0, 0, 0, -1, -1, -1, -1, -1], "only one class has labels"),
        ([0, 1, 2, 3, -1, -1, -1, -1], "no three of the 4 labelled items form a triplet.*label at least two"),
        ([[1, 1], [1, 0], [1, 1], [1, 0], *[[-1, -1]] * 4], "no three of the 4 labelled items form a triplet"),
    ],
)
def test_labels_without_triplets_are_refused(name, labels, message, tmp_path):
    x = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    with pytest.raises(ValueError, match=message):
        methods.get(name)(bits=12, **QUICK).fit(x, np.array(labels), folder=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


@every_method
def test_items_with_several_labels_retrieve_those_that_share_one(name):
    rng = np.random.default_rng(0)
    labels = np.zeros((160, 6))
    for row in labels:
        row[rng.choice(6, rng.integers(1, 3), replace=False)] = 1
    x = (labels @ rng.normal(size=(6, 24)) + 1.5 * rng.normal(size=(160, 24))).astype(np.float32)
    given = np.where(np.arange(160)[:, None] < 120, labels, -1)
    settings = {"bits": 24, "epochs": 50, "batch_size": 128, "device": "cpu", "learning_rate": 3e-3}
    model = methods.get(name)(**settings).fit(x, given, progress=False)
    raw = methods.get("itq")(bits=24).fit(x, progress=False)
    found, plain = (seen_map(m, x, labels, x[:120], labels[:120]) for m in (model, raw))
    assert found > plain + 0.1
