"""A child process that ends with its parent."""

import ctypes
import multiprocessing
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # from Linux's prctl.h


def end_with_parent(*_: object) -> None:
    """Let Linux kill this process when the thread that started it ends; it would wait forever on a pipe."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid != os.getppid():  # it has ended before
        os._exit(1)
