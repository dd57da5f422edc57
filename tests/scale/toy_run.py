"""A small fitted run and its data."""

from pathlib import Path

import numpy as np

from combemb.methods.itq import ITQ

N, F = 2_000, 24


def features() -> np.ndarray:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(7, F))
    return (centres[np.arange(N) % 7] + 0.3 * rng.normal(size=(N, F))).astype(np.float32)


def labels() -> np.ndarray:
    targets = np.arange(N) % 7
    return np.where((targets < 5) & (np.arange(N) % 3 == 0), targets, -1)


def fitted(folder: Path) -> Path:
    """Write x.npy and a run of 12 bits that was fitted on a part of it; return the run folder."""
    x = features()
    np.save(folder / "x.npy", x)
    ITQ(bits=12).fit(x[:500], labels()[:500], folder=folder / "run", progress=False)
    return folder / "run"


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
