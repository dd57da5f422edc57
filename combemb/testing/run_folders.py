"""Promises about run folders: what they hold, what comes back, what is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file, save_file

from combemb import methods
from combemb.data.labels import read_labels
from combemb.learning.codes import CodeMethod, require_codes
from combemb.learning.deep import DeepMethod
from combemb.learning.run_folder import CONFIG, CURVES, DIAGNOSIS, DISCOVERY, FORMAT_VERSION, LOG, WEIGHTS, RunFolder
from combemb.learning.saving import was_fitted_with
from combemb.testing.promise import expect, expect_same, promise, promise_of, refused, written
from combemb.testing.trial import N_SEEN, Trial

SUFFIXES = {".json", ".safetensors", ".jsonl", ".png"}


@promise
def folder_gives_back(trial: Trial) -> None:
    """A run folder gives the fitted method back, whether `fit` or `save` wrote it."""
    for toy, (fitted, folder) in trial.runs.items():
        saved = trial.new_folder()
        fitted.save(saved)
        expect((saved / WEIGHTS).read_bytes() == (folder / WEIGHTS).read_bytes(), "fit and save write other weights")
        trial.cls.load(saved).save(saved, overwrite=True)
        for loaded in (trial.cls.load(folder), methods.load(str(folder)), methods.load(saved)):
            expect(type(loaded) is trial.cls, f"it gives a {type(loaded).__name__}")
            expect(loaded.get_params() == fitted.get_params(), "it gives other settings")
            expect(loaded.classes_.tolist() == fitted.classes_.tolist(), "it gives other classes")
            for x in (toy.x, toy.queries):
                expect_same(loaded.embed(x), fitted.embed(x), "embeddings of the fitted and the loaded method")
            if isinstance(fitted, CodeMethod) and isinstance(loaded, CodeMethod):
                codes = fitted.encode(toy.x)
                expect_same(loaded.encode(toy.x), codes, "codes of the fitted and the loaded method")
                decoded = loaded.codebook.decode(codes), fitted.codebook.decode(codes)
                expect_same(*decoded, "decoded codes of the fitted and the loaded method")


@promise
def folder_files(trial: Trial) -> None:
    """A run folder holds no pickle and no temporary file, and its weights are what `state` returns."""
    fitted, folder = trial.runs[trial.plain]
    for place in (folder, trial.saved()):
        found = [Path(path) for path in written(place)]
        expect({CONFIG, WEIGHTS} <= {str(path) for path in found}, f"{CONFIG} or {WEIGHTS} is missing")
        others = [str(path) for path in found if path.suffix not in SUFFIXES or path.name.startswith(".")]
        expect(not others, f"it holds {', '.join(others)}")
        expect(load_file(place / WEIGHTS).keys() == fitted.state().keys(), "its weights are not those of `state`")


@promise
def class_names_stored(trial: Trial) -> None:
    """Names of classes come back from a run folder."""
    folder, names = trial.new_folder(), [f"klasse ä{c}" for c in range(N_SEEN)]
    trial.small().fit(trial.plain.x, trial.plain.names("klasse ä{}", gap="")).save(folder)
    found = trial.cls.load(folder).classes_.tolist()
    expect(found == names, f"they were {names} and are {found}")


@promise
def labels_of_the_fit(trial: Trial) -> None:
    """A run folder knows whether labels are those of its fit."""
    labels, (_, folder) = trial.plain.labels, trial.runs[trial.plain]
    given = {"the same": labels, "shifted": np.roll(labels, 1), "renamed": trial.plain.names()}
    found = {what: was_fitted_with(folder, read_labels(values, len(values))) for what, values in given.items()}
    expect(found == {"the same": True, "shifted": False, "renamed": False}, f"taken for those of the fit: {found}")


@promise
def old_run_kept(trial: Trial) -> None:
    """A run is not replaced unless `overwrite` says so, nor by a fit that is refused."""
    toy, folder = trial.plain, trial.saved()
    before = written(folder)
    with refused("a fit into the folder of an old run", "overwrite"):
        trial.small().fit(toy.x, toy.labels, folder=folder)
    with refused("save into the folder of an old run", "overwrite"):
        trial.short.save(folder)
    with refused("a fit with NaN", "NaN"):
        trial.small().fit(np.full_like(toy.x, np.nan), toy.labels, folder=folder, overwrite=True)
    expect(written(folder) == before, "a refused call has changed the folder")


@promise
def overwriting(trial: Trial) -> None:
    """A fit that overwrites a run leaves nothing of it, neither in the folder nor in the method."""
    toy, folder, other = trial.plain, trial.new_folder(), trial.fresh()
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
    expect_same(loaded.embed(toy.x), method.embed(toy.x), "embeddings of the fitted and the loaded method")
    expect(RunFolder(folder).log() == getattr(method, "log_", []), "the log is not that of the new fit")
    expect(not hasattr(method, "discovery_"), "the method still has what it discovered before the fit")


@promise
def refused_resume(trial: Trial) -> None:
    """A resumed fit with other data is refused, changes nothing and leaves the method unfitted."""
    toy, folder, method = trial.plain, trial.saved(), trial.small()
    before = written(folder)
    with refused("a resumed fit with fewer features", "resume"):
        method.fit(toy.x[:, :20], toy.labels, folder=folder, resume=True)
    expect(written(folder) == before, "the folder has changed")
    with refused("embed after a refused fit", "not fitted"):
        method.embed(toy.x)


def _edited(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text())
        change(config)
        (folder / CONFIG).write_text(json.dumps(config))

    return edit


def _without_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    del tensors[min(tensors)]
    save_file(tensors, folder / WEIGHTS)


def _cut(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-10])


@promise
def damaged_folder(trial: Trial) -> None:
    """A damaged run folder, one of another method or of another format is refused, naming it."""
    cases: dict[str, tuple[Callable[[Path], None], str]] = {
        f"a {CONFIG} without {key}": (_edited(lambda config, key=key: config.pop(key)), key)  # type: ignore[misc]
        for key in ("settings", "method", "classes")
    }
    for version in (FORMAT_VERSION - 1, FORMAT_VERSION + 1):
        change = _edited(lambda config, version=version: config.update(format_version=version))  # type: ignore[misc]
        cases[f"format {version}"] = change, "fit again"
    cases["a folder of another method"] = _edited(lambda config: config.update(method="no:Such")), "no:Such"
    cases["a missing tensor"] = _without_a_tensor, "fit again"
    cases["a file of weights that was cut"] = _cut, "fit again"
    for what, (damage, word) in cases.items():
        folder = trial.saved()
        damage(folder)
        with refused(what, str(folder), word):
            trial.cls.load(folder)


@promise_of(CodeMethod)
def codes_counted(trial: Trial) -> None:
    """The diagnosis counts the distinct codes of all items learned from."""
    for toy, (fitted, folder) in trial.runs.items():
        rows = slice(None) if trial.cls.uses_unlabelled else toy.labels >= 0
        found = json.loads((folder / DIAGNOSIS).read_text()).get("n_codes")
        n = len(require_codes(fitted).encode(toy.x[rows]).unique(dim=0))
        expect(found == n, f"n_codes in {DIAGNOSIS} is {found}, there are {n}")


@promise_of(DeepMethod)
def training_logged(trial: Trial) -> None:
    """Training is logged epoch by epoch, in `log_` and in the run folder."""
    fitted, folder = trial.runs[trial.plain]
    found = [record["epoch"] for record in fitted.log_]
    expect(found == list(range(1, fitted.get_params()["epochs"] + 1)), f"log_ has the epochs {found}")
    expect(RunFolder(folder).log() == fitted.log_, f"{LOG} is not log_")
    missing = {CURVES, DIAGNOSIS, LOG} - written(folder).keys()
    expect(not missing, f"{', '.join(missing)} are missing")
