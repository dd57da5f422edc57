"""`python -m combemb`, also under torchrun."""

import os
import sys

from combemb.cli import app

try:
    app(prog_name="combemb")
except SystemExit as end:
    if os.environ.get("WORLD_SIZE", "1") == "1":
        raise
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(end.code or 0))  # threads of gloo may abort an interpreter that shuts down
