"""Unsupervised methods whose embedding is a rotation of principal components."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from combemb.data.given import Loaded
from combemb.data.items import chunks
from combemb.learning.codes import CodeMethod
from combemb.learning.settings import setting
from combemb.system.arrays import unit_rows


class LinearState:
    """What `_fit` sets. These are not fields of the dataclass, which are settings."""

    mean_: Tensor  # (F,)
    rotation_: Tensor  # P (F, D)


@dataclass(kw_only=True, eq=False, repr=False)
class LinearCodes(CodeMethod, LinearState):
    """Codes of z = (x - mean) P; a method finds P and the codebook in `_fit`, and names its state in `fitted`."""

    fitted: ClassVar[tuple[str, ...]] = ("mean", "rotation")  # attributes without their last `_`

    n_views: int = setting(1, "views per image stored as features; this method uses only the clean image", above=0)
    unit_length: bool = setting(
        True, "whether items are scaled to unit length; ours, better on the tuning splits of images"
    )

    def scaled(self, data: Loaded, title: str = "", progress: bool | None = False) -> Iterator[Tensor]:
        """Yield the clean view of all items in chunks, scaled to unit length if asked for."""
        return map(self._scaled, chunks(data.items, title, progress))

    def projected(self, data: Loaded, mean: Tensor, components: Tensor) -> Tensor:
        """Return all items, centred and projected: mean (F,), components (F, D) -> (N, D) float32."""
        return torch.cat([((chunk - mean) @ components).float() for chunk in self.scaled(data)])

    def _scaled(self, x: Tensor) -> Tensor:
        return unit_rows(x) if self.unit_length else x

    def _embed(self, x: Tensor) -> Tensor:
        return (self._scaled(x) - self.mean_) @ self.rotation_

    @property
    def n_inputs(self) -> int:
        """Number of features F of the data that the method was fitted on."""
        return len(self.mean_)

    def state(self) -> dict[str, Tensor]:
        """Return the fitted tensors by name."""
        return {name: getattr(self, f"{name}_") for name in self.fitted}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Set the fitted state from what `state` returned."""
        for name in self.fitted:
            setattr(self, f"{name}_", state[name])
