"""`combemb classes` on real runs: the list, every change, the labels, and what bad input gets."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pyarrow import csv

from combemb.collection.class_log import log_line, read_log
from tests.cli.found import BLOBS, NAMES, N, table
from tests.commands import done, files, refused, told
from tests.pages import Page
from tests.pictures import SEEN

NOTES = ("change", "rejected", "earlier state")  # in lines below the list


@pytest.fixture
def run(item_run, tmp_path: Path) -> Path:
    """A run with a discovery that a test may change."""
    return shutil.copytree(item_run[0], tmp_path / "found")


def listed(run: Path) -> dict[str, list[str]]:
    lines = done("classes", run).stdout.splitlines()
    assert lines[0].split() == ["class", "items", "labelled", "confidence", "named", "by"]
    rows = [line.split() for line in lines[1:] if not any(word in line for word in NOTES)]
    return {row[0]: row[1:3] + row[4:] for row in rows}


def labels_of(run: Path, file: Path) -> dict[str, str]:
    done("classes", run, "labels", "--out", file, "--overwrite")
    found = csv.read_csv(file, convert_options=csv.ConvertOptions(strings_can_be_null=False)).to_pydict()
    return dict(zip(found["id"], found["label"], strict=True))


def test_the_classes_are_listed_before_and_after_a_name(run: Path):
    seen = {name: ["20", "10", "labels"] for name in SEEN}
    assert listed(run) == {"novel-1": ["20", "0", "-"], "novel-2": ["20", "0", "-"]} | seen
    before = files(run)
    result = done("classes", run, "name", "novel-1", "hawk")
    assert result.stdout == "20 items: novel-1 -> hawk\n"
    assert files(run).keys() - before.keys() == {"classes.jsonl"}
    assert all(files(run)[name] == content for name, content in before.items())
    assert listed(run) == {"novel-2": ["20", "0", "-"], "hawk": ["20", "0", "you"]} | seen


def test_names_survive_another_discovery(run: Path):
    named = [item for item, name in zip(table(run)["id"], table(run)["cluster"], strict=True) if name == "novel-2"]
    done("classes", run, "name", "novel-2", "hawk")
    result = done("discover", run, "--no-page", "--n-novel", "3")
    assert "changes by `combemb classes` that hold: 1\n" in result.stdout
    assert "hawk     20     0 " in result.stdout
    labels = labels_of(run, run.parent / "labels.csv")
    assert [item for item, label in labels.items() if label == "hawk"] == named
    assert list(labels) == [f"item-{i}" for i in range(N)]
    assert [label for label in labels.values() if label != "hawk"] == [
        name for item, name in zip(labels, NAMES, strict=True) if item not in named
    ]


def test_folders_are_called_as_people_call_the_classes(photo_run, tmp_path: Path):
    run = shutil.copytree(photo_run[0], tmp_path / "run")
    done("classes", run, "name", "novel-1", "red-tailed hawk")
    done("classes", run, "reject", "novel-2")
    done("discover", run, "--no-page", "--n-novel", "2", "--to-folders", tmp_path / "sorted")
    assert {path.name for path in (tmp_path / "sorted").iterdir()} == {*SEEN, "red-tailed hawk", "neither"}


def test_tables_page_and_summary_show_what_the_list_shows(photo_run, tmp_path: Path):
    run = shutil.copytree(photo_run[0], tmp_path / "run")
    clusters = table(run)["cluster"]
    moved = clusters.index("novel-2")
    done("classes", run, "name", "novel-1", "red-tailed hawk")
    done("classes", run, "move", "red-tailed hawk", table(run)["id"][moved])
    done("classes", run, "reject", "novel-2")
    result = done("discover", run, "--n-novel", "2", "--to-folders", tmp_path / "sorted")
    n_rejected = clusters.count("novel-2") - 1
    assert f"that hold: 3; rejected items, in no class: {n_rejected}\n" in result.stdout
    expected = ["red-tailed hawk" if name == "novel-1" else None if name == "novel-2" else name for name in clusters]
    expected[moved] = "red-tailed hawk"
    assert table(run)["cluster"] == clusters
    assert table(run)["class"] == expected
    assert csv.read_csv(run / "discovery.csv")["class"].to_pylist() == [name or "" for name in expected]
    page = Page(run / "discovery.html")
    headings = [text.strip() for text in page.texts if "novel-" in text or "hawk" in text]
    assert not any("novel-" in text for text in headings)
    n_hawks = expected.count("red-tailed hawk")
    assert f"red-tailed hawk items{n_hawks} " in page.text
    rejected = f"{n_rejected} rejected item{'s' * (n_rejected > 1)} in no class"
    assert f"1 novel class; {n_hawks} items in novel classes; {rejected}" in page.text
    assert f"red-tailed hawk  {n_hawks} " in result.stdout
    folders = {path.name: len(list(path.iterdir())) for path in (tmp_path / "sorted").iterdir()}
    assert folders == Counter(name or "neither" for name in expected)
    assert done("discover", run, "--n-novel", "2").stdout in result.stdout


def test_merged_clusters_are_one_class_with_the_confidence_of_both(run: Path):
    done("discover", run, "--no-page", "--n-novel", "4")
    before = table(run)
    done("classes", run, "merge", "novel-1", "novel-2", "novel-3", "novel-4")
    done("discover", run, "--n-novel", "4")
    after = table(run)
    assert after["cluster"] == before["cluster"]
    assert [name for name in after["class"] if name.startswith("novel-")] == 40 * ["novel-1"]
    is_novel = np.array(before["is_novel"])
    rise = np.array(after["confidence"]) - np.array(before["confidence"])
    assert (rise[~is_novel] == 0).all()
    assert (rise[is_novel] > -1e-6).all()
    assert rise.max() > 0.01
    assert max(confidence for confidence, novel in zip(after["confidence"], is_novel, strict=True) if novel) < 1
    assert "novel-1 items40 " in Page(run / "discovery.html").text


def test_a_search_shows_the_names_of_classes(photo_run, tmp_path: Path):
    run = shutil.copytree(photo_run[0], tmp_path / "run")
    done("index", run, "--quiet")
    of_cluster = dict(zip(table(run)["id"], table(run)["cluster"], strict=True))
    query = next(name for name, cluster in of_cluster.items() if cluster == "novel-1")

    def hits() -> list[dict]:
        return json.loads(done("search", run, query, "--json", "-k", "100").stdout)[0]["hits"]

    assert {hit["name"] for hit in hits()} == {None}
    done("classes", run, "name", "novel-1", "red-tailed hawk")
    for hit in hits():
        assert hit["name"] == ("red-tailed hawk" if of_cluster[hit["id"]] == "novel-1" else None)
    shown = done("search", run, query, "-k", "1", "--html", tmp_path / "hits.html").stdout
    assert "red-tailed hawk" in shown
    assert "red-tailed hawk" in Page(tmp_path / "hits.html").text


def test_the_list_says_when_page_and_tables_are_older(run: Path):
    hint = "the page and the tables show an earlier state"
    assert hint not in done("classes", run).stdout
    done("classes", run, "name", "novel-1", "hawk")
    assert f"{hint}; write them again: combemb discover {run}\n" in done("classes", run).stdout
    done("discover", run, "--no-page")
    assert hint not in done("classes", run).stdout


def test_a_photo_may_be_given_by_any_path(photo_run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = shutil.copytree(photo_run[0], tmp_path / "run")
    path = next(Path(path) for path, novel in zip(table(run)["path"], table(run)["is_novel"], strict=True) if novel)
    monkeypatch.chdir(path.parent)
    assert done("classes", run, "move", "ant", f"./{path.name}").stdout == "1 item -> ant\n"
    assert labels_of(run, tmp_path / "labels.csv")[str(path)] == "ant"


def test_a_cluster_of_two_classes_divides_by_itself(run: Path):
    done("classes", run, "merge", "novel-1", "novel-2")
    assert listed(run)["novel-1"] == ["40", "0", "-"]
    assert done("classes", run, "split", "novel-1").stdout == "20 items: novel-1 -> novel-3\n"
    done("classes", run, "name", "novel-3", "hawk")
    is_hawk = [label == "hawk" for label in labels_of(run, run.parent / "labels.csv").values()]
    assert len({bool(hawk) for hawk, target in zip(is_hawk, BLOBS.targets, strict=True) if target == 4}) == 1
    assert sum(is_hawk) == 20
    for _ in range(3):
        done("classes", run, "undo")
    assert listed(run)["novel-2"] == ["20", "0", "-"]


def test_photos_divide_too(photo_run, tmp_path: Path):
    run = shutil.copytree(photo_run[0], tmp_path / "run")
    assert done("classes", run, "split", "novel-1").stdout.endswith(": novel-1 -> novel-3\n")
    assert {"novel-1", "novel-2", "novel-3"} < listed(run).keys()


def test_items_are_split_moved_and_rejected(run: Path):
    first, second, third = (f"item-{i}" for i in (80, 81, 82))
    cluster = table(run)["cluster"][80]
    assert done("classes", run, "split", cluster, first, second).stdout == f"2 items: {cluster} -> novel-3\n"
    assert done("classes", run, "move", "ant", third).stdout == "1 item -> ant\n"
    assert done("classes", run, "reject", "novel-3", first).stdout == "1 item: novel-3 -> no class\n"
    assert "in no class: 1 rejected item\n" in done("classes", run).stdout
    assert listed(run)["novel-3"] == ["1", "0", "-"]
    assert done("classes", run, "undo").stdout == "undone: reject novel-3\n"
    assert listed(run)["novel-3"] == ["2", "0", "-"]


def test_what_does_not_apply_any_more_is_said(run: Path, items: Path):
    done("classes", run, "name", "novel-1", "hawk")
    change = read_log(run)[0]
    others = [[item.replace("item-", "photo-") for item in group] for group in change.groups]
    (run / "classes.jsonl").write_bytes(log_line(replace(change, groups=others)))
    note = "note: sorted by hand but not among the discovered items: 20, such as photo-"
    assert told(done("discover", run, "--no-page")).startswith(note)
    assert told(done("classes", run)).startswith(note)


def test_every_change_is_on_the_disk_when_the_command_ends(run: Path):
    """The process is killed at the moment at which the log is synchronised."""
    program = (
        "import os, signal, sys\n"
        "from combemb.cli import app\n"
        "sync = os.fsync\n"
        "os.fsync = lambda handle: (sync(handle), os.kill(os.getpid(), signal.SIGKILL))\n"
        "app(['classes', sys.argv[1], 'name', 'novel-1', 'hawk'])\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, run], check=False, capture_output=True)
    assert killed.returncode == -9
    assert listed(run)["hawk"] == ["20", "0", "you"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rename"], "no change 'rename'; choose one of name, merge, split, move, reject, undo, labels"),
        (["name", "novel-1"], "name got 1 arguments; use it as combemb classes RUN name CLUSTER NAME"),
        (["name", "novel-7", "hawk"], "no cluster 'novel-7'; choose one of novel-1, novel-2, ant, bee, cat, dog"),
        (["move", "ant", "item-x"], "no item 'item-x'; ids look like 'item-0'"),
        (["split", "novel-1", "--into", "21"], "'novel-1' has 20 unlabelled items, too few for 21 parts"),
        (["split", "novel-1", "--into", "1"], "into 1 parts; give 2 or more"),
        (["undo"], "there is no change to undo"),
        (["labels"], "labels needs --out FILE"),
        (["labels", "--out", "labels.txt"], "unknown suffix '.txt'; use .csv or .parquet"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_and_nothing_is_written(item_run, arguments: list[str], message: str):
    run, _ = item_run
    before = files(run)
    assert message in refused("classes", run, *arguments)
    assert files(run) == before


def test_a_run_without_a_discovery_says_what_to_do(plain_run: Path, tmp_path: Path):
    assert f"nothing was discovered in {plain_run} yet; discover first: combemb discover" in refused(
        "classes", plain_run
    )
    assert "is not a readable run folder" in refused("classes", tmp_path)
