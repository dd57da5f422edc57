"""What a method asks of the machine: a device, a number of threads, a random start that leaves no trace."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

DEVICES = ("auto", "cuda", "mps", "cpu")


def is_available(device: str) -> bool:
    """Whether this machine has the device."""
    if device == "cuda":
        return torch.cuda.is_available()
    return device != "mps" or torch.backends.mps.is_available()


def resolved(device: str) -> torch.device:
    """The device of that name, auto the first of CUDA, MPS and CPU that is there; torchrun shares several out."""
    name = next(name for name in DEVICES[1:] if is_available(name)) if device == "auto" else device
    return torch.device(name, int(os.environ.get("LOCAL_RANK", "0"))) if name == "cuda" else torch.device(name)


@contextmanager
def limited_threads(n: int) -> Iterator[None]:
    """Let torch use n threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Modules start from the global generator: seed it inside, and put it back as it was."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(int(seed))
        yield
