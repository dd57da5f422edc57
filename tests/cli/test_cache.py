"""`combemb cache`: what is shown, and what is deleted."""

import os
import time
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from combemb.data.images import Images
from tests.backbones.tiny import Tiny, files, run
from tests.commands import done, refused

DAY = 24 * 60 * 60


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own: features of 30 images that were used 40 days ago, of 12 others 2 days ago, and weights."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("COMBEMB_CACHE", str(folder))
    for n, days in ((30, 40), (12, 2)):
        there = set(folder.glob("features/*/*.json"))
        run(files(tmp_path / str(n), n), None)
        (record,) = set(folder.glob("features/*/*.json")) - there
        os.utime(record, (time.time() - days * DAY,) * 2)
    stage = folder / "pretraining" / "simclr-0123"
    stage.mkdir(parents=True)
    (stage / ".lock").touch()
    (stage / "backbone.safetensors").write_bytes(bytes(5000))
    os.utime(stage, (time.time() - 10 * DAY,) * 2)
    return folder


def held(cache: Path) -> list[str]:
    """The second to last column of what is shown, of each folder."""
    head, *lines = done("cache").stdout.splitlines()
    assert head.startswith(f"{cache}: folders: {len(lines)}, ")
    return [line.split("  ")[-2] for line in lines]


BY = f"torch {torch.__version__}"


def test_features_and_weights_are_shown_the_last_used_first(cache: Path):
    assert held(cache) == [f"42 images, 126 views, {BY}", "weights of a backbone"]
    used = time.strftime("%Y-%m-%d", time.localtime(time.time() - 2 * DAY))
    assert f"used {used}  42 images, 126 views, {BY}  tiny-16px-" in done("cache", "show").stdout


def test_what_was_not_used_is_pruned_and_extracted_again(cache: Path, tmp_path: Path):
    assert "deleted from 1 folders: " in done("cache", "prune").stdout
    assert held(cache) == [f"12 images, 36 views, {BY}", "weights of a backbone"]
    backbone = Tiny()
    assert run(Images(files=sorted((tmp_path / "12").iterdir())), None, backbone).is_hit
    assert not run(Images(files=sorted((tmp_path / "30").iterdir())), None, backbone).is_hit
    assert backbone.n_seen == 90
    assert "deleted from 1 folders: " in done("cache", "prune", "--days", 9).stdout
    assert held(cache) == [f"42 images, 126 views, {BY}"]
    assert "deleted from 1 folders: " in done("cache", "prune", "--days", 0).stdout
    assert held(cache) == []


def test_a_use_counts(cache: Path, tmp_path: Path):
    assert run(Images(files=sorted((tmp_path / "30").iterdir())), None).is_hit
    assert "deleted from 0 folders: " in done("cache", "prune").stdout


def test_what_another_process_writes_is_kept(cache: Path):
    for folder in [*cache.glob("features/*"), *cache.glob("pretraining/*")]:
        before = sorted(folder.iterdir())
        with FileLock(folder / ".lock"):
            done("cache", "prune", "--days", 0)
            assert sorted(folder.iterdir()) == before


def test_what_an_interrupted_extraction_has_done_is_shown_and_files_of_older_versions_are_pruned(cache, tmp_path):
    def interrupted(number: int) -> None:
        if number == 4:
            raise KeyboardInterrupt

    done("cache", "prune", "--days", 0)
    with pytest.raises(KeyboardInterrupt):
        run(files(tmp_path / "20", 20), None, Tiny(interrupted))
    old = cache / "features" / "old"
    old.mkdir()
    for name in ("clean.json", "clean.npy"):
        (old / name).write_text("[]")
    assert sorted(held(cache)) == ["0 images, 0 views", f"8 images, 24 views, {BY}"]
    done("cache", "prune", "--days", 0)
    assert held(cache) == []


def test_an_empty_cache_and_an_unknown_action(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COMBEMB_CACHE", str(tmp_path / "none"))
    assert held(tmp_path / "none") == []
    assert "deleted from 0 folders: " in done("cache", "prune").stdout
    assert not (tmp_path / "none").exists()
    assert "unknown action 'purge'; choose one of show, prune" in refused("cache", "purge")
