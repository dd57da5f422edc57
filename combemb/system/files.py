"""Atomic writing of files, and checksums that reading verifies."""

import json
import os
import secrets
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

CHECKSUM = "crc32"  # its key in JSON and in the metadata of safetensors


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file in the same folder, then rename it to `path`; its mode follows the umask."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    temporary.touch(exist_ok=False)
    mode = temporary.stat().st_mode
    try:
        write(temporary)
        temporary.chmod(mode)  # safetensors replaces the file by one that only its owner can read
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


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
    metadata = {**(about or {}), CHECKSUM: _checksum(tensors, about or {})}
    write_atomically(path, lambda temporary: save_file(tensors, temporary, metadata))


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return what `write_tensors` wrote, tensors and `about`; raise a ValueError if the file is missing or damaged."""
    try:
        with safe_open(path, "pt") as file:
            about = dict(file.metadata() or {})
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
        crc = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, crc)
    return str(crc)
