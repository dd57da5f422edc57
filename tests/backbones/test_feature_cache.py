"""Extraction that is killed, run twice at once, or finds damaged files."""

import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from combemb.backbones import extract as features
from combemb.backbones.decoding import FEW_FILES, default_workers
from combemb.system import progress
from tests.backbones.tiny import Tiny, files, run, some_images

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture(autouse=True)
def save_after_every_batch(monkeypatch):
    monkeypatch.setattr(features, "SECONDS_BETWEEN_SAVES", 0.0)


def in_child(work, errors=None) -> int:
    """Start a forked process that does the work; 0 is the code of one that ends well, 1 that of a ValueError."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            torch.set_num_threads(1)  # threads do not survive a fork
            if errors is not None:
                os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
                sys.stderr = os.fdopen(2, "w")
            work()
            sys.stderr.flush()
            code = 0
        except ValueError:
            code = 1
        finally:
            os._exit(code)
    return child


def end_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_self():
    os.kill(os.getpid(), signal.SIGKILL)


def killed_at(batch):
    def on_batch(number):
        if number == batch:
            kill_self()

    return on_batch


@pytest.mark.parametrize("n_workers", [0, 2])
@pytest.mark.parametrize("batch", [1, 3, 7, 12])
def test_a_killed_extraction_goes_on_where_it_was(tmp_path, batch, n_workers):
    images = files(tmp_path / "files", broken=(2, 20))
    whole = run(images, tmp_path / "whole")
    child = in_child(lambda: run(images, tmp_path / "cache", Tiny(killed_at(batch)), n_workers=n_workers))
    assert end_of(child) == -signal.SIGKILL
    done = (0, 7, 15, 22)[(batch - 1) // 3]  # images that can be read
    backbone = Tiny()
    found = run(images, tmp_path / "cache", backbone, n_workers=n_workers)
    assert backbone.n_seen == 3 * (28 - done)
    assert np.allclose(found.x, whole.x, rtol=2e-3, atol=1e-3)  # batches are others


def is_alive(pid: int) -> bool:
    """Whether a process runs; a dead one whose parent has not asked for it still has an entry."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads decode")
def test_workers_end_with_the_process_that_started_them(tmp_path):
    """Batches are larger than a pipe holds, so that workers are busy writing when nobody reads any more."""
    images, pids = files(tmp_path / "files", n=60), tmp_path / "pids"

    def work():
        def on_batch(number):
            if number == 2:
                pids.write_text(Path(f"/proc/self/task/{os.getpid()}/children").read_text())
                time.sleep(0.5)
                kill_self()

        run(images, tmp_path / "cache", Tiny(on_batch), size=128, n_workers=2)

    assert end_of(in_child(work)) == -signal.SIGKILL
    workers = [int(pid) for pid in pids.read_text().split()]
    assert len(workers) == 2
    until = time.monotonic() + 5
    while any(map(is_alive, workers)) and time.monotonic() < until:
        time.sleep(0.05)
    left = [pid for pid in workers if is_alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def test_inside_a_worker_of_a_pool_threads_decode(tmp_path):
    images = files(tmp_path / "files", n=FEW_FILES)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(default_workers, [images, len(images)]) == 0
    assert default_workers(images, len(images)) == (1 if sys.platform == "linux" else 0)


@pytest.mark.parametrize("cache", ["/proc/none", "/dev/null/cache"])
def test_a_cache_that_cannot_be_written_is_named_with_what_to_do(cache):
    with pytest.raises(ValueError, match=rf"cannot store features in {cache}/.*; .*set COMBEMB_CACHE"):
        run(some_images(), Path(cache))


def changes_files(event, args):
    """Whether an event that Python reports is the start of a change on the disk."""
    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT
    return event in ("os.rename", "os.remove", "os.truncate") or (event == "open" and args[2] & writes)


def stopped_at(number, images, cache, **settings):
    """Extract until the number-th change in the cache."""
    left = [number]

    def hook(event, args):
        if changes_files(event, args) and str(cache) in str(args):
            left[0] -= 1
            if left[0] == 0:
                kill_self()

    sys.addaudithook(hook)
    run(images, cache, **settings)


def test_killed_at_any_change_of_a_file_it_goes_on(tmp_path):
    images, settings = files(tmp_path / "files", n=20, broken=(2, 11)), {"n_views": 2, "batch_size": 10}
    whole = run(images, tmp_path / "whole", **settings).x
    resumed = []
    for number in range(1, 100):
        cache, backbone = tmp_path / str(number), Tiny()
        code = end_of(in_child(lambda: stopped_at(number, images, cache, **settings)))  # noqa: B023
        if code == 0:
            break
        assert code == -signal.SIGKILL
        assert np.array_equal(run(images, cache, backbone, **settings).x, whole)
        resumed.append(backbone.n_seen)
    assert code == 0
    assert len(resumed) >= 4  # the lock, the files of rows and keys, the record
    assert sorted(resumed, reverse=True) == resumed


@pytest.mark.parametrize("at", range(0, 1080, 97))
def test_any_bytes_that_a_killed_process_leaves_are_whole_rows_or_none(tmp_path, at):
    """Both files may end anywhere, the keys also with the zeros of a power failure."""
    images = some_images()
    whole = run(images, tmp_path / "a")
    (record,) = whole.folder.glob("*.json")
    x = np.array(whole.x)
    keys = record.with_suffix(".keys").read_bytes()
    record.with_suffix(".keys").write_bytes(keys[: 3 * at] + bytes(100))
    record.with_suffix(".rows").write_bytes(record.with_suffix(".rows").read_bytes()[:at])
    backbone = Tiny()
    again = run(images, tmp_path / "a", backbone)
    assert backbone.n_seen == 90 - at // 12
    assert np.allclose(again.x, x, rtol=2e-3, atol=1e-3)


def test_an_interrupted_extraction_keeps_what_it_has_done(tmp_path, monkeypatch):
    monkeypatch.setattr(features, "SECONDS_BETWEEN_SAVES", 1000.0)

    def interrupted(number):
        if number == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(some_images(), tmp_path, Tiny(interrupted))
    backbone = Tiny()
    run(some_images(), tmp_path, backbone)
    assert backbone.n_seen == 3 * (30 - 16)


def test_killed_where_the_clean_views_were_there_it_goes_on(tmp_path):
    images = some_images()
    whole = run(images, tmp_path / "whole")
    run(images, tmp_path / "cache", n_views=1)
    child = in_child(lambda: run(images, tmp_path / "cache", Tiny(killed_at(4))))
    assert end_of(child) == -signal.SIGKILL
    backbone = Tiny()
    found = run(images, tmp_path / "cache", backbone)
    assert backbone.n_seen == 2 * (30 - 8)
    assert np.allclose(found.x, whole.x, rtol=2e-3, atol=1e-3)


def test_a_resumed_run_shows_where_it_starts(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    end_of(in_child(lambda: run(some_images(), tmp_path, Tiny(killed_at(7)))))
    run(some_images(), tmp_path, progress=True)
    assert [line.split()[2] for line in capsys.readouterr().err.splitlines()] == ["80%", "100%"]


def test_of_two_processes_one_works_and_the_other_waits(tmp_path):
    images = some_images()

    def work(name):
        backbone = Tiny(lambda _: time.sleep(0.02))
        found = run(images, tmp_path / "cache", backbone, progress=True)
        np.savez(tmp_path / name, x=found.x, is_hit=found.is_hit, n_seen=backbone.n_seen)

    children = [in_child(lambda name=name: work(name), tmp_path / f"{name}.txt") for name in "ab"]
    assert [end_of(child) for child in children] == [0, 0]
    a, b = sorted((np.load(tmp_path / f"{name}.npz") for name in "ab"), key=lambda found: found["is_hit"])
    assert (a["is_hit"], b["is_hit"]) == (False, True)
    assert (a["n_seen"], b["n_seen"]) == (90, 0)
    assert np.array_equal(a["x"], b["x"])
    said = sorted((tmp_path / f"{name}.txt").read_text() for name in "ab")
    assert said[0] == ""
    assert "waiting for another process that extracts features in" in said[1]


def test_a_full_disk_is_an_error_and_nothing_is_lost(tmp_path):
    def work():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))  # the features take 2,288 bytes
        run(some_images(60), tmp_path / "cache")

    assert end_of(in_child(work)) == 1
    assert np.array_equal(run(some_images(60), tmp_path / "cache").x, run(some_images(60), tmp_path / "other").x)


def no_rows(record):
    record.with_suffix(".rows").unlink()


def empty_rows(record):
    record.with_suffix(".rows").write_bytes(b"")


def no_keys(record):
    record.with_suffix(".keys").unlink()


def other_keys(record):
    keys = record.with_suffix(".keys")
    keys.write_bytes(b"x" * keys.stat().st_size)


def no_record(record):
    record.unlink()


def half_a_record(record):
    record.write_text(record.read_text()[:100])


def another_kind_of_record(record):
    record.write_text("[1, 2]")


def bytes_as_record(record):
    record.write_bytes(b"\xff\xfe\x00")


def record_of_another_network(record):
    content = json.loads(record.read_text())
    content["holds"]["size"] = 17
    record.write_text(json.dumps(content))


DAMAGES = [
    no_rows,
    empty_rows,
    no_keys,
    other_keys,
    no_record,
    half_a_record,
    another_kind_of_record,
    bytes_as_record,
    record_of_another_network,
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("n_views", [1, 3])
def test_what_a_damaged_file_held_is_extracted_again(tmp_path, damage, n_views):
    images, backbone = some_images(), Tiny()
    first = run(images, tmp_path)
    x = np.array(first.x[:, :n_views])
    (record,) = first.folder.glob("*.json")
    damage(record)
    again = run(images, tmp_path, backbone, n_views=n_views)
    assert not again.is_hit
    assert backbone.n_seen == 30 * n_views
    assert np.array_equal(again.x, x)
    assert run(images, tmp_path, n_views=n_views).is_hit


def test_processes_that_extract_other_images_share_the_store(tmp_path):
    """Each adds its own; images that several want are extracted by one of them."""
    images, parts = some_images(60), [np.arange(0, 40), np.arange(20, 60), np.arange(10, 50)]

    def work(part):
        backbone = Tiny(lambda _: time.sleep(0.01))
        run(images.take(parts[part]), tmp_path / "cache", backbone)
        (tmp_path / f"seen-{part}").write_text(str(backbone.n_seen))

    children = [in_child(lambda part=part: work(part)) for part in range(3)]
    assert [end_of(child) for child in children] == [0, 0, 0]
    assert sum(int((tmp_path / f"seen-{part}").read_text()) for part in range(3)) == 3 * 60
    found = run(images, tmp_path / "cache")
    assert found.is_hit
    assert np.allclose(found.x, run(images, tmp_path / "other").x, rtol=2e-3, atol=1e-3)


def test_a_cache_that_cannot_be_written_still_serves(tmp_path):
    found = run(some_images(), tmp_path)
    for path in (*found.folder.iterdir(), found.folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert run(some_images(), tmp_path).is_hit
    finally:
        found.folder.chmod(0o755)
