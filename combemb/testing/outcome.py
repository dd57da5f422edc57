"""Promises about the outcome of a fit, and about randomness."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from combemb.learning.codes import CodeMethod
from combemb.learning.deep import DeepMethod
from combemb.search.metrics import code_retrieval, float_retrieval
from combemb.system.machine import limited_threads, seeded
from combemb.testing.promise import expect, expect_same, expect_same_fits
from combemb.testing.trial import N_SEEN, Trial


def embeddings(trial: Trial) -> None:
    """Embeddings are finite float32 (N, D), differ between items and are the same at every call."""
    for toy, model in trial.good.items():
        z = model.embed(toy.x)
        expect(z.dtype == torch.float32, f"they are {z.dtype}")
        expect(z.ndim == 2 and len(z) == len(toy.x), f"they have shape {tuple(z.shape)} for {len(toy.x)} items")
        expect(z.isfinite().all(), "some are not finite")
        expect(len(z.unique(dim=0)) > 1, "all items have the same")
        expect_same(model.embed(toy.x), z, "those of two calls")


def embedded_alone(trial: Trial) -> None:
    """The embedding of an item depends on its clean view alone, not on other views and items."""
    for toy, model in trial.good.items():
        z = model.embed(toy.x)
        alone = torch.cat([model.embed(toy.x[i : i + 1]) for i in range(10)])
        torch.testing.assert_close(alone, z[:10], rtol=1e-4, atol=1e-5)
        for given in (toy.clean, toy.clean[:, None], toy.x[:, :2] if toy is trial.views else toy.x):
            expect_same(model.embed(given), z, "embeddings of the clean view and of all views")


def novel_classes_retrieved(trial: Trial) -> None:
    """New items of novel classes retrieve items of their own class, by embeddings and by codes."""
    for toy, model in trial.good.items():
        z, queries, targets = model.embed(toy.x), model.embed(toy.queries), (toy.query_targets, toy.targets)
        found = {"embeddings": float_retrieval(queries, z, *targets)}
        if isinstance(model, CodeMethod):
            found["codes"] = code_retrieval(model.codebook, queries, model.encode(toy.x), *targets)
        for kind, retrieval in found.items():
            # Codes that were trained on labelled items alone may merge other classes.
            least = 0.6 if trial.cls.uses_unlabelled else 2 * retrieval.chance
            expect(retrieval.map >= least >= 2 * retrieval.chance, f"by {kind}: {retrieval}")


def seed_decides(trial: Trial) -> None:
    """The seed determines the outcome."""
    for toy in trial.toys:
        first, same, other = (trial.fitted(toy, seed=seed) for seed in (3, 3, 4))
        expect_same_fits(first, same, toy.x, "two fits with seed=3")
        if isinstance(first, DeepMethod):  # others may be deterministic
            is_same = torch.equal(first.embed(toy.x), other.embed(toy.x))
            expect(not is_same, "embeddings of fits with seed=3 and seed=4 are equal")


def second_fit(trial: Trial) -> None:
    """`fit` returns the method itself and discards an earlier fit."""
    toy, labels, method = trial.plain, trial.plain.labels[::-1], trial.small()
    expect(method.fit(toy.x[::-1, :20], np.where(labels == 0, 7, labels)) is method, "it returns something else")
    expect(method.classes_.tolist() == [1, 2, 3, 4, 7], f"classes_ is {method.classes_} after the first")
    method.fit(toy.x, toy.labels)
    expect(method.classes_.tolist() == list(range(N_SEEN)), f"classes_ is {method.classes_} after the second")
    expect_same(method.embed(toy.x), trial.references[toy], "embeddings of a second fit and of a first one")


@contextmanager
def _global_state(seed: int) -> Iterator[None]:
    """Set the global random state and two threads, expect that a fit changes neither, and restore the old values."""

    def states() -> list[Any]:
        _, keys, *numbers = np.random.get_state()  # noqa: NPY002
        return [torch.get_rng_state().tolist(), list(keys), numbers, random.getstate()]

    of_numpy, of_python = np.random.get_state(), random.getstate()  # noqa: NPY002
    with seeded(seed), limited_threads(2):
        try:
            np.random.seed(seed)  # noqa: NPY002
            random.seed(seed)
            before = states()
            yield
            expect(states() == before, "the global random state of torch, numpy or Python has changed")
            expect(torch.get_num_threads() == 2, f"torch had 2 threads and has {torch.get_num_threads()} now")
        finally:
            np.random.set_state(of_numpy)  # noqa: NPY002
            random.setstate(of_python)


def global_state(trial: Trial) -> None:
    """The global random state is neither used nor changed, and the number of threads is left as it was."""
    x, labels, folder, found = trial.plain.x, trial.plain.labels, trial.new_path(), []
    for seed in (1, 2):
        with _global_state(seed):
            trial.small().fit(x, labels, folder=folder if seed == 1 else None).save(folder, overwrite=True)
            model = trial.cls.load(folder)
            if isinstance(model, CodeMethod):
                model.encode(x)
            discovery = model.discover(x, labels)
            model.predict(trial.plain.queries)
            found.append((model.embed(x), discovery.assignment, discovery.confidence))
    for first, second, what in zip(*found, ("embeddings", "clusters", "confidences"), strict=True):
        expect_same(first, second, f"{what} of two fits with different global random states")


def numpy_settings(trial: Trial) -> None:
    """Numbers of numpy, such as those of `np.arange` in a sweep, are accepted as settings."""
    kinds, chosen = {int: np.int64, float: np.float64}, trial.small().get_params()
    numbers: dict[str, Any] = {name: kinds.get(type(value), lambda x: x)(value) for name, value in chosen.items()}
    method = trial.cls(**numbers).fit(trial.plain.x, trial.plain.labels)
    expect_same(method.embed(trial.plain.x), trial.references[trial.plain], "embeddings with such settings and without")
    expect(trial.cls.load(trial.saved(method)).get_params() == chosen, "the settings differ after load")
