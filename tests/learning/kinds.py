"""A minimal method of each kind that the interface must support; none is meant for use."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from combemb.data.items import ArrayItems, chunks
from combemb.discovery.kmeans import kmeans
from combemb.learning.codes import BinaryMethod, CodeMethod
from combemb.learning.deep import DeepMethod
from combemb.learning.head import HeadMethod
from combemb.learning.loop import descend
from combemb.learning.method import Method
from combemb.learning.settings import setting
from combemb.search.codebook import ProductCodebook
from combemb.system.arrays import to_tensor, unit

PAPER = "Methods that show an interface, 2026"


class Players(nn.Module):
    """A projection, and a judge that is to tell labelled items from others by it."""

    def __init__(self, n_features: int, bits: int):
        super().__init__()
        self.project, self.judge = nn.Linear(n_features, bits), nn.Linear(bits, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(x)


@dataclass(kw_only=True, eq=False, repr=False)
class TwoPlayers(DeepMethod, BinaryMethod):
    """Two players that take turns, each with an optimiser (2026): max_judge min_h V = E log D(h(x))."""

    paper: ClassVar[str] = PAPER
    bits: int = setting(12, "length of a code, a bit for each output", at_least=1)

    def network(self, n_features, n_seen, n_novel):
        return Players(n_features, self.bits)

    def losses(self, batch):
        is_labelled = (torch.arange(len(batch.x)) < batch.n_labelled).float()
        return {"judge": functional.binary_cross_entropy_with_logits(self._verdict(batch.x), is_labelled)}

    def _verdict(self, x):
        return self.network_.judge(self.network_(x).tanh())[:, 0]

    def optimisers(self):
        judge = torch.optim.SGD(self.network_.judge.parameters(), lr=self.learning_rate)
        project = [{"params": list(self.network_.project.parameters())}, *self.backbone_group()]
        return [judge, torch.optim.SGD(project, lr=self.learning_rate)]

    def step(self, batch, optimisers):
        judge, project = optimisers
        mapped = self.mapped(batch)
        terms = self.losses(mapped)
        descend(self.network_.judge.parameters(), judge, terms, self.clip_norm)
        mapped = self.mapped(batch)  # again: a graph serves one backward pass
        fooled = {"fooled": -self.losses(mapped)["judge"], "flat": (self.network_(mapped.x).abs() - 1).square().mean()}
        descend([p for group in project.param_groups for p in group["params"]], project, fooled, self.clip_norm)
        return terms | fooled


class WithQueue(nn.Module):
    """A projection, and a queue of what it gave lately, oldest first."""

    def __init__(self, n_features: int, width: int, length: int):
        super().__init__()
        self.project = nn.Linear(n_features, width)
        self.register_buffer("queue", torch.zeros(length, width))

    def forward(self, x: Tensor) -> Tensor:
        return unit(self.project(x))


@dataclass(kw_only=True, eq=False, repr=False)
class Queue(DeepMethod):
    """A contrast with a queue of earlier items (2026): L = -log exp(z z'/t) / (exp(z z'/t) + sum_q exp(z q/t))."""

    paper: ClassVar[str] = PAPER
    length: int = setting(32, "items in the queue", above=0)

    def network(self, n_features, n_seen, n_novel):
        return WithQueue(n_features, 16, self.length)

    def losses(self, batch):
        z, other = self.network_(batch.x), self.network_(batch.other).detach()
        own = (z * other).sum(dim=1, keepdim=True)
        logits = torch.cat([own, z @ self.network_.queue.clone().T], dim=1) / 0.2
        self.network_.queue.copy_(torch.cat([self.network_.queue, other])[-self.length :])
        return {"contrast": functional.cross_entropy(logits, torch.zeros(len(z), dtype=torch.long))}


class LocalCodebook:
    """A coarse cell, and words of the residual after the rotation of that cell: not a product."""

    def __init__(self, cells: Tensor, rotations: Tensor, words: ProductCodebook):
        self.cells, self.rotations, self.words = cells, rotations, words
        self.sizes = (len(cells), *words.sizes)

    @property
    def bits(self) -> int:
        return sum((size - 1).bit_length() for size in self.sizes)

    def encode(self, z) -> Tensor:
        z = to_tensor(z).float()
        cell = torch.cdist(z, self.cells).argmin(dim=1)
        turned = torch.einsum("nd,nde->ne", z - self.cells[cell], self.rotations[cell])
        return torch.cat([cell[:, None].to(torch.uint8), self.words.encode(turned)], dim=1)

    def decode(self, codes) -> Tensor:
        codes = to_tensor(codes).long()
        turned = self.words.decode(codes[:, 1:])
        return self.cells[codes[:, 0]] + torch.einsum("ne,nde->nd", turned, self.rotations[codes[:, 0]])

    def scores(self, queries, codes) -> Tensor:
        decoded = self.decode(codes).double()
        rows = to_tensor(queries).double()
        return torch.stack([-(decoded - row).square().sum(dim=1) for row in rows]) if len(rows) else rows[:, :0]

    def state(self) -> dict[str, Tensor]:
        return {"cells": self.cells, "rotations": self.rotations, **self.words.state()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocalCodebook) and all(
            torch.equal(a, b) for a, b in zip(self.state().values(), other.state().values(), strict=True)
        )

    __hash__ = None


@dataclass(kw_only=True, eq=False, repr=False)
class Local(CodeMethod):
    """Local quantisation (2026): q(x) = c + R_c^T w, the nearest cell c and the nearest words w of R_c (x - c)."""

    paper: ClassVar[str] = PAPER
    n_views: int = setting(1, "views per image; the clean one is enough", above=0)
    bits: int = setting(12, "2 for the cell, 2 for each set of words", at_least=4)

    def _fit(self, data, run, progress):
        assert isinstance(data.items, ArrayItems)
        x = torch.from_numpy(np.array(data.items.x[:, 0], np.float32))
        n_sets = self.bits // 2 - 1
        self.mean_, scale = x.mean(dim=0), x.std()
        generator = torch.Generator().manual_seed(int(self.seed))
        turn = torch.linalg.qr(torch.randn(x.shape[1], x.shape[1], generator=generator)).Q
        self.project_ = turn[:, : n_sets * (x.shape[1] // n_sets)] / scale
        z = self._embed(x)
        self.cells_ = torch.from_numpy(kmeans(z, 4, seed=int(self.seed), progress=False).centres)
        cell = torch.cdist(z, self.cells_).argmin(dim=1)
        parts = [z[cell == k] - self.cells_[k] for k in range(4)]
        self.rotations_ = torch.stack(
            [torch.linalg.svd(part.T @ part + 1e-3 * torch.eye(z.shape[1])).U for part in parts]
        )
        residual = torch.cat([part @ self.rotations_[k] for k, part in enumerate(parts)]).unflatten(1, (n_sets, -1))
        found = [kmeans(residual[:, m].contiguous(), 4, seed=int(self.seed), progress=False) for m in range(n_sets)]
        self.words_ = torch.stack([torch.from_numpy(part.centres) for part in found])

    def _embed(self, x):
        return (x - self.mean_) @ self.project_

    @property
    def codebook(self):
        self._require_fitted()
        return LocalCodebook(self.cells_, self.rotations_, ProductCodebook(self.words_, "l2"))

    @property
    def n_inputs(self):
        return len(self.mean_)

    def state(self):
        return {name: getattr(self, f"{name}_") for name in ("mean", "project", "cells", "rotations", "words")}

    def restore(self, state):
        for name in ("mean", "project", "cells", "rotations", "words"):
            setattr(self, f"{name}_", state[name])


class WithHead(nn.Module):
    """A projection and a classifier of all classes on it."""

    def __init__(self, n_features: int, n_classes: int):
        super().__init__()
        self.project, self.classify = nn.Linear(n_features, 16), nn.Linear(16, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        return unit(self.project(x))


@dataclass(kw_only=True, eq=False, repr=False)
class Head(HeadMethod):
    """A classifier of seen and novel classes (2026): L = CE(labelled) + 0.1 mean ||p(x) - p(x')||^2."""

    paper: ClassVar[str] = PAPER
    trial_settings: ClassVar[dict[str, Any]] = {"learning_rate": 0.01}  # a trial has too few steps for the default

    def network(self, n_features, n_seen, n_novel):
        return WithHead(n_features, n_seen + n_novel)

    def logits(self, features):
        return self.network_.classify(self.network_(features))

    def losses(self, batch):
        y, n = self.logits(batch.x), batch.n_labelled
        other = self.logits(batch.other).softmax(dim=1).detach()
        return {
            "labelled": functional.cross_entropy(y[:n], batch.labels[:n]),
            "consistency": 0.1 * (y.softmax(dim=1) - other).square().sum(dim=1).mean(),
        }


@dataclass(kw_only=True, eq=False, repr=False)
class Supervised(DeepMethod, BinaryMethod):
    """Signs of a projection that tells the labelled classes apart (2026): L = CE(W tanh h(x), y)."""

    paper: ClassVar[str] = PAPER
    uses_unlabelled: ClassVar[bool] = False
    bits: int = setting(12, "length of a code, a bit for each output", at_least=1)

    def network(self, n_features, n_seen, n_novel):
        layers = nn.ModuleDict({"hash": nn.Linear(n_features, self.bits), "classify": nn.Linear(self.bits, n_seen)})
        layers.forward = layers["hash"].forward
        return layers

    def losses(self, batch):
        assert batch.n_labelled == len(batch.x)
        y = self.network_["classify"](self.network_["hash"](batch.x).tanh())
        labels = batch.labels if batch.labels.ndim == 1 else batch.labels / batch.labels.sum(dim=1, keepdim=True)
        return {"classes": functional.cross_entropy(y, labels)}


@dataclass(kw_only=True, eq=False, repr=False)
class Turned(Method):
    """A random rotation, of nobody (2026): z = (x - mean) R. It has no codes."""

    paper: ClassVar[str] = PAPER

    def _fit(self, data, run, progress):
        x = torch.cat(list(chunks(data.items, "rotating", progress)))
        generator = torch.Generator().manual_seed(int(self.seed))
        self.mean_, self.rotation_ = x.mean(0), torch.linalg.qr(torch.randn(*2 * x.shape[1:], generator=generator)).Q

    def _embed(self, x):
        return (x - self.mean_) @ self.rotation_

    @property
    def n_inputs(self):
        return len(self.mean_)

    def state(self):
        return {"mean": self.mean_, "rotation": self.rotation_}

    def restore(self, state):
        self.mean_, self.rotation_ = state["mean"], state["rotation"]


KINDS = (TwoPlayers, Queue, Local, Head, Supervised, Turned)
