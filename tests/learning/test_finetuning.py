"""Fine-tuning: the last stage on cached inputs, or the whole backbone on pixels."""

import random
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from combemb import methods
from combemb.backbones import build
from combemb.backbones.base import LastStage
from combemb.backbones.feature_map import FeatureMap
from combemb.backbones.resnet18 import ResNet18
from combemb.data.image_items import ImageItems
from combemb.learning.run_folder import CHECKPOINT, WEIGHTS, RunFolder
from combemb.learning.tower import Tower
from combemb.methods.combemb import CombEmb
from combemb.system.machine import bfloat16_runs, seeded
from tests.pictures import LABELS, PIXELS, SEEN, cached, write_folder

MODES = ("last", "all")


@dataclass(kw_only=True, eq=False, repr=False)
class Stoppable(CombEmb):
    """May be stopped; not by a field, so that a run may be resumed without it."""

    interrupted_before: ClassVar[int] = -1  # epoch

    def on_epoch(self, data, epoch):
        super().on_epoch(data, epoch)
        if epoch == self.interrupted_before:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A file of weights for the small backbone, whose batch norms have seen something."""
    path = tmp_path_factory.mktemp("weights") / "resnet.safetensors"
    with seeded(1), torch.no_grad():
        backbone = build("resnet18", width=4)
        backbone(torch.from_numpy(PIXELS).permute(0, 3, 1, 2))
    save_file(backbone.state_dict(), path)
    return path


@pytest.fixture(scope="module")
def make(weights):
    """Makes a quick method with a small backbone; `all` starts at random unless weights are given."""

    def made(finetune, kind=CombEmb, **fields):
        quick = {"bits": 12, "epochs": 3, "batch_size": 36, "image_size": 16, "n_views": 2, "device": "cpu"}
        backbone = {"backbone": "resnet18", "backbone_width": 4}
        if finetune == "last":
            backbone["backbone_weights"] = str(weights)
        return kind(finetune=finetune, **{**quick, **backbone, **fields})

    return made


@pytest.fixture(scope="module")
def last(make):
    return make("last").fit(PIXELS, LABELS)


@pytest.fixture(scope="module")
def whole(make):
    return make("all").fit(PIXELS, LABELS)


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


def parameters_of(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_parameters()}


# The last stage


def test_the_last_stage_on_flattened_inputs_is_the_end_of_the_backbone():
    backbone, pixels = ResNet18(width=4).eval(), torch.from_numpy(PIXELS[:5]).permute(0, 3, 1, 2)
    with torch.no_grad():
        inputs = backbone.before_last(pixels).flatten(1)
        stage = LastStage(backbone, 32)
        assert stage.shape == (16, 8, 8)
        torch.testing.assert_close(stage(inputs), backbone(pixels))


def test_the_last_stage_is_found_on_the_device_of_the_backbone():
    """The meta device stands for any other than the CPU."""
    assert LastStage(ResNet18(width=4).to("meta"), 24).shape == (16, 6, 6)


def test_only_the_weights_of_the_last_stage_change(last, weights):
    start = build("resnet18", width=4, weights=str(weights)).stages["layer4"]
    trained = last.tower_.backbone.stage
    assert changed(start.state_dict(), trained.state_dict()) == parameters_of(start)  # not what batch norms have seen
    assert {name.split(".")[1] for name in last.state() if name.startswith("backbone.")} == {"stage"}
    assert changed(load_file(weights), last.image_input_.backbone.state_dict()) == set()


def test_a_last_stage_that_stands_still_gives_what_a_frozen_backbone_gives(make):
    """The same batches, views and pair rules; only the rounding of what is kept differs."""
    still, moving = (make("last", backbone_rate=rate).fit(PIXELS, LABELS) for rate in (1e-9, 0.3))
    frozen = make("none", backbone_weights=still.backbone_weights).fit(PIXELS, LABELS)
    expected = frozen.embed(PIXELS)
    torch.testing.assert_close(still.embed(PIXELS), expected, rtol=0, atol=0.01)
    assert (moving.embed(PIXELS) - expected).abs().max() > 0.02


def test_a_low_rate_keeps_the_last_stage_where_it_was(make, weights):
    start = build("resnet18", width=4, weights=str(weights)).stages["layer4"]
    model = make("last", backbone_rate=1e-6).fit(PIXELS, LABELS)
    for before, after in zip(start.parameters(), model.tower_.backbone.stage.parameters(), strict=True):
        torch.testing.assert_close(before, after, rtol=0, atol=1e-6)


def test_the_inputs_of_the_last_stage_are_made_once(make, tmp_path, monkeypatch):
    monkeypatch.setenv("COMBEMB_CACHE", str(tmp_path / "cache"))
    folder = write_folder(tmp_path / "photos")
    first = make("last").fit(folder)
    before = cached(tmp_path / "cache")
    assert len(before) == 1
    assert changed(first.state(), make("last").fit(folder).state()) == set()
    first.embed(folder)
    assert cached(tmp_path / "cache") == before
    make("none", backbone_weights=first.backbone_weights).fit(folder)
    assert len(cached(tmp_path / "cache")) == 2  # features are something else


def test_few_rows_go_through_the_last_stage_at_a_time(last):
    assert last.n_inputs == 16 * 4 * 4
    assert last.read(PIXELS).items.n_rows <= 512


def test_a_last_stage_takes_its_inputs_but_no_features(last):
    inputs = last.read(PIXELS).items.x
    assert torch.equal(last.embed(inputs), last.embed(PIXELS))
    with pytest.raises(ValueError, match="x has 32 features; this model was fitted on 256"):
        last.embed(np.zeros((3, 32), np.float32))


# All of it


def test_every_weight_changes_and_the_loss_falls(make):
    alone = {"similarity_weight": 0.0, "consistency_weight": 0.0}  # beside the term that falls
    model = make("all", epochs=8, learning_rate=1e-2, backbone_rate=1.0, crop_area=0.8, **alone).fit(PIXELS, LABELS)
    with seeded(model.seed):
        start = build("resnet18", width=4)
    assert changed(start.state_dict(), model.tower_.backbone.state_dict()) == start.state_dict().keys()
    assert model.log_[-1]["meta"] < 0.8 * model.log_[0]["meta"]
    assert changed(start.state_dict(), model.image_input_.backbone.state_dict()) == set()  # a copy was trained


def test_the_features_are_mapped_where_the_backbone_has_weights(make, whole, weights):
    model = make("all", backbone_weights=str(weights)).fit(PIXELS, LABELS)
    assert isinstance(model.tower_.feature_map, FeatureMap)
    assert changed(load_file(weights), model.tower_.backbone.state_dict()) >= parameters_of(model.tower_.backbone)
    assert isinstance(whole.tower_.feature_map, nn.Identity)
    assert whole.network_.project.in_features == 32


def test_nothing_is_kept_of_pixels(make, tmp_path, monkeypatch):
    monkeypatch.setenv("COMBEMB_CACHE", str(tmp_path / "cache"))
    model = make("all", epochs=1).fit(PIXELS, LABELS)
    assert isinstance(model.read(PIXELS).items, ImageItems)
    assert not (tmp_path / "cache").exists()


def test_a_backbone_that_was_trained_wants_images(make, whole):
    with pytest.raises(ValueError, match="fitted on images with finetune='all'; give it images"):
        whole.embed(np.zeros((3, 64), np.float32))
    x = np.random.default_rng(0).normal(size=(72, 64)).astype(np.float32)
    with pytest.raises(ValueError, match="fitted on embeddings; give it embeddings, not images"):
        make("all").fit(x, LABELS).embed(PIXELS)


# Both


def test_head_and_backbone_have_rates_of_their_own(last, whole):
    for model, rate in ((last, 1e-5), (whole, 1e-3)):  # with weights, and from scratch
        (optimiser,) = model.optimisers()
        head, backbone = optimiser.param_groups
        assert (head["lr"], backbone["lr"]) == (pytest.approx(1e-3), pytest.approx(rate))
        assert set(head["params"]) == set(model.network_.parameters())
        assert set(backbone["params"]) == set(model.tower_.backbone.parameters())
        assert all(parameter.requires_grad for parameter in optimiser.param_groups[1]["params"])


@pytest.mark.parametrize("finetune", MODES)
def test_a_run_folder_gives_the_trained_backbone_back(finetune, make, tmp_path):
    model = make(finetune, image_size=None).fit(write_folder(tmp_path / "photos"), folder=tmp_path / "run")
    assert model.classes_.tolist() == list(SEEN)
    model.save(tmp_path / "saved")
    for place in (tmp_path / "run", tmp_path / "saved"):
        loaded = methods.load(place)
        assert changed(model.state(), loaded.state()) == set()
        assert torch.equal(loaded.embed(PIXELS), model.embed(PIXELS))
        assert torch.equal(loaded.encode(tmp_path / "photos"), model.encode(tmp_path / "photos"))


def test_an_embedding_does_not_depend_on_the_images_beside_it(last, whole):
    for model in (last, whole):
        z = model.embed(PIXELS)
        torch.testing.assert_close(model.embed(PIXELS[::-1][:7].copy()), z.flip(0)[:7], rtol=1e-4, atol=1e-5)
        assert torch.equal(model.embed(PIXELS), z)


@pytest.mark.parametrize("finetune", MODES)
def test_a_stopped_run_ends_with_the_weights_of_an_unbroken_one(finetune, make, every_epoch, tmp_path):
    unbroken = make(finetune, Stoppable, epochs=4).fit(PIXELS, LABELS, folder=tmp_path / "whole")
    stopped = make(finetune, Stoppable, epochs=4)
    stopped.interrupted_before = 2
    with pytest.raises(KeyboardInterrupt):
        stopped.fit(PIXELS, LABELS, folder=tmp_path / "run")
    assert RunFolder(tmp_path / "run").checkpoint()[0] == 2
    other = PIXELS.copy()
    other[5, 3, 3, 0] ^= 128
    with pytest.raises(ValueError, match="cannot resume"):
        make(finetune, Stoppable, epochs=4).fit(other, LABELS, folder=tmp_path / "run", resume=True)
    resumed = make(finetune, Stoppable, epochs=4).fit(PIXELS, LABELS, folder=tmp_path / "run", resume=True)
    assert changed(unbroken.state(), resumed.state()) == set()
    assert changed(load_file(tmp_path / "whole" / WEIGHTS), load_file(tmp_path / "run" / WEIGHTS)) == set()
    assert not (tmp_path / "run" / CHECKPOINT).exists()


@pytest.mark.parametrize("finetune", MODES)
def test_the_seed_decides_and_the_global_random_state_is_left_alone(finetune, make, last, whole):
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    random.seed(5)
    states = (torch.get_rng_state(), np.random.get_state()[1], random.getstate())  # noqa: NPY002
    same = make(finetune).fit(PIXELS, LABELS)
    assert changed(same.state(), (last if finetune == "last" else whole).state()) == set()
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002
    assert random.getstate() == states[2]
    assert not torch.equal(make(finetune, seed=1).fit(PIXELS, LABELS).embed(PIXELS), same.embed(PIXELS))


def test_another_seed_starts_from_other_weights(make):
    model = make("all", epochs=1).fit(PIXELS, LABELS)
    again = model.set_params(seed=3).fit(PIXELS, LABELS)
    assert changed(again.state(), make("all", epochs=1, seed=3).fit(PIXELS, LABELS).state()) == set()


def test_a_fit_on_embeddings_trains_no_backbone(make):
    x = np.random.default_rng(0).normal(size=(72, 16)).astype(np.float32)
    for finetune in MODES:
        model = make(finetune).fit(x, LABELS)
        assert model.tower_.backbone is None
        assert changed(model.state(), make("none").fit(x, LABELS).state()) == set()


# Mixed precision


@pytest.mark.parametrize("finetune", MODES)
def test_mixed_precision_works_or_is_refused(finetune, make, weights, tmp_path):
    model = make(finetune, mixed_precision=True, backbone_weights=str(weights))
    if bfloat16_runs(torch.device("cpu")):
        z = model.fit(PIXELS, LABELS).embed(PIXELS)
        assert z.dtype == torch.float32
        assert z.isfinite().all()
        full = make(finetune, mixed_precision=False, backbone_weights=str(weights)).fit(PIXELS, LABELS)
        assert changed(model.state(), full.state())
    else:
        with pytest.raises(ValueError, match="mixed_precision=True: bfloat16 does not run on this cpu; leave it at"):
            model.fit(PIXELS, LABELS, folder=tmp_path / "run")
        assert not any(tmp_path.iterdir())


def test_the_head_gets_float32_where_the_backbone_computes_in_less():
    feature_map = FeatureMap(6, 3)
    feature_map.components.normal_(generator=torch.Generator().manual_seed(0))
    tower = Tower(nn.Linear(5, 6), feature_map, nn.Linear(3, 2))
    with torch.autocast("cpu", torch.float16):
        assert tower.backbone(torch.ones(4, 5)).dtype == torch.float16
        assert tower.features(torch.ones(4, 5)).dtype == torch.float32


# Bad settings


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"finetune": "some"}, "finetune='some' must be one of none, last, all"),
        ({"finetune": "all", "backbone_rate": 0.0}, "backbone_rate=0.0 must be above 0, or None"),
        ({"finetune": "all", "mixed_precision": 1}, "mixed_precision=1 must be True or False or None"),
        ({"finetune": "all", "image_size": 7}, r"resnet18 got pixels of shape .*sides of at least 8"),
        ({"finetune": "last", "image_size": 7}, "too small for resnet18; give 8 or more"),
        ({"finetune": "last", "backbone_weights": None}, "resnet18 comes without weights"),
        ({"finetune": "all", "device": "abacus"}, "device='abacus' must be one of"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit_are_refused_before_anything_is_written(fields, message, make, tmp_path):
    with pytest.raises(ValueError, match=message):
        make(**fields).fit(PIXELS, LABELS, folder=tmp_path / "run")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("finetune", MODES)
def test_labels_beside_the_images_are_read_with_them(make, finetune, tmp_path):
    folder = write_folder(tmp_path / "photos")
    model = make(finetune, image_size=np.int64(16)).fit(folder, folder=tmp_path / "run")
    assert model.read(folder).labels.texts() == LABELS.tolist()
    assert model.discover(model.read(folder), n_novel=2).names[:-2].tolist() == list(SEEN)
    assert methods.load(tmp_path / "run").image_input_.size == 16
