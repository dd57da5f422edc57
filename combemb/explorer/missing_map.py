"""Draw the map of a discovery that has none: `python -m combemb.explorer.missing_map RUN`, a job of the server."""

import sys
from pathlib import Path

import numpy as np

from combemb import methods
from combemb.collection.classes import applied
from combemb.collection.splitting import items_of
from combemb.explorer.discovery_map import map_of_all
from combemb.explorer.stored_map import identity, store_map
from combemb.learning.run_folder import TABLE, RunFolder
from combemb.system.tables import read_table


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
    about, table = folder.read_unchanged(lambda: (identity(run), read_table(run / TABLE)[0]))
    model = methods.load(run)
    data = model.read(items_of(applied(table, []), np.arange(len(table)), model, run), progress=progress)
    z = model.embed(data, progress=progress).numpy()
    drawn = map_of_all(z, int(model.seed), progress)
    n, kept = len(table), np.arange(len(table)) if data.rows is None else data.rows
    places, embedded = np.full((n, 2), np.nan, np.float32), np.full((n, z.shape[1]), np.nan, np.float32)
    places[kept], embedded[kept] = drawn, z
    store_map(run, places, embedded, about)


if __name__ == "__main__":
    make_map(Path(sys.argv[1]), progress=True)
