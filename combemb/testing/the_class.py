"""Promises about the class: its settings, its constructor, its documentation."""

import contextlib
import dataclasses
import json
import math
import re
import tempfile
from collections.abc import Iterator
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from combemb import methods
from combemb.learning.deep import DeepMethod
from combemb.learning.run_folder import CONFIG
from combemb.learning.saving import method_name
from combemb.learning.settings import Limits
from combemb.testing.promise import expect, expect_refused_fit, only_for, refused, written
from combemb.testing.trial import Trial


def settings_described(trial: Trial) -> None:
    """Every setting has a description and a valid default, every number also limits."""
    lost = [name for name, value in vars(trial.cls).items() if isinstance(value, dataclasses.Field)]
    expect(not lost, f"{', '.join(lost)} is no field: use @dataclass(kw_only=True, eq=False, repr=False)")
    for field in dataclasses.fields(trial.cls):
        expect(field.default is not dataclasses.MISSING, f"{field.name} has no default")
        expect(len(field.metadata.get("about", "")) > 10, f"{field.name} has no description that says enough")
        is_number = isinstance(field.default, Real) and not isinstance(field.default, bool)
        has_limits = field.metadata.get("limits", Limits()) != Limits()
        expect(has_limits or not is_number, f"the number {field.name} has no limits, such as at_least=0")
    trial.cls().check_settings()


def constructor_stores(trial: Trial) -> None:
    """The constructor stores the settings as they are and does nothing else."""
    given: dict[str, Any] = {field.name: object() for field in dataclasses.fields(trial.cls)}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        stored = vars(trial.cls(**given))
        expect(not any(Path(folder).iterdir()), "it writes files")
    expect(stored.keys() <= given.keys(), f"it also sets {', '.join(stored.keys() - given.keys())}")
    changed = [name for name in given if stored.get(name) is not given[name]]
    expect(not changed, f"it does not store {', '.join(changed)} as given")


def sklearn_settings(trial: Trial) -> None:
    """scikit-learn can read, change, show and copy the settings; a copy is not fitted."""
    method, name = trial.small(seed=5), trial.cls.__name__
    chosen = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}
    expect(method.get_params() == chosen, "get_params does not return the settings")
    copy = clone(method)
    expect(copy is not method and copy.get_params() == chosen, "clone does not copy the settings")
    expect(copy.set_params(seed=6) is copy, "set_params does not return the method")
    expect((copy.seed, method.seed) == (6, 5), "set_params changes something other than the seed of the copy")
    with refused("set_params(no_such_setting=1)", "no_such_setting"):
        copy.set_params(no_such_setting=1)
    for shown, text in ((trial.cls(), f"{name}()"), (trial.cls(seed=3), f"{name}(seed=3)")):
        expect(repr(shown) == text, f"repr gives {shown!r}, not {text}")
    copy = clone(trial.short)
    expect(not [key for key in vars(copy) if key.endswith("_")], "a copy of a fitted method has fitted state")
    with refused("embed of a copy", "not fitted"):
        copy.embed(trial.plain.x)


def grid_search(trial: Trial) -> None:
    """scikit-learn can search a grid of settings."""

    def spread(method: Any, x: np.ndarray, _: Any) -> float:
        return float(method.embed(x).std())

    rows = np.arange(len(trial.plain.x))
    search = GridSearchCV(trial.small(), {"seed": [0, 1]}, scoring=spread, cv=[(rows, rows)], refit=False)
    search.fit(trial.plain.x, trial.plain.labels)
    expect(search.best_params_["seed"] in {0, 1}, f"it chooses {search.best_params_}")
    expect(np.isfinite(search.cv_results_["mean_test_score"]).all(), "a fit failed")


def documented(trial: Trial) -> None:
    """The class names its paper with the year, and its docstring gives authors, year and formula."""
    text = trial.cls.__doc__ or ""
    expect(re.search(r"\b(19|20)\d\d\b", trial.cls.paper), f"`paper` has no year: {trial.cls.paper}")
    expect(re.search(r"\b(19|20)\d\d\b", text), "the docstring does not give authors and year")
    expect("=" in text, "the docstring has no formula")


def found_by_name(trial: Trial) -> None:
    """`combemb.methods.get` finds the class by the name that is stored in its run folders."""
    name = method_name(trial.cls)
    expect(methods.get(name) is trial.cls, f"{name!r} is another class; define it at the top level of a module")


def unfitted_use(trial: Trial) -> None:
    """A method that is not fitted says so when it is used."""
    method, folder = trial.small(), trial.new_path()
    uses = [method.embed, method.discover, method.predict, method.novelty, lambda _: method.save(folder)]
    for use in [*uses, *([method.encode] if hasattr(method, "encode") else [])]:
        with refused("use before a fit", "fit(x, labels)"):
            use(trial.plain.x)
    expect(not folder.exists(), "save has written something")


def _values_outside(field: "dataclasses.Field[Any]") -> Iterator[Any]:
    """Yield values that the limits of a setting exclude, and for numbers NaN."""
    limits: Limits = field.metadata.get("limits", Limits())
    if limits.choices:
        other = "no such choice" if isinstance(limits.choices[0], str) else max(limits.choices) + 1
        yield from [(other,), ()] if isinstance(field.default, tuple) else [other]
    bounds = ((limits.above, 0), (limits.below, 0), (limits.at_least, -1), (limits.at_most, 1))
    outside = [bound + beyond for bound, beyond in bounds if bound is not None]
    yield from [*outside, math.nan] if outside else []


def settings_checked(trial: Trial) -> None:
    """`fit`, before anything is written, and `load` refuse a setting outside its limits and name it."""
    x, labels, old, edited = trial.plain.x, trial.plain.labels, trial.saved(), trial.saved()
    before, config = written(old), json.loads((edited / CONFIG).read_text())
    for field in dataclasses.fields(trial.cls):
        for value in _values_outside(field):
            method, what = trial.small(**{field.name: value}), f"{field.name}={value!r}"
            expect_refused_fit(trial, method, x, labels, what, field.name)
            with refused(f"a fit with {what} over an old run", field.name):
                method.fit(x, labels, folder=old, overwrite=True)
            stored = list(value) if isinstance(value, tuple) else value
            text = json.dumps({**config, "settings": {**config["settings"], field.name: stored}})
            (edited / CONFIG).write_text(text)
            with refused(f"a {CONFIG} with {what}", field.name, str(edited)):
                trial.cls.load(edited)
    expect(written(old) == before, "a refused fit has changed the old run in its folder")


@only_for(DeepMethod)
def batch_size_checked(trial: Trial) -> None:
    """A batch that cannot hold labelled and unlabelled items is refused before anything is written."""
    if trial.cls.uses_unlabelled:
        x, labels = trial.plain.x, trial.plain.labels
        expect_refused_fit(trial, trial.small(batch_size=1), x, labels, "batch_size=1", "batch_size")
