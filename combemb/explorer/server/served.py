"""The run that the server shows: read once, and again whenever its files change, whoever changed them."""

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from combemb import methods
from combemb.collection.class_log import Change, append, read_log
from combemb.collection.index_files import has_current_index
from combemb.collection.indexed import Collection
from combemb.discovery.result import Discovery
from combemb.explorer.server.pictures import Pictures
from combemb.explorer.server.problems import Refused, unavailable
from combemb.explorer.server.snapshot import Items, Snapshot
from combemb.explorer.stored_map import StoredMap
from combemb.learning.codes import CodeMethod
from combemb.learning.method import Method
from combemb.learning.run_folder import CLASSES, CONFIG, DISCOVERY, ENTRIES, INDEX, PLACES, TABLE, WEIGHTS, RunFolder
from combemb.system.files import CHECKSUM, read_about
from combemb.system.tables import read_about as about_table
from combemb.system.tables import read_table

State = Literal["ready", "missing", "impossible"]
Read = TypeVar("Read")
Stamp = tuple[tuple[int, int, int] | None, ...]

OF_MODEL = (CONFIG, WEIGHTS)
OF_ITEMS = (CONFIG, DISCOVERY, TABLE)
OF_INDEX = (WEIGHTS, INDEX, ENTRIES)
OF_MAP = (DISCOVERY, PLACES)


class Served:
    """A run folder with all that requests need of it; safe to use from many threads.

    Parameters
    ----------
    run : Path
        The run folder.
    image_roots : sequence of Path
        Folders outside the data whose pictures may be shown too.
    """

    def __init__(self, run: Path, image_roots: tuple[Path, ...] = ()):
        self.folder, self._image_roots = RunFolder(run), image_roots
        self.embedding = threading.Lock()  # held while the model works: one image at a time
        self._lock = threading.RLock()
        self._read: dict[str, tuple[Stamp, object]] = {}  # what was read -> the files that it was read from

    @property
    def path(self) -> Path:
        """The run folder."""
        return self.folder.folder

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of the run."""
        return self._current("config", (CONFIG,), self.folder.config)

    @property
    def pictures(self) -> Pictures:
        """The pictures that may be shown."""
        return self._current("pictures", (CONFIG,), lambda: Pictures(self.config["path"], self._image_roots))

    def snapshot(self, state: str | None = None) -> Snapshot:
        """Return items and classes as they are now; refuse if they are not in this state any more."""
        found = self._current("snapshot", (*OF_ITEMS, CLASSES), self._read_snapshot)
        if state is not None and state != found.state:
            raise Refused(409, "changed", "the classes were changed in the meantime", "load them again")
        return found

    def model(self) -> Method:
        """Return the model of the run."""
        return self._current("model", OF_MODEL, lambda: methods.load(self.path))

    def collection(self) -> Collection:
        """Return the indexed items; refuse if there is no index of this model."""
        if self.index_state() != "ready":
            raise unavailable(self.path, "index", "index")
        return self._current("collection", OF_INDEX, lambda: Collection.open(self.path))

    def map(self) -> StoredMap:
        """Return the map; refuse if there is none of this discovery."""
        self.snapshot()
        found = self._current("map", OF_MAP, lambda: StoredMap.open(self.path))
        if found is None:
            raise Refused(409, "unavailable", f"{self.path.name} has no map yet", "start a job of kind map")
        return found

    def rows_of_entries(self) -> np.ndarray:
        """Return the row of each entry of the index among the discovered items; -1 for those that are not."""
        return self._current("rows_of_entries", (*OF_INDEX, *OF_ITEMS), self._read_rows_of_entries)

    def discovery_state(self) -> State:
        """Return whether the run has a discovery."""
        return "ready" if (self.path / DISCOVERY).exists() and (self.path / TABLE).exists() else "missing"

    def index_state(self) -> State:
        """Return whether the run has an index."""
        return self._current("index_state", (CONFIG, *OF_INDEX), self._read_index_state)

    def map_state(self) -> State:
        """Return whether the run has a map."""
        with suppress(Refused):
            return "ready" if self.map() else "missing"
        return "missing"

    def change(self, change: Change, based_on: Snapshot) -> Snapshot:
        """Store a change, which is on the disk when this returns; the caller is the writer of the run folder."""
        append(self.path, change)
        after = Snapshot(based_on.items, [*based_on.log, change])
        with self._lock:
            self._read["snapshot"] = (self._stamp((*OF_ITEMS, CLASSES)), after)
        return after

    def _current(self, name: str, files: tuple[str, ...], read: Callable[[], Read]) -> Read:
        """Return what was read last; read it again if one of its files has changed since."""
        stamp = self._stamp(files)
        known = self._read.get(name)
        if known is None or known[0] != stamp:
            with self._lock:
                stamp, known = self._stamp(files), self._read.get(name)
                if known is None or known[0] != stamp:
                    known = (stamp, self.folder.read_unchanged(read))
                    self._read[name] = known
        return cast(Read, known[1])

    def _stamp(self, files: tuple[str, ...]) -> Stamp:
        """Return what changes whenever one of these files is written."""
        found: list[tuple[int, int, int] | None] = []
        for name in files:
            try:
                about = (self.path / name).stat()
                found.append((about.st_ino, about.st_mtime_ns, about.st_size))
            except OSError:
                found.append(None)
        return tuple(found)

    def _read_snapshot(self) -> Snapshot:
        if self.discovery_state() != "ready":
            raise unavailable(self.path, "discover", "discovery")
        items: Items = self._current("items", OF_ITEMS, self._read_items)
        return Snapshot(items, read_log(self.path))

    def _read_index_state(self) -> State:
        if not issubclass(methods.get(self.config["method"]), CodeMethod):
            return "impossible"
        return "ready" if has_current_index(self.path) else "missing"

    def _read_rows_of_entries(self) -> np.ndarray:
        ids = self.snapshot().items.table["id"].cast(pa.large_string())
        found = pc.index_in(self.collection().entries["id"], value_set=ids)
        return np.asarray(pc.fill_null(found, -1), dtype=np.int64)

    def _read_items(self) -> Items:
        found = Discovery.load(self.path / DISCOVERY)
        table = read_table(self.path / TABLE)[0].select(["id", "path", "cluster", "is_novel", "confidence"])
        if len(found) != len(table):
            raise ValueError(f"the files of the discovery in {self.path} do not belong together; discover again")
        parts = int(read_about(self.path / DISCOVERY)[CHECKSUM]), int(about_table(self.path / TABLE)[CHECKSUM])
        return Items(f"{parts[0] ^ (parts[1] * 31 % 2**32):08x}", found, table)
