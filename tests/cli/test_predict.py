"""`combemb predict`: new items go into known classes, found ones by the names given to them, or neither."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from pyarrow import csv

from combemb import methods
from tests.cli.found import BLOBS, table
from tests.commands import done, files, refused, told
from tests.pages import Page
from tests.pictures import IDS, SEEN, write_folder


@pytest.fixture
def run(item_run, tmp_path: Path) -> Path:
    """A run with a discovery that a test may change."""
    return shutil.copytree(item_run[0], tmp_path / "found")


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """One item of each class, and one that is far from all."""
    path = tmp_path / "new.npz"
    np.savez(path, x=np.concatenate([BLOBS.x[5::20], -50 * BLOBS.x[:1]]), ids=[f"new-{i}" for i in range(7)])
    return path


def predicted(run: Path, new: Path) -> list[dict]:
    return json.loads(done("predict", run, new, "--json").stdout)


def test_items_go_into_known_and_found_classes_or_neither(run: Path, new: Path):
    found = predicted(run, new)
    assert [item["id"] for item in found] == [f"new-{i}" for i in range(7)]
    assert [item["kind"] for item in found] == [*4 * ["known"], *2 * ["found"], "neither"]
    names = [item["name"] for item in found]
    assert names == [table(run)["cluster"][i] for i in range(5, 120, 20)] + ["neither"]
    assert found[6]["confidence"] is None
    of_the_same_items = np.array(table(run)["confidence"])[5::20]
    is_open = of_the_same_items < 1  # labelled ones are certain in the table
    assert np.allclose(
        np.array([item["confidence"] for item in found[:6]])[is_open], of_the_same_items[is_open], atol=1e-4
    )
    assert methods.load(run).predict(new).tolist() == names


def test_found_classes_have_the_names_that_people_gave_them(run: Path, new: Path):
    first, second = (table(run)["cluster"][i] for i in (85, 105))
    done("classes", run, "name", first, "hawk")
    assert [item["name"] for item in predicted(run, new)][4:6] == ["hawk", second]
    done("classes", run, "merge", "ant", "hawk")
    done("classes", run, "reject", second)
    found = predicted(run, new)[4:6]
    assert [(item["name"], item["kind"]) for item in found] == [("ant", "known"), ("neither", "neither")]
    done("discover", run, "--no-page", "--n-novel", "2")
    assert predicted(run, new)[4:6] == found


def test_a_merged_class_has_the_probability_of_all_its_clusters(run: Path, tmp_path: Path):
    done("discover", run, "--no-page", "--n-novel", "4")  # of two classes, so that clusters overlap
    new = tmp_path / "new.npz"
    np.savez(new, x=BLOBS.x[80:])
    before = predicted(run, new)
    model = methods.load(run)
    features = model.read(new).discovery_features
    probabilities = model.discovery_.probabilities(model.embed(new), features)
    own = dict(zip(model.discovery_.names, probabilities.T, strict=True))
    assert np.allclose([item["confidence"] for item in before], [own[item["name"]][i] for i, item in enumerate(before)])
    done("classes", run, "merge", "novel-1", "novel-2", "novel-3")
    done("classes", run, "name", "novel-1", "hawk")
    after = predicted(run, new)
    hawk = own["novel-1"] + own["novel-2"] + own["novel-3"]
    assert {item["name"] for item in after} == {"hawk", "novel-4"}
    for item, of_hawk, of_other in zip(after, hawk, own["novel-4"], strict=True):
        assert item["confidence"] == pytest.approx(of_hawk if item["name"] == "hawk" else of_other, abs=2e-6)
        assert (item["name"] == "hawk") == (of_hawk > of_other)
    assert sum(item["confidence"] for item in after) > sum(item["confidence"] for item in before) + 0.2
    done("classes", run, "merge", "ant", "hawk")
    into_seen = predicted(run, new)
    is_hawk = [item["name"] == "hawk" for item in after]
    assert {item["kind"] for item, hawk in zip(into_seen, is_hawk, strict=True) if hawk} == {"known"}


def test_the_table_and_the_files(run: Path, new: Path, tmp_path: Path):
    result = done("predict", run, new, "--out", tmp_path / "new.csv")
    first, head, *rows, last = result.stdout.splitlines()
    assert first == "7 items: 4 in known classes, 2 in found ones, 1 in neither"
    assert head.split() == ["class", "kind", "confidence", "path", "or", "id"]
    assert [row.split()[3] for row in rows] == [f"new-{i}" for i in range(7)]
    assert rows[6].split()[:3] == ["neither", "neither", "-"]
    assert last == f"written to {tmp_path / 'new.csv'}"
    done("predict", run, new, "--out", tmp_path / "new.json", "--quiet")
    written = json.loads((tmp_path / "new.json").read_text())
    assert written == predicted(run, new)
    in_text = csv.read_csv(tmp_path / "new.csv").to_pydict()
    assert {name: in_text[name] for name in ("id", "name", "kind")} == {
        name: [item[name] for item in written] for name in ("id", "name", "kind")
    }
    assert "new.csv exists; use --overwrite to replace it" in refused(
        "predict", run, new, "--out", tmp_path / "new.csv"
    )


def test_photos_are_sorted_into_folders(photo_run, tmp_path: Path):
    run = shutil.copytree(photo_run[0], tmp_path / "run")
    done("classes", run, "name", "novel-1", "red-tailed hawk")
    new = write_folder(tmp_path / "new", [f"{i}.png" for i in range(len(IDS))], broken=("3.png",))
    result = done("predict", run, new, "--to-folders", tmp_path / "sorted")
    assert told(result).startswith(f"unreadable images left out of the predictions: 1\n  {new / '3.png'}: ")
    assert result.stdout.endswith(
        f"... and 31 more; --out FILE writes all of them\n71 images linked into {tmp_path / 'sorted'}\n"
    )
    places = {path.name: path.parent.name for path in (tmp_path / "sorted").glob("*/*")}
    items = predicted(run, new)
    assert places == {Path(item["path"]).name: item["name"] for item in items}
    assert set(places.values()) <= {*SEEN, "red-tailed hawk", "novel-2", "neither"}
    assert "red-tailed hawk" in places.values()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "new.txt"], "unknown suffix '.txt'; use .csv or .json"),
        (["--copy"], "--copy only works with --to-folders; use both"),
        (["--to-folders", "sorted"], "these items are not image files"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(run: Path, new: Path, options: list[str], message: str):
    before = files(run)
    assert message in refused("predict", run, new, *options)
    assert files(run) == before


def test_a_run_without_a_discovery_says_what_to_do(plain_run: Path, new: Path):
    message = f"nothing was discovered in {plain_run} yet; discover first: combemb discover {plain_run}"
    assert message in refused("predict", plain_run, new)


# The discovery that `predict` uses


def test_other_items_do_not_replace_the_discovery_of_a_run(run: Path, items: Path, tmp_path: Path):
    other = tmp_path / "other.npz"
    np.savez(other, x=BLOBS.x[::2])
    before = files(run)
    message = refused("discover", run, "--embeddings", other)
    assert (
        f"{run} has a discovery already, which `predict` uses; to sort new items, use combemb predict {run}" in message
    )
    assert "use --out to write this one into another folder, or --overwrite to replace it" in message
    done("classes", run, "name", "novel-1", "hawk")
    before = files(run)
    result = done("discover", run, "--embeddings", other, "--n-novel", "2", "--out", tmp_path / "elsewhere")
    assert "sorted by hand" not in told(result)
    assert files(run) == before
    assert len(table(tmp_path / "elsewhere")["id"]) == 60
    assert "Classes in" in Page(tmp_path / "elsewhere" / "discovery.html").text
    assert "has a discovery already; use --out" in refused("discover", run, "--out", tmp_path / "elsewhere")
    done("discover", run, "--embeddings", other, "--n-novel", "2", "--no-page", "--overwrite")
    assert len(table(run)["id"]) == 60
    done("discover", run, "--embeddings", items, "--no-page")  # the data of the fit need no permission


def test_a_discovery_is_not_written_into_another_run(run: Path, plain_run: Path):
    before = files(plain_run)
    assert f"{plain_run} is another run folder" in refused("discover", run, "--out", plain_run)
    assert files(plain_run) == before
