"""Small pictures of six classes: four seen ones, half of them labelled, and two that nobody has named."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from pyarrow import csv

SIDE, PER_CLASS = 32, 12
SEEN, NOVEL = ("ant", "bee", "cat", "dog"), ("eel", "fox")
COLOURS = ((220, 60, 60), (60, 200, 60), (60, 60, 220), (210, 200, 50), (200, 60, 200), (60, 200, 200))


def _pixels() -> tuple[np.ndarray, np.ndarray]:
    """Noise with a coloured square or disc in it: pixels (N, 32, 32, 3) and targets (N,), labelled items first."""
    rng = np.random.default_rng(0)
    n_half = PER_CLASS // 2
    labelled = np.repeat(np.arange(4), n_half)
    unlabelled = np.concatenate([np.repeat(np.arange(4), n_half), np.repeat([4, 5], PER_CLASS)])
    targets = np.concatenate([labelled, unlabelled])
    images = rng.integers(0, 120, (len(targets), SIDE, SIDE, 3))
    down, across = np.mgrid[:SIDE, :SIDE]
    for image, target in zip(images, targets, strict=True):
        row, column = rng.integers(10, 22, 2)
        away = np.stack([abs(down - row), abs(across - column)])
        distance = away.max(axis=0) if target % 2 else np.hypot(*away)
        image[distance < 8] += np.array(COLOURS[target]) // 2
    return images.astype(np.uint8), np.array([*SEEN, *NOVEL])[targets]


PIXELS, TARGETS = _pixels()
N_LABELLED = 4 * PER_CLASS // 2
LABELS = np.array([*TARGETS[:N_LABELLED], *[None] * (len(TARGETS) - N_LABELLED)], dtype=object)
IDS = [f"{label or 'unlabelled'}/{i:03}.png" for i, label in enumerate(LABELS)]  # their order is that of the pixels


def write_folder(folder: Path, ids: list[str] = IDS, broken: tuple[str, ...] = ()) -> Path:
    """The pictures as PNG files under these names; broken ones are cut short."""
    for name, image in zip(ids, PIXELS, strict=False):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
        if name in broken:
            path.write_bytes(path.read_bytes()[:100])
    return folder


def write_manifest(path: Path, folder: Path, labels=LABELS, **columns) -> Path:
    """A table of the pictures in a folder, .csv or .parquet."""
    paths = [str(folder / name) for name in IDS]
    table = pa.table({"path": paths, "label": [label or "" for label in labels], **columns})
    (pq.write_table if path.suffix == ".parquet" else csv.write_csv)(table, path)
    return path


def cached(root: Path) -> dict[str, int]:
    """The files of features below a cache, with the times at which they were last written."""
    return {str(path.relative_to(root)): path.stat().st_mtime_ns for path in sorted(root.rglob("*.rows"))}
