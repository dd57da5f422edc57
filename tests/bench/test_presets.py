"""Every preset runs at toy size: on images in a published layout, with all methods, in every task."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import save_file

from combemb import backbones, methods
from combemb.bench import TABLES
from combemb.bench.cells import cells_of
from combemb.bench.fits import Places
from combemb.bench.presets import PRESETS
from combemb.bench.results import read_result
from combemb.bench.runner import run
from combemb.learning.head import STAGES
from combemb.learning.pretraining.training import TrainedStage
from combemb.system.machine import seeded
from tests.bench.toys import toy, write_cifar10

RETRIEVAL, DISCOVERY = TABLES["retrieval-cifar10"], TABLES["discovery-cifar10"]
FEW = {"combemb", "gpq", "itq"}  # methods that stand for all where one preset has tried all


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_cifar10(folder / "cifar10")
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    """Random weights of AlexNet, fully connected layers too."""
    path = tmp_path_factory.mktemp("weights") / "alexnet.safetensors"
    with seeded(0):
        network = backbones.build("alexnet")
    save_file({name: tensor.contiguous() for name, tensor in network.state_dict().items()}, path)
    return path


def scores_of(table, preset, places: Places) -> dict[str, dict]:
    cells = cells_of(table, preset)
    outcome = run(cells, places)
    assert outcome.missing == {}
    records = [read_result(places.results, cell) for cell in cells]
    assert [r["failure"] for r in records if "failure" in r] == []
    return {cell.method: record for cell, record in zip(cells, records, strict=True)}


def at_12_bits(methods=None):
    """The retrieval table with short codes alone, of all methods or of some."""
    rows = tuple(row for row in RETRIEVAL.rows if methods is None or row.method in methods)
    baselines = RETRIEVAL.baselines if methods is None else ()
    return replace(RETRIEVAL, columns=RETRIEVAL.columns[:1], rows=rows, baselines=baselines)


@pytest.mark.parametrize("name", ["cpu", "small", "smoke"])
def test_frozen_features_serve_all_methods(name: str, data: Path, tmp_path: Path):
    preset = toy(PRESETS[name])
    table = at_12_bits() if name == "cpu" else at_12_bits(FEW)
    found = scores_of(table, preset, Places(tmp_path, data))
    assert all(0 <= record["scores"]["novel_z"] <= 1 for record in found.values())
    assert found["itq"]["data"]["n_train"] == 60
    if name == "cpu":
        clusters = scores_of(DISCOVERY, preset, Places(tmp_path, data))
        assert len(clusters) == 8
        assert all("head_test_acc_joint_all" in clusters[m]["scores"] for m in ("dtc", "orca", "rankstats"))
        assert {len(record["map"]["places"]) for record in clusters.values()} == {20}
        assert clusters["orca"]["settings"]["n_novel"] == 3


def test_the_alexnet_preset_takes_weights_by_a_path(data: Path, weights: Path, tmp_path: Path):
    found = scores_of(at_12_bits(FEW), toy(PRESETS["alexnet"]), Places(tmp_path, data, weights))
    assert found["itq"]["settings"]["backbone"] == "alexnet:conv5"
    assert found["itq"]["settings"]["backbone_weights"] == weights.name  # no folder of this machine


@pytest.mark.parametrize(
    "names",
    [FEW - {"gpq"}, pytest.param(None, marks=pytest.mark.slow)],  # a step of AlexNet takes seconds
    ids=["few", "all"],
)
def test_the_paper_preset_fine_tunes_alexnet_from_weights(names, data: Path, weights: Path, tmp_path: Path):
    found = scores_of(at_12_bits(names), toy(PRESETS["paper"]), Places(tmp_path, data, weights))
    assert len(found) == (2 if names else 12)
    assert found["combemb"]["settings"]["finetune"] == "all"
    assert "finetune" not in found["itq"]["settings"]


def test_the_paper_preset_trains_resnet18_after_a_first_stage(data: Path, tmp_path: Path):
    clusters = scores_of(DISCOVERY, toy(PRESETS["paper"]), Places(tmp_path, data))
    assert len(clusters) == 8
    assert clusters["combemb"]["settings"]["backbone_weights"].endswith(".safetensors")  # of SimCLR, like the features
    assert all(
        record["scores"].keys() >= {"test_acc_joint_all", "labels_acc_joint_all"} for record in clusters.values()
    )
    trained = [record["settings"] for method, record in clusters.items() if method != "features"]
    assert {(s["finetune"], s["backbone"], s["backbone_rate"]) for s in trained} == {("all", "resnet18", 1.0)}


def test_all_methods_of_the_paper_preset_start_from_one_simclr():
    """Those without first stages of their own get it from the preset; another recipe would be another backbone."""
    recipes = set()
    for cell in cells_of(DISCOVERY, PRESETS["paper"], splits=("0",), seeds=(3,)):
        stages = [TrainedStage(STAGES[name](**dict(own))) for name, own in cell.stages]
        if cell.method not in {"combemb", "features"}:
            model = methods.get(cell.method)(**{k: v for k, v in cell.settings if k != "n_novel"}, seed=cell.seed)
            model.image_input_ = model.image_input()
            stages = model.first_stages()
        assert stages[0].recipe["name"] == "simclr", cell.method
        recipes.add(json.dumps(stages[0].recipe, sort_keys=True))
    assert len(recipes) == 1


def test_toy_presets_keep_every_setting():
    for preset in PRESETS.values():
        small = toy(preset)
        assert small.all.keys() == preset.all.keys()
        assert small.deep.keys() >= preset.deep.keys()
        assert all(small.of_task[task].keys() >= settings.keys() for task, settings in preset.of_task.items())
