"""`combemb fit` on real files: what is written and printed, and what bad input gets."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from combemb import methods
from tests.cli.found import BROKEN
from tests.commands import done, files, refused
from tests.pictures import IDS, LABELS, SEEN, write_folder, write_manifest

SHORT = ["--bits", "12", "--set", "epochs=3", "--set", "batch_size=64"]
SMALL = [*SHORT, "--set", "image_size=32", "--set", "n_views=2"]


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Blobs of six classes, four of them half labelled, as an .npz with string labels and ids."""
    rng = np.random.default_rng(0)
    targets = np.repeat(np.arange(6), 30)
    x = (4 * rng.normal(size=(6, 16))[targets] + rng.normal(size=(180, 16))).astype(np.float32)
    names = np.array(["ant", "bee", "cat", "dog", "eel", "fox"])[targets]
    labels = np.where((targets < 4) & (np.arange(180) % 2 == 0), names, "")
    path = tmp_path_factory.mktemp("items") / "items.npz"
    np.savez(path, x=x, labels=labels, ids=np.array([f"item-{i}" for i in range(180)]))
    return path


@pytest.fixture(scope="module")
def run(items: Path) -> Path:
    folder = items.parent / "run"
    done("fit", items, "--out", folder, *SHORT)
    return folder


SLOW = ("faiss", "sklearn", "scipy.stats", "matplotlib", "plotly", "openTSNE", "transformers", "kornia")  # to import
BEGUN = 3  # an exit code
STARTED = f"""
import sys
from combemb.cli import app
from combemb.learning import deep

deep.train = lambda *_: sys.exit([name for name in {SLOW} if name in sys.modules] or {BEGUN})
app()
"""


def test_training_begins_before_anything_is_imported_that_it_does_not_need(items: Path, tmp_path: Path):
    command = [sys.executable, "-c", STARTED, "fit", items, "--out", tmp_path / "run", *SHORT]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    assert child.returncode == BEGUN, child.stderr


def test_names_of_files_that_look_like_markup_are_printed_as_they_are(items: Path, tmp_path: Path):
    folder = tmp_path / "runs[" / "a] [b]"
    result = done("fit", items, "--out", folder, *SHORT)
    assert f"written to {folder}: " in result.stdout
    result = done("embed", folder, items, "--out", tmp_path / "z[b].npy")
    assert f"written to {tmp_path / 'z[b].npy'}" in result.stdout


def test_fit_writes_a_run_and_says_what_it_learned(items: Path, tmp_path: Path):
    result = done("fit", items, "--out", tmp_path / "run", *SHORT)
    lines = result.stdout.splitlines()
    assert lines[0] == "180 items, 60 of them labelled with 4 classes"
    assert lines[1].startswith("the fit is ")
    assert re.fullmatch(r"checked on 1 hidden class: your codes [\d.]+, plain features [\d.]+, expected .*", lines[2])
    assert lines[3].startswith(f"written to {tmp_path / 'run'}: diagnosis.json, ")
    assert lines[4:] == [f"next: combemb index {tmp_path / 'run'}, combemb discover {tmp_path / 'run'}"]
    config = json.loads((tmp_path / "run" / "run.json").read_text())
    assert config["classes"] == ["ant", "bee", "cat", "dog"]
    assert config["settings"]["bits"] == 12
    assert config["settings"]["epochs"] == 3
    diagnosis = json.loads((tmp_path / "run" / "diagnosis.json").read_text())
    assert {"positives_per_anchor", "pair_precision", "pair_recall", "code_use", "n_codes"} <= set(diagnosis)
    report = " ".join(diagnosis["report"])
    for word in ("6 sets of 4 meta-classes", "positives per anchor", "precision", "recall", "distinct"):
        assert word in report
        assert word not in result.output
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 3


def test_quiet_prints_nothing(items: Path, tmp_path: Path):
    assert done("fit", items, "--out", tmp_path / "run", "--quiet", *SHORT).output == ""


@pytest.mark.parametrize("form", ["npy", "txt"])
def test_labels_from_a_file_of_their_own(items: Path, tmp_path: Path, form: str):
    with np.load(items) as archive:
        np.save(tmp_path / "x.npy", archive["x"])
        labels = archive["labels"]
    if form == "npy":
        np.save(tmp_path / "labels.npy", labels)
    else:
        (tmp_path / "labels.txt").write_text("\n".join(labels) + "\n")
    arguments = ("fit", tmp_path / "x.npy", "--labels", tmp_path / f"labels.{form}", "--out", tmp_path / "run", *SHORT)
    done(*arguments)
    np.testing.assert_array_equal(methods.load(tmp_path / "run").classes_, ["ant", "bee", "cat", "dog"])


def test_number_labels_in_text_stay_numbers(items: Path, tmp_path: Path):
    labels = ["7", "8", "9", "10"] * 20 + ["-1"] * 50 + [""] * 50
    (tmp_path / "labels.txt").write_text("\n".join(labels) + "\n")
    done("fit", items, "--labels", tmp_path / "labels.txt", "--out", tmp_path / "run", *SHORT)
    assert methods.load(tmp_path / "run").classes_.tolist() == [7, 8, 9, 10]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "nope"], f"choose one of {', '.join(methods.names())}"),
        (
            ["--bits", "13", "--set", "n_meta_classes=4"],
            "bits=13 is not a multiple of log2(n_meta_classes)=2; use 12 or 14",
        ),
        (["--set", "tau=1"], "has no setting 'tau'; choose one of"),
        (["--set", "epochs"], "expected NAME=VALUE"),
        (["--set", "epochs=many"], "expected int or None"),
        (["--set", "n_meta_classes=8"], "8"),
        (["--labels", "missing.txt"], "cannot read labels"),
    ],
)
def test_bad_input_gets_one_line_and_writes_nothing(items: Path, tmp_path: Path, arguments: list[str], message: str):
    assert message in refused("fit", items, "--out", tmp_path / "run", *arguments)
    assert not (tmp_path / "run").exists()


def test_an_unreadable_file_is_named(tmp_path: Path):
    (tmp_path / "x.npy").write_bytes(b"not numpy")
    assert "x.npy" in refused("fit", tmp_path / "x.npy", "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_existing_run_is_kept_without_overwrite(run: Path, items: Path):
    before = files(run)
    message = refused("fit", items, "--out", run, *SHORT)
    assert "overwrite" in message
    assert "resume" in message
    assert files(run) == before


def test_resuming_a_finished_run_changes_nothing(run: Path, items: Path):
    before = files(run)
    done("fit", items, "--out", run, "--resume", *SHORT)
    assert files(run) == before


def test_two_processes_of_the_command_line_write_one_run(items: Path, tmp_path: Path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "combemb"]
    arguments = ["fit", str(items), "--out", str(tmp_path / "run"), *SHORT]
    child = subprocess.run(
        [*launch, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.count("written to") == 1
    assert methods.load(tmp_path / "run").encode(items).shape == (180, 6)


# Images


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pictures, one of which is cut short."""
    return write_folder(tmp_path_factory.mktemp("photos"), broken=(BROKEN,))


@pytest.fixture(scope="module")
def photo_run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "photos"
    result = done("fit", photos, "--out", folder, *SMALL)
    assert f"left out: 1 that cannot be read, listed in {folder / 'broken.csv'}\n" in result.stdout
    assert f"{len(IDS) - 1} images, 23 of them labelled with 4 classes\n" in result.stdout
    return folder


def test_a_folder_of_images_is_fitted_without_the_broken_one(photo_run: Path):
    config = json.loads((photo_run / "run.json").read_text())
    assert config["classes"] == list(SEEN)
    assert config["images"]["size"] == 32
    assert pyarrow.csv.read_csv(photo_run / "broken.csv")["id"].to_pylist() == [BROKEN]
    assert json.loads((photo_run / "diagnosis.json").read_text())["n_coded"] == len(IDS) - 1


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_manifest_is_fitted_and_encoded(photos: Path, tmp_path: Path, suffix: str):
    numbers = [f"photo-{i}" for i in range(len(IDS))]
    split = ["test" if i % 6 == 5 else "train" for i in range(len(IDS))]
    manifest = write_manifest(tmp_path / f"photos.{suffix}", photos, LABELS, id=numbers, split=split)
    arguments = ("fit", manifest, "--out", tmp_path / "run", "--method", "itq", "--bits", "8", "--set", "image_size=32")
    done(*arguments)
    assert json.loads((tmp_path / "run" / "diagnosis.json").read_text())["n_coded"] == 59  # 60 to train on, one broken
    done("encode", tmp_path / "run", manifest, "--out", tmp_path / "codes.parquet")
    found = pq.read_table(tmp_path / "codes.parquet")["id"].to_pylist()
    assert found == [name for name in numbers if name != "photo-13"]


def test_a_backbone_is_chosen_by_a_setting(photos: Path, tmp_path: Path):
    settings = ("backbone=resnet18", "backbone_width=4", "finetune=all", "epochs=1", "threads=2")
    chosen = [f"--set={text}" for text in settings]
    done("fit", photos, "--out", tmp_path / "run", "--bits", "12", *chosen)
    model = methods.load(tmp_path / "run")
    assert (model.backbone, model.backbone_width, model.finetune, model.image_input_.size) == ("resnet18", 4, "all", 32)
    done("encode", tmp_path / "run", photos, "--out", tmp_path / "codes.npy")
    assert np.load(tmp_path / "codes.npy").shape == (71, 6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["backbone=nope"],
            "unknown backbone 'nope'; choose one of alexnet, efficientnet_lite0, nin, resnet18, vgg, or hf:",
        ),
        (["backbone=resnet18"], "resnet18 comes without weights; set backbone_weights=FILE, or"),
        (["n_views=0"], "n_views=0 must be above 0"),
        (["image_size=small"], "--set image_size=small: expected int or None"),
        (["finetune=some"], "finetune='some' must be one of none, last, all"),
        (["backbone_weights=None", "crop_area=2"], "crop_area=2.0 must be above 0 and at most 1"),
    ],
)
def test_bad_settings_for_images_get_one_line(photos: Path, tmp_path: Path, settings: list[str], message: str):
    assert message in refused("fit", photos, "--out", tmp_path / "run", *[f"--set={text}" for text in settings])
    assert not (tmp_path / "run").exists()


def test_folders_that_are_missing_or_empty_are_named(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    for name, message in (("missing", "there is no such file or folder"), ("empty", "holds no images")):
        shown = refused("fit", tmp_path / name, "--out", tmp_path / "run")
        assert str(tmp_path / name) in shown
        assert message in shown
