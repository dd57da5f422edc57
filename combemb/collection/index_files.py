"""The two files of an indexed run folder, codes and entries: written together, read only if they belong together."""

import hashlib
import json
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
from safetensors import safe_open

from combemb.data.entries import ENTRY_SCHEMA
from combemb.learning.run_folder import ENTRIES, INDEX, WEIGHTS
from combemb.search.codebook import Codebook
from combemb.search.index import CodeIndex
from combemb.system.files import write_atomically, written_together
from combemb.system.tables import read_about, read_table, write_table

ENTRIES_FORMAT = 1


def has_index(run: str | Path) -> bool:
    """Return whether a run folder has an index, complete or not."""
    return (Path(run) / INDEX).exists() or (Path(run) / ENTRIES).exists()


def has_current_index(run: str | Path) -> bool:
    """Return whether a run folder has an index that was made after its last fit."""
    folder = Path(run)
    try:
        model = read_about(folder / ENTRIES).get("model")
        return (folder / INDEX).exists() and bool(model == digest_of_weights(folder))
    except (OSError, ValueError):  # missing or damaged
        return False


def index_command(run: str | Path) -> str:
    """Return the command that indexes a run, for messages."""
    return f"combemb index {shlex.quote(str(run))}"


def digest_of_weights(folder: Path) -> str:
    """Return a digest that changes with every fit, as the codebook may not: all binary ones are equal."""
    with (folder / WEIGHTS).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def written_at(folder: Path) -> tuple[int, int] | None:
    """Return what changes whenever the index of a run folder is written; None if there is none."""
    path = folder / ENTRIES
    return (path.stat().st_ino, path.stat().st_mtime_ns) if path.exists() else None


def write_index_files(folder: Path, index: CodeIndex, entries: pa.Table, weights: str) -> None:
    """Write codes and entries, both or none of them. weights: digest of the model's."""
    about = {"format": ENTRIES_FORMAT, "model": weights}

    def write_codes(temporary: Path) -> None:
        index.save(temporary)
        about["index"] = _digest_of_index(temporary)

    with written_together(folder):
        write_atomically(folder / INDEX, write_codes)
        write_table(folder / ENTRIES, entries, about)


def read_index_files(folder: Path, codebook: Codebook, weights: str) -> tuple[CodeIndex, pa.Table]:
    """Return codes and entries; raise a ValueError if they are missing, damaged or of another model."""
    entries, about = _read_entries(folder)
    if about.get("model") != weights:
        raise ValueError(f"the index in {folder} was made before the model was fitted again; {_again(folder)}")
    try:
        index = CodeIndex.load(folder / INDEX, codebook=codebook)
    except ValueError as error:
        raise ValueError(f"{error}: {index_command(folder)} --overwrite") from error
    is_other = about.get("index") != _digest_of_index(folder / INDEX)
    if is_other or len(entries) != len(index):
        raise ValueError(f"{INDEX} and {ENTRIES} in {folder} do not belong together; {_again(folder)}")
    return index, entries


def _read_entries(folder: Path) -> tuple[pa.Table, dict[str, Any]]:
    path = folder / ENTRIES
    try:
        table, about = read_table(path)
        if about.get("format") != ENTRIES_FORMAT:
            raise ValueError(
                f"cannot read {path}: it has format {about.get('format')}, this combemb reads {ENTRIES_FORMAT}"
            )
        return table.cast(ENTRY_SCHEMA), about
    except ValueError as error:
        raise ValueError(f"{error}; {_again(folder)}") from error


def _digest_of_index(path: Path) -> str:
    """Return a digest of the header of the file alone, which has a checksum of every array."""
    with safe_open(path, "np") as file:
        return hashlib.sha256(json.dumps(file.metadata(), sort_keys=True).encode()).hexdigest()


def _again(run: str | Path) -> str:
    return f"index again: {index_command(run)} --overwrite"
