"""What is asked of the machine is given back."""

import subprocess
import sys

import pytest

KEPT = """
import torch
from combemb.system.machine import memory_kept

def resident():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024

before = resident()
with memory_kept():
    for _ in range(3):
        torch.ones(64 * 2**20)  # 256 MB
    inside = resident()
print(inside - before, resident() - before)
torch.ones(64 * 2**20)
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing happens")
def test_memory_is_kept_for_a_while_and_then_given_back():
    done = subprocess.run([sys.executable, "-c", KEPT], check=True, capture_output=True, text=True)
    inside, outside, later = (float(number) for number in done.stdout.split())
    assert 200 < inside < 700, "three blocks would be 768 MB"
    assert outside < 50
    assert later < 50
