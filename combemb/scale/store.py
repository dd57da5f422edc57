"""A folder at a path or a URL of fsspec, such as `s3://bucket/codes`, in which a file is there whole or not at all."""

import json
import os
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec

from combemb.backbones.feature_cache import cache_root
from combemb.system.errors import require
from combemb.system.files import is_sealed, sealed, unsealed, write_atomically

READ_AT_ONCE = 16 * 2**20  # bytes
FETCHED = "shards"  # folder of the cache with copies of files that are to be memory-mapped


@dataclass(frozen=True)
class Written:
    """A file of a store: its name, its size in bytes and its CRC-32."""

    name: str
    n_bytes: int
    crc32: int


def opened(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it; raise a ValueError that says what is missing."""
    try:
        system, path = fsspec.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ValueError(f"cannot open {url}: {error}; give a path, or a URL that fsspec knows") from error
    return system, str(path)


def absolute(url: str) -> str:
    """Return a URL as it is, and a path as one that means the same in every working directory."""
    return url if "://" in url or "::" in url else os.path.abspath(url)  # noqa: PTH100 - links stay, as in ids


def is_local(system: Any) -> bool:
    """Return whether a file system is that of this machine, or a shared one that is mounted like a disk."""
    protocol = system.protocol
    return "file" in ((protocol,) if isinstance(protocol, str) else protocol)


class Store:
    """A folder that workers on several machines write into.

    Local files are written under another name, synchronised and renamed; other file systems of fsspec put an object
    whole. Whatever else happens on the way is found by the checksum that the caller keeps.

    Parameters
    ----------
    url : str
        A path, or a URL that fsspec knows. It need not exist yet.
    """

    def __init__(self, url: str):
        self.url = absolute(url)
        self.fs, self.root = opened(self.url)
        self.is_local = is_local(self.fs)

    def __reduce__(self) -> tuple[type["Store"], tuple[str]]:
        return Store, (self.url,)

    def path(self, name: str) -> str:
        """Return the path of a file in its file system."""
        return f"{self.root.rstrip('/')}/{name}"

    def write(self, name: str, data: bytes) -> Written:
        """Write a file, whole or not at all."""
        path = self.path(name)
        self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        if self.is_local:
            write_atomically(Path(path), lambda temporary: temporary.write_bytes(data), len(data))
        else:
            self.fs.pipe_file(path, data)
        return Written(name, len(data), zlib.crc32(data))

    def upload(self, name: str, file: Path) -> Written:
        """Copy a file of this machine into the folder, whole or not at all."""
        path, n_bytes = self.path(name), file.stat().st_size
        self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        if self.is_local:
            write_atomically(Path(path), lambda temporary: shutil.copyfile(file, temporary), n_bytes)
        else:
            self.fs.put_file(str(file), path)
        return Written(name, n_bytes, crc_of(file))

    def write_json(self, name: str, value: dict[str, Any]) -> None:
        """Write an object as JSON with its own checksum."""
        self.write(name, (json.dumps(sealed(value), indent=1, sort_keys=True) + "\n").encode())

    def read(self, written: Written) -> bytes:
        """Return the content of a file, once its size and its checksum are verified."""
        data: bytes = self.fs.cat_file(self.path(written.name))
        is_whole = len(data) == written.n_bytes and zlib.crc32(data) == written.crc32
        require(is_whole, f"{self.url}/{written.name} is damaged: its checksum is wrong; remove it and run again")
        return data

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Return what `write_json` wrote, None if there is no such file; raise a ValueError if it is damaged."""
        try:
            text = self.fs.cat_file(self.path(name))
        except FileNotFoundError:
            return None
        return self._unsealed(name, text)

    def read_all_json(self, folder: str) -> dict[str, dict[str, Any]]:
        """Return all objects that were written into a folder, by the names of their files."""
        names = [name for name in self.sizes(folder) if name.endswith(".json")]
        texts = self.fs.cat([self.path(f"{folder}/{name}") for name in names]) if names else {}
        texts = texts if isinstance(texts, dict) else {self.path(f"{folder}/{names[0]}"): texts}
        return {path.rpartition("/")[2]: self._unsealed(path, text) for path, text in texts.items()}

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the files of a folder with their sizes; those that are just being written are hidden."""
        self.fs.invalidate_cache()
        try:
            found = self.fs.ls(self.path(folder), detail=True)
        except FileNotFoundError:
            return {}
        named = [(str(about["name"]).rpartition("/")[2], about["size"]) for about in found]
        return {name: size for name, size in sorted(named) if not name.startswith(".")}

    def local(self, written: Written) -> Path:
        """Return a path by which a file can be memory-mapped: of itself, or of a copy in the cache of this machine."""
        if self.is_local:
            return Path(self.path(written.name))
        plain = written.name.replace("/", "-")
        copy = cache_root(None) / FETCHED / f"{written.crc32:08x}-{written.n_bytes}-{plain}"
        if not copy.exists() or copy.stat().st_size != written.n_bytes:
            copy.parent.mkdir(parents=True, exist_ok=True)
            source = self.path(written.name)
            write_atomically(copy, lambda temporary: self.fs.get_file(source, str(temporary)), written.n_bytes)
        return copy

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        if self.fs.exists(self.root):
            self.fs.rm(self.root, recursive=True)

    def _unsealed(self, name: str, text: bytes) -> dict[str, Any]:
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        require(is_sealed(value), f"{self.url}: {name} is damaged, its checksum is wrong; remove it and run again")
        return unsealed(value)


def crc_of(file: Path) -> int:
    """Return the CRC-32 of a file, read a piece at a time."""
    crc = 0
    with file.open("rb") as opened_file:
        while piece := opened_file.read(READ_AT_ONCE):
            crc = zlib.crc32(piece, crc)
    return crc
