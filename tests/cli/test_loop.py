"""The loop of daily use: discover, say what was found, fit with the labels that follow, add next month's photos."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.cli.found import BLOBS, N, table
from tests.commands import done, refused, told
from tests.pictures import IDS, SEEN, TARGETS, write_folder

SHORT = ("--set", "epochs=1", "--set", "check=False", "--set", "image_size=32", "--set", "n_views=2", "--bits", "12")


@pytest.fixture
def labels(item_run, tmp_path: Path) -> Path:
    """The labels after a person has named one class and confirmed the seen ones; the other novel class has no name."""
    run = shutil.copytree(item_run[0], tmp_path / "found")
    done("classes", run, "name", table(run)["cluster"][-1], "fox")
    for name in SEEN:
        done("classes", run, "name", name, name)
    done("classes", run, "labels", "--out", tmp_path / "labels.csv")
    return tmp_path / "labels.csv"


def test_a_fit_takes_the_labels_that_follow(items: Path, labels: Path, tmp_path: Path):
    result = done("fit", items, "--labels", labels, "--out", tmp_path / "run", *SHORT)
    assert "note:" not in told(result)
    assert json.loads((tmp_path / "run/run.json").read_text())["classes"] == sorted([*SEEN, "fox"])
    shown = done("discover", tmp_path / "run", "--no-page", "--labels", labels).stdout
    assert "120 items, 100 of them labelled: 5 seen classes, 1 novel" in shown


def test_all_labelled_and_new_items_beside_them(items: Path, labels: Path, tmp_path: Path):
    named = labels.read_text().replace('""', '"eel"')
    labels.write_text("\n".join(line if line[-1] != "," else f'{line}"eel"' for line in named.splitlines()) + "\n")
    done("fit", items, "--labels", labels, "--out", tmp_path / "all", *SHORT)
    assert json.loads((tmp_path / "all/run.json").read_text())["classes"] == sorted([*SEEN, "eel", "fox"])
    more = tmp_path / "more.npz"
    x = np.concatenate([BLOBS.x[:30] + 0.01, BLOBS.x])
    np.savez(more, x=x, ids=[*(f"new-{i}" for i in range(30)), *(f"item-{i}" for i in range(N))])
    result = done("fit", more, "--labels", labels, "--out", tmp_path / "more", *SHORT)
    note = f"note: 30 of {N + 30} items have no row in {labels} and are unlabelled, such as new-0\n"
    assert note in told(result)
    assert json.loads((tmp_path / "more/run.json").read_text())["classes"] == sorted([*SEEN, "eel", "fox"])


def test_a_label_file_of_other_items_says_which_are_missing(items: Path, labels: Path, tmp_path: Path):
    labels.write_text(labels.read_text().replace("item-7", "photo-7"))
    message = refused("fit", items, "--labels", labels, "--out", tmp_path / "run", *SHORT)
    assert "have a `id` that is missing in the data: photo-7, photo-70, photo-71, photo-72, photo-73, ...;" in message
    assert not (tmp_path / "run").exists()


def test_folders_that_were_renamed_by_hand_are_fitted(tmp_path: Path):
    names = [f"{target}/{Path(name).name}" for name, target in zip(IDS, TARGETS, strict=True)]
    sorted_by_hand = write_folder(tmp_path / "sorted", names)
    done("fit", sorted_by_hand, "--out", tmp_path / "run", *SHORT)
    assert json.loads((tmp_path / "run/run.json").read_text())["classes"] == [*SEEN, "eel", "fox"]


def test_what_was_said_survives_another_fit_and_discovery(items: Path, item_run, tmp_path: Path):
    run = shutil.copytree(item_run[0], tmp_path / "run")
    done("classes", run, "name", "novel-1", "hawk")
    named = np.array(table(run)["cluster"]) == "novel-1"
    done("fit", items, "--out", run, "--overwrite", "--method", "itq", "--bits", "12", "--quiet")
    assert "nothing was discovered" in refused("classes", run)
    done("discover", run, "--no-page")
    done("classes", run, "labels", "--out", tmp_path / "labels.csv")
    is_hawk = ["hawk" in line for line in (tmp_path / "labels.csv").read_text().splitlines()[1:]]
    assert is_hawk == named.tolist()


def test_classes_that_are_numbers(tmp_path: Path):
    items, run = tmp_path / "items.npz", tmp_path / "run"
    np.savez(items, x=BLOBS.x, labels=BLOBS.labels)
    done("fit", items, "--out", run, "--method", "itq", "--bits", "12", "--quiet")
    done("discover", run, "--no-page")
    done("classes", run, "name", "novel-1", "4")
    shown = done("discover", run, "--no-page").stdout
    assert "that hold: 1\n" in shown
    done("classes", run, "labels", "--out", tmp_path / "labels.csv")
    done("fit", items, "--labels", tmp_path / "labels.csv", "--out", tmp_path / "next", *SHORT)
    assert json.loads((tmp_path / "next/run.json").read_text())["classes"] == [0, 1, 2, 3, 4]
