"""`combemb run`: fit, index, discover and page in one go; what is done already is not done again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from combemb.cli.console import err, notes_shown, running, say
from combemb.cli.discover import write_page
from combemb.cli.options import (
    Bits,
    Data,
    LabelFile,
    MethodName,
    Published,
    Quiet,
    RunToWrite,
    Seed,
    Settings,
    chosen_method,
    read_label_file,
)
from combemb.cli.outcome import as_json as outcome
from combemb.cli.outcome import command, lines_of_run
from combemb.cli.serve import PORT, Open, Port, serve_run

if TYPE_CHECKING:
    from combemb.collection.discovered import DiscoveredItems
    from combemb.data.given import Given
    from combemb.learning.method import Method
    from combemb.learning.run_folder import RunFolder

TITLES = {
    "fit": "fit, learning from the data",
    "index": "index, making the items searchable",
    "discover": "discover, looking for novel classes",
    "page": "page, drawing the map and the classes",
}


def run(
    data: Data,
    folder: RunToWrite,
    labels: LabelFile = None,
    method: MethodName = "combemb",
    bits: Bits = None,
    seed: Seed = None,
    settings: Settings = None,
    published: Published = False,
    update: Annotated[
        bool, typer.Option("--update", help="If data or settings have changed, replace the run by a new one.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: what was done and found.")] = False,
    serves: Annotated[bool, typer.Option("--serve", help="Then serve the page; see `combemb serve`.")] = False,
    port: Port = PORT,
    open_page: Open = False,
    quiet: Quiet = False,
) -> None:
    """Fit, index, discover and write the page in one go: `fit`, `index` and `discover` with their defaults.

    Stopped at any moment, the same command goes on from there. Called again, it does what is missing, or nothing. If
    images, labels or settings have changed since, it says what and stops; with `--update` it starts again with what is
    there now. The features of images are extracted again only if the set of images has changed, and the names that you
    gave with `combemb classes` are kept.

    With `--serve`, the page of the run is served when all is done: to look at what was found, name it and fit
    again.

    Example: `combemb run photos/ --out runs/photos --serve --open`
    """
    from combemb.collection.discovered import require_one_label
    from combemb.data.given import read_given

    with running(quiet, "stopped; the same command goes on from here"):
        if os.environ.get("WORLD_SIZE", "1") != "1":
            raise ValueError("combemb run works in one process; under torchrun, use combemb fit and then combemb run")
        model = chosen_method(method, bits, seed, settings, published)
        names = read_label_file(labels)
        with notes_shown():
            given = read_given(data, names)
            require_one_label(given.labels)
            steps = Steps(model, given, folder, given.labels if labels else None, progress=not quiet)
            changes = steps.changes()
            if changes and not update:
                raise ValueError(_what_to_do(changes, folder))
            done = steps.run(is_changed=bool(changes))
        if serves:
            serve_run(folder, port=port, opens=open_page)
            return
        if as_json:
            typer.echo(json.dumps(outcome(folder, done), indent=2))
            return
        if "done" not in done.values():
            say(f"{folder} is complete and nothing has changed since, so there was nothing to do")
        for line in lines_of_run(folder):
            say(line)


@dataclass
class Steps:
    """The steps of a run. labels: those of all items, if they are not stored with the data."""

    model: Method
    given: Given
    folder: Path
    labels: Any
    progress: bool
    result: DiscoveredItems | None = field(default=None, init=False)  # what was discovered in this call

    def changes(self) -> list[str]:
        """Return what has changed since the run in the folder was started; nothing if there is none."""
        from combemb.collection.discovered import new_and_gone
        from combemb.learning.unchanged import IMAGES_CHANGED, changes_since

        if not self.stored.has_config():
            return []
        try:
            found = changes_since(self.model, self.stored, self.given)
        except ValueError as error:  # of another version, or damaged
            return [str(error)]
        moved = new_and_gone(self.folder, self.given.training_part()) if IMAGES_CHANGED in found else None
        if moved and any(moved):
            found[found.index(IMAGES_CHANGED)] += f" ({moved[0]:,} new, {moved[1]:,} no longer there)"
        return found

    def run(self, is_changed: bool) -> dict[str, str]:
        """Do the steps that are not done; return "done" or "unchanged" for each."""
        from combemb.collection.discovered import is_discovered
        from combemb.collection.index_files import has_current_index
        from combemb.learning.codes import CodeMethod
        from combemb.learning.run_folder import PAGE
        from combemb.system.progress import part_of_work

        steps: dict[str, tuple[Callable[[], bool], Callable[[], None]]] = {
            "fit": (lambda: self.stored.is_complete() and not is_changed, lambda: self._fit(is_changed)),
            "index": (lambda: has_current_index(self.folder), self._index),
            "discover": (lambda: is_discovered(self.folder), self._discover),
            "page": ((self.folder / PAGE).exists, self._page),
        }
        if not isinstance(self.model, CodeMethod):
            del steps["index"]
        done = {}
        for number, (name, (is_done, do)) in enumerate(steps.items(), start=1):
            done[name] = "unchanged" if is_done() else "done"
            if done[name] == "unchanged":
                continue
            if self.progress:
                err.print(f"step {number} of {len(steps)}: {TITLES[name]}")
            with part_of_work(f"step {number} of {len(steps)}"):
                do()
        return done

    @cached_property
    def stored(self) -> RunFolder:
        """The run folder."""
        from combemb.learning.run_folder import RunFolder

        return RunFolder(self.folder)

    def _fit(self, is_changed: bool) -> None:
        goes_on = self._has_new_begun() if is_changed else self.stored.has_config()
        replaces = is_changed and not goes_on
        self.model.fit(self.given, folder=self.folder, overwrite=replaces, resume=goes_on, progress=self.progress)

    def _has_new_begun(self) -> bool:
        """Whether a call that was stopped has begun to replace the run by one with these data and settings."""
        from combemb.learning.run_folder import NEW, RunFolder
        from combemb.learning.unchanged import changes_since

        new = RunFolder(self.folder / NEW)
        try:
            return new.has_config() and not changes_since(self.model, new, self.given)
        except ValueError:  # of another version, or damaged
            return False

    def _index(self) -> None:
        from combemb.collection.indexed import Collection

        Collection.build(self.folder, labels=self.labels, overwrite=True, progress=self.progress)

    def _discover(self) -> None:
        from combemb.collection.discovered import discover_in, write_tables
        from combemb.learning.run_folder import MAP, PAGE, PLACES
        from combemb.system.files import written_together

        # An old page would show other clusters than the tables list.
        with self.stored.written(), written_together(self.folder, (PAGE, MAP, PLACES)):
            self.result = discover_in(self.folder, labels=self.labels, progress=self.progress)
            write_tables(self.result)

    def _page(self) -> None:
        from combemb.collection.discovered import stored_discovery
        from combemb.explorer.stored_map import store_map
        from combemb.system.files import written_together

        if self.result is None:  # a call that was stopped has discovered it
            self.result = stored_discovery(self.folder, labels=self.labels, progress=self.progress)
        with self.stored.written():
            with written_together(self.folder):
                places = write_page(self.result, self.folder, progress=self.progress)
            store_map(self.folder, places, self.result.z)


def _what_to_do(changes: list[str], folder: Path) -> str:
    return (
        f"since {folder} was started: {'; '.join(changes)}. To learn from what is there now, add --update: all steps "
        "run again, and the names that you gave are kept. To keep this run, undo the change or use another --out; "
        f"{command('predict', folder)} NEW sorts new items into the classes that it has"
    )
