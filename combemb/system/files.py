"""Atomic writing of files, errors of full or read-only disks, and checksums that reading verifies."""

import errno
import json
import os
import re
import secrets
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

FULL = {errno.ENOSPC, errno.EDQUOT}
FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
CHECKSUM = "crc32"  # its key in JSON
METADATA_KEY = "combemb"  # of JSON in safetensors


_pending: ContextVar[list[tuple[Path, Path]] | None] = ContextVar("_pending", default=None)  # of `written_together`


def write_atomically(path: Path, write: Callable[[Path], object], n_bytes: int | None = None) -> None:
    """Let `write` fill a temporary file in the same folder, then rename it to `path`; its mode follows the umask.

    If the size of the file is given as `n_bytes`, an error about a full disk says it.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    pending = _pending.get()
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
        if (temporary, path) not in (pending or []):
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


@contextmanager
def written_together() -> Iterator[None]:
    """Let the files that are written in this block appear at its end, or, if it fails, none of them."""
    files: list[tuple[Path, Path]] = []
    token = _pending.set(files)
    try:
        yield
        for temporary, path in files:
            temporary.replace(path)
    finally:
        _pending.reset(token)
        for temporary, _ in files:
            temporary.unlink(missing_ok=True)


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
