"""The file of an index: one safetensors file with a checksum for every array, read as a memory map."""

import json
import os
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from safetensors.numpy import save_file

from combemb.search.codebook import Codebook, ProductCodebook, same_codebook, same_state
from combemb.search.groups import Groups
from combemb.search.ids import Ids
from combemb.search.parts import Part, empty_scan
from combemb.system.arrays import to_numpy
from combemb.system.errors import require
from combemb.system.files import is_sealed, sealed, unsealed, write_atomically

PRODUCT_FORMAT = 1  # holds the words of a product codebook
STATE_FORMAT = 2  # holds the state of any other codebook, to compare it with
ABOUT = "combemb_index"  # key of the description in the head
STATE = "codebook."  # begins the names of its arrays
GROUPS = ("firsts", "owners", "starts", "repeats")
READ_AT_ONCE = 16 * 2**20  # bytes


def write_index(path: Path, codebook: Codebook, part: Part | None, ids: Ids) -> None:
    """Write an index of at most one part, atomically."""
    if isinstance(codebook, ProductCodebook):
        about: dict[str, Any] = {"format": PRODUCT_FORMAT, "metric": codebook.metric}
        arrays = {"words": codebook.words.numpy()}
    else:
        about = {"format": STATE_FORMAT, "codebook": repr(codebook)}
        arrays = {STATE + name: to_numpy(tensor) for name, tensor in codebook.state().items()}
    arrays |= _id_arrays(ids)
    if part is not None:
        arrays |= {"codes": part.scan.stored, **part.groups.arrays()}
    arrays = {name: np.require(array, requirements="C") for name, array in arrays.items()}
    about |= {
        "sizes": codebook.sizes,
        "n_entries": len(ids),
        "n_codes": 0 if part is None else part.groups.n_groups,
        "crc32": {name: zlib.crc32(array.data) for name, array in arrays.items()},
        "shapes": {name: [array.dtype.str, *array.shape] for name, array in arrays.items()},
    }
    metadata = {ABOUT: json.dumps(sealed({"index": about}))}  # one key: safetensors writes several in random order
    n_bytes = sum(array.nbytes for array in arrays.values())
    write_atomically(path, lambda temporary: save_file(arrays, temporary, metadata), n_bytes)


def read_index(path: Path, codebook: Codebook | None, n_threads: int) -> tuple[Codebook, Part | None, Ids]:
    """Read a file of `write_index`; raise a ValueError if it is damaged, no index, or of another codebook."""
    try:
        about, arrays = _arrays(path)
    except FileNotFoundError:
        raise ValueError(f"cannot read {path}: there is no such file") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"cannot read {path}: {error}; it is damaged or no index, make it again") from error
    codebook = _codebook(path, about, arrays, codebook)
    if about["n_entries"] == 0:
        return codebook, None, Ids(np.empty(0, np.int64))
    scan = empty_scan(codebook, n_threads).of_stored(arrays["codes"], about["n_codes"])
    groups = Groups(about["n_entries"], *(arrays[name] for name in GROUPS))
    return codebook, Part(scan, groups), _ids(arrays)


def _codebook(path: Path, about: dict[str, Any], arrays: dict[str, np.ndarray], given: Codebook | None) -> Codebook:
    """Return the codebook of a file: the one given, once it is known to be the same, or that of the stored words."""
    if about["format"] == PRODUCT_FORMAT:
        words = [words[:size] for words, size in zip(arrays["words"], about["sizes"], strict=True)]
        found: Codebook = ProductCodebook(words, about["metric"])
        is_same, name = given is None or same_codebook(given, found), repr(found)
    else:
        name = about["codebook"]
        if given is None:
            raise ValueError(f"{path} has codes of {name}, which is not stored with them; give it as codebook=")
        state = {key.removeprefix(STATE): array for key, array in arrays.items() if key.startswith(STATE)}
        found, is_same = given, same_state(state, given.state()) and about["sizes"] == list(given.sizes)
    require(is_same, f"{path} was made with another codebook: {name}, not {given}; index again")
    return found


def _arrays(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the description in a file, and its arrays as memory maps, once their checksums are verified."""
    with path.open("rb") as file:
        n_bytes = os.fstat(file.fileno()).st_size
        n_header = int.from_bytes(file.read(8), "little")
        require(8 + n_header <= n_bytes, "it is cut short")
        header = json.loads(file.read(n_header))
        about = _about(header["__metadata__"])
        if about["format"] not in (PRODUCT_FORMAT, STATE_FORMAT):
            raise ValueError(f"it has format {about['format']}, this combemb reads {PRODUCT_FORMAT} and {STATE_FORMAT}")
        arrays = {}
        for name, (dtype, *shape) in about["shapes"].items():
            start, end = (8 + n_header + offset for offset in header[name]["data_offsets"])
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            require(end - start == size and end <= n_bytes, f"its array {name} is cut short")
            is_whole = _crc32(file, start, size) == about["crc32"][name]
            require(is_whole, f"the checksum of its array {name} is wrong")
            # A map of the open file, not of its path, which may be another file by now; there are no empty maps.
            mapped = np.memmap(file, dtype, "r", start, tuple(shape)) if size else np.empty(shape, dtype)
            arrays[name] = np.asarray(mapped)
    return about, arrays


def _about(metadata: dict[str, str]) -> dict[str, Any]:
    """Return the description in a head, once its checksum is verified."""
    found: dict[str, Any] = json.loads(metadata[ABOUT])
    is_old = "crc32" in metadata  # the checksum was beside the description, not with it
    crc = str(zlib.crc32(metadata[ABOUT].encode()))
    require(metadata["crc32"] == crc if is_old else is_sealed(found), "the checksum of its head is wrong")
    return found if is_old else dict(unsealed(found)["index"])


def _crc32(file: BinaryIO, start: int, size: int) -> int:
    """Return the checksum of a part of the file, read and not mapped, so that it does not stay in memory."""
    file.seek(start)
    crc = 0
    for done in range(0, size, READ_AT_ONCE):
        crc = zlib.crc32(file.read(min(READ_AT_ONCE, size - done)), crc)
    return crc


def _id_arrays(ids: Ids) -> dict[str, np.ndarray]:
    if isinstance(ids.values, np.ndarray):
        return {"ids": ids.values}
    strings = pa.concat_arrays([ids.values])  # offsets from 0
    if strings.offset != 0 or len(strings) == 0:
        strings = pa.array(strings.to_pylist(), pa.large_string())
    _, offsets, text = strings.buffers()
    return {
        "id_offsets": np.frombuffer(offsets, np.int64)[: len(strings) + 1],
        "id_text": np.frombuffer(text, np.uint8) if text is not None else np.empty(0, np.uint8),
    }


def _ids(arrays: dict[str, np.ndarray]) -> Ids:
    if "ids" in arrays:
        return Ids(arrays["ids"])
    offsets, text = arrays["id_offsets"], arrays["id_text"]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    return Ids(pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, buffers))
