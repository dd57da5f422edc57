"""`combemb discover` with labels of every origin, and on other items than those of the fit."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from combemb import methods
from tests.cli.found import BLOBS, KEPT, NAMES, N, table, write_labels
from tests.commands import call, done, files, fitted, refused, told
from tests.pages import Page
from tests.pictures import IDS, LABELS, PIXELS, SEEN, write_folder, write_manifest

# Labels


def test_labels_of_a_file_go_before_those_beside_the_items(own_run: Path, tmp_path: Path):
    labels = np.where(BLOBS.labels == 0, "emu", np.where(BLOBS.targets == 5, "gnu", None))
    shown = done("discover", own_run, "--no-page", "--labels", write_labels(tmp_path / "labels.txt", labels)).stdout
    assert f"{N} items, 30 of them labelled: 2 seen classes, " in shown
    rows = table(own_run)
    assert set(np.array(rows["cluster"])[BLOBS.targets == 5]) == {"gnu"}
    assert set(np.array(rows["cluster"])[BLOBS.targets == 0]) == {"emu"}
    assert {"ant", "bee", "cat", "dog"}.isdisjoint(rows["cluster"])


@pytest.mark.parametrize("fit_labels", ["names", "numbers", "none"])
@pytest.mark.parametrize("kind", [str, int])
def test_names_stay_names_and_numbers_stay_numbers_whatever_the_fit_saw(tmp_path: Path, fit_labels: str, kind: type):
    numbers = np.where(BLOBS.labels >= 0, 10 * BLOBS.labels, -1)
    seen = {"names": {"labels": NAMES}, "numbers": {"labels": numbers}, "none": {}}[fit_labels]
    np.savez(tmp_path / "items.npz", x=BLOBS.x, **seen)
    run = fitted(tmp_path / "items.npz", tmp_path / "run")
    given = write_labels(tmp_path / "labels.txt", NAMES if kind is str else numbers)
    done("discover", run, "--no-page", "--n-novel", "2", "--labels", given)
    classes = list(SEEN) if kind is str else [0, 10, 20, 30]
    assert set(table(run)["cluster"]) == {*map(str, classes), "novel-1", "novel-2"}
    model = methods.load(run)
    assert model.discovery_.names.tolist() == [*classes, "novel-1", "novel-2"]
    predicted = model.predict(BLOBS.x)
    assert {type(name) for name in predicted[BLOBS.labels >= 0] if name != "neither"} == {kind}
    assert set(predicted) - {"neither"} == {*classes, "novel-1", "novel-2"}


def test_numbers_beside_the_items_stay_numbers(tmp_path: Path):
    np.savez(tmp_path / "items.npz", x=BLOBS.x, labels=BLOBS.labels)
    run = fitted(tmp_path / "items.npz", tmp_path / "run")
    done("discover", run, "--no-page")
    assert table(run)["id"] == [str(i) for i in range(N)]  # items without ids are numbered
    assert methods.load(run).discovery_.names.tolist() == [0, 1, 2, 3, "novel-1", "novel-2"]


def test_without_labels_it_is_plain_clustering_and_says_so(tmp_path: Path):
    np.save(tmp_path / "items.npy", BLOBS.x)
    run = fitted(tmp_path / "items.npy", tmp_path / "run")
    result = done("discover", run)
    note = "note: no item is labelled: this is plain clustering, all of it novel\n"
    assert told(result) == note
    rows = table(run)
    assert all(rows["is_novel"])
    assert len(set(zip(BLOBS.targets.tolist(), rows["cluster"], strict=True))) == len(set(rows["cluster"])) == 6
    assert told(done("discover", run, "--n-novel", "3", "--no-page")) == note
    assert set(table(run)["cluster"]) == {"novel-1", "novel-2", "novel-3"}
    impossible = call("discover", run, "--n-novel", "0")
    assert impossible.exit_code == 1
    assert impossible.stderr.startswith(f"{note}error: n_novel=0 and no labels leave no cluster")


def test_where_all_is_labelled_nothing_is_left_to_discover(own_run: Path, tmp_path: Path):
    labels = write_labels(tmp_path / "labels.txt", np.array([*SEEN, "eel", "fox"])[BLOBS.targets])
    result = done("discover", own_run, "--labels", labels)
    assert told(result) == "note: all items are labelled: nothing is left to discover\n"
    assert "6 seen classes, 0 novel; 0 items belong to novel classes" in result.stdout
    rows = table(own_run)
    assert rows["cluster"] == labels.read_text().split()
    assert set(rows["confidence"]) == {1.0}
    assert "-" in result.stdout.splitlines()[2].split()  # no unlabelled item to be confident of


def test_labels_that_are_not_those_of_the_fit_are_noticed(tmp_path: Path):
    """The file of the items holds all labels, the fit got a part of them."""
    everything = tmp_path / "items.npz"
    np.savez(everything, x=BLOBS.x, labels=np.array([*SEEN, "eel", "fox"])[BLOBS.targets])
    part = write_labels(tmp_path / "part.txt", NAMES)
    run = fitted(everything, tmp_path / "run", "--labels", part)
    note = "note: the run was fitted with other labels than those that are stored with its data now"
    assert note in done("discover", run, "--no-page").stderr
    assert told(done("discover", run, "--no-page", "--labels", part)) == ""
    assert set(table(run)["cluster"]) == {*SEEN, "novel-1", "novel-2"}


def test_several_labels_of_an_item_need_one_that_matters(photos: Path, tmp_path: Path):
    several = [label and f"{label}|{'red' if i % 2 else 'round'}" for i, label in enumerate(LABELS)]
    manifest, run = write_manifest(tmp_path / "photos.csv", photos, several), tmp_path / "run"
    said = done("fit", manifest, "--out", run, "--method", "itq", "--bits", "12", "--set=image_size=32").stdout
    assert said.endswith(f"next: combemb index {run}, combemb discover {run} --labels with one label per item\n")
    before = files(run)
    message = refused("discover", run)
    assert "discovery takes one label per item, but these may have several; give one each" in message
    assert files(run) == before
    done("discover", run, "--no-page", "--n-novel", "1", "--labels", write_labels(tmp_path / "one.txt", LABELS))
    assert set(table(run)["cluster"]) == {*SEEN, "novel-1"}


# Other sources


def test_other_embeddings_than_those_of_the_fit(own_run: Path, tmp_path: Path):
    rows = BLOBS.targets % 2 == 0
    other = {"embedding": list(BLOBS.x[rows]), "label": NAMES[rows], "id": [f"new-{i}" for i in range(60)]}
    pq.write_table(pa.table(other), tmp_path / "other.parquet")
    shown = done("discover", own_run, "--no-page", "--embeddings", tmp_path / "other.parquet").stdout
    assert "60 items, 20 of them labelled: 2 seen classes, 1 novel" in shown
    found = table(own_run)
    assert found["id"] == other["id"]
    assert set(found["cluster"]) == {"ant", "cat", "novel-1"}


def test_other_images_than_those_of_the_fit(photo_run, tmp_path: Path):
    run = shutil.copytree(photo_run[0], tmp_path / "run")
    names = [name if i < 9 else f"gnu/{i}.png" if i < 16 else f"unlabelled/{i}.png" for i, name in enumerate(IDS[:30])]
    new = write_folder(tmp_path / "new", names)
    shown = done("discover", run, "--no-page", "--n-novel", "1", "--images", new, "--overwrite").stdout
    assert "30 items, 16 of them labelled: 3 seen classes, 1 novel" in shown
    rows = table(run)
    assert rows["path"] == sorted(str(new / name) for name in names)
    assert set(rows["cluster"]) == {"ant", "bee", "gnu", "novel-1"}


def test_the_part_to_test_on_is_left_out(photos: Path, tmp_path: Path):
    split = ["test" if i % 3 == 0 else "train" for i in range(len(IDS))]
    hidden = ["eel" if part == "test" else label for part, label in zip(split, LABELS, strict=True)]
    manifest = write_manifest(tmp_path / "photos.csv", photos, hidden, split=split)
    run = fitted(manifest, tmp_path / "run")
    train = [i for i in KEPT if i % 3]
    for options in ([], ["--labels", write_labels(tmp_path / "labels.txt", hidden)]):
        done("discover", run, "--no-page", "--n-novel", "1", *options)
        rows = table(run)
        assert rows["path"] == [str(photos / IDS[i]) for i in train]
        assert [c for c, i in zip(rows["cluster"], train, strict=True) if LABELS[i]] == [
            LABELS[i] for i in train if LABELS[i]
        ]
        assert set(rows["cluster"]) == {*SEEN, "novel-1"}


def test_images_of_an_array_file_are_listed_by_row_and_are_no_files(tmp_path: Path):
    array = tmp_path / "pixels.npy"
    np.save(array, PIXELS)
    run = fitted(array, tmp_path / "run")
    labels = write_labels(tmp_path / "labels.txt", LABELS)
    assert "these items are not image files" in refused("discover", run, "--labels", labels, "--to-folders", "sorted")
    done("discover", run, "--labels", labels, "--n-novel", "1")
    assert table(run)["id"] == [f"{array}#{i}" for i in range(72)]
    assert len(Page(run / "discovery.html").thumbnails()) > 20
