"""The run folder: one fitted model with its configuration, weights and log. Its files are written atomically."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import torch
from pyarrow import csv
from torch import Tensor

from combemb.data.folders import RUN_MARKER
from combemb.learning.one_writer import BeingWritten, is_unused, one_writer
from combemb.system.errors import require
from combemb.system.files import (
    JOURNAL,
    finish_replacing,
    is_sealed,
    read_tensors,
    sealed,
    unsealed,
    write_atomically,
    write_json,
    write_tensors,
    writing,
)

FORMAT_VERSION = 3

# All files of a run folder: those that a fit writes, then those of `discover`, `index` and the demo.
CONFIG = RUN_MARKER
WEIGHTS, BACKBONE, CHECKPOINT = "weights.safetensors", "backbone.safetensors", "checkpoint.safetensors"
LOG, DIAGNOSIS, CURVES, BROKEN = "metrics.jsonl", "diagnosis.json", "training.png", "broken.csv"
DISCOVERY, TABLE, TEXT = "discovery.safetensors", "discovery.parquet", "discovery.csv"
PAGE, MAP, PLACES = "discovery.html", "discovery-map.png", "discovery-map.safetensors"
CLASSES = "classes.jsonl"  # what a person said about the discovered classes; not a file of any fit
SEARCHES = "search.png"  # of the demo
INDEX, ENTRIES = "index.safetensors", "entries.parquet"
REPLACED = (
    *(CHECKPOINT, WEIGHTS, BACKBONE, LOG, DIAGNOSIS, CURVES, BROKEN, DISCOVERY, TABLE, TEXT, PAGE, MAP, SEARCHES),
    *(PLACES, INDEX, ENTRIES, CONFIG),
)
READ_TOGETHER = (CONFIG, WEIGHTS, DISCOVERY, TABLE, INDEX, ENTRIES)
NEW = ".new"  # folder inside a run folder for a run that will take its place
SWAP_SECONDS = 10.0  # the longest wait for files that another process is just replacing
READER_SECONDS = 0.5  # a reader that finds a swap may hold the lock for a moment, which must not stop a writer

Read = TypeVar("Read")


class RunFolder:
    """The files of one run.

    Parameters
    ----------
    folder : path
        It need not exist yet.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    def check_free(self, overwrite: bool, resume: bool) -> None:
        """Raise a ValueError if the folder holds something that must not be replaced; to be called before any work."""
        if overwrite and resume:
            raise ValueError("overwrite and resume exclude each other; choose one")
        if not self.folder.exists() or is_unused(self.folder):
            return
        if not self.has_config():
            raise ValueError(f"{self.folder} exists and is not a run folder; choose another folder")
        if not (overwrite or resume):
            raise ValueError(f"{self.folder} holds a run; use overwrite to replace it, or resume to continue it")

    @contextmanager
    def written(self, wait: float = READER_SECONDS) -> Iterator[None]:
        """Be the only writer, see `one_writer`; what a killed one left is finished or removed first."""
        with one_writer(self.folder, wait) as is_outermost:
            if is_outermost:
                finish_replacing(self.folder)
                for name in (*REPLACED, CLASSES, JOURNAL):
                    self._remove_temporary(name)
                self._drop_unstarted()
            try:
                yield
            finally:
                if is_outermost:
                    self._drop_unstarted()

    def _drop_unstarted(self) -> None:
        """Remove a new run that failed before there was anything to resume."""
        if not (self.folder / NEW / CONFIG).exists():
            shutil.rmtree(self.folder / NEW, ignore_errors=True)

    def settle(self) -> None:
        """Finish the replacement of files that a killed process began; wait for a process that is at it."""
        deadline = time.monotonic() + SWAP_SECONDS
        while (self.folder / JOURNAL).exists():
            try:
                with self.written(0):
                    return
            except BeingWritten:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def read_unchanged(self, read: Callable[[], Read]) -> Read:
        """Return what `read` reads from several files of the run; read again if they were replaced meanwhile."""
        while True:
            before = self._identity()
            try:
                found = read()
            except (ValueError, OSError):
                if self._identity() == before:
                    raise
                continue
            if self._identity() == before:
                return found

    def _identity(self) -> list[tuple[int, int, int]]:
        """Return what changes whenever a file of the run is replaced."""
        self.settle()
        found = []
        for name in READ_TOGETHER:
            with suppress(OSError):
                about = (self.folder / name).stat()
                found.append((about.st_ino, about.st_mtime_ns, about.st_size))
        return found

    def to_fill(self, overwrite: bool, resume: bool) -> "RunFolder":
        """Return the run folder that a fit writes: another one inside if the run here is to answer until it is done."""
        new = RunFolder(self.folder / NEW)
        return new if self.is_complete() and (overwrite or (resume and new.has_config())) else self

    def start(self, config: dict[str, Any]) -> None:
        """Remove the files of an earlier run and store the configuration."""
        json.dumps(config, allow_nan=False)  # if this fails, the old run must still be there
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(self.folder / NEW, ignore_errors=True)
            for name in REPLACED:
                self._remove_temporary(name)
                if name != CONFIG:  # which makes this a run folder, and is replaced in one step
                    (self.folder / name).unlink(missing_ok=True)
        write_json(self.folder / CONFIG, sealed({"format_version": FORMAT_VERSION, **config}))

    def _remove_temporary(self, name: str) -> None:
        for leftover in self.folder.glob(f".{name}.*"):  # from a process that was killed while writing
            leftover.unlink(missing_ok=True)

    @property
    def discovery(self) -> Path:
        """The file of the discovered clusters, which `discover` writes."""
        return self.folder / DISCOVERY

    def files(self) -> list[str]:
        """Return the names of the files of the run."""
        return sorted(name for name in REPLACED if (self.folder / name).is_file())

    def has_config(self) -> bool:
        """Whether a run was started here."""
        return (self.folder / CONFIG).is_file()

    def is_complete(self) -> bool:
        """Whether the run here is finished."""
        return (self.folder / WEIGHTS).is_file()

    def config(self) -> dict[str, Any]:
        """Return the configuration of the run; raise a ValueError if there is none or it is damaged."""
        self.settle()
        path = self.folder / CONFIG
        if not path.exists():
            found = f"there is no {CONFIG} in it" if self.folder.is_dir() else "there is no such folder"
            what_to_do = "give the folder that `combemb fit` or `combemb run` wrote with --out"
            raise ValueError(f"{self.folder} is not a readable run folder: {found}; {what_to_do}")
        try:
            config: dict[str, Any] = json.loads(path.read_text())
            version = config["format_version"]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{self.folder} is not a readable run folder: {CONFIG} is damaged ({error}); restore it, or fit again"
            ) from error
        if version != FORMAT_VERSION:
            raise ValueError(
                f"{self.folder} was written by another version of combemb (format {version}, this one reads "
                f"{FORMAT_VERSION}); fit again"
            )
        _check_config(path, config)
        return unsealed(config)

    def require_unchanged_config(self) -> None:
        """Raise a ValueError if run.json was edited or damaged; to be called after what can be said of its values."""
        path = self.folder / CONFIG
        is_unchanged = is_sealed(json.loads(path.read_text()))
        require(is_unchanged, f"{path} was edited or damaged: its checksum is wrong; undo the edit, or fit again")

    def write_weights(self, tensors: dict[str, Tensor], backbone: dict[str, Tensor] | None = None) -> None:
        """Store the fitted state, with the backbone if nothing else has it; remove the checkpoint that they replace."""
        if backbone is not None:
            write_tensors(self.folder / BACKBONE, backbone)
        write_tensors(self.folder / WEIGHTS, tensors)
        (self.folder / CHECKPOINT).unlink(missing_ok=True)

    def weights(self) -> dict[str, Tensor]:
        """Return the fitted state."""
        path = self.folder / WEIGHTS
        if not path.exists() and (self.folder / CHECKPOINT).exists():
            raise ValueError(f"the run in {self.folder} was interrupted; continue it with resume")
        return _read_tensors(path)

    def backbone(self) -> Path | None:
        """Return the file of a backbone that was trained for this run, verified, or None if there is none."""
        path = self.folder / BACKBONE
        if not path.exists():
            return None
        _read_tensors(path)
        return path

    def write_diagnosis(self, diagnosis: dict[str, Any]) -> None:
        """Store what to check before trusting a fit."""
        write_json(self.folder / DIAGNOSIS, sealed(diagnosis))

    def diagnosis(self) -> dict[str, Any]:
        """Return what was stored so far; nothing if that cannot be read, since it is made again."""
        try:
            found = json.loads((self.folder / DIAGNOSIS).read_text())
        except (OSError, ValueError):
            return {}
        return unsealed(found) if is_sealed(found) else {}

    def write_broken(self, broken: dict[str, str]) -> None:
        """List the images that could not be read, if there are any, with the reasons."""
        if broken:
            table = pa.table({"id": list(broken), "reason": list(broken.values())})
            write_atomically(self.folder / BROKEN, lambda temporary: csv.write_csv(table, temporary))

    def write_checkpoint(self, epoch: int, tensors: dict[str, Tensor]) -> None:
        """Store the state after `epoch` epochs."""
        write_tensors(self.folder / CHECKPOINT, {**tensors, "epoch": torch.tensor(epoch)})

    def checkpoint(self) -> tuple[int, dict[str, Tensor]] | None:
        """Return epoch and state of the checkpoint, or None; later epochs are removed from the log."""
        path = self.folder / CHECKPOINT
        if not path.exists():
            (self.folder / LOG).unlink(missing_ok=True)
            return None
        tensors = _read_tensors(path)
        epoch = int(tensors.pop("epoch"))
        kept = "".join(_log_line(record) for record in self.log() if record["epoch"] <= epoch)
        write_atomically(self.folder / LOG, lambda temporary: temporary.write_text(kept))
        return epoch, tensors

    def append_log(self, record: dict[str, Any]) -> None:
        """Append the numbers of one epoch as a line of JSON."""
        with writing(self.folder / LOG), (self.folder / LOG).open("a") as file:
            file.write(_log_line(record))

    def log(self) -> list[dict[str, Any]]:
        """Return the numbers of all epochs; a line cut off by a crash is ignored."""
        path = self.folder / LOG
        lines = path.read_bytes().splitlines() if path.exists() else []
        records = []
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if is_sealed(record):
                records.append(unsealed(record))
            elif number < len(lines):
                raise ValueError(f"{path} is damaged in line {number}; restore the file, or fit again")
        return records


def _log_line(record: dict[str, Any]) -> str:
    return json.dumps(sealed(record)) + "\n"


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return read_tensors(path)[0]
    except ValueError as error:
        raise ValueError(f"{error}; restore it, or fit again") from error


def _check_config(path: Path, config: dict[str, Any]) -> None:
    """Raise a ValueError that names what is missing or malformed in a configuration."""
    missing = [key for key in ("method", "settings", "classes", "images", "n_novel", "path") if key not in config]
    if missing:
        raise ValueError(f"{path} is damaged: it lacks {', '.join(missing)}; fit again")
    classes, images, n_novel = config["classes"], config["images"], config["n_novel"]
    is_right = {
        "method": isinstance(config["method"], str),
        "settings": isinstance(config["settings"], dict),
        "classes": isinstance(classes, list) and {type(name) for name in classes} in ({str}, {int}, set()),
        "images": images is None or (isinstance(images, dict) and images.keys() == {"size", "backbone_digest"}),
        "n_novel": n_novel is None or _is_count(n_novel),
        "path": isinstance(config["path"], str | None),
        "data": isinstance(config.get("data", {}), dict),
    }
    if is_right["classes"] and classes and type(classes[0]) is int:
        is_right["classes"] = all(map(_is_count, classes))
    if is_right["images"] and images is not None:
        is_right["images"] = _is_count(images["size"]) and images["size"] > 0 and type(images["backbone_digest"]) is str
    wrong = [key for key, value in is_right.items() if not value]
    if wrong:
        raise ValueError(f"{path} is damaged: {wrong[0]} is {config[wrong[0]]!r}; fit again")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63
