"""First stages: trained once for the same data, backbone and recipe, shared by methods, and stored with the run."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from combemb import methods
from combemb.data.given import read_given
from combemb.learning.pretraining import weights_after
from combemb.learning.settings import setting
from combemb.system.files import write_tensors
from tests.learning.kinds import Queue, TwoPlayers
from tests.pictures import LABELS, PIXELS

SETTINGS = {"backbone": "resnet18", "backbone_width": 4, "image_size": 16, "n_views": 2, "epochs": 1, "batch_size": 36}


@dataclass(frozen=True)
class Shift:
    """A stage that adds to all weights, and counts how often it was trained."""

    by: float
    uses_labels: bool = False
    trained: ClassVar[list[Path]] = []

    @property
    def recipe(self):
        return {"name": "shift", "by": self.by}

    def train(self, images, given, folder, progress):
        assert len(given.images) == len(PIXELS)
        assert images.size in {16, 20}
        assert folder.is_dir()
        with torch.no_grad():
            for parameter in images.backbone.parameters():
                parameter.add_(self.by)
        self.trained.append(folder)


class Staged:
    by: float = setting(0.01, "what the first stage adds to all weights")

    def first_stages(self):
        return [Shift(self.by)]


@dataclass(kw_only=True, eq=False, repr=False)
class StagedQueue(Staged, Queue):
    """A method with a first stage."""

    by: float = setting(0.01, "what the first stage adds to all weights")


@dataclass(kw_only=True, eq=False, repr=False)
class StagedPlayers(Staged, TwoPlayers):
    """Another method with the same first stage."""

    by: float = setting(0.01, "what the first stage adds to all weights")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("COMBEMB_CACHE", str(tmp_path_factory.mktemp("cache")))
    Shift.trained.clear()


def weights(model) -> dict[str, torch.Tensor]:
    return dict(model.image_input_.backbone.named_parameters())


def test_methods_share_a_first_stage():
    first = StagedQueue(**SETTINGS, finetune="last").fit(PIXELS, LABELS)
    second = StagedPlayers(**SETTINGS, finetune="all", bits=12).fit(PIXELS, LABELS)
    assert len(Shift.trained) == 1
    plain = Queue(**SETTINGS, finetune="all").fit(PIXELS, LABELS)
    for model in (first, second):
        for name, start in weights(plain).items():
            torch.testing.assert_close(weights(model)[name], start + 0.01)


CHANGES = {"backbone": {"backbone_width": 8}, "size": {"image_size": 20}, "seed": {"seed": 1}}


@pytest.mark.parametrize("change", ["recipe", "images", *CHANGES])
def test_whatever_decides_the_outcome_asks_for_another_stage(change):
    given = read_given(PIXELS, LABELS)
    images = Queue(**SETTINGS, finetune="all").image_input()
    path = weights_after(Shift(0.5), images, given, False)
    stage = Shift(0.25) if change == "recipe" else Shift(0.5)
    given = read_given(255 - PIXELS, LABELS) if change == "images" else given
    other = Queue(**SETTINGS | CHANGES.get(change, {}), finetune="all").image_input()
    assert weights_after(stage, other, given, False) != path
    assert len(Shift.trained) == 2


def test_another_seed_is_another_stage_also_from_the_same_weights(tmp_path):
    start, given = tmp_path / "start.safetensors", read_given(PIXELS, LABELS)
    write_tensors(start, Queue(**SETTINGS).image_input().backbone.state_dict())
    images = [Queue(**SETTINGS, backbone_weights=str(start), seed=seed).image_input() for seed in (0, 1, 1)]
    assert images[0].start_digest == images[1].start_digest
    paths = [weights_after(Shift(0.5), reader, given, False) for reader in images]
    assert paths[0] != paths[1] == paths[2]


def test_labels_matter_to_a_stage_that_uses_them():
    images = [Queue(**SETTINGS, finetune="all").image_input() for _ in range(4)]
    given, other = read_given(PIXELS, LABELS), read_given(PIXELS, np.roll(LABELS, 1))
    paths = [
        weights_after(Shift(0.5, uses), x, g, False)
        for (uses, g), x in zip([(False, given), (False, other), (True, given), (True, other)], images, strict=True)
    ]
    assert paths[0] == paths[1]
    assert len(set(paths)) == 3


def test_a_stage_that_fails_leaves_nothing_to_be_found():
    class Failing(Shift):
        def train(self, *args):
            raise KeyboardInterrupt

    images = Queue(**SETTINGS, finetune="all").image_input()
    with pytest.raises(KeyboardInterrupt):
        weights_after(Failing(0.5), images, read_given(PIXELS, LABELS), False)
    weights_after(Shift(0.5), Queue(**SETTINGS, finetune="all").image_input(), read_given(PIXELS, LABELS), False)
    assert len(Shift.trained) == 1


@pytest.mark.parametrize("finetune", ["none", "last", "all"])
def test_a_run_does_not_need_the_cache_of_its_first_stage(finetune, tmp_path, tmp_path_factory, monkeypatch):
    model = StagedQueue(**SETTINGS, finetune=finetune).fit(PIXELS, LABELS, folder=tmp_path / "run")
    assert (tmp_path / "run/backbone.safetensors").exists() == (finetune != "all")
    monkeypatch.setenv("COMBEMB_CACHE", str(tmp_path_factory.mktemp("empty")))
    loaded = methods.load(tmp_path / "run")
    torch.testing.assert_close(loaded.embed(PIXELS), model.embed(PIXELS), rtol=1e-2, atol=1e-2)
    loaded.save(tmp_path / "again")
    assert torch.equal(methods.load(tmp_path / "again").embed(PIXELS), loaded.embed(PIXELS))
    assert len(Shift.trained) == 1


def test_embeddings_have_no_first_stage():
    x = np.random.default_rng(0).normal(size=(72, 8)).astype(np.float32)
    assert isinstance(StagedQueue(epochs=1, batch_size=36).fit(x, LABELS).network_, nn.Module)
    assert Shift.trained == []
