"""The picture of a training: loss terms, pair rules and the use of the codes."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

APART = {"epoch", "loss", "items_per_second", "n_codes", "n_coded", "code_use", "positives_per_anchor"}


def draw_curves(log: list[dict[str, Any]], path: Path) -> None:
    """Draw a log, one record per epoch, to a PNG file."""
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    losses, pairs, counts, use = figure.subplots(1, 4, width_ratios=[3, 3, 3, 2])
    _lines(losses, log, [name for name in log[0] if name not in APART and not _is_share(name)], "loss terms")
    _lines(pairs, log, [name for name in log[0] if _is_share(name)], "pair rules on labelled pairs")
    pairs.set_ylim(0, 1.02)
    _lines(counts, log, [name for name in ("positives_per_anchor", "n_codes") if name in log[0]], "counts")
    if counts.lines:
        counts.set_yscale("log")
    _heat(use, log[-1].get("code_use"))
    figure.savefig(path, dpi=110, format="png")


def _is_share(name: str) -> bool:
    return name.endswith(("_precision", "_recall")) or name == "threshold"


def _lines(axes: Axes, log: list[dict[str, Any]], names: list[str], title: str) -> None:
    epochs = [record["epoch"] for record in log]
    for name in names:
        values = [np.nan if record.get(name) is None else record[name] for record in log]
        axes.plot(epochs, values, label=name.replace("_", " "), linewidth=1.3)
    axes.set(title=title, xlabel="epoch")
    axes.grid(alpha=0.3)
    if names:
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2, frameon=False)


def _heat(axes: Axes, use: list[list[float]] | None) -> None:
    axes.set(title="share of items per word", xlabel="word", ylabel="set")
    if not use:
        return
    table = np.full((len(use), max(map(len, use))), np.nan)
    for m, row in enumerate(use):
        table[m, : len(row)] = row
    image = axes.imshow(table, aspect="auto", vmin=0, vmax=max(np.nanmax(table), 1e-9), cmap="viridis")
    axes.figure.colorbar(image, ax=axes)
