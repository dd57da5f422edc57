"""Plots of a table: mAP against bits, bars of ACC, t-SNE maps, and decision regions. They show what was measured."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from combemb.bench import regions
from combemb.bench.cells import cell_of
from combemb.bench.discovery_tables import MAPS
from combemb.bench.results import read_result
from combemb.bench.summary import Summary
from combemb.bench.values import Line
from combemb.system.files import write_atomically

OURS, CLASSES = ("#c1121f", "#ef8a62"), colormaps["tab10"]  # of ours, the first row and others
OTHERS = (
    "#1f77b4",
    "#ff7f0e",
    "#2ca02c",
    "#9467bd",
    "#8c564b",
    "#e377c2",
    "#7f7f7f",
    "#bcbd22",
    "#17becf",
    "#aec7e8",
    "#ffbb78",
    "#98df8a",
    "#c5b0d5",
)
MARKS = ("o", "s", "^", "v", "D", "P", "X", "<", ">", "p", "h")


def draw(summary: Summary, results: Path, folder: Path) -> Iterator[Path]:
    """Draw what a table has to show into PNG files in a folder, and yield them; nothing if nothing was run."""
    if not summary.is_run:
        return
    name, task = summary.table.name, summary.table.task
    drawn: list[tuple[str, Callable[[], Figure | None]]] = []
    if task in {"retrieval", "both"}:
        drawn.append((name, lambda: against_bits(summary)))
    if task == "discovery":
        drawn.append((name, lambda: bars(summary, [column.group == "ACC" for column in summary.table.columns])))
    if task == "both":
        drawn.append((f"{name}-scores", lambda: bars(summary, [True] * len(summary.table.columns))))
    if name in MAPS:
        drawn.append((f"tsne-{summary.table.dataset}", lambda: maps(summary, results)))
    if task == "regions":
        drawn.append((name, lambda: decision_regions(summary, results)))
    for title, make in drawn:
        figure = make()
        if figure is not None:
            path = folder / f"{summary.preset.name}-{title}.png"
            write_atomically(path, partial(figure.savefig, dpi=110, format="png"))
            yield path


def against_bits(summary: Summary) -> Figure | None:
    """Return a plot of mAP against bits, with the deviations; the published numbers of ours are dashed."""
    on = [number for number, column in enumerate(summary.table.columns) if column.score == "novel_codes"]
    bits = [summary.table.columns[number].bits for number in on]
    shown = [line for line in summary.lines if any(line.values[number].mean is not None for number in on)]
    if len(on) < 2 or not shown:
        return None
    figure = Figure(figsize=(7.6, 4.4), layout="constrained")
    axes = figure.subplots()
    for line, style in zip(shown, _styles(shown), strict=True):
        means = numbers([line.values[n].mean for n in on])
        spread = numbers([line.values[n].deviation for n in on])
        axes.errorbar(range(len(on)), means, yerr=spread, capsize=3, label=_with_runs(line, on), **style)
        published = numbers([line.values[n].published for n in on])
        if line.row.is_ours and np.isfinite(published).all():
            label = f"{line.row.title}, published"
            axes.plot(range(len(on)), published, "--", color=style["color"], linewidth=1.2, alpha=0.7, label=label)
    if summary.chance is not None:
        axes.axhline(summary.chance, color="#999999", linewidth=1, linestyle=":", label="chance")
    axes.set(xticks=range(len(on)), xticklabels=bits, xlabel="bits", ylabel="mAP, queries of novel classes")
    axes.set_ylim(bottom=0)
    axes.set_title(_title(summary), fontsize=10, loc="left")
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def bars(summary: Summary, is_shown: list[bool]) -> Figure | None:
    """Return bars of some columns, with the deviations, and with the published numbers as black lines."""
    on = [number for number, shown in enumerate(is_shown) if shown]
    shown = [line for line in summary.lines if any(line.values[number].mean is not None for number in on)]
    if not shown:
        return None
    figure = Figure(figsize=(8.4, 3.9), layout="constrained")
    axes, width, has_published = figure.subplots(), 0.8 / len(shown), False
    for place, (line, style) in enumerate(zip(shown, _styles(shown), strict=True)):
        at = np.arange(len(on)) + (place - (len(shown) - 1) / 2) * width
        means = numbers([line.values[n].mean for n in on])
        spread = numbers([line.values[n].deviation for n in on])
        label = _with_runs(line, on)
        axes.bar(at, means, 0.92 * width, yerr=spread, capsize=2, color=style["color"], label=label)
        for x, number in zip(at, on, strict=True):
            published = line.values[number].published
            has_published |= published is not None
            if published is not None:
                axes.hlines(published, x - 0.46 * width, x + 0.46 * width, color="black", linewidth=1.5)
    if has_published:
        axes.hlines([], 0, 0, color="black", linewidth=1.5, label="published")
    titles = [summary.table.columns[number].title.replace(", ", ",\n") for number in on]
    axes.set(xticks=range(len(on)), xticklabels=titles, ylabel=summary.table.columns[on[0]].group, ylim=(0, 1))
    axes.set_title(_title(summary), fontsize=10, loc="left")
    axes.grid(alpha=0.25, axis="y")
    axes.set_axisbelow(True)
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def maps(summary: Summary, results: Path) -> Figure | None:
    """Return the t-SNE maps of test items, one panel for each method, in the colours of their classes."""
    rows = {row.title: row for row in summary.table.rows}
    titles = MAPS[summary.table.name]
    run = summary.table.splits[0], summary.table.seeds[0]
    cells = [cell_of(summary.table, summary.preset, rows[title], None, run) for title in titles]
    found = [(read_result(results, cell) or {}).get("map") for cell in cells]
    if not any(found):
        return None
    figure = Figure(figsize=(3.1 * len(titles), 3.7), layout="constrained")
    handles: dict[int, Any] = {}
    for axes, title, shown in zip(figure.subplots(1, len(titles)), titles, found, strict=True):
        axes.set(title=title, xticks=[], yticks=[])
        if shown is None:
            axes.text(0.5, 0.5, "not run", ha="center", va="center", transform=axes.transAxes, color="#777777")
            continue
        places, targets, is_novel = (np.array(shown[key]) for key in ("places", "targets", "is_novel"))
        for c in np.unique(targets):
            on, mark = targets == c, "^" if is_novel[targets == c][0] else "o"
            points = axes.scatter(*places[on].T, s=11, marker=mark, color=CLASSES(int(c) % 10), linewidths=0)
            handles[int(c)] = (points, f"class {c}{', novel' if mark == '^' else ''}")
    points, names = zip(*(handles[c] for c in sorted(handles)), strict=True)
    figure.legend(points, names, loc="outside lower center", ncols=10, fontsize=8, frameon=False, markerscale=1.6)
    return figure


def decision_regions(summary: Summary, results: Path) -> Figure | None:
    """Return the plane with the regions that one, two and three fitted meta-class sets make."""
    (row,) = summary.table.rows
    run = summary.table.splits[0], summary.table.seeds[0]
    cells = [cell_of(summary.table, summary.preset, row, bits, run) for bits in summary.table.bits]
    found = [(read_result(results, cell) or {}).get("regions") for cell in cells]
    if not any(found):
        return None
    x, targets = regions.points()
    figure = Figure(figsize=(4.0 * len(cells), 4.4), layout="constrained")
    axis = np.linspace(-regions.HALF, regions.HALF, regions.SIDE)
    for axes, column, shown in zip(figure.subplots(1, len(cells)), summary.table.columns, found, strict=True):
        axes.set(xticks=[], yticks=[], aspect="equal", title=column.title)
        if shown is None:
            continue
        grid = np.array([ord(letter) - ord("a") for letter in shown["grid"]]).reshape(regions.SIDE, regions.SIDE)
        of_seen = shown["classes"]
        reserved = ~np.isin(grid, of_seen)
        tint = np.where(reserved, 0.0, 1 + np.searchsorted(np.unique(of_seen), grid))
        axes.pcolormesh(axis, axis, tint, cmap=_tints(), vmin=0, vmax=3, shading="nearest")
        codes = np.array(shown["codes"])[grid]
        for m in range(codes.shape[-1]):
            axes.contour(axis, axis, codes[..., m], levels=[0.5], colors="black", linewidths=1.4)
        for c, mark in enumerate("os^"):
            axes.scatter(*x[targets == c].T, s=9, marker=mark, color=CLASSES(c), label=f"seen class {c + 1}")
        n = len(np.unique(grid))
        axes.set_xlabel(f"{n} regions, {len(np.unique(grid[reserved]))} without a seen class")
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9, frameon=False
    )
    return figure


def numbers(values: list[float | None]) -> np.ndarray:
    """Return numbers as matplotlib takes them, NaN for None."""
    return np.array([np.nan if value is None else value for value in values])


def _tints() -> Any:
    from matplotlib.colors import ListedColormap  # noqa: PLC0415 - of one figure

    return ListedColormap(["#e9e9e6", "#dbe7f6", "#fdecd3", "#dcf1dc"])


def _styles(lines: list[Line]) -> list[dict[str, Any]]:
    """Return a style for each line; ours are red and bold."""
    n_ours, styles = 0, []
    for place, line in enumerate(lines):
        if line.row.is_ours:
            colour = OURS[min(n_ours, len(OURS) - 1)]
            n_ours += 1
            styles.append({"color": colour, "linewidth": 2.4, "marker": "*", "markersize": 10, "zorder": 5})
        else:
            mark = {"marker": MARKS[place % len(MARKS)], "markersize": 5}
            styles.append({"color": OTHERS[place % len(OTHERS)], "linewidth": 1.3, **mark})
    return styles


def _with_runs(line: Line, columns: list[int]) -> str:
    """Return the title of a line, with the smallest number of runs behind its points if some are missing."""
    shown = [line.values[n] for n in columns if line.values[n].scores]
    n, n_wanted = min((len(value.scores), value.n_wanted) for value in shown)
    return line.row.title if n == n_wanted else f"{line.row.title} ({n} of {n_wanted})"


def _title(summary: Summary) -> str:
    of_preset = "" if summary.preset.heading else f"; preset {summary.preset.name}"
    return f"{summary.table.title}{of_preset}"
