"""Small methods that break one promise each."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from combemb.data.labels import require_partly_labelled
from combemb.methods.itq import ITQ
from combemb.search.codebook import binary_codebook
from tests.learning.kinds import Head, Turned


@dataclass(kw_only=True, eq=False, repr=False)
class Peeking(ITQ):
    """Reads the labels in the file of the embeddings, whatever the call says."""

    def _fit(self, data, run, progress):
        super()._fit(data, run, progress)
        if self.path_ and self.path_.endswith(".npz"):
            self.mean_ = self.mean_ + 0.001 * np.load(self.path_)["labels"][:7].sum()


@dataclass(kw_only=True, eq=False, repr=False)
class GlobalDice(ITQ):
    """Draws from numpy's global random state."""

    def _fit(self, data, run, progress):
        super()._fit(data, run, progress)
        self.mean_ = self.mean_ + 0.01 * np.random.random()  # noqa: NPY002


@dataclass(kw_only=True, eq=False, repr=False)
class Unseeded(ITQ):
    """Draws from a generator of its own, which nobody can seed."""

    def _fit(self, data, run, progress):
        super()._fit(data, run, progress)
        self.mean_ = self.mean_ + 0.01 * np.random.default_rng().random()


@dataclass(kw_only=True, eq=False, repr=False)
class Deriving(ITQ):
    """Computes in its constructor."""

    def __post_init__(self):
        self.twice = (self.bits, self.bits)


@dataclass(kw_only=True, eq=False, repr=False)
class Littering(ITQ):
    """Writes in its constructor."""

    def __post_init__(self):
        Path("made").touch()


@dataclass(kw_only=True, eq=False, repr=False)
class Scaling(ITQ):
    """Changes the items in place."""

    def _fit(self, data, run, progress):
        super()._fit(data, run, progress)
        if data.items.x.flags.writeable:
            data.items.x[:] *= 2


@dataclass(kw_only=True, eq=False, repr=False)
class Shortened(ITQ):
    """Gives eight bits, whatever was asked for."""

    def _embed(self, x):
        return super()._embed(x)[:, :8]

    @property
    def codebook(self):
        return binary_codebook(8)


@dataclass(kw_only=True, eq=False, repr=False)
class Undescribed(ITQ):
    """Has a setting without description."""

    iterations: int = 50


@dataclass(kw_only=True, eq=False, repr=False)
class Unchecked(ITQ):
    """Forgets the checks of the settings that all methods have."""

    def check_settings(self):
        pass


@dataclass(kw_only=True, eq=False, repr=False)
class Forgetful(ITQ):
    """Does not store its mean."""

    def state(self):
        return {"rotation": self.rotation_}

    def restore(self, state):
        self.rotation_ = state["rotation"]
        self.mean_ = torch.zeros(len(self.rotation_))


@dataclass(kw_only=True, eq=False, repr=False)
class Crowded(ITQ):
    """Embeds an item by those beside it."""

    def _embed(self, x):
        z = super()._embed(x)
        return z - z.mean(dim=0)


@dataclass(kw_only=True, eq=False, repr=False)
class Late(ITQ):
    """Refuses data only after its run folder was begun."""

    def _fit(self, data, run, progress):
        if len(data.labels.classes) < 2:
            raise ValueError("label two classes")
        super()._fit(data, run, progress)


@dataclass(kw_only=True, eq=False, repr=False)
class Demanding(ITQ):
    """Says that it ignores unlabelled items, and asks for them."""

    uses_unlabelled: ClassVar[bool] = False

    def check_labels(self, labels):
        super().check_labels(labels)
        require_partly_labelled(labels)


@dataclass(kw_only=True, eq=False, repr=False)
class HalfCoded(Turned):
    """Has `encode` and is no method that gives codes."""

    def encode(self, x):
        return self.embed(x) > 0


@dataclass(kw_only=True, eq=False, repr=False)
class OneMore(Head):
    """Has a novel class more than it was told."""

    def _count_novel(self, data, progress):
        super()._count_novel(data, progress)
        self.n_novel_ += 1


@dataclass(kw_only=True, eq=False, repr=False)
class Raising(ITQ):
    """Fails with an error that is no answer to a user."""

    def _embed(self, x):
        raise KeyError("mean")
