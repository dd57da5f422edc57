"""Processes that train together: gather with gradient, batch statistics and gradients over all of them."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class LostProcess(RuntimeError):
    """Another process of the run has ended or cannot be reached."""


@contextmanager
def _exchanging() -> Iterator[None]:
    """Say in plain words that an exchange has failed."""
    try:
        yield
    except RuntimeError as error:
        raise LostProcess(
            "another process of this run has ended or cannot be reached; its own message says why. What was stored is "
            f"kept, and a resumed run continues from there ({error})"
        ) from error


def world_size() -> int:
    """Return the number of processes that train together, 1 outside torchrun."""
    return dist.get_world_size() if _has_joined() else 1


def _has_joined() -> bool:
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """Return the rank of this process."""
    return dist.get_rank() if world_size() > 1 else 0


def given_by_all(value: Any) -> list[Any]:
    """Return what each process gives, of any kind that can be pickled, in order of rank."""
    values = [value] * world_size()
    if len(values) > 1:
        with _exchanging():
            dist.all_gather_object(values, value)
    return values


def is_first() -> bool:
    """Return whether this process prints and writes files; torchrun also says so before the processes have joined."""
    return rank() == 0 if _has_joined() else os.environ.get("RANK", "0") == "0"


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Join the group that torchrun started, unless the caller has; without torchrun this does nothing."""
    if _has_joined() or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def wait_for_all() -> None:
    """Wait until all processes have called this."""
    if world_size() > 1:
        with _exchanging():
            dist.barrier()


class _Gather(torch.autograd.Function):
    """Differentiable all_gather; torch's own is deprecated in favour of a private module."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(world_size())]
        with _exchanging():
            dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        # Every process uses these rows, so their gradient is the sum over all processes.
        grad = grad.clone(memory_format=torch.contiguous_format)
        _add_up(grad)
        return own_rows(grad)


def _add_up(x: Tensor) -> None:
    """Replace a tensor by the sum over the processes."""
    with _exchanging():
        dist.all_reduce(x)


def gather(x: Tensor) -> Tensor:
    """Return the rows of all processes in order of rank, differentiably; each must have the same number."""
    if world_size() == 1:
        return x
    gathered: Tensor = _Gather.apply(x)  # type: ignore[no-untyped-call]
    return gathered


def mean(x: Tensor) -> Tensor:
    """Return the mean over the processes, for reports."""
    if world_size() > 1:
        x = x.clone()
        _add_up(x)
        x /= world_size()
    return x


def own(n: int) -> slice:
    """Return where the n rows of this process are among those that `gather` returns."""
    return slice(rank() * n, (rank() + 1) * n)


def own_rows(gathered: Tensor) -> Tensor:
    """Return the rows of a gathered tensor that came from this process."""
    return gathered[own(len(gathered) // world_size())]


def average_gradients(parameters: Iterable[Tensor]) -> None:
    """Average the gradients over the processes, in one message: the gradient of the mean of their losses."""
    if world_size() == 1:
        return
    grads = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([g.flatten() for g in grads])
    _add_up(flat)
    flat /= world_size()
    for grad, part in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
        grad.copy_(part.view_as(grad))


def same_state(module: nn.Module) -> None:
    """Give every process the parameters and buffers of the first."""
    if world_size() > 1:
        for tensor in module.state_dict().values():
            with _exchanging():
                dist.broadcast(tensor, src=0)


class BatchNorm(nn.BatchNorm1d):
    """Batch norm with statistics over the batch of all processes; SyncBatchNorm does not run on CPUs."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x (B, D)."""
        if world_size() == 1 or not self.training:
            return super().forward(x)
        return own_rows(super().forward(gather(x)))
