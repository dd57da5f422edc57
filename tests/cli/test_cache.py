"""`combemb cache`: what is shown, and what is deleted."""

import os
import time
from pathlib import Path

import pytest
from filelock import FileLock

from combemb.data.images import Images
from tests.backbones.tiny import Tiny, files, run
from tests.commands import done, refused

DAY = 24 * 60 * 60


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own with the features of 30 and of 12 images, which were last used 40 and 2 days ago."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("COMBEMB_CACHE", str(folder))
    for n, days in ((30, 40), (12, 2)):
        found = run(files(tmp_path / str(n), n), None)
        os.utime(found.folder, (time.time() - days * DAY,) * 2)
    return folder


def images_of(cache: Path) -> list[str]:
    """The second to last column of what is shown, of each set."""
    head, *lines = done("cache").stdout.splitlines()
    assert head.startswith(f"{cache}: sets of images with features: {len(lines)}, ")
    return [line.split("  ")[-2] for line in lines]


def test_every_set_of_images_is_shown_the_last_used_first(cache: Path):
    assert images_of(cache) == ["12 images, 3 views", "30 images, 3 views"]
    used = time.strftime("%Y-%m-%d", time.localtime(time.time() - 2 * DAY))
    assert f"used {used}  12 images, 3 views  tiny-16px-" in done("cache", "show").stdout


def test_what_was_not_used_is_pruned_and_extracted_again(cache: Path, tmp_path: Path):
    said = done("cache", "prune").stdout
    assert "deleted: 1, " in said
    assert images_of(cache) == ["12 images, 3 views"]
    backbone = Tiny()
    assert not run(files(tmp_path / "30", 30), None, backbone).is_hit
    assert backbone.n_seen == 90
    assert "deleted: 2, " in done("cache", "prune", "--days", 0).stdout
    assert images_of(cache) == []


def test_a_use_counts(cache: Path, tmp_path: Path):
    assert run(Images(files=sorted((tmp_path / "30").iterdir())), None).is_hit
    assert "deleted: 0, " in done("cache", "prune").stdout
    assert images_of(cache) == ["30 images, 3 views", "12 images, 3 views"]


def test_what_another_process_writes_is_kept(cache: Path):
    held = max(cache.glob("features/*"), key=lambda path: path.stat().st_mtime)
    before = sorted(held.iterdir())
    with FileLock(held / ".lock"):
        assert "deleted: 1, " in done("cache", "prune", "--days", 0).stdout
        assert sorted(held.iterdir()) == before


def test_an_interrupted_extraction_and_damaged_records_are_shown(cache: Path, tmp_path: Path):
    def interrupted(number: int) -> None:
        if number == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(files(tmp_path / "20", 20), None, Tiny(interrupted))
    old = min(cache.glob("features/*"), key=lambda path: path.stat().st_mtime)
    next(old.glob("*.json")).write_text("[]")
    assert images_of(cache) == ["20 images, 3 views, unfinished", "12 images, 3 views", "0 images, 0 views"]
    done("cache", "prune", "--days", 0)
    assert images_of(cache) == []


def test_an_empty_cache_and_an_unknown_action(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COMBEMB_CACHE", str(tmp_path / "none"))
    assert images_of(tmp_path / "none") == []
    assert "deleted: 0, " in done("cache", "prune").stdout
    assert not (tmp_path / "none").exists()
    assert "unknown action 'purge'; choose one of show, prune" in refused("cache", "purge")
