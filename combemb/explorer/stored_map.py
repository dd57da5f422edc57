"""The map of all discovered items, computed once and stored in the run folder with their embeddings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from safetensors import safe_open

from combemb.collection.class_log import WAIT_SECONDS
from combemb.learning.run_folder import DISCOVERY, PLACES, RunFolder
from combemb.system.files import CHECKSUM, read_about, read_tensors, write_tensors


@dataclass(frozen=True, eq=False)
class StoredMap:
    """places (N, 2) of all items, scaled to -1 to 1; their embeddings stay in the file, where `embedding` reads one."""

    path: Path
    places: np.ndarray
    z: Any  # a slice of safetensors, which has no type

    @classmethod
    def open(cls, run: Path) -> Self | None:
        """Return the map of the discovery in a run folder; None if there is none, or only one of another discovery."""
        path = run / PLACES
        if not path.exists() or read_about(path).get(DISCOVERY) != identity(run):
            return None
        try:
            places = read_tensors(path)[0]["places"].numpy()  # verifies the checksum, also of z
            return cls(path, places, safe_open(path, "np").get_slice("z"))  # type: ignore[no-untyped-call]
        except (ValueError, KeyError):  # damaged: it is made again
            return None

    def embedding(self, row: int) -> np.ndarray:
        """Return the embedding of an item, (D,) float32."""
        return np.asarray(self.z[row])


def store_map(run: Path, places: np.ndarray, z: np.ndarray, discovery: str | None = None) -> None:
    """Store places and embeddings of all discovered items.

    Parameters
    ----------
    run : Path
        The run folder.
    places, z : float32 arrays of shape (N, 2) and (N, D)
        NaN for items that cannot be read.
    discovery : str, optional
        What identifies the discovery; by default the one that is there now.
    """
    low, high = np.nanmin(places, axis=0), np.nanmax(places, axis=0)
    scaled = (places - (low + high) / 2) / max(float((high - low).max()) / 2, 1e-12)
    tensors = {"places": torch.from_numpy(scaled.astype(np.float32)), "z": torch.from_numpy(z)}
    with RunFolder(run).written(WAIT_SECONDS):
        about = identity(run) if discovery is None else discovery
        write_tensors(run / PLACES, tensors, {DISCOVERY: about})


def identity(run: Path) -> str:
    """Return what identifies the discovery in a run folder: the checksum in the header of its file."""
    return read_about(run / DISCOVERY).get(CHECKSUM, "")
