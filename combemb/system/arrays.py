"""The one place where values become numpy arrays or CPU tensors, and vectors get unit length."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

Array = Tensor | np.ndarray


def to_numpy(values: Any) -> np.ndarray:
    """Return a numpy array of an array, tensor or nested list; memory maps stay memory maps, bfloat16 gets float32."""
    if isinstance(values, Tensor):
        on_cpu = values.detach().cpu()
        return np.asarray((on_cpu.float() if on_cpu.dtype == torch.bfloat16 else on_cpu).numpy())
    return values if isinstance(values, np.ndarray) else np.asarray(values)


def to_tensor(values: Any) -> Tensor:
    """Return a CPU tensor without gradient that shares memory where it can."""
    if isinstance(values, np.ndarray):
        values = np.require(values, requirements=["C", "W"])  # torch warns of read-only arrays, refuses reversed ones
    return torch.as_tensor(values).detach().cpu()


def unit(x: Tensor) -> Tensor:
    """Scale vectors along the last axis to length one, differentiably."""
    return functional.normalize(x, dim=-1)


def unit_rows(x: Tensor) -> Tensor:
    """Scale rows to length one, even where their squares overflow; zero rows stay zero."""
    largest = x.abs().amax(dim=1, keepdim=True)
    return unit(x / largest.where(largest > 0, 1.0))
