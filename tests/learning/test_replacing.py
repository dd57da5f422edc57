"""A new run is built beside the old one and takes its place in one step, whenever a process is killed."""

import shutil
import signal
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from combemb import methods
from combemb.collection.changes import name, store
from combemb.collection.class_log import read_log
from combemb.collection.classes import classes_of
from combemb.collection.discovered import discover_in, write_tables
from combemb.collection.indexed import Collection
from combemb.collection.predicted import predict_in
from combemb.learning import deep, fitting
from combemb.learning.loop import train
from combemb.learning.replacing import SetAside, publish
from combemb.learning.run_folder import CLASSES, NEW, WEIGHTS, RunFolder
from combemb.methods.combemb import CombEmb
from combemb.methods.itq import ITQ
from combemb.system.files import written_together
from tests.blobs import blobs
from tests.real_processes import ended, killed_at, started
from tests.toy_methods import One, assert_same_state, make, toy_data

ASIDE = "classes.old-1.jsonl"
OLD, NEW_BITS = 12, 16
LONG = {"bits": 12, "epochs": 6, "batch_size": 60, "device": "cpu", "check": False}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Embeddings with ids and labels."""
    return write_data(tmp_path_factory.mktemp("data") / "items.npz", "item")


def write_data(path: Path, prefix: str) -> Path:
    found = blobs(4, 2, n_each=20, D=16, signs=True)
    np.savez(path, x=found.x, labels=found.labels, ids=[f"{prefix}-{i}" for i in range(len(found.x))])
    return path


@pytest.fixture(scope="module")
def used(data: Path) -> Path:
    """A run with an index, a discovery and a named class."""
    run = data.parent / "run"
    ITQ(bits=OLD).fit(data, folder=run)
    write_tables(discover_in(run, n_novel=2))
    Collection.build(run)
    store(run, name(classes_of(run), "novel-1", "hawk"))
    return run


@pytest.fixture
def run(used: Path, tmp_path: Path) -> Path:
    """Such a run that a test may change."""
    return shutil.copytree(used, tmp_path / "run")


def answers(run: Path, data: Path) -> int:
    """The bits of a run whose files all belong together."""
    model = methods.load(run)
    bits = model.get_params()["bits"]
    if bits == OLD:
        assert len(Collection.open(run).search(data, 3)) == 120
        assert "hawk" in {item.name for item in predict_in(run, data).items}
    else:
        assert {path.name for path in run.iterdir()} - {CLASSES, ASIDE} == {"run.json", WEIGHTS, "diagnosis.json"}
    return bits


def fit_killed_in_the_middle(run: Path, data: Path) -> None:
    deep.train = partial(train, checkpoint_seconds=0.0)
    on_epoch = CombEmb.on_epoch

    def stop(self: Any, batches: Any, epoch: int) -> None:
        if epoch == 3:
            signal.raise_signal(signal.SIGKILL)
        on_epoch(self, batches, epoch)

    CombEmb.on_epoch = stop
    CombEmb(**LONG).fit(data, folder=run, overwrite=True)


def test_the_old_run_answers_until_the_new_one_is_complete(run: Path, data: Path, every_epoch: None):
    assert ended(started(fit_killed_in_the_middle, run, data)) == -signal.SIGKILL
    assert answers(run, data) == OLD
    discover_in(run, n_novel=3)
    assert RunFolder(run / NEW).checkpoint()[0] == 3
    resumed = CombEmb(**LONG).fit(data, folder=run, resume=True)
    assert [record["epoch"] for record in RunFolder(run).log()] == [1, 2, 3, 4, 5, 6]
    assert_same_state(resumed.state(), CombEmb(**LONG).fit(data).state())
    assert_same_state(methods.load(run).state(), resumed.state())
    assert not (run / NEW).exists()


def test_an_interrupt_leaves_the_old_run_and_something_to_resume(every_epoch: None, tmp_path: Path):
    x, labels = toy_data()
    old = make(One).fit(x, labels, folder=tmp_path / "run")
    method = make(One, seed=1)
    method.interrupted_before = 2
    with pytest.raises(KeyboardInterrupt):
        method.fit(x, labels, folder=tmp_path / "run", overwrite=True)
    assert_same_state(One.load(tmp_path / "run").state(), old.state())
    with pytest.raises(ValueError, match=r"cannot resume .*seed was 1, now it is 2"):
        make(One, seed=2).fit(x, labels, folder=tmp_path / "run", resume=True)
    resumed = make(One, seed=1).fit(x, labels, folder=tmp_path / "run", resume=True)
    assert_same_state(resumed.state(), make(One, seed=1).fit(x, labels).state())
    assert_same_state(One.load(tmp_path / "run").state(), resumed.state())


def test_a_new_fit_replaces_an_unfinished_one(every_epoch: None, tmp_path: Path):
    x, labels = toy_data()
    make(One).fit(x, labels, folder=tmp_path / "run")
    method = make(One, seed=1)
    method.interrupted_before = 2
    with pytest.raises(KeyboardInterrupt):
        method.fit(x, labels, folder=tmp_path / "run", overwrite=True)
    make(One, seed=2).fit(x, labels, folder=tmp_path / "run", overwrite=True)
    assert One.load(tmp_path / "run").seed == 2
    assert not (tmp_path / "run" / NEW).exists()


def test_files_of_a_methods_own_are_part_of_the_run(run: Path, data: Path):
    class Noting(ITQ):
        def _fit(self, data: Any, run: RunFolder | None, progress: bool | None) -> None:
            super()._fit(data, run, progress)
            assert run is not None
            (run.folder / "notes.txt").write_text("mine")

    Noting(bits=NEW_BITS).fit(data, folder=run, overwrite=True)
    assert (run / "notes.txt").read_text() == "mine"


@pytest.fixture
def unpublished(run: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose successor is complete, but has not taken its place."""
    with monkeypatch.context() as patch:
        patch.setattr(fitting, "publish", lambda *_, **__: None)
        ITQ(bits=NEW_BITS).fit(data, folder=run, overwrite=True)
    assert answers(run, data) == OLD
    return run


@pytest.mark.parametrize("keeps_classes", [True, False])
def test_a_swap_that_is_killed_anywhere_is_whole(unpublished: Path, data: Path, tmp_path: Path, keeps_classes: bool):
    found = []
    for number in range(100):
        run = shutil.copytree(unpublished, tmp_path / f"{number}")
        code = ended(started(killed_at, number, partial(publish, keeps_classes=keeps_classes), RunFolder(run / NEW)))
        found.append(answers(run, data))
        assert (run / CLASSES).exists() == (keeps_classes or found[-1] == OLD)
        assert len(read_log(run)) + (run / ASIDE).exists() == 1, "what people said is lost"
        assert (run / NEW).exists() == (found[-1] == OLD)
        if found[-1] == OLD:
            ITQ(bits=NEW_BITS).fit(data, folder=run, resume=True)
            assert answers(run, data) == NEW_BITS
        assert not [path for path in run.iterdir() if path.name.startswith(".")]
        if code == 0:
            break
    assert found == sorted(found)
    assert found.count(NEW_BITS) > 10, "the swap has many steps"
    assert found[0] == OLD


def fit_and_discover_again_and_again(run: Path, data: Path) -> None:
    for number in range(1000):
        ITQ(bits=(OLD, NEW_BITS)[number % 2]).fit(data, folder=run, overwrite=True)
        with written_together(run):
            write_tables(discover_in(run, n_novel=2))


def test_a_reader_never_sees_a_mixture_of_two_runs(run: Path, data: Path):
    expected = {bits: ITQ(bits=bits).fit(data).embed(data) for bits in (OLD, NEW_BITS)}
    writer = started(fit_and_discover_again_and_again, run, data)
    seen = []
    deadline = time.monotonic() + 60
    while len(set(seen)) < 2 or len(seen) < 40:
        assert time.monotonic() < deadline
        assert writer.is_alive()
        model = methods.load(run)
        seen.append(model.get_params()["bits"])
        assert torch.equal(model.embed(data), expected[seen[-1]])
        if hasattr(model, "discovery_"):
            assert len(model.predict(data)) == 120, "z of this model has another shape than that of the other"
    writer.kill()
    ended(writer)


def test_names_of_classes_are_kept_for_the_same_items(run: Path, data: Path, tmp_path: Path):
    said = (run / CLASSES).read_bytes()
    with warnings.catch_warnings(action="error"):
        ITQ(bits=NEW_BITS).fit(data, folder=run, overwrite=True)
    assert (run / CLASSES).read_bytes() == said
    others = write_data(tmp_path / "others.npz", "other")
    with pytest.warns(SetAside, match=rf"about classes in {run} is about other items.*kept as {ASIDE}"):
        ITQ(bits=OLD).fit(others, folder=run, overwrite=True)
    assert not (run / CLASSES).exists()
    assert (run / ASIDE).read_bytes() == said


def test_numbers_are_ids_of_the_same_data_only(data: Path, tmp_path: Path):
    x = np.load(data)["x"]
    ITQ(bits=OLD).fit(x, folder=tmp_path / "run")
    (tmp_path / "run" / CLASSES).write_text('{"kind": "name", "groups": [["7"]], "to": "hawk"}\n')
    with warnings.catch_warnings(action="error"):
        ITQ(bits=NEW_BITS).fit(x, folder=tmp_path / "run", overwrite=True)
    with pytest.warns(SetAside):
        ITQ(bits=NEW_BITS).fit(x[::-1].copy(), folder=tmp_path / "run", overwrite=True)


def test_saving_replaces_a_run_in_one_step_too(run: Path, data: Path, monkeypatch: pytest.MonkeyPatch):
    model = ITQ(bits=NEW_BITS).fit(data)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_weights", full)
        with pytest.raises(OSError, match="full"):
            model.save(run, overwrite=True)
    assert answers(run, data) == OLD
    with warnings.catch_warnings(action="error"):
        model.save(run, overwrite=True)
    assert torch.equal(methods.load(run).embed(data), model.embed(data))
    assert {path.name for path in run.iterdir()} == {"run.json", WEIGHTS, CLASSES}


def full(*_: object) -> None:
    raise OSError("the disk is full")
