"""Run a module as a job of the server: `python -m combemb.explorer.server.child MODULE ARGUMENTS`.

It gives way to the server, and ends with it, also if that is killed.
"""

import os
import runpy
import sys

from combemb.system.parent import end_with_parent

NICENESS = 5

if __name__ == "__main__":
    end_with_parent()
    os.nice(NICENESS)
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
