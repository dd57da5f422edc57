"""The command line as tests call it."""

import re
from pathlib import Path

from typer.testing import CliRunner

from combemb.cli import app

PROGRESS = re.compile(r"/s  \d+ s left$")


def call(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def done(*arguments: object):
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    return result


def refused(*arguments: object) -> str:
    """The one line that bad input gets."""
    result = call(*arguments)
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def told(result) -> str:
    """What was printed beside the results, without the lines that a slow machine prints of its progress."""
    return "".join(line for line in result.stderr.splitlines(keepends=True) if not PROGRESS.search(line))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def fitted(data: Path, run: Path, *options: object) -> Path:
    settings = ["--set=image_size=32", "--set=n_views=2"]  # more than one view, so that features stay in the cache
    done("fit", data, "--out", run, "--method", "itq", "--bits", "12", "--quiet", *settings, *options)
    return run
