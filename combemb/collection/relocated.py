"""The paths in a run folder after the data were moved: one call changes them in all files, or in none."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from markupsafe import escape
from pyarrow import csv

from combemb.collection.class_log import log_line, read_log
from combemb.data.folders import readable_name
from combemb.data.given import ROW_SEPARATOR
from combemb.learning.run_folder import CLASSES, CONFIG, ENTRIES, NEW, PAGE, TABLE, TEXT, RunFolder
from combemb.system.errors import require
from combemb.system.files import sealed, write_atomically, write_json, written_together
from combemb.system.tables import read_table, write_table

Changed = Callable[[Any], Any]
SETTINGS = {"backbone_weights": "", "backbone": "hf:"}  # those that may be paths, and what precedes the path


@dataclass(frozen=True)
class Relocated:
    """What was changed: the number of paths, and those of them that lead nowhere."""

    n_paths: int
    missing: list[str]


def relocate(run: str | Path, to: str | Path, old: str | Path | None = None) -> Relocated:
    """Change the paths of a run folder after its data were moved or renamed, also in what people said about items.

    Parameters
    ----------
    run : path
        The run folder, wherever it is now.
    to : path
        Where the data are now.
    old : path, optional
        Where they were, as the run has it: a folder with all that was moved, or a file. By default the path that was
        fitted.

    Returns
    -------
    Relocated
    """
    folder = RunFolder(run)
    folder.config()  # raises an error if this is not a run folder
    require(Path(to).exists(), f"there is no {to}; give the path where the data are now")
    with folder.written():
        config = folder.config()
        folder.require_unchanged_config()
        if old is None and config["path"] is None:
            raise ValueError(f"the data that {run} was fitted on were not read from a path; say where they were")
        before, now = (readable_name(os.path.abspath(path)) for path in (old or config["path"], to))  # noqa: PTH100
        paths: set[str] = set()
        changed = _changed(before, now, paths)
        with written_together(folder.folder):
            for part in (folder, RunFolder(folder.folder / NEW)):
                if part.has_config():
                    _change_config(part, changed)
            _change_table(folder.folder / ENTRIES, changed)
            found = _change_table(folder.folder / TABLE, changed)
            if found is not None:
                write_atomically(folder.folder / TEXT, lambda path: csv.write_csv(found, path))
            for log in sorted(folder.folder.glob(f"{Path(CLASSES).stem}*.jsonl")):
                _change_log(log, changed)
            _change_page(folder.folder / PAGE, before, now)
            if not paths:
                fitted = "its data were not read from a path" if config["path"] is None else f"it has {config['path']}"
                raise ValueError(f"no path in {run} begins with {before}; {fitted}")
    return Relocated(len(paths), sorted(path for path in paths if not Path(path).exists()))


def _changed(before: str, now: str, paths: set[str]) -> Changed:
    """Return the function that changes a text if it is a path below `before`; the files are collected in `paths`."""
    is_below = re.compile(rf"{re.escape(before)}(?=$|{re.escape(os.sep)}|{ROW_SEPARATOR}\d+$)")

    def changed(text: str | None) -> str | None:
        found = is_below.match(text or "")
        if text is None or found is None:
            return text
        result = now + text[found.end() :]
        paths.add(re.sub(rf"{ROW_SEPARATOR}\d+$", "", result) if ROW_SEPARATOR in result else result)
        return result

    return changed


def _change_config(run: RunFolder, changed: Changed) -> None:
    config = run.config()
    if config["path"] is not None:
        config["path"] = changed(os.path.abspath(config["path"]))  # noqa: PTH100 - links stay, as in the ids
    for name, start in SETTINGS.items():
        value = config["settings"].get(name)
        if isinstance(value, str) and value.startswith(start):
            config["settings"][name] = start + changed(value.removeprefix(start))
    write_json(run.folder / CONFIG, sealed(config))


def _change_table(path: Path, changed: Changed) -> pa.Table | None:
    """Change ids and paths of a table, if there is one, and return it."""
    if not path.exists():
        return None
    table, about = read_table(path)
    for name in ("id", "path"):
        values = pa.array(map(changed, table[name].to_pylist()), table[name].type)
        table = table.set_column(table.column_names.index(name), name, values)
    write_table(path, table, about)
    return table


def _change_log(path: Path, changed: Changed) -> None:
    lines = b""
    for said in read_log(path.parent, path.name):
        groups, beside = [list(map(changed, group)) for group in said.groups], list(map(changed, said.beside))
        lines += log_line(replace(said, groups=groups, beside=beside))
    write_atomically(path, lambda temporary: temporary.write_bytes(lines))


def _change_page(path: Path, before: str, now: str) -> None:
    """Change links and titles of the page of a discovery; its pictures are inside it."""
    if not path.exists():
        return
    page = path.read_text(encoding="utf-8")
    page = _with_starts(page, str(escape(before)), str(escape(now)))
    page = _with_starts(page, str(escape(Path(before).as_uri())), str(escape(Path(now).as_uri())))
    write_atomically(path, lambda temporary: temporary.write_text(page, encoding="utf-8"))


def _with_starts(page: str, old: str, new: str) -> str:
    """Replace `old` at the beginning of attributes and of the line about paths; pictures may look like anything."""

    def replaced(found: re.Match[str]) -> str:
        return new if page.endswith(('="', "Paths are below "), 0, found.start()) else found[0]

    return re.sub(rf'{re.escape(old)}(?=[/#",])', replaced, page)
