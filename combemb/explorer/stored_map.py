"""The map of all discovered items, computed once and stored in the run folder with their embeddings.

`python -m combemb.explorer.stored_map RUN` makes it, as the explorer does in a child process.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from safetensors import safe_open

from combemb import methods
from combemb.collection.class_log import WAIT_SECONDS
from combemb.collection.classes import applied
from combemb.collection.splitting import items_of
from combemb.explorer.discovery_map import map_of_all
from combemb.learning.run_folder import DISCOVERY, PLACES, TABLE, RunFolder
from combemb.system.files import CHECKSUM, read_about, read_tensors, write_tensors
from combemb.system.tables import read_table


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
        if not path.exists() or read_about(path).get(DISCOVERY) != _identity(run):
            return None
        try:
            places = read_tensors(path)[0]["places"].numpy()  # verifies the checksum, also of z
            return cls(path, places, safe_open(path, "np").get_slice("z"))
        except (ValueError, KeyError):  # damaged: it is made again
            return None

    def embedding(self, row: int) -> np.ndarray:
        """Return the embedding of an item, (D,) float32."""
        return np.asarray(self.z[row])


def make_map(run: Path, *, progress: bool | None = None) -> None:
    """Embed the discovered items of a run again, and store their map with the embeddings.

    Items that cannot be read any more are NaN in both.

    Parameters
    ----------
    run : Path
        The run folder, with a discovery.
    progress : bool, optional
        None shows it on a terminal only.
    """
    folder = RunFolder(run)
    about, table = folder.read_unchanged(lambda: (_identity(run), read_table(run / TABLE)[0]))
    model = methods.load(run)
    data = model.read(items_of(applied(table, []), np.arange(len(table)), model, run), progress=progress)
    embedded = model.embed(data, progress=progress).numpy()
    write_map(run, about, embedded, len(table), data.rows, seed=int(model.seed), progress=progress)


def write_map(
    run: Path,
    discovery: str,
    z: np.ndarray,
    n: int,
    rows: np.ndarray | None = None,
    *,
    seed: int = 0,
    progress: bool | None = None,
) -> None:
    """Draw the map of embedded items, and store both.

    Parameters
    ----------
    run : Path
        The run folder.
    discovery : str
        What identifies the discovery.
    z : float32 array of shape (n', D)
        Embeddings.
    n, rows : int, int array of shape (n',)
        Number of discovered items, and those that are embedded; by default all.
    seed, progress
        As for `map_of`.
    """
    drawn = map_of_all(z, seed, progress)
    drawn -= (drawn.min(axis=0) + drawn.max(axis=0)) / 2
    drawn /= max(float(np.abs(drawn).max()), 1e-12)
    places, embedded = np.full((n, 2), np.nan, np.float32), np.full((n, z.shape[1]), np.nan, np.float32)
    kept = np.arange(n) if rows is None else rows
    places[kept], embedded[kept] = drawn, z
    tensors = {"places": torch.from_numpy(places), "z": torch.from_numpy(embedded)}
    with RunFolder(run).written(WAIT_SECONDS):
        write_tensors(run / PLACES, tensors, {DISCOVERY: discovery})


def _identity(run: Path) -> str:
    """Return the checksum of a discovery, from the header of its file."""
    return read_about(run / DISCOVERY).get(CHECKSUM, "")


if __name__ == "__main__":
    make_map(Path(sys.argv[1]), progress=True)
