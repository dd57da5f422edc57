"""A plot of a training: loss terms, the panels that the method names, and the use of the codes."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from combemb.system.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEW_VALUES = 20  # up to so many are marked by points
OTHER_LOG_KEYS = {"epoch", "loss", "items_per_second", "n_codes", "n_coded", "code_use"}  # not loss terms


@dataclass(frozen=True)
class Panel:
    """Numbers of a log that are drawn in one plot."""

    title: str
    names: tuple[str, ...]
    is_share: bool = False  # the axis runs from 0 to 1
    is_log: bool = False


def draw_curves(log: list[dict[str, Any]], path: Path, panels: tuple[Panel, ...] = ()) -> None:
    """Plot a log, one record per epoch, to a PNG file; numbers that no panel names are loss terms."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - would add half a second to the start of every fit

    drawn = panels_of(log, panels)
    use = log[-1].get("code_use")
    widths = [*[3] * len(drawn), *([2] if use else [])]
    figure = Figure(figsize=(max(1.07 * sum(widths) + 0.4, 4.2), 3.8), layout="constrained")
    places = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
    for axes, panel in zip(places, drawn, strict=False):
        _lines(axes, log, panel)
    if use:
        _heat(places[-1], use)
    write_atomically(path, lambda temporary: figure.savefig(temporary, dpi=110, format="png"))


def panels_of(log: list[dict[str, Any]], panels: tuple[Panel, ...] = ()) -> tuple[Panel, ...]:
    """Return a panel of the loss terms, and those of the method that have values in a log."""
    named = {name for panel in panels for name in panel.names}
    terms = Panel("loss terms", tuple(name for name in log[-1] if name not in OTHER_LOG_KEYS | named))
    return (terms, *(panel for panel in panels if any(_has_values(log, name) for name in panel.names)))


def _has_values(log: list[dict[str, Any]], name: str) -> bool:
    return any(record.get(name) is not None for record in log)


def _lines(axes: "Axes", log: list[dict[str, Any]], panel: Panel) -> None:
    names = [name for name in panel.names if _has_values(log, name)]
    for name in names:
        records = [record for record in log if name in record]  # not every epoch has all numbers
        values = [np.nan if record[name] is None else record[name] for record in records]
        marker = "." if len(values) <= FEW_VALUES else None
        axes.plot(
            [record["epoch"] for record in records], values, label=name.replace("_", " "), marker=marker, linewidth=1.3
        )
    axes.set(title=panel.title, xlabel="epoch", xlim=(0, log[-1]["epoch"] + 0.5))
    axes.locator_params(axis="x", integer=True)
    axes.grid(alpha=0.3)
    if panel.is_share:
        axes.set_ylim(0, 1.02)
    if panel.is_log and names:
        axes.set_yscale("log")
    if names:
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2, frameon=False)


def _heat(axes: "Axes", use: list[list[float]]) -> None:
    axes.set(title="share of items per word", xlabel="word", ylabel="set")
    table = np.full((len(use), max(map(len, use))), np.nan)
    for m, row in enumerate(use):
        table[m, : len(row)] = row
    image = axes.imshow(table, aspect="auto", vmin=0, vmax=max(np.nanmax(table), 1e-9), cmap="viridis")
    axes.figure.colorbar(image, ax=axes)
