"""Promises about run folders: what they hold, restore and refuse."""

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from safetensors.torch import load_file, save

from combemb import methods
from combemb.data.labels import read_labels
from combemb.learning import loop
from combemb.learning.codes import CodeMethod, require_codes
from combemb.learning.deep import DeepMethod
from combemb.learning.run_folder import CONFIG, CURVES, DIAGNOSIS, DISCOVERY, FORMAT_VERSION, LOG, WEIGHTS, RunFolder
from combemb.learning.saving import was_fitted_with
from combemb.testing.promise import expect, expect_same, expect_same_fits, only_for, refused, written
from combemb.testing.trial import N_SEEN, Trial

SUFFIXES = {".json", ".safetensors", ".jsonl", ".png"}


def folder_gives_back(trial: Trial) -> None:
    """A run folder restores the fitted method, whether `fit` or `save` wrote it."""
    for toy, (fitted, folder) in trial.runs.items():
        saved = trial.saved(fitted)
        expect((saved / WEIGHTS).read_bytes() == (folder / WEIGHTS).read_bytes(), "fit and save differ in weights")
        trial.cls.load(saved).save(saved, overwrite=True)
        for loaded in (trial.cls.load(folder), methods.load(str(folder)), methods.load(saved)):
            expect(type(loaded) is trial.cls, f"load returns a {type(loaded).__name__}")
            expect(loaded.get_params() == fitted.get_params(), "the settings differ after load")
            expect(loaded.classes_.tolist() == fitted.classes_.tolist(), "the classes differ after load")
            for x in (toy.x, toy.queries):
                expect_same_fits(loaded, fitted, x, "the fitted and the loaded method")


def folder_files(trial: Trial) -> None:
    """A run folder holds no pickle and no temporary file, and its weights are what `state` returns."""
    fitted, folder = trial.runs[trial.plain]
    for place in (folder, trial.saved()):
        found = [Path(path) for path in written(place)]
        expect({CONFIG, WEIGHTS} <= {str(path) for path in found}, f"{CONFIG} or {WEIGHTS} is missing")
        others = [str(path) for path in found if path.suffix not in SUFFIXES or path.name.startswith(".")]
        expect(not others, f"it holds {', '.join(others)}")
        expect(load_file(place / WEIGHTS).keys() == fitted.state().keys(), "its weights are not those of `state`")


def classes_stored(trial: Trial) -> None:
    """A run folder restores the class names, and knows whether labels are those of its fit."""
    toy = trial.plain
    folder = trial.saved(trial.small().fit(toy.x, toy.names("klasse ä{}", gap="")))
    names = trial.cls.load(folder).classes_.tolist()
    expect(names == [f"klasse ä{c}" for c in range(N_SEEN)], f"the names are {names}")
    for values, is_same in ((toy.labels, True), (np.roll(toy.labels, 1), False), (toy.names(), False)):
        found = was_fitted_with(trial.runs[toy][1], read_labels(values, len(values)))
        whose = "its own" if is_same else "other"
        expect(found == is_same, f"{whose} labels are{'' if found else ' not'} taken for its own")


def old_run_kept(trial: Trial) -> None:
    """A run is replaced only with `overwrite`, and never by a fit that is refused."""
    toy, folder = trial.plain, trial.saved()
    before = written(folder)
    with refused("a fit into the folder of an old run", "overwrite"):
        trial.small().fit(toy.x, toy.labels, folder=folder)
    with refused("save into the folder of an old run", "overwrite"):
        trial.short.save(folder)
    with refused("a fit with NaN", "NaN"):
        trial.small().fit(np.full_like(toy.x, np.nan), toy.labels, folder=folder, overwrite=True)
    expect(written(folder) == before, "a refused call has changed the folder")


def overwriting(trial: Trial) -> None:
    """A fit that overwrites a run leaves nothing of it, neither in the folder nor in the method."""
    toy, folder, other = trial.plain, trial.new_path(), trial.fresh()
    shutil.copytree(trial.runs[toy][1], folder)
    other.discover(toy.x, toy.labels, 1)
    other.discovery_.save(folder / DISCOVERY)
    expect(hasattr(trial.cls.load(folder), "discovery_"), "the old run has lost what was discovered")
    method = trial.small(seed=2)
    method.discovery_ = other.discovery_
    method.fit(toy.x, toy.labels, folder=folder, overwrite=True)
    expect(written(folder).keys() == written(trial.runs[toy][1]).keys(), f"the folder holds {sorted(written(folder))}")
    loaded = trial.cls.load(folder)
    expect(loaded.seed == 2, f"the seed is that of the old run, {loaded.seed}")
    expect_same_fits(loaded, method, toy.x, "the fitted and the loaded method")
    expect(RunFolder(folder).log() == getattr(method, "log_", []), "the log is not that of the new fit")
    expect(not hasattr(method, "discovery_"), "the method still has what it discovered before the fit")


def refused_resume(trial: Trial) -> None:
    """A resumed fit with other data is refused, changes nothing and leaves the method unfitted."""
    toy, folder, method = trial.plain, trial.saved(), trial.small()
    before = written(folder)
    with refused("a resumed fit with fewer features", "resume"):
        method.fit(toy.x[:, :20], toy.labels, folder=folder, resume=True)
    expect(written(folder) == before, "the folder has changed")
    with refused("embed after a refused fit", "not fitted"):
        method.embed(toy.x)


def damaged_folder(trial: Trial) -> None:
    """A run folder that is damaged, of another method or of another format is refused by name."""
    folder = trial.saved()
    config, weights, tensors = json.loads((folder / CONFIG).read_text()), folder / WEIGHTS, load_file(folder / WEIGHTS)
    keys, versions = ("settings", "method", "classes"), (FORMAT_VERSION - 1, FORMAT_VERSION + 1)
    cases = [(key, {name: value for name, value in config.items() if name != key}) for key in keys]
    cases += [("; fit again", {**config, "format_version": version}) for version in versions]
    for word, stored in [*cases, ("no:Such", {**config, "method": "no:Such"})]:
        (folder / CONFIG).write_text(json.dumps(stored))
        with refused(f"a {CONFIG} with {stored}", str(folder), word):
            trial.cls.load(folder)
    (folder / CONFIG).write_text(json.dumps(config))
    del tensors[min(tensors)]
    for what, data in {"truncated": weights.read_bytes()[:-10], "without a tensor": save(tensors)}.items():
        weights.write_bytes(data)
        with refused(f"a file of weights {what}", str(folder), "fit again"):
            trial.cls.load(folder)


@only_for(CodeMethod)
def codes_counted(trial: Trial) -> None:
    """The diagnosis counts the distinct codes of all items learned from."""
    for toy, (fitted, folder) in trial.runs.items():
        rows = slice(None) if trial.cls.uses_unlabelled else toy.labels >= 0
        found = json.loads((folder / DIAGNOSIS).read_text()).get("n_codes")
        n = len(require_codes(fitted).encode(toy.x[rows]).unique(dim=0))
        expect(found == n, f"n_codes in {DIAGNOSIS} is {found}, there are {n}")


@only_for(DeepMethod)
def training_logged(trial: Trial) -> None:
    """Training is logged epoch by epoch, in `log_` and in the run folder."""
    fitted, folder = trial.runs[trial.plain]
    found = [record["epoch"] for record in fitted.log_]
    expect(found == list(range(1, len(found) + 1)) != [], f"log_ has the epochs {found}")
    expect(RunFolder(folder).log() == fitted.log_, f"{LOG} is not log_")
    missing = {CURVES, DIAGNOSIS, LOG} - written(folder).keys()
    expect(not missing, f"{', '.join(missing)} are missing")


@only_for(DeepMethod)
def resumed(trial: Trial) -> None:
    """A fit that was stopped and resumed reaches the state of one that was not."""
    toy, folder, cls = trial.plain, trial.new_path(), trial.cls
    whole = trial.small(epochs=4).fit(toy.x, toy.labels)
    on_epoch = cls.on_epoch  # type: ignore[attr-defined]

    def stop(self: Any, data: Any, epoch: int) -> None:
        if epoch == 2:
            raise KeyboardInterrupt
        on_epoch(self, data, epoch)

    with (
        mock.patch.object(loop, "CHECKPOINT_SECONDS", 0.0),
        mock.patch.object(cls, "on_epoch", stop),
        contextlib.suppress(KeyboardInterrupt),
    ):
        trial.small(epochs=4).fit(toy.x, toy.labels, folder=folder)
    again = trial.small(epochs=4).fit(toy.x, toy.labels, folder=folder, resume=True)
    for name, tensor in whole.state().items():
        expect_same(again.state()[name], tensor, f"{name} of a resumed and an undisturbed fit")
