"""Every command that writes into a run folder is its only writer; those who have to wait lose nothing."""

import shutil
from pathlib import Path

import pytest

from combemb.collection import class_log
from combemb.collection.class_log import read_log
from combemb.collection.indexed import Collection
from combemb.methods.itq import ITQ
from tests.cli.found import BLOBS
from tests.commands import done, files, refused
from tests.real_processes import command, ended, held, started


@pytest.fixture(scope="module")
def indexed(item_run: tuple[Path, object]) -> Path:
    """A run with a discovery and an index."""
    done("index", item_run[0])
    return item_run[0]


@pytest.fixture
def run(indexed: Path, tmp_path: Path) -> Path:
    """Such a run that a test may change."""
    return shutil.copytree(indexed, tmp_path / "run")


def visible(folder: Path) -> dict[str, bytes]:
    return {name: content for name, content in files(folder).items() if not name.startswith(".")}


def test_every_verb_that_writes_is_told_who_writes(run: Path, items: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(class_log, "WAIT_SECONDS", 0.1)
    before = visible(run)
    verbs = [
        ["fit", items, "--out", run, "--method", "itq", "--bits", "12", "--overwrite"],
        ["discover", run, "--no-page"],
        ["index", run, "--overwrite"],
        ["index", run, "--add", "--embeddings", items],
        ["index", run, "--remove", "item-0"],
        ["classes", run, "name", "novel-1", "hawk"],
        ["relocate", run, "--to", items],
    ]
    with held(run) as writer:
        for verb in verbs:
            told = refused(*verb)
            assert f"{run} is being written by process {writer.pid} on " in told, verb
            assert " since 20" in told
        for write in (Collection.open(run).save, lambda: ITQ(bits=12).fit(BLOBS.x).save(run, overwrite=True)):
            with pytest.raises(ValueError, match=f"being written by process {writer.pid}"):
                write()
        done("search", run, items, "-k", "1")  # reading is always possible
        done("predict", run, items)
        done("classes", run)
        done("discover", run, "--no-page", "--out", run.parent / "elsewhere")
    assert visible(run) == before
    for verb in verbs[1:-1]:  # the writer was killed
        done(*verb)
    assert visible(run).keys() == files(run).keys()


def test_classes_that_are_changed_at_once_lose_nothing(run: Path, tmp_path: Path):
    moved = [f"item-{i}" for i in range(80, 85)]
    all_at_once = [started(command, tmp_path / item, "classes", run, "move", "ant", item) for item in moved]
    for item, process in zip(moved, all_at_once, strict=True):
        assert ended(process) == 0, (tmp_path / item).read_text()
    assert sorted(said.groups[0][0] for said in read_log(run)) == moved
    all_at_once = [started(command, tmp_path / item, "classes", run, "undo") for item in moved]
    assert [ended(process) for process in all_at_once] == [0] * len(moved), "each undoes another one"
    assert "there is no change to undo" in refused("classes", run, "undo")


def test_items_that_are_added_at_once_are_all_added_or_refused(run: Path, items: Path, tmp_path: Path):
    removed = [f"item-{i}" for i in range(4)]
    all_at_once = [started(command, tmp_path / item, "index", run, "--remove", item) for item in removed]
    codes = [ended(process) for process in all_at_once]
    told = [(tmp_path / item).read_text() for item in removed]
    left = set(Collection.open(run).entries["id"].to_pylist())
    assert 0 in codes
    for item, code, text in zip(removed, codes, told, strict=True):
        assert (item in left) == (code == 1)
        assert code == 0 or "is being written by process" in text
