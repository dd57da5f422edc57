"""What a method asks of the machine: a device, a number of threads, a random start that leaves no trace."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # of glibc's malloc.h
LARGEST_MMAP_THRESHOLD = 32 * 2**20
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


@cache
def bfloat16_runs(device: torch.device) -> bool:
    """Whether products in bfloat16 work there; tried in a process of its own, since some CPUs kill it for them."""
    code = f"import torch; x = torch.ones(512, 512, device={str(device)!r}).bfloat16(); print(float((x @ x).sum()))"
    tried = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    return tried.returncode == 0


def n_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
def memory_kept() -> Iterator[None]:
    """Keep memory that is freed inside for what is asked for next, and give it back afterwards.

    Between two batches glibc returns large blocks to the system, which must fill them with zeros before it gives them
    out again: a third of the time of a small network. Elsewhere nothing happens.
    """
    libc: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
    if not hasattr(libc, "mallopt") or not hasattr(libc, "malloc_trim"):
        yield
        return
    libc.mallopt(M_MMAP_MAX, 0)  # no block of its own for anything, however large
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    try:
        yield
    finally:
        libc.mallopt(M_MMAP_MAX, 2**16)  # the default
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)  # both as large as glibc's own rule would have made them
        libc.mallopt(M_TRIM_THRESHOLD, 2 * LARGEST_MMAP_THRESHOLD)
        libc.malloc_trim(0)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Modules start from the global generator: seed it inside, and put it back as it was."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(int(seed))
        yield
