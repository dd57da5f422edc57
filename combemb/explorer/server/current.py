"""The run that the server shows, out of those that were fitted on the same data; and its jobs."""

import threading
from datetime import UTC, datetime
from pathlib import Path

from combemb.collection.discovered import is_discovered
from combemb.discovery.result import Discovery
from combemb.explorer.server import messages
from combemb.explorer.server.jobs import Jobs
from combemb.explorer.server.problems import Refused
from combemb.explorer.server.served import Served
from combemb.learning.run_folder import CONFIG, DISCOVERY, RunFolder


class Current:
    """What all routes share. Requests take `served` once, so that they see one run from their beginning to their end.

    Parameters
    ----------
    run : Path
        The run folder to begin with.
    image_roots : sequence of Path
        Folders outside the data whose pictures may be shown too.
    """

    def __init__(self, run: Path, image_roots: tuple[Path, ...] = ()):
        self.jobs = Jobs()
        self.served = Served(run.absolute(), image_roots)
        self._image_roots, self._lock = image_roots, threading.Lock()

    def choose(self, name: str) -> None:
        """Show another run from now on."""
        path = self.beside(name)
        with self._lock:
            if path != self.served.path:
                self.served = Served(path, self._image_roots)

    def beside(self, name: str) -> Path:
        """Return a run folder beside this one that was fitted on the same data; refuse any other."""
        for path in self._runs():
            if path.name == name:
                return path
        raise Refused(404, "missing", f"there is no run {name!r} on the same data beside {self.served.path.name}")

    def runs(self) -> list[messages.RunBeside]:
        """Return all runs on the same data, the first one first."""
        found = [_described(path, is_current=path == self.served.path) for path in self._runs()]
        return sorted(found, key=lambda run: (run.started, run.name))

    def _runs(self) -> list[Path]:
        """Return run folders beside this one, itself included, that were fitted on the same data."""
        data, here = self.served.config["path"], self.served.path
        found = [here]
        for marker in sorted(here.parent.glob(f"*/{CONFIG}")):
            path = marker.parent
            try:
                if path != here and data is not None and RunFolder(path).config()["path"] == data:
                    found.append(path)
            except ValueError:  # of another version, or damaged
                continue
        return found


def _described(path: Path, *, is_current: bool) -> messages.RunBeside:
    run = RunFolder(path)
    config, diagnosis = run.config(), run.diagnosis()
    n_novel = None
    if is_discovered(path):
        try:
            n_novel = Discovery.load(path / DISCOVERY).n_novel
        except ValueError:  # of another version
            n_novel = None
    started = datetime.fromtimestamp((path / CONFIG).stat().st_mtime, UTC)
    return messages.RunBeside(
        name=path.name,
        is_current=is_current,
        is_complete=run.is_complete(),
        n_labelled=diagnosis.get("n_labelled"),
        n_classes=len(config["classes"]),
        n_novel=n_novel,
        started=started.isoformat(timespec="seconds"),
    )
