"""`combemb pretrain` on small pictures: what is printed, cached and copied, what bad input gets, and resuming."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from combemb import methods
from combemb.data.given import read_given
from combemb.learning.head import STAGES
from combemb.learning.loop import train
from combemb.learning.pretraining import weights_after
from combemb.learning.pretraining.training import TrainedStage
from combemb.system.files import read_tensors
from tests.commands import call, done, refused, told
from tests.pictures import LABELS, PIXELS, write_folder, write_manifest

BROKEN = "unlabelled/030.png"
TINY = [f"--set={text}" for text in ("backbone_width=4", "image_size=16", "epochs=2", "batch_size=24", "device=cpu")]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COMBEMB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("photos") / "photos", broken=(BROKEN,))


def stage_of(cache: Path) -> Path:
    (folder,) = (cache / "pretraining").iterdir()
    return folder


def assert_same(one: Path, other: Path) -> None:
    a, b = read_tensors(one)[0], read_tensors(other)[0]
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name].numpy(), b[name].numpy(), err_msg=name)


@pytest.mark.parametrize("stage", STAGES)
def test_weights_are_trained_copied_and_ready_for_a_fit(photos: Path, cache: Path, tmp_path: Path, stage: str):
    result = done("pretrain", photos, "--method", stage, "--out", tmp_path / "mine.safetensors", *TINY)
    folder = stage_of(cache)
    assert f"note: left out of the first stage: 1 images that cannot be read, such as {BROKEN}" in told(result)
    lines = result.stdout.splitlines()
    assert lines[0] == f"weights of the backbone: {folder / 'backbone.safetensors'}, copied to {lines[0].split()[-1]}"
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    right = f"the nearest neighbours put {last['neighbours_right']:.1%} of the labelled images into their class"
    assert lines[1] == f"loss after 2 epochs: {last['loss']:.4f}; {right}"
    assert lines[2] == f"curves of the training: {folder / 'training.png'}"
    assert (folder / "backbone.safetensors").read_bytes() == (tmp_path / "mine.safetensors").read_bytes()
    command = shlex.split(lines[3].removeprefix("next: "))
    assert command[:4] == ["combemb", "fit", str(photos), "--out"]
    assert f"backbone_weights={tmp_path / 'mine.safetensors'}" in command
    words = [{"RUN": tmp_path / "run", "orca": "combemb"}.get(word, word) for word in command[1:]]
    done(*words, "--set", "epochs=1", "--set", "batch_size=24", "--set", "check=False", "--bits", "12")
    model = methods.load(tmp_path / "run")
    found = (model.backbone, model.backbone_width, model.image_input_.size, model.finetune, model.backbone_rate)
    assert found == ("resnet18", 4, 16, "last", 1.0)  # the rate that the backbone has after a stage of the method's own


def test_what_only_an_interrupted_training_needs_is_removed(photos: Path, cache: Path):
    done("pretrain", photos, "--method", "simclr", *TINY)
    kept = {".lock", "backbone.safetensors", "metrics.jsonl", "training.png"}
    assert {path.name for path in stage_of(cache).iterdir()} == kept
    shown = done("cache").stdout.splitlines()[-1]
    assert f"  weights of resnet18 of width 4 at 16 px  {stage_of(cache).name}" in shown


def test_the_same_command_and_methods_with_the_recipe_find_the_weights(photos: Path, cache: Path):
    arguments = ("pretrain", photos, "--method", "simclr", *TINY)
    first = done(*arguments)
    written = (stage_of(cache) / "backbone.safetensors").stat().st_mtime_ns
    assert done(*arguments).stdout == first.stdout
    stage = STAGES["simclr"](epochs=2, batch_size=24, device="cpu")
    method = methods.get("combemb")(backbone="resnet18", backbone_width=4, image_size=16, finetune="last")
    found = weights_after(TrainedStage(stage), method.image_input(), read_given(photos), False)
    assert found == stage_of(cache) / "backbone.safetensors"
    assert found.stat().st_mtime_ns == written


def test_without_labels_features_are_not_checked(cache: Path, tmp_path: Path):
    np.save(tmp_path / "x.npy", PIXELS)
    shown = done("pretrain", tmp_path / "x.npy", "--method", "simclr", *TINY).stdout
    assert "features not checked" in shown


def test_labels_of_a_file_and_a_test_split_that_is_left_out(photos: Path, cache: Path, tmp_path: Path):
    split = ["test" if i % 6 == 5 else "train" for i in range(len(LABELS))]
    manifest = write_manifest(tmp_path / "photos.csv", photos, [None] * len(LABELS), split=split)
    (tmp_path / "labels.txt").write_text("".join(f"{label or ''}\n" for label in LABELS))
    shown = done("pretrain", manifest, "--method", "supervised", "--labels", tmp_path / "labels.txt", *TINY).stdout
    assert f"next: combemb fit {manifest} --labels {tmp_path / 'labels.txt'} --out RUN" in shown


def test_quiet_prints_nothing(tmp_path: Path):
    np.save(tmp_path / "x.npy", PIXELS)
    assert done("pretrain", tmp_path / "x.npy", "--method", "simclr", "--quiet", *TINY).output == ""


@pytest.mark.parametrize(
    ("data", "arguments", "message"),
    [
        ("photos", ["--method", "moco"], "there is no first stage 'moco'; choose one of simclr, supervised"),
        ("photos", ["--method", "simclr", "--set", "tau=1"], "SimCLR has no setting 'tau'; choose one of"),
        ("photos", ["--method", "simclr", "--set", "epochs=0"], "epochs=0 must be above 0"),
        ("photos", ["--method", "simclr", "--set", "finetune=last"], "finetune='last' must be one of all"),
        ("photos", ["--method", "simclr", "--set", "backbone=nope"], "unknown backbone 'nope'; choose one of"),
        ("photos", ["--method", "simclr", "--out", "weights.bin"], "unknown suffix '.bin'; use .safetensors"),
        ("photos", ["--method", "simclr", "--out", "no/w.safetensors"], "there is no folder no; create it first"),
        ("x.npy", ["--method", "simclr"], "holds embeddings, but a backbone is trained on images"),
        ("missing", ["--method", "simclr"], "there is no such file or folder"),
        ("empty", ["--method", "simclr"], "holds no images"),
        ("unlabelled", ["--method", "supervised"], "label"),
    ],
)
def test_bad_input_gets_one_line_and_caches_nothing(photos, tmp_path, data, arguments, message):
    np.save(tmp_path / "x.npy", np.zeros((5, 3), np.float32))
    (tmp_path / "empty").mkdir()
    (tmp_path / "photos").symlink_to(photos)
    (tmp_path / "unlabelled").symlink_to(photos / "unlabelled")
    assert message in refused("pretrain", tmp_path / data, *arguments)
    assert not (tmp_path / "cache" / "pretraining").exists()


def test_a_method_must_be_chosen(photos: Path):
    assert "--method" in call("pretrain", photos).output


def test_the_settings_of_a_stage_are_listed():
    assert "projection" in done("settings", "simclr").stdout


# Stopped and killed

LONG = [*TINY, "--set=epochs=6"]
AT_EACH_EPOCH = """
import sys
from combemb.learning import loop
loop.CHECKPOINT_SECONDS = 0.0
from combemb.cli import app
app()
"""


def test_ctrl_c_says_that_the_same_command_continues(photos: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    def stopped(*arguments, **options):
        train(*arguments, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("combemb.learning.deep.train", stopped)
        result = call("pretrain", photos, "--method", "simclr", *TINY)
    assert result.exit_code == 130
    assert told(result).splitlines()[-1] == "stopped; the same command continues from the last checkpoint"
    assert "a backbone whose training is unfinished" in done("cache").stdout
    done("pretrain", photos, "--method", "simclr", *TINY)


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_training_continues_to_the_same_weights(photos: Path, tmp_path: Path, stage: str):
    arguments = ["pretrain", str(photos), "--method", stage, *LONG]
    killed = {**os.environ, "COMBEMB_CACHE": str(tmp_path / "killed"), "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen([sys.executable, "-c", AT_EACH_EPOCH, *arguments], env=killed, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "killed").glob("pretraining/*/training/checkpoint.safetensors")):
        assert child.poll() is None, child.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.001)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stderr.close()
    folder = stage_of(tmp_path / "killed")
    assert not (folder / "backbone.safetensors").exists()
    assert len((folder / "training/metrics.jsonl").read_text().splitlines()) < 6
    subprocess.run([sys.executable, "-c", AT_EACH_EPOCH, *arguments], env=killed, check=True)
    whole = {**killed, "COMBEMB_CACHE": str(tmp_path / "whole")}
    subprocess.run([sys.executable, "-c", AT_EACH_EPOCH, *arguments], env=whole, check=True)
    assert_same(folder / "backbone.safetensors", stage_of(tmp_path / "whole") / "backbone.safetensors")
    logs = [(stage_of(tmp_path / name) / "metrics.jsonl").read_text() for name in ("killed", "whole")]
    losses = [[json.loads(line)["loss"] for line in log.splitlines()] for log in logs]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 6
