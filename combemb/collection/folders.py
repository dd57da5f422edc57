"""Images sorted into folders, one for each discovered class."""

import os
import re
import shutil
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from combemb.data.given import Given
from combemb.system.progress import Display

UNSAFE_CHARACTERS = re.compile(r'[\x00-\x1f/\\:*?"<>|]')  # not allowed in file names on some system
RESERVED_NAME = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)  # device names on Windows
MAX_FILE_NAME_BYTES = 255
MAX_FOLDER_NAME_BYTES = 120  # accepted by every file system


def check_folders(folder: Path, given: Given) -> None:
    """Raise a ValueError if the items cannot be sorted into folders there."""
    if given.images is None or given.images.files is None:
        raise ValueError("only image files can be sorted into folders, but these items are not image files")
    if given.path is not None and given.path.is_dir() and folder.resolve().is_relative_to(given.path.resolve()):
        raise ValueError(f"{folder} is inside {given.path}, among the images; choose another folder to sort them into")
    check_empty(folder)


def check_empty(folder: Path) -> None:
    """Raise a ValueError unless the folder is empty or does not exist."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} exists and is not an empty folder; choose another folder to sort images into")


def write_folders(
    folder: Path, files: list[Path], classes: Sequence[Any], *, copy: bool, progress: bool | None
) -> None:
    """Make a folder for each class, with links to its images or copies of them.

    Links are relative; a file system without links gets copies. A number is appended to equal names.

    Parameters
    ----------
    folder : Path
        An empty folder, or one that does not exist.
    files : list of Path
        The images.
    classes : sequence
        Name of the class of each image.
    copy : bool
        Copy the images instead of linking to them.
    progress : bool, optional
        None shows it on a terminal only.
    """
    check_empty(folder)
    with Display("copying" if copy else "linking", len(files), "images", progress) as display:
        for file, (of_class, name) in zip(files, places_in_folders(files, classes), strict=True):
            (folder / of_class).mkdir(parents=True, exist_ok=True)
            _place(file, folder / of_class / name, copy)
            display.advance(1)


def places_in_folders(files: list[Path], classes: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Yield the name of a folder and of a file in it for each image; a number is appended to equal names.

    files, classes are those of `write_folders`.
    """
    folders, free = _FreeNames(), defaultdict[str, _FreeNames](_FreeNames)
    names = {name: folders.take(_safe(str(name))) for name in sorted(set(classes), key=str)}
    for file, name in zip(files, classes, strict=True):
        yield names[name], free[names[name]].take(file.stem, file.suffix)


def _place(image: Path, target: Path, copy: bool) -> None:
    if not copy:
        try:
            target.symlink_to(os.path.relpath(image.resolve(), target.parent.resolve()))
            return
        except FileExistsError:
            raise  # a copy would follow the existing link and overwrite another image
        except (OSError, ValueError, NotImplementedError):  # no support for links, or another drive
            pass
    shutil.copy2(image, target)


class _FreeNames:
    """Unique names: a number is appended to a name that is taken. Some file systems ignore case."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}  # taken names, with the last number appended to each

    def take(self, stem: str, suffix: str = "") -> str:
        name = f"{stem}{suffix}"
        key = _key(name)
        while _key(name) in self.numbers:
            self.numbers[key] += 1
            ending = f"-{self.numbers[key]}{suffix}"
            name = os.fsdecode(os.fsencode(stem)[: MAX_FILE_NAME_BYTES - len(os.fsencode(ending))]) + ending
        self.numbers[_key(name)] = 1
        return name


def _key(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _safe(name: str) -> str:
    """Return a name that every file system accepts.

    >>> [_safe(name) for name in ("a/b", "A:B", "..", "con")]
    ['a_b', 'A_B', '_', '_con']
    """
    short = UNSAFE_CHARACTERS.sub("_", name).encode()[:MAX_FOLDER_NAME_BYTES].decode(errors="ignore")
    safe = short.strip(". ") or "_"
    return f"_{safe}" if RESERVED_NAME.fullmatch(safe) else safe
