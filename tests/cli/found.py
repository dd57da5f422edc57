"""Items with classes that are far apart, and what `combemb discover` writes of them."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from tests.blobs import blobs
from tests.pictures import IDS, SEEN

BROKEN = "cat/013.png"
KEPT = [i for i, name in enumerate(IDS) if name != BROKEN]
TABLES = {"discovery.safetensors", "discovery.parquet", "discovery.csv"}
PICTURES = {"discovery-map.png", "discovery-map.safetensors", "discovery.html"}
BLOBS = blobs(4, 2, n_each=20, signs=True)
NAMES = np.where(BLOBS.labels >= 0, np.array(SEEN)[BLOBS.labels], "")
N = len(NAMES)


def table(run: Path) -> dict[str, list]:
    return pq.read_table(run / "discovery.parquet").to_pydict()


def write_labels(path: Path, labels) -> Path:
    path.write_text("".join(f"{'' if label is None else label}\n" for label in labels))
    return path
