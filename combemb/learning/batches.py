"""Batches of two views, partly labelled; the batches of an epoch are a pure function of seed and epoch."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from combemb.data.items import ArrayItems, Items
from combemb.data.labels import Labels
from combemb.system import processes
from combemb.system.ahead import ahead


class MappedItems(ArrayItems):
    """Items as rows of an (N, V, F) array that pass through a map, such as the feature map, when they are read."""

    def __init__(self, x: np.ndarray, transform: Callable[[Tensor], Tensor], n_rows: int = ArrayItems.n_rows):
        super().__init__(x)
        self.transform, self.n_rows = transform, n_rows

    def take(self, rows: Tensor, views: Tensor | int = 0) -> Tensor:
        """Return one view of each row, mapped. rows (n,), views (n,) or one for all -> (n, F')."""
        return self.transform(super().take(rows, views))

    def in_memory(self, limit: int = 256 * 2**20) -> ArrayItems:
        """Return the items mapped once if they fit into `limit` bytes, otherwise unchanged."""
        F = self.take(torch.tensor([0])).shape[1]
        if len(self) * self.n_views * F * 4 > limit:
            return self
        x = np.empty((len(self), self.n_views, F), dtype=np.float32)
        for rows in torch.arange(len(self)).split(self.n_rows):
            for view in range(self.n_views):
                x[rows.numpy(), view] = self.take(rows, view).numpy()
        return ArrayItems(x)


@dataclass(frozen=True)
class Batch:
    """Two views of the same items, the labelled ones first."""

    rows: Tensor  # (B,) positions in the data
    x: Tensor  # (B, F) features, or pixels
    other: Tensor  # (B, F), another view of the same items
    labels: Tensor  # (B,) class positions or (B, C) of 0/1; -1 = unlabelled
    n_labelled: int
    clean: Tensor | None = None  # (B, F), the clean view, for methods that ask for it
    step: int = 0  # number of steps before this one
    fraction_done: float = 0.0  # step / all steps of the training
    generator: torch.Generator | None = None  # the same in all processes; None: torch's global one

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device."""
        x, other, labels = (t.to(device, non_blocking=True) for t in (self.x, self.other, self.labels))
        clean = None if self.clean is None else self.clean.to(device, non_blocking=True)
        return replace(self, x=x, other=other, labels=labels, clean=clean)

    def gather(self, x: Tensor) -> Tensor:
        """Return the rows of x (B, ...) of all processes, differentiably, in the order that one process would have."""
        if processes.world_size() == 1:
            return x
        everyone = processes.gather(x).unflatten(0, (processes.world_size(), -1))
        return torch.cat([everyone[:, : self.n_labelled].flatten(0, 1), everyone[:, self.n_labelled :].flatten(0, 1)])

    def gather_labelled(self, x: Tensor) -> Tensor:
        """Return the rows of the labelled items of all processes, differentiably; x (B, ...) as for `gather`."""
        return processes.gather(x[: self.n_labelled])

    def drawn(self, draw: Callable[..., Tensor], *shape: int) -> Tensor:
        """Return random numbers (B, *shape) for these items, those that one process would draw for the items of all.

        draw((n, *shape), generator=...) is a function such as `torch.randn`.
        """
        n, W = len(self.rows), processes.world_size()
        numbers = draw((n * W, *shape), generator=self.generator)
        if W > 1:
            parts = numbers.tensor_split([self.n_labelled * W])
            numbers = torch.cat([processes.own_rows(part) for part in parts])
        return numbers.to(self.x.device)


@dataclass(eq=False)
class Batches:
    """Items with their labels, and the batches of an epoch.

    If all items are labelled, or none is, every batch holds only such items. `neighbours` (N, k), -1 for none, and
    `n_together` make unlabelled items come in groups: an item and some of its neighbours.
    """

    items: Items
    labels: Labels
    batch_size: int
    labelled_share: float  # labelled part of a batch
    seed: int
    noise: float = 0.0  # in the views that are made if items have only one
    dropout: float = 0.0
    rank: int = 0
    world_size: int = 1
    with_clean: bool = False  # whether batches also hold the clean view
    balanced: bool = False  # whether labelled items are drawn evenly over the classes, in pairs
    neighbours: Tensor | None = None
    n_together: int = 1

    @cached_property
    def n_labelled(self) -> int:
        """Number of labelled items in a batch, over all processes."""
        return self._n_of(labelled=True)

    @cached_property
    def n_unlabelled(self) -> int:
        """Number of unlabelled items in a batch, over all processes."""
        return self._n_of(labelled=False)

    def _n_of(self, labelled: bool) -> int:
        n_labelled = int(self.labels.is_labelled.sum())
        there, others = n_labelled, len(self.labels) - n_labelled
        wanted = round(self.batch_size * self.labelled_share)
        if not labelled:
            there, others, wanted = others, there, self.batch_size - wanted
        if there == 0:
            return 0
        n = min(self.batch_size if others == 0 else wanted, there)
        if n < self.world_size:
            raise ValueError(
                f"batch_size={self.batch_size} and labelled_share={self.labelled_share} leave {n} "
                f"{'' if labelled else 'un'}labelled items for {self.world_size} process(es); use a larger batch"
            )
        return n // self.world_size * self.world_size

    def require_enough(self) -> None:
        """Raise a ValueError if a batch would lack labelled or unlabelled items although there are some."""
        _ = self.n_labelled, self.n_unlabelled

    def __len__(self) -> int:
        """Return the number of batches per epoch, which draws about as many items as there are."""
        return math.ceil(len(self.items) / (self.n_labelled + self.n_unlabelled))

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield the batches of one epoch, or this process's share of them; the same at every call."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        is_labelled = torch.from_numpy(self.labels.is_labelled)
        labelled = _draws(torch.nonzero(is_labelled)[:, 0], len(self), self.n_labelled, generator)
        unlabelled = _draws(torch.nonzero(~is_labelled)[:, 0], len(self), self.n_unlabelled, generator)
        if self.balanced and not self.labels.is_multi and self.n_labelled > 0:
            classes = torch.from_numpy(self.labels.values)
            labelled = _balanced(classes, len(self), self.n_labelled, generator)
        if self.neighbours is not None and self.n_together > 1 and self.n_unlabelled > 0:
            near = torch.where((self.neighbours >= 0) & ~is_labelled[self.neighbours], self.neighbours, -1)
            unlabelled = (_joined(rows, near, self.n_together, generator) for rows in unlabelled)
        batches = (self._batch(*rows, generator) for rows in zip(labelled, unlabelled, strict=True))
        yield from ahead(batches) if self.items.is_slow else batches

    def _batch(self, labelled: Tensor, unlabelled: Tensor, generator: torch.Generator) -> Batch:
        n, V = len(labelled) + len(unlabelled), self.items.n_views
        first = torch.randint(V, (n,), generator=generator)
        second = (first + torch.randint(1, max(V, 2), (n,), generator=generator)) % V
        parts = torch.arange(n).split([len(labelled), len(unlabelled)])
        own = torch.cat([part.chunk(self.world_size)[self.rank] for part in parts if len(part)])
        rows = torch.cat([labelled, unlabelled])[own]
        x, other = self.items.take(rows, first[own]), self.items.take(rows, second[own])
        clean = self.items.take(rows) if self.with_clean else None
        if V == 1:
            x, other = (
                jitter(view, self.noise, self.dropout, rows=own, n=n, generator=generator) for view in (x, other)
            )
        labels = torch.from_numpy(self.labels.values[rows.numpy()])
        return Batch(rows, x, other, labels, len(labelled) // self.world_size, clean)


def _draws(rows: Tensor, n_batches: int, n: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield n rows n_batches times, without repeats in a batch: successive permutations, remainders left out."""
    if n == 0:
        yield from [rows[:0]] * n_batches
        return
    per_pass = max(len(rows) // n, 1)
    for start in range(0, n_batches, per_pass):
        shuffled = rows[torch.randperm(len(rows), generator=generator)]
        yield from shuffled[: per_pass * n].split(n)[: n_batches - start]


def _balanced(classes: Tensor, n_batches: int, n: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield n labelled rows n_batches times: two of every class, in random order, before the next two of any.

    classes (N,), -1 if unlabelled. Small classes are in every batch, and each item has another one of its class.
    """
    rows = torch.nonzero(classes >= 0)[:, 0]
    own = classes[rows]
    sizes = torch.bincount(own)
    for _ in range(n_batches):
        order = torch.randperm(len(rows), generator=generator)
        order = order[own[order].argsort(stable=True)]  # by class, at random inside
        place = torch.arange(len(rows)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)  # 0, 1, ... in each class
        turn = place.div(2, rounding_mode="floor")
        luck = torch.rand((len(sizes),), generator=generator, dtype=torch.float64)[own[order]]
        yield rows[order[(turn + luck).argsort(stable=True)[:n]]]


def _joined(rows: Tensor, near: Tensor, n_together: int, generator: torch.Generator) -> Tensor:
    """Return as many rows, without repeats, of which the first are joined by random neighbours of theirs.

    rows (n,) distinct; near (N, k) neighbours of all items, -1 for none.
    """
    firsts = rows[: -(-len(rows) // n_together)]
    picked = torch.rand((len(firsts), near.shape[1]), generator=generator).argsort(dim=1)[:, : n_together - 1]
    joining = near[firsts].gather(1, picked).flatten()
    wanted = torch.cat([firsts, joining[joining >= 0], rows[len(firsts) :]])
    _, place = torch.unique(wanted, return_inverse=True)
    first_place = torch.full((int(place.max()) + 1,), len(wanted)).scatter_reduce(
        0, place, torch.arange(len(wanted)), "amin"
    )
    return wanted[first_place.sort().values[: len(rows)]]


def jitter(x: Tensor, noise: float, dropout: float, *, rows: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Return a view of items that have only one: add Gaussian noise, then set features to zero at random.

    The noise is proportional to the root mean square of an item's features. x (b, F) holds the rows `rows` of a
    batch of n items. Random numbers are drawn for all n, so that processes that share a batch make the views of one.
    """
    F = x.shape[1]
    normal = torch.randn((n, F), generator=generator)[rows]
    keep = (torch.rand((n, F), generator=generator) >= dropout)[rows]
    size = x.square().mean(dim=1, keepdim=True).sqrt()
    return (x + noise * size * normal) * keep
