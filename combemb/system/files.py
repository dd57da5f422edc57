"""Atomic writing of files, errors of full or read-only disks, and checksums that reading verifies."""

import errno
import json
import os
import re
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from combemb.system.errors import require

FULL = {errno.ENOSPC, errno.EDQUOT}
FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
CHECKSUM = "crc32"  # its key in JSON
METADATA_KEY = "combemb"  # of JSON in safetensors
JOURNAL = ".replacing.json"  # in a folder some of whose files are just being replaced together

_pending: ContextVar[list[tuple[Path, Path]] | None] = ContextVar("_pending", default=None)  # of `written_together`


def write_atomically(path: Path, write: Callable[[Path], object], n_bytes: int | None = None) -> None:
    """Let `write` fill a temporary file in the same folder, then rename it to `path`; its mode follows the umask.

    If the size of the file is given as `n_bytes`, an error about a full disk says it.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    pending = _pending.get()
    token = _pending.set(None)  # a file that `write` itself writes atomically appears at once
    try:
        with writing(path, n_bytes):
            temporary.touch(exist_ok=False)
            mode = temporary.stat().st_mode
            write(temporary)
            temporary.chmod(mode)  # safetensors replaces the file by one that only its owner can read
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            if pending is None:
                temporary.replace(path)
            else:
                pending.append((temporary, path))
    finally:
        _pending.reset(token)
        if (temporary, path) not in (pending or []):
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


@contextmanager
def written_together(folder: Path | None = None, removed: Iterable[str] = ()) -> Iterator[None]:
    """Let the files that are written in this block appear at its end, or, if it fails, none of them.

    If all of them are in one `folder`, this also holds for a process that is killed, once `finish_replacing` was called
    for the folder. `removed` are names of files in it that disappear at the same time.
    """
    files: list[tuple[Path, Path]] = []
    token = _pending.set(files)
    try:
        try:
            yield
        finally:
            _pending.reset(token)
        for _, path in files:  # what cannot be done must be known before the first is replaced
            if path.is_dir():
                raise IsADirectoryError(f"cannot write {path}: it is a directory; remove it, or use another name")
        if folder is None:
            for temporary, path in files:
                temporary.replace(path)
        elif files:
            moved = {str(old.relative_to(folder)): str(new.relative_to(folder)) for old, new in files}
            replace_together(folder, moved, removed)
    finally:
        if folder is None or not (folder / JOURNAL).exists():
            for temporary, _ in files:
                with suppress(OSError):
                    temporary.unlink(missing_ok=True)


def replace_together(folder: Path, moved: dict[str, str], removed: Iterable[str] = (), emptied: str = "") -> None:
    """Rename and remove files of a folder, all of them or none, whenever the process is killed.

    What is to be done is written down first; from then on it is done, here or by `finish_replacing`.

    Parameters
    ----------
    folder : Path
    moved : dict
        Old name -> new name, both relative to the folder. A file with the new name is replaced.
    removed : iterable of str
        Names of files to remove; none of them is a new name.
    emptied : str
        Name of a folder inside to remove with all that is left in it.
    """
    write_json(folder / JOURNAL, sealed({"moved": moved, "removed": list(removed), "emptied": emptied}))
    sync_folder(folder)
    finish_replacing(folder)


def finish_replacing(folder: Path) -> None:
    """Do the rest of a `replace_together` that was killed, if there is any; doing a part of it twice does no harm."""
    journal = folder / JOURNAL
    if not journal.exists():
        return
    with writing(journal):
        planned = _planned(journal)
        for name in planned["removed"]:
            (folder / name).unlink(missing_ok=True)
        for old, new in planned["moved"].items():
            with suppress(FileNotFoundError):  # it was moved before the process was killed
                (folder / old).replace(folder / new)
        if planned["emptied"]:
            shutil.rmtree(folder / planned["emptied"], ignore_errors=True)
        sync_folder(folder)
        journal.unlink(missing_ok=True)


def _planned(journal: Path) -> dict[str, Any]:
    """Return what a journal says; nothing outside its folder is ever touched, whoever wrote it."""
    try:
        planned = json.loads(journal.read_text())
    except ValueError:
        planned = None
    require(is_sealed(planned), f"{journal} is damaged: its checksum is wrong; remove it, and make the results again")
    names = [*planned["moved"], *planned["moved"].values(), *planned["removed"], planned["emptied"]]
    is_inside = not any(Path(name).is_absolute() or ".." in Path(name).parts for name in names)
    require(is_inside, f"{journal} names files outside its folder; remove it, and make the results again")
    return unsealed(planned)


def sync_folder(folder: Path) -> None:
    """Wait until the names of the files in a folder are on the disk, where the system can do that."""
    if hasattr(os, "O_DIRECTORY"):
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


@contextmanager
def writing(path: Path, n_bytes: int | None = None) -> Iterator[None]:
    """Turn errors of a disk into an OSError that names the file and says what to do."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        code = getattr(error, "errno", None) or _os_error(str(error))
        if code in FULL:
            needs = "" if n_bytes is None else f", the file takes {n_bytes / 1e6:,.2f} MB"
            found = f"the disk is full{needs}"
            what_to_do = "free some space and try again, or use a folder on another disk"
        elif code in FORBIDDEN:
            found = os.strerror(code)
            what_to_do = f"make {path.parent} writable, or use another folder"
        else:
            raise
        raise OSError(f"cannot write {path}: {found}; {what_to_do}") from error


def _os_error(text: str) -> int:
    """Return the number of an error of the system in a text of safetensors, or 0."""
    found = re.search(r"os error (\d+)", text)
    return int(found[1]) if found else 0


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text))


def sealed(value: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON object with its own checksum as another key."""
    return {**value, CHECKSUM: zlib.crc32(json.dumps(json.loads(json.dumps(value)), sort_keys=True).encode())}


def is_sealed(value: Any) -> bool:
    """Return whether JSON is an object that has not changed since `sealed` returned it."""
    return isinstance(value, dict) and value == sealed(unsealed(value))


def unsealed(value: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON object without its checksum."""
    return {key: part for key, part in value.items() if key != CHECKSUM}


def write_tensors(path: Path, tensors: dict[str, Tensor], about: dict[str, str] | None = None) -> None:
    """Write tensors as safetensors with a checksum, atomically."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    sealed_about = {**(about or {}), CHECKSUM: _checksum(tensors, about or {})}
    metadata = {METADATA_KEY: json.dumps(sealed_about)}  # one key: safetensors writes several in random order
    n_bytes = sum(tensor.nbytes for tensor in tensors.values())
    write_atomically(path, lambda temporary: save_file(tensors, temporary, metadata), n_bytes)


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return what `write_tensors` wrote, tensors and `about`; raise a ValueError if the file is missing or damaged."""
    try:
        with safe_open(path, "pt") as file:
            about = dict(json.loads((file.metadata() or {}).get(METADATA_KEY, "{}")))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a dictionary
    except Exception as error:  # safetensors raises its own type for damaged files
        raise ValueError(f"cannot read {path}: {error}; the file is missing or damaged") from error
    if about.pop(CHECKSUM, None) != _checksum(tensors, about):
        raise ValueError(f"cannot read {path}: its checksum is wrong, the file is damaged")
    return tensors, about


def read_about(path: str | Path) -> dict[str, str]:
    """Return the `about` of `write_tensors` without reading the tensors, so not verified; nothing if there is none."""
    try:
        with safe_open(path, "pt") as file:
            return dict(json.loads((file.metadata() or {}).get(METADATA_KEY, "{}")))
    except Exception:  # safetensors raises its own type for damaged files
        return {}


def _checksum(tensors: dict[str, Tensor], about: dict[str, str]) -> str:
    """Return the CRC-32 of `about` and of names, types, shapes and bytes of tensors on the CPU."""
    crc = zlib.crc32(json.dumps(about, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        crc = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), crc)
        flat = tensor.reshape(-1).as_strided(
            (tensor.numel(),), (1,)
        )  # torch leaves other strides if there is one element
        crc = zlib.crc32(flat.view(torch.uint8).numpy().data, crc)
    return str(crc)
