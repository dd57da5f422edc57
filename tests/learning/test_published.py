"""The form of each method in its release: its numbers, its schedule, and a fit from pixels at toy size."""

import math
from dataclasses import fields

import numpy as np
import pytest
import torch

from combemb.learning.deep import Tower
from combemb.learning.published import WithSGD
from combemb.methods.combemb import CombEmb
from combemb.methods.dtc import DTC
from combemb.methods.dualrank import DualRank
from combemb.methods.gcd import GCD
from combemb.methods.ncl import NCL
from combemb.methods.orca import ORCA
from combemb.methods.rankstats import RankStats
from tests.pictures import LABELS, PIXELS, SEEN

METHODS: list[type[WithSGD]] = [DTC, RankStats, NCL, DualRank, ORCA, GCD]
STEP = {0: 1.0, 169: 1.0, 170: 0.1, 199: 0.1}
RATES = {  # by epoch of 200, or of 110
    DTC: {0: 1.0, 9: 1.0, 10: 0.5, 109: 0.5},
    **dict.fromkeys((RankStats, NCL, DualRank), STEP),
    ORCA: {0: 1.0, 139: 1.0, 140: 0.1, 179: 0.1, 180: 0.01, 199: 0.01},
    GCD: {0: 1.0, 100: (1 + 1e-3) / 2, 200: 1e-3},
}
OWN = {
    DTC: {"finetune": "all", "epochs": 110, "batch_size": 128, "weight_decay": 1e-4, "fixed_share": 1 / 11},
    RankStats: {"n_ranked": 5, "consistency_weight": 5.0, "ramp_share": 0.25, "clean_pairs": False},
    NCL: {"positive_threshold": 0.95, "consistency_weight": 5.0, "ramp_share": 0.25, "clean_pairs": False},
    DualRank: {"temperature": 0.07, "n_memory": 2048, "weight_decay": 1e-4, "batch_size": 128},
    ORCA: {"batch_size": 512, "weight_decay": 5e-4, "scale": 10.0, "max_margin": 0.5},
    GCD: {"weight_decay": 5e-5, "label_weight": 0.35, "hidden": 2048, "n_starts": 100, "batch_size": 128},
}
SMALL = {
    **{"backbone_width": 4, "image_size": 16, "n_views": 2, "epochs": 2, "batch_size": 24, "device": "cpu"},
    **{"pretraining_epochs": 1, "n_novel": 2, "start_steps": 5},
}


@pytest.mark.parametrize("cls", METHODS)
def test_the_numbers_and_the_schedule_are_those_of_the_release(cls):
    method = cls.as_published(seed=3)
    assert (method.backbone, method.backbone_width, method.image_size, method.seed) == ("resnet18", 64, 32, 3)
    assert (method.optimiser, method.learning_rate, method.momentum, method.backbone_rate) == ("sgd", 0.1, 0.9, 1.0)
    wanted = {"finetune": "last", "epochs": 200} | OWN[cls]
    assert {name: getattr(method, name) for name in wanted} == pytest.approx(wanted)
    assert {epoch: method.rate(epoch, method.epochs) for epoch in RATES[cls]} == pytest.approx(RATES[cls])
    other = cls.as_published(epochs=3, weight_decay=0.5)
    assert (other.epochs, other.weight_decay) == (3, 0.5)


def test_variants_of_dtc_with_averages_have_their_own_weight_decay():
    decays = {v: DTC.as_published(variant=v).weight_decay for v in ("baseline", "pi", "te", "tep")}
    assert decays == {"baseline": 1e-4, "pi": 1e-4, "te": 1e-5, "tep": 1e-5}


@pytest.mark.parametrize("cls", METHODS)
def test_the_published_form_learns_from_pixels_at_toy_size(cls, tmp_path, monkeypatch):
    monkeypatch.setenv("COMBEMB_CACHE", str(tmp_path))
    small = SMALL | ({"n_words": 32, "n_memory": 32} if cls is DualRank else {"n_starts": 2} if cls is GCD else {})
    method = cls.as_published(**small).fit(PIXELS, LABELS)
    stages = {path.name.split("-")[0] for path in (tmp_path / "pretraining").iterdir()}
    assert stages == set(cls.paper_stages)
    optimiser = method.optimisers()[0]
    assert isinstance(optimiser, torch.optim.SGD)
    assert [(group["lr"], group["momentum"]) for group in optimiser.param_groups] == [(0.1, 0.9)] * 2
    assert isinstance(method.network_.trunk, torch.nn.Identity)  # the backbone's last stage
    with torch.no_grad():
        x = next(iter(method._chunks(PIXELS, False)))
        features = method.tower_.features(x)
        assert torch.equal(features, method.tower_.backbone(x))  # not at unit length: q of DTC depends on it
    assert ((features.norm(dim=1) - 1).abs() > 0.1).any()
    assert method.embed(PIXELS).isfinite().all()
    assert set(method.predict(PIXELS)) <= {*SEEN, "novel-1", "novel-2"}
    method.save(tmp_path / "run")
    loaded = cls.load(tmp_path / "run")
    assert torch.equal(loaded.embed(PIXELS), method.embed(PIXELS))
    assert np.array_equal(loaded.predict(PIXELS), method.predict(PIXELS))


def test_the_published_form_of_combemb_learns_from_pixels_at_toy_size():
    small = {name: value for name, value in SMALL.items() if name in {field.name for field in fields(CombEmb)}}
    method = CombEmb.as_published(12, backbone="resnet18", finetune="all", **small).fit(PIXELS, LABELS)
    assert method.embed(PIXELS).isfinite().all()
    assert method.encode(PIXELS).shape == (len(PIXELS), 6)


@pytest.mark.parametrize("cls", METHODS)
def test_adamw_has_a_warm_up_and_a_cosine(cls):
    method = cls(width=6, **({"n_memory": 8, "n_words": 8} if cls is DualRank else {}))
    method.image_input_ = None
    method.tower_ = Tower(None, torch.nn.Identity(), torch.nn.Identity())
    method.tower_.network = method.network(4, 3, 2)
    assert isinstance(method.optimisers()[0], torch.optim.AdamW)
    assert method.rate(0, 100) == pytest.approx(0.2)
    assert 0 < method.rate(99, 100) < 0.01
    assert math.isclose(method.rate(4, 100), 1.0)
