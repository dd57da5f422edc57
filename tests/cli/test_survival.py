"""Two writers, kill -9, full disks and folders that cannot be written, at random moments: no run is ever lost.

A few trials are always run, all of them by `make slow`.
"""

import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest

from combemb import methods
from combemb.collection.class_log import read_log
from combemb.collection.classes import classes_of
from combemb.collection.index_files import has_index
from combemb.collection.indexed import Collection
from combemb.collection.predicted import predict_in
from combemb.learning.one_writer import WRITER
from combemb.learning.run_folder import CLASSES, NEW, REPLACED, RunFolder
from tests.cli.found import BLOBS, NAMES, N
from tests.commands import call, done
from tests.disturbances import FILLER, calm, disturbed, fill, forbid, kill
from tests.real_processes import ended, started

N_TRIALS, N_QUICK = 50, 4
SEED = 14
DEEP = ("--set=epochs=5", "--set=batch_size=60", "--set=check=False", "--set=device=cpu")
FITS = {  # the first is the old run
    "old": ("--method", "itq", "--bits", "12"),
    "itq": ("--method", "itq", "--bits", "8"),
    "combemb": ("--method", "combemb", "--bits", "12", *DEEP),
}
ADDED = [f"new-{i}" for i in range(10)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a used run of them, and what each fit embeds the data to."""
    root = tmp_path_factory.mktemp("world")
    np.savez(root / "items.npz", x=BLOBS.x, labels=NAMES, ids=[f"item-{i}" for i in range(N)])
    np.savez(root / "moved.npz", x=BLOBS.x, labels=NAMES, ids=[f"item-{i}" for i in range(N)])
    np.savez(root / "added.npz", x=BLOBS.x[:10], ids=ADDED)
    for name, options in FITS.items():
        done("fit", root / "items.npz", "--out", root / name, *options, "--quiet")
        np.save(root / f"{name}.npy", methods.load(root / name).embed(BLOBS.x))
    done("discover", root / "old", "--no-page", "--n-novel", "2")
    done("index", root / "old")
    return root


@pytest.fixture(scope="module")
def disk(world: Path) -> Iterator[Path]:
    """A file system of 8 MB; a folder if mounting is not permitted."""
    place = world / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(place)]
    is_mounted = shutil.which("mount") and not subprocess.run(mount, check=False, capture_output=True).returncode
    yield place
    if is_mounted:
        subprocess.run(["umount", "--lazy", str(place)], check=True)  # indexes are still mapped


def commands(world: Path, run: Path, chance: random.Random) -> dict[str, list[object]]:
    """All commands that write into a run folder."""
    fits = {
        name: ["fit", world / "items.npz", "--out", run, *FITS[name], "--overwrite", "--quiet"]
        for name in ("itq", "combemb")
    }
    return {
        **fits,
        "discover": ["discover", run, "--no-page", "--n-novel", chance.choice("23")],
        "index": ["index", run, "--overwrite"],
        "add": ["index", run, "--add", "--embeddings", world / "added.npz"],
        "move": ["classes", run, "move", "ant", f"item-{chance.randrange(80, N)}"],
        "relocate": ["relocate", run, "--to", world / "moved.npz"],
    }


@pytest.mark.parametrize(
    "trial", [pytest.param(i, marks=[pytest.mark.slow] if i >= N_QUICK else []) for i in range(N_TRIALS)]
)
def test_no_run_is_lost(world: Path, disk: Path, tmp_path: Path, trial: int):
    chance = random.Random(SEED * 1000 + trial)
    run = shutil.copytree(world / "old", disk / f"run-{trial}")
    choices = commands(world, run, chance)
    chosen = chance.sample(sorted(choices), 2) if trial % 2 else ["combemb", chance.choice(sorted(choices))]
    disturb: Callable[[Path], None] = (kill, partial(fill, room=chance.choice([0, 0, 9_000, 200_000])), forbid)[
        trial % 3
    ]
    if getattr(disturb, "func", None) is fill and not disk.is_mount():
        pytest.skip("mounting is not permitted here")
    by_itself, is_first = chance.random() < 0.5, chance.random() < 0.7
    number = chance.randrange(1, 60 if chosen[0] in FITS else 16)
    writers = []
    for i, name in enumerate(chosen):
        own = disturb if by_itself and i == 0 else None
        writers.append(started(disturbed, own, number, run, tmp_path / f"{i}", *choices[name]))
        if i == 0 and is_first:
            wait_for_writer(run, writers[0])
    if not by_itself:
        time.sleep(chance.choice([0, 0.05, 0.2, 0.5]) * chance.random())
        writers[0].kill() if disturb is kill else disturb(run)
    codes = [ended(writer) for writer in writers]
    for i, (name, code) in enumerate(zip(chosen, codes, strict=True)):
        printed = (tmp_path / f"{i}").read_text() if (tmp_path / f"{i}").exists() else ""
        assert "Traceback" not in printed, printed
        assert code in (0, 1, -9), (name, printed)
        assert code != 1 or printed.splitlines()[-1].startswith("error: "), printed
    if (run.parent / FILLER).exists():
        methods.load(run)  # a full disk keeps nobody from reading
    calm(run)
    is_done = {name for name, code in zip(chosen, codes, strict=True) if code == 0}
    model = check_answers(world, run, set(chosen), is_done)
    if "move" in is_done:
        assert choices["move"][-1] in {item for said in read_log(run) for group in said.groups for item in group}
    check_goes_on(world, run, model)
    shutil.rmtree(run)


def wait_for_writer(run: Path, writer: BaseProcess) -> None:
    """Wait until a process writes into a run folder, or is done."""
    deadline = time.monotonic() + 30
    while not (run / WRITER).exists() and writer.is_alive() and time.monotonic() < deadline:
        time.sleep(0.002)


def fitted_as(world: Path, run: Path) -> str:
    """Which of the fits a run is; that its files belong together is part of the question."""
    found = methods.load(run).embed(BLOBS.x).numpy()
    names = [name for name in FITS if np.array_equal(found, np.load(world / f"{name}.npy"))]
    assert names, "a mixture of runs"
    return names[0]


def check_answers(world: Path, run: Path, chosen: set[str], is_done: set[str]) -> str:
    """Whatever happened, the old run or a new one answers; what a command said it did is done."""
    model = fitted_as(world, run)
    fits = is_done & FITS.keys()
    assert model in (fits or {"old", *chosen}), "a fit that was said to be complete is lost"
    if model == "old":
        assert len(predict_in(run, BLOBS.x).items) == N
        assert has_index(run)
    if has_index(run):
        collection = Collection.open(run)
        assert len(collection.search(BLOBS.x[:2], 3)) == 2
        assert len(collection) in (N, N + len(ADDED))
        if model == "old" and "add" in is_done and "index" not in chosen:
            assert set(ADDED) <= set(collection.entries["id"].to_pylist())
    if (run / "discovery.parquet").exists():
        assert len(classes_of(run).names) == N
        assert predict_in(run, BLOBS.x[:2]).items
    read_log(run)
    return model


def check_goes_on(world: Path, run: Path, model: str) -> None:
    """A fit that was interrupted can be resumed, everything can be done again, and nothing else is left."""
    if RunFolder(run / NEW).has_config():
        which = "combemb" if RunFolder(run / NEW).config()["method"] == "combemb" else "itq"
        result = call("fit", world / "items.npz", "--out", run, *FITS[which], "--resume", "--quiet")
        assert result.exit_code == 0, result.output
        assert fitted_as(world, run) == which
    else:
        assert fitted_as(world, run) == model
    done("index", run, "--overwrite")
    done("discover", run, "--no-page", "--n-novel", "2")
    done("classes", run, "name", "novel-1", "hawk")
    assert {path.name for path in run.iterdir()} <= {*REPLACED, CLASSES}
