"""Atomic writing of files."""

import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor


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


def write_tensors(path: Path, tensors: dict[str, Tensor], about: dict[str, str] | None = None) -> None:
    """Write tensors as safetensors, atomically."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, lambda temporary: save_file(tensors, temporary, about))
