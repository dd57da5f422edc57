"""The command line on real files: what is written, what is printed, and what bad input gets."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from combemb import methods
from combemb.cli import app
from combemb.cli.options import parse_settings, read_label_file
from combemb.data import read_embeddings
from tests.pictures import IDS, LABELS, SEEN, write_folder, write_manifest

SHORT = ["--bits", "12", "--set", "epochs=3", "--set", "batch_size=64"]
SMALL = [*SHORT, "--set", "image_size=32", "--set", "n_views=2"]
BROKEN = "cat/013.png"


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
    result = call("fit", items, "--out", folder, *SHORT)
    assert result.exit_code == 0, result.output
    return folder


def call(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


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
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == BEGUN, done.stderr


def test_names_of_files_that_look_like_markup_are_printed_as_they_are(items: Path, tmp_path: Path):
    folder = tmp_path / "runs[" / "a] [b]"
    result = call("fit", items, "--out", folder, *SHORT)
    assert result.exit_code == 0
    assert f"written to {folder}: " in result.stdout
    result = call("embed", folder, items, "--out", tmp_path / "z[b].npy")
    assert f"written to {tmp_path / 'z[b].npy'}" in result.stdout


def test_fit_writes_a_run_and_says_what_it_learned(items: Path, tmp_path: Path):
    result = call("fit", items, "--out", tmp_path / "run", *SHORT)
    assert result.exit_code == 0, result.output
    for word in ("6 sets of 4 meta-classes", "positives per anchor", "precision", "recall", "distinct", "run.json"):
        assert word in result.stdout
    config = json.loads((tmp_path / "run" / "run.json").read_text())
    assert config["classes"] == ["ant", "bee", "cat", "dog"]
    assert config["fields"]["bits"] == 12
    assert config["fields"]["epochs"] == 3
    diagnosis = json.loads((tmp_path / "run" / "diagnosis.json").read_text())
    assert {"positives_per_anchor", "pair_precision", "pair_recall", "code_use", "n_codes"} <= set(diagnosis)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 3


def test_quiet_prints_nothing(items: Path, tmp_path: Path):
    result = call("fit", items, "--out", tmp_path / "run", "--quiet", *SHORT)
    assert (result.exit_code, result.output) == (0, "")


@pytest.mark.parametrize(("verb", "column"), [("embed", "embedding"), ("encode", "code")])
def test_embed_and_encode_write_what_the_model_gives(run: Path, items: Path, tmp_path: Path, verb: str, column: str):
    expected = getattr(methods.load(run), verb)(items).numpy()
    assert call(verb, run, items, "--out", tmp_path / "rows.npy").exit_code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "rows.npy"), expected)
    assert call(verb, run, items, "--out", tmp_path / "rows.parquet").exit_code == 0
    table = pq.read_table(tmp_path / "rows.parquet")
    assert table["id"].to_pylist()[:2] == ["item-0", "item-1"]
    np.testing.assert_array_equal(np.array(table[column].to_pylist(), dtype=expected.dtype), expected)


def test_embeddings_written_as_parquet_can_be_fitted_again(run: Path, items: Path, tmp_path: Path):
    assert call("embed", run, items, "--out", tmp_path / "z.parquet").exit_code == 0
    again = read_embeddings(tmp_path / "z.parquet")
    np.testing.assert_array_equal(again.x, methods.load(run).embed(items).numpy())


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
    assert call(*arguments).exit_code == 0
    np.testing.assert_array_equal(methods.load(tmp_path / "run").classes_, ["ant", "bee", "cat", "dog"])


def test_text_labels_keep_leading_zeros_and_take_minus_one_as_unlabelled(tmp_path: Path):
    (tmp_path / "labels.txt").write_text("001\n2\n-1 \n\n cat \n")
    assert read_label_file(tmp_path / "labels.txt").tolist() == ["001", "2", None, None, "cat"]
    (tmp_path / "labels.txt").write_text("1\n2\n-1\n\n")
    assert read_label_file(tmp_path / "labels.txt").tolist() == [1, 2, -1, -1]


def test_number_labels_in_text_stay_numbers(items: Path, tmp_path: Path):
    labels = ["7", "8", "9", "10"] * 20 + ["-1"] * 50 + [""] * 50
    (tmp_path / "labels.txt").write_text("\n".join(labels) + "\n")
    result = call("fit", items, "--labels", tmp_path / "labels.txt", "--out", tmp_path / "run", *SHORT)
    assert result.exit_code == 0, result.output
    assert methods.load(tmp_path / "run").classes_.tolist() == [7, 8, 9, 10]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "nope"], "choose one of combemb, itq"),
        (["--bits", "13"], "bits=13 is not a multiple of log2(n_meta_classes)=2; use 12 or 14"),
        (["--set", "tau=1"], "has no setting 'tau'; choose one of"),
        (["--set", "epochs"], "expected NAME=VALUE"),
        (["--set", "epochs=many"], "expected int or None"),
        (["--set", "n_meta_classes=8"], "8"),
        (["--labels", "missing.txt"], "cannot read labels"),
    ],
)
def test_bad_input_gets_one_line_and_writes_nothing(items: Path, tmp_path: Path, arguments: list[str], message: str):
    result = call("fit", items, "--out", tmp_path / "run", *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert not (tmp_path / "run").exists()


def test_an_unreadable_file_is_named(tmp_path: Path):
    (tmp_path / "x.npy").write_bytes(b"not numpy")
    result = call("fit", tmp_path / "x.npy", "--out", tmp_path / "run")
    assert result.exit_code == 1
    assert "x.npy" in result.stderr
    assert not (tmp_path / "run").exists()


def test_existing_runs_and_files_are_kept_without_overwrite(run: Path, items: Path, tmp_path: Path):
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    result = call("fit", items, "--out", run, *SHORT)
    assert result.exit_code == 1
    assert "overwrite" in result.stderr
    assert "resume" in result.stderr
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    target = tmp_path / "z.npy"
    target.write_text("mine")
    assert call("embed", run, items, "--out", target).exit_code == 1
    assert target.read_text() == "mine"
    assert call("embed", run, items, "--out", target, "--overwrite").exit_code == 0
    assert call("embed", run, items, "--out", tmp_path / "z.csv").exit_code == 1


def test_resuming_a_finished_run_changes_nothing(run: Path, items: Path):
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    assert call("fit", items, "--out", run, "--resume", *SHORT).exit_code == 0
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


@pytest.mark.parametrize("command", [[], ["fit"], ["embed"], ["encode"], ["settings"], ["demo"]])
def test_help_explains_each_command(command: list[str]):
    result = call(*command, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_settings_lists_methods_and_every_field():
    assert "combemb" in call("settings").stdout
    shown = call("settings", "combemb").stdout
    for name in methods.get("combemb")().get_params():
        assert name in shown


def test_settings_have_the_type_of_their_field():
    chosen = parse_settings(methods.get("combemb"), ["temperature=1", "include_self=False", "anchors=all"])
    assert chosen == {"temperature": 1.0, "include_self": False, "anchors": "all"}
    assert isinstance(chosen["temperature"], float)


def test_two_processes_of_the_command_line_write_one_run(items: Path, tmp_path: Path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "combemb"]
    arguments = ["fit", str(items), "--out", str(tmp_path / "run"), *SHORT]
    done = subprocess.run(
        [*launch, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("written to") == 1
    assert methods.load(tmp_path / "run").encode(items).shape == (180, 6)


# Images


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pictures, one of which is cut short."""
    return write_folder(tmp_path_factory.mktemp("photos"), broken=(BROKEN,))


@pytest.fixture(scope="module")
def photo_run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "photos"
    result = call("fit", photos, "--out", folder, *SMALL)
    assert result.exit_code == 0, result.output
    for word in ("unreadable images left out: 1", "4 meta-classes", "broken.csv", "run.json"):
        assert word in result.stdout
    return folder


def test_a_folder_of_images_is_fitted_without_the_broken_one(photo_run: Path):
    config = json.loads((photo_run / "run.json").read_text())
    assert config["classes"] == list(SEEN)
    assert config["image_size"] == 32
    assert pyarrow.csv.read_csv(photo_run / "broken.csv")["id"].to_pylist() == [BROKEN]
    assert json.loads((photo_run / "diagnosis.json").read_text())["n_coded"] == len(IDS) - 1


@pytest.mark.parametrize(("verb", "column"), [("embed", "embedding"), ("encode", "code")])
def test_images_get_rows_with_ids_and_broken_ones_are_told(
    photo_run: Path, photos: Path, tmp_path: Path, verb: str, column: str
):
    model = methods.load(photo_run)
    expected = getattr(model, verb)(model.read(photos)).numpy()
    result = call(verb, photo_run, photos, "--out", tmp_path / "rows.parquet")
    assert result.exit_code == 0, result.output
    assert f"unreadable images left out of {tmp_path / 'rows.parquet'}: 1" in result.stderr
    assert f"{BROKEN}: " in result.stderr
    assert "71 rows" in result.stdout
    table = pq.read_table(tmp_path / "rows.parquet")
    assert table["id"].to_pylist() == [name for name in IDS if name != BROKEN]
    np.testing.assert_array_equal(np.array(table[column].to_pylist(), dtype=expected.dtype), expected)
    quiet = call(verb, photo_run, photos, "--out", tmp_path / "rows.npy", "--quiet")
    assert (quiet.exit_code, quiet.stdout) == (0, "")
    assert BROKEN in quiet.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "rows.npy"), expected)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_manifest_is_fitted_and_encoded(photos: Path, tmp_path: Path, suffix: str):
    numbers = [f"photo-{i}" for i in range(len(IDS))]
    split = ["test" if i % 6 == 5 else "train" for i in range(len(IDS))]
    manifest = write_manifest(tmp_path / f"photos.{suffix}", photos, LABELS, id=numbers, split=split)
    arguments = ("fit", manifest, "--out", tmp_path / "run", "--method", "itq", "--bits", "8", "--set", "image_size=32")
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "run" / "diagnosis.json").read_text())["n_coded"] == 59  # 60 to train on, one broken
    assert call("encode", tmp_path / "run", manifest, "--out", tmp_path / "codes.parquet").exit_code == 0
    found = pq.read_table(tmp_path / "codes.parquet")["id"].to_pylist()
    assert found == [name for name in numbers if name != "photo-13"]


def test_a_backbone_is_chosen_by_a_setting(photos: Path, tmp_path: Path):
    settings = ("backbone=resnet18", "backbone_width=4", "finetune=all", "epochs=1", "threads=2")
    chosen = [f"--set={text}" for text in settings]
    result = call("fit", photos, "--out", tmp_path / "run", "--bits", "12", *chosen)
    assert result.exit_code == 0, result.output
    model = methods.load(tmp_path / "run")
    assert (model.backbone, model.backbone_width, model.finetune, model.image_size_) == ("resnet18", 4, "all", 32)
    assert call("encode", tmp_path / "run", photos, "--out", tmp_path / "codes.npy").exit_code == 0
    assert np.load(tmp_path / "codes.npy").shape == (71, 6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["backbone=nope"],
            "unknown backbone 'nope'; choose one of alexnet, efficientnet_lite0, resnet18, vgg, or hf:",
        ),
        (["backbone=resnet18"], "resnet18 comes without weights; give backbone_weights=FILE, or"),
        (["n_views=0"], "n_views=0 must be above 0"),
        (["image_size=small"], "--set image_size=small: expected int or None"),
        (["finetune=some"], "finetune='some'; choose one of none, last, all"),
        (["backbone_weights=None", "crop_area=2"], "crop_area=2.0 is not in (0, 1]"),
    ],
)
def test_bad_settings_for_images_get_one_line(photos: Path, tmp_path: Path, settings: list[str], message: str):
    result = call("fit", photos, "--out", tmp_path / "run", *[f"--set={text}" for text in settings])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert not (tmp_path / "run").exists()


def test_text_settings_can_be_none():
    assert parse_settings(methods.get("combemb"), ["backbone_weights=None"]) == {"backbone_weights": None}
    assert parse_settings(methods.get("combemb"), ["backbone=None"]) == {"backbone": "None"}


def test_folders_that_are_missing_or_empty_are_named(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    for name, message in (("missing", "there is no such file or folder"), ("empty", "holds no images")):
        result = call("fit", tmp_path / name, "--out", tmp_path / "run")
        assert result.exit_code == 1
        assert str(tmp_path / name) in result.stderr
        assert message in result.stderr
