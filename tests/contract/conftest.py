"""Toy data for the contract: well separated blobs of seen and novel classes, with one view of each item or three."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tests.contract.quick import NAMES, small

N_SEEN, N_NOVEL, PER_CLASS, F = 5, 2, 40, 24


@dataclass(frozen=True)
class Toy:
    x: np.ndarray  # (N, F) or (N, V, F)
    labels: np.ndarray  # (N,) int64: half of the seen classes' items, -1 elsewhere
    targets: np.ndarray  # (N,) the truth
    queries: np.ndarray  # (Q, F), items of novel classes that no fit has seen
    query_targets: np.ndarray

    def with_targets_behind_gaps(self, seed: int) -> np.ndarray:
        """Targets that agree with the labels, but are shuffled where the labels say -1."""
        targets = self.targets.copy()
        hidden = np.flatnonzero(self.labels < 0)
        targets[hidden] = targets[np.random.default_rng(seed).permutation(hidden)]
        return targets


def make_toy(n_views: int) -> Toy:
    rng = np.random.default_rng(7)
    n_classes = N_SEEN + N_NOVEL
    centres = rng.normal(size=(n_classes, F))
    targets = np.arange(n_classes * PER_CLASS) % n_classes
    query_targets = N_SEEN + np.arange(30) % N_NOVEL
    items = centres[targets] + 0.25 * rng.normal(size=(len(targets), F))
    x = items[:, None] + 0.1 * rng.normal(size=(len(items), n_views, F))
    x[:, 0] = items
    queries = centres[query_targets] + 0.25 * rng.normal(size=(len(query_targets), F))
    labels = np.where((targets < N_SEEN) & (rng.random(len(targets)) < 0.5), targets, -1)
    return Toy(
        (x if n_views > 1 else items).astype(np.float32), labels, targets, queries.astype(np.float32), query_targets
    )


@pytest.fixture(scope="session")
def plain() -> Toy:
    return make_toy(n_views=1)


@pytest.fixture(scope="session", params=[1, 3], ids=["plain", "views"])
def toy(request) -> Toy:
    return make_toy(request.param)


@pytest.fixture(scope="module", params=NAMES)
def name(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def run(name, toy, tmp_path_factory):
    """A method fitted long enough to be good, and its run folder."""
    folder = tmp_path_factory.mktemp(name) / "run"
    return small(name, epochs=15).fit(toy.x, toy.labels, folder=folder), folder


@pytest.fixture
def fitted(run):
    return run[0]


@pytest.fixture(scope="module")
def reference(name, toy) -> torch.Tensor:
    """What a short fit of the toy data gives."""
    return small(name).fit(toy.x, toy.labels).embed(toy.x)


@pytest.fixture(scope="module")
def plain_reference(name, plain) -> torch.Tensor:
    return small(name).fit(plain.x, plain.labels).embed(plain.x)
