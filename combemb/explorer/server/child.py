"""Run a module as a job of the server: `python -m combemb.explorer.server.child MODULE ARGUMENTS`.

It gives way to the server, and ends with it, also if that is killed.
"""

import ctypes
import os
import runpy
import signal
import sys

NICENESS = 5


def end_with_parent() -> None:
    """Let Linux kill this process when the thread that started it ends."""
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    end_with_parent()
    os.nice(NICENESS)
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
