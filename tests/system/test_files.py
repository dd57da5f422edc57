"""Files appear whole or not at all."""

import json
import os
from pathlib import Path

import pytest
import torch

from combemb.system.files import (
    JOURNAL,
    finish_replacing,
    read_tensors,
    sealed,
    write_atomically,
    write_json,
    write_tensors,
    written_together,
)
from tests.real_processes import ended, killed_at, started


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_file_is_replaced_in_one_step(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    reader = path.open()

    def write(temporary: Path) -> None:
        temporary.write_text("ne")
        assert temporary.parent == tmp_path, "a rename is one step inside one file system only"
        assert path.read_text() == "old"
        temporary.write_text("new")
        assert path.read_text() == "old"

    write_atomically(path, write)
    assert path.read_text() == "new"
    assert names(tmp_path) == {"file"}
    with reader:
        assert reader.read() == "old", "whoever had it open must not see a mixture"


@pytest.mark.skipif(os.name == "nt", reason="has no umask")
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_a_new_file_can_be_read_by_those_that_the_user_lets(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        write_json(tmp_path / "file", {})
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("old", ["old", None], ids=["replacing", "new"])
def test_a_crash_while_writing_leaves_what_was_there(tmp_path, error, old):
    path = tmp_path / "file"
    if old:
        path.write_text(old)

    def write(temporary: Path) -> None:
        temporary.write_text("ne")
        raise error

    with pytest.raises(type(error)):
        write_atomically(path, write)
    assert names(tmp_path) == ({"file"} if old else set())
    assert not old or path.read_text() == old


def test_json_that_is_not_json_is_not_written(tmp_path):
    write_json(tmp_path / "file", {"a": [1, "ä"]})
    assert json.loads((tmp_path / "file").read_text()) == {"a": [1, "ä"]}
    for value in (float("nan"), float("inf"), object()):
        with pytest.raises((ValueError, TypeError)):
            write_json(tmp_path / "file", {"a": value})
        assert json.loads((tmp_path / "file").read_text()) == {"a": [1, "ä"]}
    assert names(tmp_path) == {"file"}


def test_the_same_tensors_are_the_same_bytes(tmp_path):
    for number in range(8):
        write_tensors(tmp_path / f"{number}", {"b": torch.ones(3), "a": torch.zeros(2)}, {"first": "1", "second": "2"})
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1
    tensors, about = read_tensors(tmp_path / "0")
    assert tensors.keys() == {"a", "b"}
    assert about == {"first": "1", "second": "2"}


def replace_three(folder: Path) -> None:
    with written_together(folder, ["gone"]):
        for name in ("a", "b", "c"):
            write_atomically(folder / name, lambda temporary: temporary.write_text("new"))


def test_files_that_are_written_together_are_all_old_or_all_new(tmp_path):
    found = []
    for number in range(20):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        for name in ("a", "b", "gone"):
            (folder / name).write_text("old")
        code = ended(started(killed_at, number, replace_three, folder))
        finish_replacing(folder)
        content = {path.name: path.read_text() for path in folder.iterdir() if not path.name.startswith(".")}
        assert content in ({"a": "old", "b": "old", "gone": "old"}, {"a": "new", "b": "new", "c": "new"})
        found.append(content["a"])
        if code == 0:
            break
    assert found == sorted(found, reverse=True)
    assert found.count("new") > 4
    assert names(folder) == {"a", "b", "c"}


@pytest.mark.parametrize("name", ["../outside", "/etc/outside"])
def test_nothing_outside_a_folder_is_replaced_whoever_asks(tmp_path, name):
    (tmp_path / "folder").mkdir()
    (tmp_path / "outside").write_text("mine")
    plan = {"moved": {name: "inside"}, "removed": [name], "emptied": name}
    write_json(tmp_path / "folder" / JOURNAL, sealed(plan))
    with pytest.raises(ValueError, match="names files outside its folder"):
        finish_replacing(tmp_path / "folder")
    write_json(tmp_path / "folder" / JOURNAL, {**sealed(plan), "removed": []})
    with pytest.raises(ValueError, match=f"{JOURNAL} is damaged"):
        finish_replacing(tmp_path / "folder")
    assert (tmp_path / "outside").read_text() == "mine"
