"""The training loop of all deep methods: a method provides its module, its loss terms and, if it must, its step."""

import math
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from combemb.learning.batches import Batch, Batches
from combemb.learning.run_folder import RunFolder
from combemb.system import processes
from combemb.system.machine import seeded
from combemb.system.progress import Display

Terms = dict[str, Tensor]

CHECKPOINT_SECONDS = 10.0
STEPS_PER_DIAGNOSIS = 10  # small piles have epochs of a few steps, in which diagnostics would take a sixth of the time


class Diverged(RuntimeError):
    """A loss or a gradient is not finite; the module is restored to its state before that epoch."""


class Trainable(Protocol):
    """What the loop needs from a method."""

    activity: str

    @property
    def tower_(self) -> nn.Module:
        """Everything that is trained, with its buffers."""

    @property
    def kept(self) -> Terms:
        """Tensors that change during training and are stored in checkpoints only."""

    def rate(self, step: int, n_steps: int) -> float:
        """Return the factor on the learning rates at a step."""

    def n_epochs(self, steps_per_epoch: int) -> int:
        """Return the number of epochs."""

    def optimisers(self) -> list[Optimizer]:
        """Return new optimisers of the module; their learning rates are the peak of the schedule."""

    def on_epoch(self, data: Batches, epoch: int) -> None:
        """Run before each epoch; state that it changes belongs in buffers of the module."""

    def on_end(self, data: Batches) -> None:
        """Run after the last epoch."""

    def step(self, batch: Batch, optimisers: list[Optimizer]) -> Terms:
        """Update the module once and return the named loss terms."""

    def diagnostics(self, batch: Batch, data: Batches) -> dict[str, Any]:
        """Return numbers to log after an epoch, from its last batch and the data."""


def train(
    method: Trainable,
    data: Batches,
    run: RunFolder | None = None,
    progress: bool | None = None,
    checkpoint_seconds: float | None = None,
) -> list[dict[str, Any]]:
    """Train `method.tower_`.

    Parameters
    ----------
    method : Trainable
    data : Batches
    run : RunFolder, optional
        Where each epoch is logged and checkpoints are stored. A run that was interrupted continues from its checkpoint
        and reaches exactly the weights of an uninterrupted one.
    progress : bool, optional
        None shows it on a terminal only.
    checkpoint_seconds : float
        Least time between two checkpoints, which are stored at the end of an epoch; None: CHECKPOINT_SECONDS.

    Returns
    -------
    list of dict
        The log, one record per epoch.
    """
    checkpoint_seconds = CHECKPOINT_SECONDS if checkpoint_seconds is None else checkpoint_seconds
    module, optimisers, kept = method.tower_, method.optimisers(), method.kept
    device = next(module.parameters()).device
    peaks = [[group["lr"] for group in optimiser.param_groups] for optimiser in optimisers]
    first, log = _restore(run, module, optimisers, kept)
    processes.same_state(module)
    n_epochs = method.n_epochs(len(data))
    n_steps, n_items = n_epochs * len(data), data.n_labelled + data.n_unlabelled
    stored = time.monotonic()
    with Display(
        method.activity,
        n_steps * n_items,
        "items",
        progress if processes.is_first() else False,
        first * len(data) * n_items,
    ) as display:
        for epoch in range(first, n_epochs):
            began = time.monotonic()
            module.train()
            good = {name: tensor.clone() for name, tensor in _state(module, optimisers, kept).items()}
            sums: dict[str, Tensor] = {}
            i = 0
            drawing = torch.Generator().manual_seed(data.seed * 1_000_003 + epoch) if data.world_size > 1 else None
            try:
                with seeded(data.seed * 1_000_003 + epoch * data.world_size + data.rank):  # for dropout and the like
                    method.on_epoch(data, epoch)
                    for i, drawn in enumerate(data.epoch(epoch)):
                        step = epoch * len(data) + i
                        _set_rates(optimisers, peaks, method.rate(step, n_steps))
                        batch = replace(drawn.to(device), step=step, fraction_done=step / n_steps, generator=drawing)
                        for name, term in method.step(batch, optimisers).items():
                            sums[name] = sums.get(name, 0) + term.detach()
                        display.advance(n_items, partial("epoch {}/{}".format, epoch + 1, n_epochs))
            except Diverged as error:
                _load_state(good, module, optimisers, kept)
                if run and processes.is_first():
                    run.write_checkpoint(epoch, good)
                raise Diverged(f"epoch {epoch + 1}, step {i + 1} of {len(data)}: {error}") from None
            seconds = time.monotonic() - began
            module.eval()
            record = {
                "epoch": epoch + 1,
                **_means(sums, len(data)),
                **(method.diagnostics(batch, data) if _is_diagnosed(epoch, n_epochs, len(data)) else {}),
                "items_per_second": round(len(data) * n_items / seconds, 1),
            }
            record = {name: None if isinstance(v, float) and math.isnan(v) else v for name, v in record.items()}
            log.append(record)
            if run and processes.is_first():
                run.append_log(record)
                if time.monotonic() - stored >= checkpoint_seconds and epoch + 1 < n_epochs:
                    run.write_checkpoint(epoch + 1, _state(module, optimisers, kept))
                    stored = time.monotonic()
    with seeded(data.seed * 1_000_003 + n_epochs * data.world_size + data.rank):
        method.on_end(data)
    processes.same_state(module)  # processes have their own batch statistics if the whole backbone is trained
    module.eval()
    return log


def _is_diagnosed(epoch: int, n_epochs: int, n_steps: int) -> bool:
    """Return whether an epoch of n_steps is the last, or that in which another ten steps are complete."""
    every = STEPS_PER_DIAGNOSIS
    return epoch + 1 == n_epochs or (epoch + 1) * n_steps // every > epoch * n_steps // every


def descend(parameters: Iterable[Tensor], optimiser: Optimizer, terms: Terms, clip_norm: float) -> None:
    """Take one gradient step on the sum of the terms.

    Parameters
    ----------
    parameters : iterable of Tensor
    optimiser : Optimizer
    terms : dict of Tensor
        Named loss terms, each a scalar.
    clip_norm : float
        Largest norm of the gradient.

    Raises
    ------
    Diverged
        If the loss or its gradient is not finite; the parameters are then unchanged.
    """
    parameters = list(parameters)
    optimiser.zero_grad(set_to_none=True)
    loss = torch.stack(list(terms.values())).sum()
    loss.backward()
    processes.average_gradients(parameters)
    norm = nn.utils.clip_grad_norm_(parameters, clip_norm)
    if not torch.isfinite(norm + loss.detach()):
        values = ", ".join(f"{name} {float(term.detach()):.4g}" for name, term in terms.items())
        raise Diverged(
            f"the loss or its gradient is not finite ({values}; gradient norm {float(norm):.4g}). "
            "The state before this epoch is kept; use a lower learning_rate or look for outliers in the data"
        )
    optimiser.step()


def parameters_of(optimiser: Optimizer) -> list[Tensor]:
    """Return all parameters of an optimiser, such as those of one of several players."""
    return [parameter for group in optimiser.param_groups for parameter in group["params"]]


def schedule(step: int, n_steps: int, warmup_share: float) -> float:
    """Return the factor on the learning rate: a linear warm-up, then half a cosine to zero.

    >>> [round(schedule(step, 10, 0.2), 2) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.04]
    """
    n_warmup = round(warmup_share * n_steps)
    if step < n_warmup:
        return (step + 1) / n_warmup
    return 0.5 * (1 + math.cos(math.pi * (step - n_warmup) / (n_steps - n_warmup)))


def _set_rates(optimisers: list[Optimizer], peaks: list[list[float]], factor: float) -> None:
    for optimiser, rates in zip(optimisers, peaks, strict=True):
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = rate * factor


def _means(sums: Terms, n: int) -> dict[str, float]:
    means = {name: float(processes.mean(total / n)) for name, total in sums.items()}
    return {"loss": sum(means.values()), **means}


def require_trained(module: nn.Module, optimisers: list[Optimizer]) -> None:
    """Raise a ValueError unless every parameter that requires a gradient belongs to exactly one optimiser."""
    places = Counter(id(p) for optimiser in optimisers for group in optimiser.param_groups for p in group["params"])
    wrong = [name for name, p in module.named_parameters() if p.requires_grad and places[id(p)] != 1]
    if wrong:
        raise ValueError(
            f"{len(wrong)} parameters are in no optimiser or in several, such as {wrong[0]}; give each to one in "
            "`optimisers` (`backbone_group` has those of the backbone), or call requires_grad_(False) on it"
        )


def _state(module: nn.Module, optimisers: list[Optimizer], kept: Terms) -> dict[str, Tensor]:
    """Return weights, optimiser states and what else training keeps as one dictionary of tensors."""
    state = {f"module.{name}": tensor for name, tensor in module.state_dict().items()}
    state |= {f"kept.{name}": tensor for name, tensor in kept.items()}
    for i, optimiser in enumerate(optimisers):
        for j, slots in optimiser.state_dict()["state"].items():
            state |= {f"optimiser.{i}.{j}.{slot}": torch.as_tensor(value) for slot, value in slots.items()}
    return state


def _restore(
    run: RunFolder | None, module: nn.Module, optimisers: list[Optimizer], kept: Terms
) -> tuple[int, list[dict[str, Any]]]:
    """Restore the last checkpoint, if there is one; return the number of epochs done and their log."""
    stored = run.checkpoint() if run else None
    if run is None or stored is None:
        return 0, []
    epoch, tensors = stored
    _load_state(tensors, module, optimisers, kept)
    return epoch, run.log()


def _load_state(tensors: Terms, module: nn.Module, optimisers: list[Optimizer], kept: Terms) -> None:
    stored = {name[5:]: tensor for name, tensor in tensors.items() if name.startswith("kept.")}
    kept.update({name: tensor.to(kept[name].device if name in kept else "cpu") for name, tensor in stored.items()})
    module.load_state_dict({name[7:]: tensor for name, tensor in tensors.items() if name.startswith("module.")})
    slots: dict[int, dict[int, dict[str, Tensor]]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimiser."):
            _, i, j, slot = name.split(".")
            slots.setdefault(int(i), {}).setdefault(int(j), {})[slot] = tensor
    for number, optimiser in enumerate(optimisers):
        parameters = parameters_of(optimiser)
        state = {
            j: {slot: _laid_out_like(parameters[j], tensor) for slot, tensor in own.items()}
            for j, own in slots.get(number, {}).items()
        }
        optimiser.load_state_dict({**optimiser.state_dict(), "state": state})


def _laid_out_like(parameter: Tensor, tensor: Tensor) -> Tensor:
    """Return a stored tensor in the memory format of its parameter, such as channels last.

    Fused optimisers walk through the memory of both, so that another order would mix up the weights.
    """
    if tensor.shape != parameter.shape:  # the number of steps
        return tensor
    return torch.empty_like(parameter, dtype=tensor.dtype, requires_grad=False).copy_(tensor)
