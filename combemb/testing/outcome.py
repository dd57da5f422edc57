"""Promises about what comes out of a fit, and about randomness."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from combemb.learning.codes import CodeMethod
from combemb.search.metrics import code_retrieval, float_retrieval
from combemb.testing.promise import expect, expect_same, promise
from combemb.testing.trial import N_SEEN, Trial


@promise()
def fit_returns_self(trial: Trial) -> None:
    """`fit` returns the method itself."""
    method = trial.small()
    expect(method.fit(trial.plain.x, trial.plain.labels) is method, "it returns something else")


@promise()
def embeddings(trial: Trial) -> None:
    """Embeddings are finite float32 (N, D), differ between items and are the same at every call."""
    for form, toy in trial.toys.items():
        z = trial.good(toy).embed(toy.x)
        expect(z.dtype == torch.float32, f"they are {z.dtype}")
        expect(z.ndim == 2 and len(z) == len(toy.x), f"they have shape {tuple(z.shape)} for {len(toy.x)} items")
        expect(z.isfinite().all(), f"some are not finite, for data with {form}")
        expect(len(z.unique(dim=0)) > 1, "all items have the same")
        expect_same(trial.good(toy).embed(toy.x), z, f"those of two calls for data with {form}")


@promise()
def embedded_alone(trial: Trial) -> None:
    """The embedding of an item does not depend on the items beside it."""
    for toy in trial.toys.values():
        model = trial.good(toy)
        alone = torch.cat([model.embed(toy.x[i : i + 1]) for i in range(10)])
        torch.testing.assert_close(alone, model.embed(toy.x)[:10], rtol=1e-4, atol=1e-5)


@promise()
def clean_view_embedded(trial: Trial) -> None:
    """Only the clean view is embedded."""
    plain, views = trial.good(trial.plain), trial.good(trial.views)
    x = trial.views.x
    for given in (x[:, 0], x[:, :2]):
        expect_same(views.embed(given), views.embed(x), "embeddings of the clean view and of all views")
    x = trial.plain.x
    expect_same(plain.embed(x[:, None]), plain.embed(x), "embeddings of (N, 1, F) and (N, F)")


@promise()
def novel_classes_retrieved(trial: Trial) -> None:
    """New items of novel classes retrieve items of their own class, by embeddings and by codes."""
    for form, toy in trial.toys.items():
        model = trial.good(toy)
        z, queries, targets = model.embed(toy.x), model.embed(toy.queries), (toy.query_targets, toy.targets)
        found = [float_retrieval(queries, z, *targets)]
        if isinstance(model, CodeMethod):
            found.append(code_retrieval(model.codebook, queries, model.encode(toy.x), *targets))
        for kind, retrieval in zip(("embeddings", "codes"), found, strict=False):
            expect(retrieval.map >= 0.6 > 2 * retrieval.chance, f"by {kind}, for data with {form}: {retrieval}")


@promise()
def seed_decides(trial: Trial) -> None:
    """The seed decides the outcome."""
    for toy in trial.toys.values():
        first, same, other = (trial.small(seed=seed).fit(toy.x, toy.labels) for seed in (3, 3, 4))
        z = first.embed(toy.x)
        expect_same(z, same.embed(toy.x), "embeddings of two fits with seed=3")
        expect(not torch.equal(z, other.embed(toy.x)), "embeddings of fits with seed=3 and seed=4 are equal")
        if isinstance(first, CodeMethod) and isinstance(same, CodeMethod):
            expect_same(first.encode(toy.x), same.encode(toy.x), "codes of two fits with seed=3")


@promise()
def second_fit(trial: Trial) -> None:
    """A second fit forgets the first."""
    toy, labels = trial.plain, trial.plain.labels[::-1]
    method = trial.small().fit(toy.x[::-1, :20], np.where(labels == 0, 7, labels))
    expect(method.classes_.tolist() == [1, 2, 3, 4, 7], f"classes_ is {method.classes_} after the first")
    method.fit(toy.x, toy.labels)
    expect(method.classes_.tolist() == list(range(N_SEEN)), f"classes_ is {method.classes_} after the second")
    expect_same(method.embed(toy.x), trial.reference(toy), "embeddings of a second fit and of a first one")


@contextmanager
def random_state_kept(seed: int) -> Iterator[None]:
    """Seed the global random state, expect that it is neither used nor changed, and restore it."""

    def states() -> list[np.ndarray]:
        numbers = np.random.get_state()[1:]  # noqa: NPY002
        return [torch.get_rng_state().numpy(), *map(np.atleast_1d, numbers), np.array(random.getstate()[1])]

    before = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        seeded = states()
        yield
        is_kept = all(np.array_equal(now, then) for now, then in zip(states(), seeded, strict=True))
        expect(is_kept, "the global random state of torch, numpy or Python has changed")
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        random.setstate(before[2])


@promise()
def global_random_state(trial: Trial) -> None:
    """The global random state is neither used nor changed, by learning, storing or discovering."""
    x, labels, found = trial.plain.x, trial.plain.labels, []
    for seed in (1, 2):
        with random_state_kept(seed):
            folder = trial.new_folder()
            trial.small().fit(x, labels, folder=folder if seed == 1 else None).save(folder, overwrite=True)
            model = trial.cls.load(folder)
            if isinstance(model, CodeMethod):
                model.encode(x)
            discovery = model.discover(x, labels)
            model.predict(trial.plain.queries)
            found.append((model.embed(x), discovery.assignment, discovery.confidence))
    for first, second, what in zip(*found, ("embeddings", "clusters", "confidences"), strict=True):
        expect_same(first, second, f"{what} of two fits with another global random state")


@promise()
def threads_kept(trial: Trial) -> None:
    """The number of threads is left as it was."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        trial.fitted().embed(trial.plain.x)
        expect(torch.get_num_threads() == 2, f"torch had 2 threads and has {torch.get_num_threads()} after a fit")
    finally:
        torch.set_num_threads(before)


@promise()
def numpy_settings(trial: Trial) -> None:
    """Numbers of numpy, as a sweep over `np.arange` gives them, are taken as settings."""
    kinds = {int: np.int64, float: np.float64}
    chosen = trial.small().get_params()
    method = trial.cls(**{name: kinds.get(type(value), lambda x: x)(value) for name, value in chosen.items()})
    folder = trial.new_folder()
    method.fit(trial.plain.x, trial.plain.labels).save(folder)
    expect_same(method.embed(trial.plain.x), trial.reference(trial.plain), "embeddings with such settings and without")
    expect(trial.cls.load(folder).get_params() == chosen, "the run folder gives other settings back")
