"""Memory is kept between batches and then returned; malloc changes only in a process of our own."""

import ctypes
import os
import subprocess
import sys

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from combemb.backbones import openvino_network
from combemb.system import machine

KEPT = """
import torch
from combemb.system.machine import memory_kept, own_process

own_process()

def resident():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024

before = resident()
with memory_kept():
    for n in (17, 16, 15):  # each fits into the hole of the one before it, however it is aligned
        torch.ones(n * 2**20)  # about 64 MB
    inside = resident()
print(inside - before, resident() - before)
torch.ones(64 * 2**20)  # 256 MB, more than may be left free in the heap
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing happens")
def test_memory_is_kept_for_a_while_and_then_given_back():
    done = subprocess.run([sys.executable, "-c", KEPT], check=True, capture_output=True, text=True)
    inside, outside, later = (float(number) for number in done.stdout.split())
    assert 50 < inside < 175, "three blocks would be 192 MB"
    assert outside < 50
    assert later < 50


class FakeLibc:
    """Counts what would have been changed."""

    def __init__(self):
        self.calls = []

    def mallopt(self, setting, value):
        self.calls.append((setting, value))

    def malloc_trim(self, _):
        self.calls.append("trim")


@pytest.mark.parametrize("is_own", [False, True])
def test_malloc_is_changed_only_in_a_process_of_our_own(monkeypatch, is_own):
    libc = FakeLibc()
    monkeypatch.setattr(machine, "_is_own_process", False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: libc)
    if is_own:
        machine.own_process()
    with machine.memory_kept():
        inside = list(libc.calls)
    assert inside == ([(machine.M_MMAP_MAX, 0), (machine.M_TRIM_THRESHOLD, 2**31 - 1)] if is_own else [])
    assert libc.calls[-1:] == (["trim"] if is_own else [])


def test_importing_the_package_leaves_malloc_alone():
    program = "import combemb, combemb.system.machine as m; print(m._is_own_process)"
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout == b"False\n"


def test_few_rows_are_worked_on_by_one_thread():
    def n_threads() -> set[int]:
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    np.ones((2, 2)) @ np.ones((2, 2))
    with threadpool_limits(2, user_api="blas"):
        before = n_threads()
        with machine.threads_for(machine.FEW_ROWS):
            assert n_threads() == {1}
        assert n_threads() == before
        with machine.threads_for(machine.FEW_ROWS + 1):
            assert n_threads() == before


@pytest.mark.parametrize(
    ("n_processes", "limit", "n_cores", "n_openvino"),
    [
        (None, None, 8, 8),
        (None, "1", 8, 1),
        ("1", "1", 8, 1),
        ("2", "1", 4, 4),
        ("3", "2", 2, 2),
        ("2", "3", 4, 3),
        ("16", "1", 1, 1),
    ],
)
def test_processes_of_torchrun_share_the_cores(monkeypatch, n_processes, limit, n_cores, n_openvino):
    """One thread for each of several processes is torchrun's own choice; any other number is the user's."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for name, value in (("LOCAL_WORLD_SIZE", n_processes), ("OMP_NUM_THREADS", limit)):
        if value:
            monkeypatch.setenv(name, value)
        else:
            monkeypatch.delenv(name, raising=False)
    assert (machine.n_cores(), openvino_network._n_threads()) == (n_cores, n_openvino)
    with machine.limited_threads(1):  # what torchrun leaves of torch's
        assert machine.threads_beside_decoding() == (max(1, n_cores // 2) if (n_processes, limit) == ("2", "1") else 1)
