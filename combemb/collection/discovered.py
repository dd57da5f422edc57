"""How `combemb discover` looks at the items of a run, and what it writes and says of them."""

import os
import re
import shutil
import unicodedata
import warnings
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from combemb import methods
from combemb.collection.indexed import listed, source_of
from combemb.data.images import Images
from combemb.data.labels import read_labels
from combemb.discovery.class_number import check_count_by
from combemb.discovery.result import Discovery
from combemb.learning.image_input import Given
from combemb.learning.run_folder import TABLE, TEXT, Run
from combemb.system.errors import Note
from combemb.system.files import write_atomically
from combemb.system.progress import Display

OTHER_LABELS = (
    "the run was fitted with other labels than those that lie beside its data now; if that is not meant, give --labels"
)
UNSAFE = re.compile(r'[\x00-\x1f/\\:*?"<>|]')  # in the name of a folder, on one system or another
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)  # names of devices, on Windows
MOST_BYTES_OF_A_NAME = 255
MOST_BYTES = 120  # of a folder's name; every file system takes that


class OtherLabels(Note):
    """Labels that are not those of the fit."""


@dataclass(frozen=True, eq=False)
class Discovered:
    """What was found in the items of a run, with their entries (id, path, label) and embeddings z (N, D).

    files: of the items, if they are images that have one each.
    """

    run: Path
    found: Discovery
    entries: pa.Table
    files: list[Path] | None
    z: np.ndarray
    broken: dict[str, str]


def discover_in(
    run: Path,
    source: Path | None,
    *,
    labels: Any = None,
    n_novel: int | None = None,
    count_by: str = "sizes",
    to_folders: Path | None = None,
    progress: bool | None = None,
) -> Discovered:
    """Discover classes in a source, or in what the run was fitted on; what was found goes into the run folder.

    to_folders: where `write_folders` is to place the images, if it is; what it would refuse is so before the long part.
    """
    model = methods.load(run)
    place = source or source_of(model, run)
    items, entries = listed(place, labels, train_only=source is None)
    files = list(items.files) if isinstance(items, Images) and items.files is not None else None
    if to_folders:
        check_folders(to_folders, place, files)
    is_text = _are_texts(items.labels if labels is None else labels)
    check_count_by(count_by, model.codebook if model.task != "discovery" else None)
    given: Given = model.read(items, progress=progress) if isinstance(items, Images) else items
    if given.rows is not None:
        entries = entries.take(given.rows)
        files = None if files is None else [files[row] for row in given.rows.tolist()]
    known = _labels(entries, is_text)
    if source is None and labels is None and not model.was_fitted_with(known, run):
        warnings.warn(OTHER_LABELS, OtherLabels, stacklevel=2)
    z = model.embed(given, progress=progress)
    found = model.discover(given, known, n_novel, count_by=count_by, z=z, progress=progress)
    found.save(Run(run).discovery)
    return Discovered(run, found, entries, files, z.numpy(), given.broken)


def _are_texts(labels: Any) -> bool:
    """Whether the classes are strings, not ints; ValueError if an item may have several."""
    if labels is None:
        return False
    read = read_labels(labels, len(labels))
    if read.is_multi:
        raise ValueError("discovery takes one label per item, but these may have several; give --labels with one each")
    return bool(read.classes.dtype == object)


def _labels(entries: pa.Table, is_text: bool) -> np.ndarray:
    """The labels of entries as they were given, strings or ints."""
    texts = entries["label"].to_pylist()
    if is_text:
        return np.array([*texts, None], dtype=object)[:-1]
    return np.array([-1 if text is None else int(text) for text in texts])


def write_tables(result: Discovered) -> None:
    """Write path (or id), cluster, is_novel and confidence of every item as Parquet and as CSV."""
    found, entries = result.found, result.entries
    table = pa.table(
        {
            "path": entries["id"],
            "cluster": pa.array([str(name) for name in found.clusters], pa.string()),
            "is_novel": found.is_novel,
            "confidence": found.confidence,
        }
    )
    write_atomically(result.run / TABLE, lambda path: pq.write_table(table, path, compression="zstd"))
    write_atomically(result.run / TEXT, lambda path: csv.write_csv(table, path))


def check_folders(folder: Path, source: Path, files: list[Path] | None) -> None:
    """ValueError if the items of a source, their files, cannot be placed in a folder for each cluster there."""
    if files is None:
        raise ValueError("--to-folders links files of images, but these items are not such files")
    if source.is_dir() and folder.resolve().is_relative_to(source.resolve()):
        raise ValueError(f"{folder} lies among the images in {source}; choose another place for --to-folders")
    check_empty(folder)


def check_empty(folder: Path) -> None:
    """ValueError if there is something at this place."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} exists and is not an empty folder; choose another place for --to-folders")


def write_folders(result: Discovered, folder: Path, *, copy: bool, progress: bool | None) -> int:
    """One folder per cluster with links to its images, or copies of them; how many images were placed.

    Links are relative, and copies where the file system has no links. Equal names get a number.
    """
    check_empty(folder)
    assert result.files is not None
    names = _folder_names([str(name) for name in result.found.names])
    free: dict[str, _FreeNames] = defaultdict(_FreeNames)
    with Display("linking" if not copy else "copying", len(result.files), "images", progress) as display:
        for file, cluster in zip(result.files, result.found.assignment.tolist(), strict=True):
            place = folder / names[cluster]
            place.mkdir(parents=True, exist_ok=True)
            _place(file, place / free[names[cluster]].take(file.stem, file.suffix), copy)
            display.advance(1)
    return len(result.files)


def _place(source: Path, target: Path, copy: bool) -> None:
    if not copy:
        try:
            target.symlink_to(os.path.relpath(source.resolve(), target.parent.resolve()))
            return
        except FileExistsError:
            raise  # a copy would be written through the link that is there, over another image
        except (OSError, ValueError, NotImplementedError):  # no links here, or another drive
            pass
    shutil.copy2(source, target)


class _FreeNames:
    """Gives out every name once: where it is taken, with a number. Case does not tell two apart everywhere."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}  # taken names, and the last number that was behind each

    def take(self, stem: str, suffix: str = "") -> str:
        name = f"{stem}{suffix}"
        key = _key(name)
        while _key(name) in self.numbers:
            self.numbers[key] += 1
            ending = f"-{self.numbers[key]}{suffix}"
            name = os.fsdecode(os.fsencode(stem)[: MOST_BYTES_OF_A_NAME - len(os.fsencode(ending))]) + ending
        self.numbers[_key(name)] = 1
        return name


def _key(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _folder_names(names: list[str]) -> list[str]:
    """Names that every file system takes, all different.

    >>> _folder_names(["a/b", "A:B", "..", "con"])
    ['a_b', 'A_B-2', '_', '_con']
    """
    free = _FreeNames()
    return [free.take(_safe(name)) for name in names]


def _safe(name: str) -> str:
    short = UNSAFE.sub("_", name).encode()[:MOST_BYTES].decode(errors="ignore")
    safe = short.strip(". ") or "_"
    return f"_{safe}" if RESERVED.fullmatch(safe) else safe
