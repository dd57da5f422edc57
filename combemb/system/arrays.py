"""Conversion to numpy arrays and CPU tensors, and scaling to unit length."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

Array = Tensor | np.ndarray


def to_numpy(values: Any) -> np.ndarray:
    """Convert an array, tensor or nested list to a numpy array; memory maps stay such, bfloat16 becomes float32."""
    if isinstance(values, Tensor):
        on_cpu = values.detach().cpu()
        return np.asarray((on_cpu.float() if on_cpu.dtype == torch.bfloat16 else on_cpu).numpy())
    return values if isinstance(values, np.ndarray) else np.asarray(values)


def to_tensor(values: Any) -> Tensor:
    """Convert to a CPU tensor without gradient, which shares memory if possible."""
    if isinstance(values, np.ndarray):
        values = np.require(values, requirements=["C", "W"])  # torch warns of read-only arrays, rejects reversed ones
    return torch.as_tensor(values).detach().cpu()


def unit(x: Tensor) -> Tensor:
    """Scale vectors along the last axis to length one, differentiably."""
    return functional.normalize(x, dim=-1)


def unit_rows(x: Tensor) -> Tensor:
    """Scale rows to length one, even if their squares overflow; zero rows stay zero."""
    largest = x.abs().amax(dim=1, keepdim=True)
    return unit(x / largest.where(largest > 0, 1.0))
