"""Processes that share an extraction have the features, and write the files, of a single one."""

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from combemb.backbones import extract as features
from combemb.data.image_items import readable
from combemb.data.images import Images
from combemb.system.team import ALONE, Team
from tests.backbones.tiny import Tiny, files, run
from tests.real_processes import ended, started
from tests.teams import begun, results_of, together

N = 45  # six batches of eight, the last of which is smaller


def shared(
    team: Team,
    images: Images | list[Images],
    cache: Path | list[Path],
    killed: tuple[int, int] | None = None,
    seconds: float = 0.0,
    **settings: Any,
) -> dict[str, Any]:
    """Extract; images and caches are the same for all or one of each process; one may be killed at a batch."""

    def on_batch(number: int) -> None:
        if killed == (team.rank, number):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(seconds)

    features.SECONDS_BETWEEN_SAVES = 0.0
    backbone = Tiny(on_batch)
    images, cache = (given[team.rank] if isinstance(given, list) else given for given in (images, cache))
    found = run(images, cache, backbone, team=team, **settings)
    return {
        "x": np.array(found.x),
        "is_map": isinstance(found.x, np.memmap),
        "rows": found.rows.tolist(),
        "broken": found.broken,
        "is_hit": found.is_hit,
        "n_seen": backbone.n_seen,
    }


def require_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name in ("x", "rows", "broken"):
        assert np.array_equal(found[name], expected[name]), name


def segments(cache: Path) -> list[tuple[bytes, bytes]]:
    """The content of what is stored below a cache."""
    return sorted((path.read_bytes(), path.with_suffix(".keys").read_bytes()) for path in cache.rglob("*.rows"))


def other_files(cache: Path) -> set[str]:
    return {path.name for path in cache.rglob("*") if path.is_file() and path.suffix not in {".json", ".keys", ".rows"}}


def copied(images: Images, folder: Path) -> Images:
    """The same images on another machine: the names are the same, paths and times of change are not."""
    paths = [folder / Path(path).name for path in images.files]
    folder.mkdir()
    for path, copy in zip(images.files, paths, strict=True):
        shutil.copy2(path, copy)
    return Images(files=paths, ids=images.ids)


def named(images: Images) -> Images:
    return Images(files=images.files, ids=np.array([Path(path).name for path in images.files]))


@pytest.mark.parametrize(("size", "n_workers"), [(2, 1), (3, 0)])
def test_each_process_computes_a_part_and_all_have_what_one_would_have(tmp_path, size, n_workers):
    images = files(tmp_path / "files", n=N, broken=(3, 20, 44))
    alone = shared(ALONE, images, tmp_path / "one")
    for own in (found := together(tmp_path, size, shared, images, tmp_path / "team", n_workers=n_workers)):
        require_same(own, alone)
        assert own["is_map"], "rows that follow each other on the disk are used in place"
        assert not own["is_hit"]
    readable = [7, 8, 7, 8, 8, 4]  # of each batch
    assert [own["n_seen"] for own in found] == [3 * sum(readable[rank::size]) for rank in range(size)]
    assert segments(tmp_path / "team") == segments(tmp_path / "one")
    assert other_files(tmp_path / "team") == {".lock"}
    for own in together(tmp_path, size, shared, images, tmp_path / "team"):
        require_same(own, alone)
        assert own["is_hit"]
        assert own["n_seen"] == 0


def test_more_processes_than_batches(tmp_path):
    images = files(tmp_path / "files", n=10)
    found = together(tmp_path, 3, shared, images, tmp_path / "team", n_views=2)
    alone = shared(ALONE, images, tmp_path / "one", n_views=2)
    assert [own["n_seen"] for own in found] == [16, 4, 0]
    for own in found:
        require_same(own, alone)


@pytest.mark.parametrize("keep", [True, False])
def test_only_what_is_not_in_the_cache_is_computed(tmp_path, keep):
    images = files(tmp_path / "files", n=N, broken=(7,))
    for cache in ("one", "team"):
        shared(ALONE, images.take(np.arange(20, 45)), tmp_path / cache, n_views=1)
        shared(ALONE, images.take(np.arange(30, 33)), tmp_path / cache, n_views=3)
    alone = shared(ALONE, images, tmp_path / "one", keep=keep)
    found = together(tmp_path, 2, shared, images, tmp_path / "team", keep=keep)
    for own in found:
        require_same(own, alone)
    n_seen = [own["n_seen"] for own in found]
    assert sum(n_seen) == alone["n_seen"] == 3 * 19 + 2 * 22
    assert min(n_seen) > 3 * 8
    assert segments(tmp_path / "team") == segments(tmp_path / "one")


def test_machines_with_files_and_caches_of_their_own_share_the_work(tmp_path):
    images = named(files(tmp_path / "files", n=N, broken=(3,)))
    copies, caches = [images, copied(images, tmp_path / "copies")], [tmp_path / "a", tmp_path / "b"]
    alone = shared(ALONE, images, tmp_path / "one")
    found = together(tmp_path, 2, shared, copies, caches)
    for own in found:
        require_same(own, alone)
        assert own["is_map"]
    assert sum(own["n_seen"] for own in found) == alone["n_seen"]
    for own, cache in zip(copies, caches, strict=True):
        again = shared(ALONE, own, cache)
        assert again["is_hit"]
        require_same(again, alone)


def test_a_machine_that_has_features_helps_one_that_lacks_them(tmp_path):
    images = named(files(tmp_path / "files", n=N))
    copies, caches = [images, copied(images, tmp_path / "copies")], [tmp_path / "a", tmp_path / "b"]
    alone = shared(ALONE, images, caches[0])
    shared(ALONE, copies[1].take(np.arange(16)), caches[1])
    before = segments(caches[0])
    found = together(tmp_path, 2, shared, copies, caches)
    assert [own["n_seen"] for own in found] == [3 * (8 + 8), 3 * (8 + 5)]
    for own in found:
        require_same(own, alone)
    assert segments(caches[0]) == before
    assert shared(ALONE, copies[1], caches[1])["is_hit"]


def test_an_image_that_the_process_whose_turn_it_is_cannot_read_is_left_out_by_all(tmp_path):
    images = named(files(tmp_path / "files", n=N))
    copies = [images, copied(images, tmp_path / "copies")]
    for row in (0, 9):  # the first process reads the one, the second the other
        path = Path(copies[1].files[row])
        path.write_bytes(bytes(path.stat().st_size))
    first, second = together(tmp_path, 2, shared, copies, [tmp_path / "a", tmp_path / "b"])
    assert first["broken"] == second["broken"] == {9: "not an image of a known format"}
    require_same(first, second)
    assert len(first["x"]) == N - 1


def looked_at(team: Team, images: list[Images]) -> tuple[list[int], dict[int, str]]:
    rows, broken = readable(images[team.rank], False, team)
    return rows.tolist(), broken


def test_a_backbone_that_is_trained_sees_only_images_that_all_machines_can_read(tmp_path):
    images = files(tmp_path / "files", n=20, broken=(3,))
    copies = [images, copied(images, tmp_path / "copies")]
    Path(copies[1].files[9]).write_bytes(b"")
    first, second = together(tmp_path, 2, looked_at, copies)
    assert first == second
    assert first[0] == np.delete(np.arange(20), [3, 9]).tolist()
    assert sorted(first[1]) == [3, 9]
    Path(copies[0].files[12]).write_bytes(b"")  # two of twenty may be broken, three may not
    for error in together(tmp_path, 2, looked_at, copies):
        assert str(error).startswith("at least 3 of 20 images cannot be read")


def test_processes_with_other_images_or_settings_are_refused(tmp_path):
    images = named(files(tmp_path / "files", n=12))
    renamed = Images(files=images.files, ids=images.ids[::-1])
    for other, what in (
        (images.take(np.arange(11)), "number of images: 12"),
        (renamed, "digest of their names and sizes: "),
    ):
        for error in together(tmp_path, 2, shared, [images, other], tmp_path / "cache"):
            assert str(error).startswith(what)
            assert str(error).endswith("in process 1; give all processes the same data and settings")
    assert not (tmp_path / "cache").exists()


def test_too_many_broken_images_are_refused_by_all_as_soon_as_that_is_certain(tmp_path):
    images = files(tmp_path / "files", n=60, broken=range(0, 20, 2))
    for error in together(tmp_path, 2, shared, images, tmp_path / "cache", seconds=0.05):
        assert isinstance(error, ValueError)
        assert str(error).startswith("at least 8 of 60 images cannot be read, more than 10%, such as ")
    assert len(together(tmp_path, 2, shared, images.take(np.arange(20, 60)), tmp_path / "cache")[1]["x"]) == 40


def test_a_cache_that_one_process_cannot_write_ends_all(tmp_path):
    images = files(tmp_path / "files", n=N)
    own, other = together(tmp_path, 2, shared, images, [tmp_path / "cache", Path("/proc/none")])
    for error in (own, other):
        assert "cannot store features in /proc/none/" in str(error)
        assert "set COMBEMB_CACHE" in str(error)
    assert str(own).endswith("(in process 1 of 2)")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_dies_ends_the_others_and_what_was_stored_is_used(tmp_path, rank):
    images = files(tmp_path / "files", n=N)
    began = time.monotonic()
    results = together(tmp_path, 2, shared, images, tmp_path / "cache", (rank, 7), 0.02, n_workers=1)
    assert time.monotonic() - began < 30
    assert results[rank] == -signal.SIGKILL
    assert isinstance(results[1 - rank], RuntimeError)
    again = together(tmp_path, 2, shared, images, tmp_path / "cache")
    assert 0 < sum(own["n_seen"] for own in again) <= 3 * (N - 2 * 8 * 2)
    whole = shared(ALONE, images, tmp_path / "whole")
    for own in again:
        assert np.allclose(own["x"], whole["x"], rtol=2e-3, atol=1e-3)  # batches are others


def test_processes_wait_for_another_program_that_extracts_the_same(tmp_path):
    images = files(tmp_path / "files", n=N)
    other = started(shared, ALONE, images, tmp_path / "cache", None, 0.1)
    try:
        while not list((tmp_path / "cache").rglob("*.rows")):
            time.sleep(0.01)
        found = together(tmp_path, 2, shared, images, tmp_path / "cache")
        assert [own["n_seen"] for own in found] == [0, 0]
        assert [own["is_hit"] for own in found] == [True, True]
    finally:
        assert ended(other) == 0


def test_two_teams_on_two_machines_do_not_wait_for_each_other_forever(tmp_path):
    images, caches = files(tmp_path / "files", n=N), [tmp_path / "a", tmp_path / "b"]
    one = begun(tmp_path, 2, shared, images, caches, seconds=0.01)
    other = begun(tmp_path, 2, shared, images, caches[::-1], seconds=0.01)
    results = [results_of(one), results_of(other)]
    assert sorted(sum(own["n_seen"] for own in team) for team in results) == [0, 3 * N]
    for own in (*results[0], *results[1]):
        require_same(own, results[0][0])
