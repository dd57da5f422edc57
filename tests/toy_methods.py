"""Small methods and data for tests of the training loop, some of which fail on purpose."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from combemb.learning.deep import DeepMethod
from combemb.learning.loop import descend
from combemb.methods.combemb import CombEmb


def toy_data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    targets = np.arange(140) % 7
    x = rng.normal(size=(7, 16))[targets] + 0.3 * rng.normal(size=(140, 16))
    return x.astype(np.float32), np.where((targets < 5) & (np.arange(140) < 90), targets, -1)


@dataclass(kw_only=True, eq=False, repr=False)
class Stoppable:
    """Failures on request; not settings, so that a run may be resumed without them."""

    interrupted_before: ClassVar[int] = -1  # epoch
    nan_from: ClassVar[float] = math.inf  # part of the training

    def on_epoch(self, data, epoch):
        super().on_epoch(data, epoch)
        if epoch == self.interrupted_before:
            raise KeyboardInterrupt

    def losses(self, batch):
        terms = super().losses(batch)
        return terms if batch.fraction_done < self.nan_from else terms | {"sour": terms["sweet"] * math.nan}


class Plain(DeepMethod):
    """Two loss terms on a network with batch norm."""

    paper = "none"

    def network(self, n_features, n_seen, n_novel):
        return nn.Sequential(nn.Linear(n_features, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, n_seen))

    def losses(self, batch):
        y, n = self.network_(batch.x), batch.n_labelled
        return {
            "sweet": nn.functional.cross_entropy(y[:n], batch.labels[:n]),
            "sour": 0.1 * (y - self.network_(batch.other)).square().mean(),
        }

    def diagnostics(self, batch, data):
        return {"undefined": math.nan, "rows": len(batch.rows)}


@dataclass(kw_only=True, eq=False, repr=False)
class One(Stoppable, Plain):
    """One optimiser."""


@dataclass(kw_only=True, eq=False, repr=False)
class Two(Stoppable, Plain):
    """Two optimisers that take turns, with different states and rates."""

    def optimisers(self):
        first, norm, _, last = self.network_
        return [
            torch.optim.SGD([*first.parameters(), *norm.parameters()], lr=0.05, momentum=0.9),
            torch.optim.AdamW(last.parameters(), lr=self.learning_rate, amsgrad=True),
        ]

    def step(self, batch, optimisers):
        for optimiser in optimisers:
            terms = self.losses(batch)
            descend(optimiser.param_groups[0]["params"], optimiser, terms, self.clip_norm)
        return terms


@dataclass(kw_only=True, eq=False, repr=False)
class Paper(Stoppable, CombEmb):
    """The paper's method, with its calibrated threshold and batch norm."""

    bits: int = 12
    check: bool = False


@dataclass(kw_only=True, eq=False, repr=False)
class Dropping(Stoppable, Plain):
    """A module with dropout, whose random numbers come from torch's global generator."""

    def network(self, n_features, n_seen, n_novel):
        return nn.Sequential(nn.Dropout(0.5), super().network(n_features, n_seen, n_novel))


def make(kind, **fields):
    return kind(**{"epochs": 6, "batch_size": 64, "device": "cpu"} | fields)


def without_speed(log):
    return [{key: value for key, value in record.items() if key != "items_per_second"} for record in log]


def assert_same_state(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []
