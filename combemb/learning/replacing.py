"""A new run takes the place of an old one when it is complete; what people said about classes is never lost."""

import json
import warnings
from itertools import count
from pathlib import Path
from typing import Any

from combemb.data.given import Given, item_names
from combemb.learning.run_folder import CLASSES, NEW, REPLACED, RunFolder
from combemb.system.errors import Note
from combemb.system.files import replace_together

SET_ASIDE = "classes.old-{}.jsonl"


class SetAside(Note):
    """What people said about classes does not belong to the items of the new run."""


def publish(run: RunFolder, *, keeps_classes: bool) -> None:
    """Let a run that is complete take the place of the one that it was built inside of; other runs stay as they are.

    No file of the old run is left, except for classes.jsonl if it is kept; otherwise it gets another name.
    """
    if run.folder.name != NEW:
        return
    folder = run.folder.parent
    names = {path.name for path in run.folder.iterdir() if path.is_file() and not path.name.startswith(".")}
    moved = {f"{NEW}/{name}": name for name in sorted(names)}  # a method of somebody else may have files of its own
    aside = None
    if not keeps_classes and (folder / CLASSES).exists():
        aside = next(name for name in map(SET_ASIDE.format, count(1)) if not (folder / name).exists())
        moved[CLASSES] = aside
    replace_together(folder, moved, sorted(set(REPLACED) - names), NEW)
    if aside is not None:
        note = f"what you said about classes in {folder} is about other items than those of this fit"
        warnings.warn(f"{note}; it is kept as {aside}", SetAside, stacklevel=2)


def said_about(run: RunFolder, given: Given, identity: dict[str, Any]) -> bool:
    """Return whether what people said about classes is about these items: there is one that they said something about.

    Items without ids are known by their numbers, which mean nothing unless the data are the same.

    Parameters
    ----------
    run : RunFolder
        What a fit fills.
    given : Given
        The items of the fit.
    identity : dict
        What identifies them, as in run.json.
    """
    old = RunFolder(run.folder.parent if run.folder.name == NEW else run.folder)
    if not (old.folder / CLASSES).exists():
        return True
    if given.is_numbered:
        try:
            before = old.config().get("data", {})
        except ValueError:  # of another version
            return False
        return all(before.get(key) == value for key, value in identity.items() if key != "labels")
    listed = _listed(old.folder / CLASSES)
    return not listed or not listed.isdisjoint(item_names(given)[0])


def _listed(log: Path) -> set[str]:
    """Return the ids of all items in a log of changes; lines that cannot be read are left to who reads the log."""
    found = set()
    for line in log.read_bytes().splitlines():
        try:
            found |= {str(item) for group in json.loads(line)["groups"] for item in group}
        except (ValueError, KeyError, TypeError):
            continue
    return found
