"""`combemb run`: four steps in one go; what is done is not done again, and what has changed is said."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.cli.found import BLOBS, BROKEN, NAMES, PICTURES, TABLES, N
from tests.commands import done, refused, told
from tests.pictures import IDS, SEEN, TARGETS, write_folder

QUICK = ("--method", "itq", "--bits", "12", "--set", "image_size=32", "--set", "n_views=2")
SHORT = ("--bits", "12", "--set", "epochs=3", "--set", "batch_size=64")
UNCHECKED = ("--set", "check=False", "--set", "image_size=32", "--set", "n_views=2")
STEPS = {
    "fit": "weights.safetensors",
    "index": "entries.parquet",
    "discover": "discovery.parquet",
    "page": "discovery.html",
}


def times(run: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in run.iterdir()}


def steps(*arguments: object) -> dict[str, str]:
    return json.loads(done("run", *arguments, "--json").stdout)["steps"]


@pytest.fixture(scope="module")
def first(photos: Path, tmp_path_factory: pytest.TempPathFactory):
    """A whole run on the pictures, and what was printed of it."""
    run = tmp_path_factory.mktemp("whole") / "run"
    return run, done("run", photos, "--out", run, *QUICK)


@pytest.fixture
def whole(first, tmp_path: Path) -> Path:
    """Such a run that a test may change."""
    return shutil.copytree(first[0], tmp_path / "run")


def test_all_steps_run_and_what_was_found_is_said(first):
    run, result = first
    assert {*STEPS.values(), *TABLES, *PICTURES, "run.json", "index.safetensors"} <= times(run).keys()
    shown = [line.split(",")[0] for line in told(result).splitlines() if not line.startswith("note: ")]
    assert shown == [f"step {number} of 4: {name}" for number, name in enumerate(STEPS, start=1)]
    lines = result.stdout.splitlines()
    assert lines[:3] == [
        f"{len(IDS) - 1} images, 23 of them labelled with 4 classes",
        f"left out: 1 that cannot be read, listed in {run / 'broken.csv'}",
        "not checked whether this is good: itq has no check on hidden classes",
    ]
    assert lines[3].startswith("found ")
    assert lines[4] == f"the page that shows all classes: {run / 'discovery.html'}"
    for follow in ("open this page", f"combemb search {run} IMAGE", f"combemb predict {run} NEW-IMAGES"):
        assert follow in result.stdout
    assert (f"combemb classes {run} name novel-1 " in result.stdout) == (
        "novel-1" in (run / "discovery.csv").read_text()
    )


def test_a_second_call_does_nothing_and_says_so(first, photos: Path):
    run, result = first
    before = times(run)
    again = done("run", photos, "--out", run, *QUICK)
    assert times(run) == before
    nothing, *rest = again.stdout.splitlines()
    assert nothing == f"{run} is complete and nothing has changed since, so there was nothing to do"
    assert rest == result.stdout.splitlines()
    assert told(again) == ""
    assert set(steps(photos, "--out", run, *QUICK).values()) == {"unchanged"}
    assert done("run", photos, "--out", run, *QUICK, "--quiet").output == ""


def test_features_that_were_pruned_are_not_needed_for_that(first, photos: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COMBEMB_CACHE", "/dev/null/nothing")
    assert set(steps(photos, "--out", first[0], *QUICK).values()) == {"unchanged"}


@pytest.mark.parametrize("step", list(STEPS)[1:])
def test_only_what_is_missing_is_made(whole: Path, photos: Path, step: str):
    before = times(whole)
    (whole / STEPS[step]).unlink()
    follows = {"discover": {"discover", "page"}}.get(step, {step})  # a page shows the clusters of its tables
    assert {name for name, state in steps(photos, "--out", whole, *QUICK).items() if state == "done"} == follows
    assert before.keys() <= times(whole).keys()
    assert times(whole)["weights.safetensors"] == before["weights.safetensors"]


def test_the_page_that_is_made_later_is_the_same(first, whole: Path, photos: Path):
    (whole / "discovery.html").unlink()
    done("run", photos, "--out", whole, *QUICK)
    pages = [(run / "discovery.html").read_text().replace(str(run), "RUN") for run in (whole, first[0])]
    assert pages[0] == pages[1]


def killed_in_training(log: Path, *arguments: object) -> None:
    """Run `combemb run` and kill it when the first epoch is in the log."""
    command = [sys.executable, "-m", "combemb", "run", *map(str, arguments)]
    with subprocess.Popen(command, env=dict(os.environ), stderr=subprocess.DEVNULL) as child:
        while not log.exists():
            assert child.poll() is None
            time.sleep(0.001)
        child.send_signal(signal.SIGKILL)


def test_a_run_that_is_killed_in_training_goes_on(items: Path, tmp_path: Path):
    run, options = tmp_path / "run", (*SHORT, *UNCHECKED)
    killed_in_training(run / "metrics.jsonl", items, "--out", run, *options)
    assert steps(items, "--out", run, *options)["page"] == "done"
    done("fit", items, "--out", tmp_path / "whole", *options)
    weights = [(path / "weights.safetensors").read_bytes() for path in (run, tmp_path / "whole")]
    assert weights[0] == weights[1]


def test_an_update_that_is_killed_in_training_goes_on(items: Path, own_run: Path, tmp_path: Path):
    options, log = ("--out", own_run, *SHORT, *UNCHECKED, "--update"), own_run / ".new" / "metrics.jsonl"
    killed_in_training(log, items, *options)
    assert "bits was 12, now it is 24" in refused(
        "run", items, "--out", own_run, "--method", "itq", "--bits", "24", *QUICK[4:]
    )
    started = (log.parent / "run.json").stat().st_mtime_ns
    assert set(steps(items, *options).values()) == {"done"}
    assert times(own_run)["run.json"] == started  # a fit that starts again writes another one


def test_changed_images_are_said_and_update_runs_all_steps(tmp_path: Path):
    photos, run = write_folder(tmp_path / "photos"), tmp_path / "run"
    done("run", photos, "--out", run, *QUICK)
    done("classes", run, "name", pq.read_table(run / "discovery.parquet")["cluster"].to_pylist()[-1], "fox")
    Image.new("RGB", (32, 32)).save(photos / IDS[0])
    assert f"since {run} was started: the images have changed. To " in refused("run", photos, "--out", run, *QUICK)
    shutil.copy(photos / IDS[-1], photos / "loose.png")
    (photos / IDS[-2]).unlink()
    before = times(run)
    message = refused("run", photos, "--out", run, *QUICK)
    assert f"since {run} was started: the images have changed (1 new, 1 no longer there). " in message
    assert "add --update: all steps run again, and the names that you gave are kept" in message
    assert f"combemb predict {run} NEW sorts new items" in message
    assert times(run) == before
    assert set(steps(photos, "--out", run, *QUICK, "--update").values()) == {"done"}
    assert set(steps(photos, "--out", run, *QUICK, "--update").values()) == {"unchanged"}
    assert "fox" in done("classes", run).stdout
    assert str(photos / "loose.png") in pq.read_table(run / "entries.parquet")["id"].to_pylist()


def test_another_folder_is_a_change(first, photos: Path):
    message = refused("run", photos / "ant", "--out", first[0], *QUICK)
    assert f"was started: the data were {photos}, now they are {photos / 'ant'}. To" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "itq", "--bits", "24"], "bits was 12, now it is 24"),
        (["--method", "itq", "--bits", "12", "--seed", "3"], "seed was 0, now it is 3"),
        (["--bits", "12"], "method was itq, now it is combemb. To"),
    ],
)
def test_changed_settings_are_said(own_run: Path, items: Path, options: list[str], message: str):
    assert message in refused("run", items, "--out", own_run, *options, *QUICK[4:])


def test_changed_labels_are_said(items: Path, own_run: Path, tmp_path: Path):
    ids = [f"item-{i}" for i in range(N)]
    for number, names in enumerate((np.where(np.arange(N) == 0, "", NAMES), np.where(NAMES == "ant", "emu", NAMES))):
        rows = "\n".join(f"{name},{label}" for name, label in zip(ids, names, strict=True))
        (tmp_path / f"{number}.csv").write_text(f"id,label\n{rows}\n")
        message = refused("run", items, "--labels", tmp_path / f"{number}.csv", "--out", own_run, *QUICK)
        assert "was started: the labels have changed. To" in message


def test_a_damaged_run_is_said_and_replaced_by_an_update(own_run: Path, items: Path):
    (own_run / "run.json").write_text('{"format_version": 1}')
    assert "was written by another version of combemb" in refused("run", items, "--out", own_run, *QUICK)
    assert set(steps(items, "--out", own_run, *QUICK, "--update").values()) == {"done"}


def test_processes_of_torchrun_are_refused(items: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "under torchrun, use combemb fit" in refused("run", items, "--out", tmp_path / "run", *QUICK)


def test_changed_embeddings_are_said(tmp_path: Path):
    data, run = tmp_path / "items.npz", tmp_path / "run"
    np.savez(data, x=BLOBS.x + 1, labels=NAMES)
    done("run", data, "--out", run, *QUICK)
    np.savez(data, x=BLOBS.x, labels=NAMES)
    assert "was started: the embeddings have changed. To" in refused("run", data, "--out", run, *QUICK)


def test_labels_of_a_file_are_those_of_all_steps(tmp_path: Path):
    np.save(tmp_path / "x.npy", BLOBS.x)
    labels = tmp_path / "labels.csv"
    labels.write_text("id,label\n" + "".join(f"{i},{name}\n" for i, name in enumerate(NAMES) if name))
    result = done("run", tmp_path / "x.npy", "--labels", labels, "--out", tmp_path / "run", *QUICK)
    assert told(result).count("have no row in") == 1
    assert pq.read_table(tmp_path / "run/entries.parquet")["label"].to_pylist() == [name or None for name in NAMES]
    assert "120 items, 40 of them labelled with 4 classes\n" in result.stdout
    assert set(steps(tmp_path / "x.npy", "--labels", labels, "--out", tmp_path / "run", *QUICK).values()) == {
        "unchanged"
    }
    assert "the labels have changed" in refused("run", tmp_path / "x.npy", "--out", tmp_path / "run", *QUICK)


def test_json_has_what_was_found(items: Path, tmp_path: Path):
    found = json.loads(done("run", items, "--out", tmp_path / "run", *SHORT, "--json").stdout)
    assert found["steps"] == dict.fromkeys(STEPS, "done")
    assert (found["n_items"], found["n_labelled"], found["n_seen"], found["n_novel"]) == (N, 40, 4, 2)
    assert found["left_out"] == {"test": 0, "unlabelled": 0, "broken": 0}
    assert found["grade"] in {"good", "fair", "poor"}
    assert found["hidden_check"]["n_hidden"] == 1
    assert Path(found["page"]).exists()


def test_a_method_without_codes_has_no_index(items: Path, tmp_path: Path):
    options = ("--method", "tests.learning.kinds:Queue", "--set", "epochs=1")
    result = done("run", items, "--out", tmp_path / "run", *options)
    assert [line[:11] for line in told(result).splitlines()] == [f"step {i} of 3" for i in (1, 2, 3)]
    assert not (tmp_path / "run/entries.parquet").exists()
    assert set(steps(items, "--out", tmp_path / "run", *options).values()) == {"unchanged"}


# Piles in which everything is labelled


def by_class(folder: Path) -> Path:
    """All pictures in a folder of their class."""
    return write_folder(folder, [f"{target}/{Path(name).name}" for name, target in zip(IDS, TARGETS, strict=True)])


def test_a_pile_that_is_all_labelled_runs(tmp_path: Path):
    photos, run = by_class(tmp_path / "sorted"), tmp_path / "run"
    found = json.loads(done("run", photos, "--out", run, *SHORT, *UNCHECKED, "--json").stdout)
    assert (found["n_items"], found["n_labelled"], found["n_seen"]) == (len(IDS), len(IDS), 6)
    assert (found["n_novel"], found["n_in_novel"]) == (0, 0)
    assert "found no novel classes\n" in done("run", photos, "--out", run, *SHORT, *UNCHECKED).stdout
    assert done("predict", run, photos / "ant").stdout.startswith("12 items: 12 in known classes")


def test_folders_that_discover_made_and_a_person_renamed_with_new_photos(whole: Path, photos: Path, tmp_path: Path):
    """Next month: what was found has a name, and unlabelled photos have come."""
    place = tmp_path / "sorted"
    done("discover", whole, "--n-novel", "2", "--to-folders", place, "--no-page")
    (place / "novel-1").rename(place / "eel")
    (place / "novel-2").rename(place / "fox")
    done("fit", place, "--out", tmp_path / "all", *SHORT, *UNCHECKED)
    (place / "unlabelled").mkdir()
    for name in IDS[-5:]:
        Image.open(photos / name).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(
            place / "unlabelled" / Path(name).name
        )
    result = done("run", place, "--out", tmp_path / "next", *SHORT, *UNCHECKED)
    n = len(IDS) - (BROKEN in IDS)
    assert f"{n + 5} images, {n} of them labelled with 6 classes\n" in result.stdout
    assert json.loads((tmp_path / "next/run.json").read_text())["classes"] == [*SEEN, "eel", "fox"]
