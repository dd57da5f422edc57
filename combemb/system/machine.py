"""Devices, threads, memory, and a seed that leaves the global generator unchanged."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # from glibc's malloc.h
LARGEST_MMAP_THRESHOLD = 32 * 2**20  # bytes
DEVICES = ("auto", "cuda", "mps", "cpu")
FEW_ROWS = 8_000  # on fewer, threads of BLAS wait for each other longer than they work

_is_own_process = False


def is_available(device: str) -> bool:
    """Return whether this machine has the device."""
    if device == "cuda":
        return torch.cuda.is_available()
    return device != "mps" or torch.backends.mps.is_available()


def resolved(device: str) -> torch.device:
    """Return the device; "auto" is the first available of CUDA, MPS and CPU. Each process of torchrun gets its own."""
    name = next(name for name in DEVICES[1:] if is_available(name)) if device == "auto" else device
    return torch.device(name, int(os.environ.get("LOCAL_RANK", "0"))) if name == "cuda" else torch.device(name)


@cache
def bfloat16_runs(device: torch.device) -> bool:
    """Return whether the device multiplies in bfloat16; tried in a child process, since some CPUs kill it."""
    code = f"import torch; x = torch.ones(512, 512, device={str(device)!r}).bfloat16(); print(float((x @ x).sum()))"
    tried = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    return tried.returncode == 0


def n_cores() -> int:
    """Return the number of cores that this process may use; those that torchrun starts on a machine share its cores."""
    n = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, n // _n_processes_here())


def is_limited_by_torchrun() -> bool:
    """Return whether OMP_NUM_THREADS is 1 because torchrun starts several processes here, not because a user set it."""
    return _n_processes_here() > 1 and os.environ.get("OMP_NUM_THREADS") == "1"


def threads_beside_decoding() -> int:
    """Return the number of threads for a network in torch while images are decoded: at most half of the cores."""
    limit = n_cores() if is_limited_by_torchrun() else torch.get_num_threads()
    return min(limit, max(1, n_cores() // 2))


def _n_processes_here() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


@contextmanager
def limited_threads(
    n: int, get: Callable[[], int] = torch.get_num_threads, put: Callable[[int], None] = torch.set_num_threads
) -> Iterator[None]:
    """Limit torch, or the library of these two functions, to n threads in this context."""
    before = get()
    put(n)
    try:
        yield
    finally:
        put(before)


@contextmanager
def threads_for(n_rows: int) -> Iterator[None]:
    """Limit BLAS to one thread in this context if there are few rows to work on.

    Threads that wait keep their core busy. Where other processes run too, 720 items took five times as long with two
    threads as with one.
    """
    if n_rows > FEW_ROWS:
        yield
        return
    with threadpool_limits(1, user_api="blas"):
        yield


def own_process() -> None:
    """Declare that this process runs nothing but combemb, which may then change settings of the whole process.

    The command line and the benchmarks call it. A program of your own may call it too; without it, combemb leaves
    malloc as it is.
    """
    global _is_own_process  # noqa: PLW0603 - a fact about the process
    _is_own_process = True


@contextmanager
def memory_kept() -> Iterator[None]:
    """Keep memory that is freed in this context for the next allocation, and return it to the system afterwards.

    Between two batches glibc returns large blocks to the system, which must fill them with zeros before it hands them
    out again: a third of the time of a small network. Without glibc, or before `own_process()`, this does nothing.
    """
    libc: Any = ctypes.CDLL(None) if _is_own_process and sys.platform == "linux" else None
    if not hasattr(libc, "mallopt") or not hasattr(libc, "malloc_trim"):
        yield
        return
    libc.mallopt(M_MMAP_MAX, 0)  # blocks of any size come from the heap
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    try:
        yield
    finally:
        libc.mallopt(M_MMAP_MAX, 2**16)  # the default
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)  # both at the maximum of glibc's own adaptive rule
        libc.mallopt(M_TRIM_THRESHOLD, 2 * LARGEST_MMAP_THRESHOLD)
        libc.malloc_trim(0)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generator, which initialises modules, and restore its state afterwards."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(int(seed))
        yield
