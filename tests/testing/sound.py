"""Small methods of other kinds than ours that keep all promises."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from combemb.data.items import chunks
from combemb.data.labels import require_labelled
from combemb.learning.head import HeadMethod
from combemb.learning.method import Method
from combemb.methods.itq import ITQ


@dataclass(kw_only=True, eq=False, repr=False)
class Turned(Method):
    """A random rotation, by nobody, 2000: z = (x - mean) R. It gives no codes."""

    paper: ClassVar[str] = "none, 2000"

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


@dataclass(kw_only=True, eq=False, repr=False)
class Labelled(ITQ):
    """ITQ of the labelled items alone, by nobody, 2000: x = labelled."""

    uses_unlabelled: ClassVar[bool] = False

    def check_data(self, labels, n_features):
        super().check_data(labels, n_features)
        require_labelled(labels)


class Network(nn.Module):
    def __init__(self, n_features, n_classes):
        super().__init__()
        self.project, self.head = nn.Linear(n_features, 16), nn.Linear(16, n_classes)

    def forward(self, x):
        return self.project(x)


@dataclass(kw_only=True, eq=False, repr=False)
class Headed(HeadMethod):
    """A linear head, by nobody, 2000: L = cross entropy of the labelled items + distance of two views."""

    paper: ClassVar[str] = "none, 2000"

    def network(self, n_features, n_seen, n_novel):
        return Network(n_features, n_seen + n_novel)

    def losses(self, batch):
        n, z = batch.n_labelled, self.network_(batch.x)
        return {
            "classes": nn.functional.cross_entropy(self.network_.head(z[:n]), batch.labels[:n]),
            "views": (z - self.network_(batch.other)).square().mean(),
        }

    def logits(self, features):
        return self.network_.head(self.network_(features))
