"""Result files: one JSON file for each cell, written at once; what the code was that wrote it."""

import json
import platform
import subprocess
from dataclasses import fields
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any, cast

from combemb import methods
from combemb.bench.cells import Cell
from combemb.bench.tables import FEATURES
from combemb.system.files import write_atomically
from combemb.system.version import __version__

RESULT_FORMAT = 1  # raise it when the same cell gets other scores, so that older results are marked stale
PACKAGES = ("torch", "numpy", "scikit-learn", "scipy", "faiss-cpu", "openvino", "openTSNE")


def read_result(folder: Path, cell: Cell) -> dict[str, Any] | None:
    """Return the record of a cell; None if there is none, or none that can be read."""
    path = folder / cell.path
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and "cell" in record else None


def write_result(folder: Path, cell: Cell, record: dict[str, Any]) -> Path:
    """Write the record of a cell; it appears complete or not at all."""
    path = folder / cell.path
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in record.items())
    write_atomically(path, lambda temporary: temporary.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8"))
    return path


def is_stale(record: dict[str, Any], cell: Cell) -> bool:
    """Return whether another version of this package wrote a record, or one whose method had other defaults."""
    if (record.get("format"), record.get("version")) != (RESULT_FORMAT, __version__):
        return True
    if cell.method == FEATURES or cell.constructor or cell.task == "regions":  # these set more than the cell says
        return False
    chosen = {*dict(cell.settings), "bits", "seed", "device", "backbone_weights"}
    defaults = {field.name: field.default for field in fields(cast(Any, methods.get(cell.method)))}
    stored = record.get("settings", {})
    now = json.loads(json.dumps({name: defaults.get(name) for name in stored}))
    return any(now[name] != value for name, value in stored.items() if name not in chosen)


@cache
def about_code() -> dict[str, Any]:
    """Return format, version, commit and the versions of packages."""
    packages = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            packages[name] = installed(name)
        except PackageNotFoundError:
            continue
    return {"format": RESULT_FORMAT, "version": __version__, "commit": _commit(), "packages": packages}


def _commit() -> str | None:
    """Return the commit of the sources, with a plus if they have changed since; None if they are no checkout."""
    folder = Path(__file__).resolve().parent
    try:
        for command in (
            ("ls-files", "--error-unmatch", __file__),
            ("describe", "--always", "--dirty=+", "--exclude=*"),
        ):
            said = subprocess.run(["git", *command], cwd=folder, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip()
