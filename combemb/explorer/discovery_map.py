"""The map of a discovery: items on a plane, near ones beside each other, in the colours of their clusters."""

import colorsys
import warnings
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import openTSNE
import plotly.graph_objects as go
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox
from sklearn.decomposition import PCA
from torch import Tensor

from combemb.data.embeddings import as_array, check_finite
from combemb.discovery.result import Discovery
from combemb.system.files import write_atomically
from combemb.system.progress import Display

MOST_ITEMS, FEWEST_ITEMS = 20_000, 12  # on a map; fitted by t-SNE
N_FEATURES = 50  # principal components, in which neighbours are sought
PERPLEXITY = 30.0
STEPS, STEPS_SHOWN = (250, 500), 10  # with and without exaggeration; between two changes of the display
GRID_ITEMS = 4_000  # from which on forces are found faster on a grid than by a tree
COARSE_TREE, COARSE_GRID = 0.8, 2.0  # twice as fast as openTSNE's own 0.5 and 1, with a loss 2 % larger
GOLDEN = 0.618034  # of the circle of hues lies between two clusters
LONGEST_NAME = 24  # in letters, on the map
LETTER, LINE = 0.015, 0.05  # of the interactive map's side: the room that names are given there
SHIFTS = [(0, 0), *((x, y) for y in (1.1, -1.1, 2.2, -2.2) for x in (0, 0.5, -0.5)), (1.1, 0), (-1.1, 0)]  # of a name


def map_of(z: Tensor | np.ndarray, seed: int = 0, progress: bool | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Places (n, 2) float32 of items z (N, D) by t-SNE, and their rows (n,): all, or 20,000 drawn by the seed.

    Up to a dozen items, or items that are all alike, lie on their first two principal components instead: t-SNE needs
    more neighbours. The same items and seed give the same map on one machine.
    """
    items = as_array(z)
    if items.ndim != 2:
        raise ValueError(f"z has shape {items.shape}; give one embedding per item, (N, D)")
    rows = np.arange(len(items))
    if len(items) > MOST_ITEMS:
        rows = np.sort(np.random.default_rng(seed).choice(len(items), MOST_ITEMS, replace=False))
    x = np.asarray(items[rows], dtype=np.float32)
    check_finite(x, allow_constant=True)
    x = _components(x, seed)
    is_enough = len(x) > FEWEST_ITEMS and x[:, 0].std() > 0
    return (_fitted(x, seed, progress) if is_enough else x[:, :2]).astype(np.float32), rows


def _components(x: np.ndarray, seed: int) -> np.ndarray:
    """Principal components (n, d), 2 <= d <= 50; zeros where the items have no second one."""
    is_varied = bool(np.ptp(x, axis=0).any())
    x = PCA(min(N_FEATURES, *x.shape), random_state=seed).fit_transform(x) if is_varied else np.zeros((len(x), 1))
    return np.pad(x.astype(np.float64), [(0, 0), (0, max(0, 2 - x.shape[1]))])


def _fitted(x: np.ndarray, seed: int, progress: bool | None) -> np.ndarray:
    start = x[:, :2] / x[:, 0].std() + 0.01 * np.random.default_rng(seed).normal(size=(len(x), 2))
    with Display("drawing the map", sum(STEPS), "steps", progress) as display:
        embedding = openTSNE.TSNE(
            perplexity=min(PERPLEXITY, (len(x) - 1) / 3),
            neighbors="exact",  # affordable for so few
            initialization=1e-4 * start,
            early_exaggeration_iter=STEPS[0],
            n_iter=STEPS[1],
            negative_gradient_method="fft" if len(x) >= GRID_ITEMS else "bh",
            theta=COARSE_TREE,
            ints_in_interval=COARSE_GRID,
            callbacks=lambda *_: display.advance(STEPS_SHOWN),
            callbacks_every_iters=STEPS_SHOWN,
            n_jobs=torch.get_num_threads(),
            random_state=seed,
        ).fit(x)
    return np.asarray(embedding)


def colours(found: Discovery) -> np.ndarray:
    """(K,) str: a colour for each cluster as #rrggbb, muted for seen classes and strong for novel ones."""
    muted = [(i * GOLDEN % 1, 0.68, 0.25) for i in range(found.n_seen)]
    strong = [((0.02 + i * GOLDEN) % 1, (0.42, 0.55)[i % 2], 0.85) for i in range(found.n_novel)]
    parts = np.array([colorsys.hls_to_rgb(*parts) for parts in muted + strong])
    return np.array(["#{:02x}{:02x}{:02x}".format(*rgb) for rgb in np.rint(255 * parts).astype(int)])


def by_importance(found: Discovery, assigned: np.ndarray) -> list[int]:
    """Order clusters: novel ones first, then by how many items are assigned to them."""
    counts = np.bincount(assigned, minlength=len(found.names))
    return [int(k) for k in np.lexsort((-counts, np.arange(len(counts)) < found.n_seen))]


def write_map_png(path: str | Path, places: np.ndarray, found: Discovery, rows: np.ndarray) -> None:
    """Draw a map to a PNG file, with each cluster's name at the median of its places, or near it.

    Names that find no room beside others are left out and counted: those of novel and of large clusters come first.
    """
    n_clusters, assigned = len(found.names), found.assignment[rows]
    side = float(np.clip(6.5 + n_clusters / 20, 7, 15))  # inches
    figure = Figure(figsize=(1.3 * side, side), dpi=120)
    FigureCanvasAgg(figure)  # measures names
    axes = figure.add_axes((0.01, 0.01, 0.98, 0.94))
    axes.set_axis_off()
    axes.margins(0.02)
    order = np.argsort(assigned >= found.n_seen, kind="stable")  # novel ones above
    area = float(np.clip(700 * side**2 / len(rows), 4, 30))  # of a point
    x, y = places[order].T
    axes.scatter(x, y, s=area, c=colours(found)[assigned[order]].tolist(), linewidths=0, alpha=0.8)
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())  # they stay while names are placed
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing", UserWarning)  # no font has every letter: a box is drawn
        n_left_out = _write_names(axes, places, found, assigned, fontsize=9.5 if n_clusters <= 40 else 8)
        left_out = f"; {n_left_out} without a name for want of room" if n_left_out else ""
        axes.set_title(f"{_counts(found, len(rows))}{left_out}", fontsize=11, color="#555555", loc="left")
        write_atomically(Path(path), lambda temporary: figure.savefig(temporary, format="png"))


def _counts(found: Discovery, n_shown: int) -> str:
    n_items = len(found.assignment)
    items = f"{n_items:,}" if n_items == n_shown else f"{n_shown:,} of {n_items:,}"
    return f"{items} items; {found.n_novel} novel classes in strong colours, {found.n_seen} seen ones in muted colours"


def _write_names(axes: Axes, places: np.ndarray, found: Discovery, assigned: np.ndarray, fontsize: float) -> int:
    """Write names where they hide no other, the most important first; returns how many found no room."""
    taken: list[Bbox] = []
    middles = _middles(places, found, assigned)
    for k, (x, y) in middles.items():
        text = axes.text(x, y, _one_line(found.names[k]), fontsize=fontsize, ha="center", va="center")
        text.set(parse_math=False, path_effects=[withStroke(linewidth=2.5, foreground="white", alpha=0.85)])
        text.set(color="#111111", weight="bold") if k >= found.n_seen else text.set(color="#666666")
        box = text.get_window_extent()
        candidates = (box.translated(x * box.width, y * box.height) for x, y in SHIFTS)
        room = next((place for place in candidates if not place.count_overlaps(taken)), None)
        if room is None:
            text.remove()
            continue
        taken.append(room)
        if room.bounds != box.bounds:
            aside = axes.transData.inverted().transform(room.get_points().mean(axis=0))
            text.set_position((float(aside[0]), float(aside[1])))
            axes.plot([x, aside[0]], [y, aside[1]], color="#999999", linewidth=0.6)
    return len(middles) - len(taken)


def _middles(places: np.ndarray, found: Discovery, assigned: np.ndarray) -> dict[int, np.ndarray]:
    """The median place of each cluster that is on the map, the most important first."""
    on_map = set(np.unique(assigned).tolist())
    return {k: np.median(places[assigned == k], axis=0) for k in by_importance(found, assigned) if k in on_map}


def _one_line(name: Any) -> str:
    text = " ".join(str(name).split())
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 1]}…"


def map_figure(places: np.ndarray, found: Discovery, rows: np.ndarray, ids: Sequence[str]) -> go.Figure:
    """The map to move about in: an item shows its id, its cluster and its confidence. ids (n,): of the rows.

    Two traces of items, seen and novel, can be switched off, however many clusters there are; names that would hide
    more important ones are left out. customdata of an item begins with the place of its cluster in `found.names`.
    """
    figure = go.Figure()
    assigned, colour = found.assignment[rows], colours(found)
    names = np.array([_markup(name) for name in found.names], dtype=object)
    certain = np.where(found.is_labelled[rows], "labelled", [f"confidence {c:.2f}" for c in found.confidence[rows]])
    about = np.stack([assigned, [_markup(name) for name in ids], names[assigned], certain], axis=1, dtype=object)
    for is_novel, title in ((False, "seen classes"), (True, "novel classes")):
        shown = (assigned >= found.n_seen) == is_novel
        figure.add_scattergl(
            **{"x": places[shown, 0], "y": places[shown, 1], "customdata": about[shown], "name": title},
            mode="markers",
            marker={"color": colour[assigned[shown]], "size": float(np.clip(400 / len(rows) ** 0.5, 4, 10))},
            unselected={"marker": {"opacity": 0.08}},
            hovertemplate="<b>%{customdata[2]}</b><br>%{customdata[1]}<br>%{customdata[3]}<extra></extra>",
        )
    for name, (x, y), is_novel in _names_apart(places, found, assigned):
        text = f"<b>{_markup(name)}</b>" if is_novel else _markup(name)
        figure.add_annotation(x=x, y=y, text=text, showarrow=False)
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False, scaleanchor="x")
    figure.update_layout(
        **{"template": "none", "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)"},
        **{"margin": dict.fromkeys("lrtb", 0), "dragmode": "pan", "hovermode": "closest"},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": "#999999", "activecolor": "#555555"},
        legend={"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
    )
    return figure


def _names_apart(places: np.ndarray, found: Discovery, assigned: np.ndarray) -> Iterator[tuple[str, np.ndarray, bool]]:
    """Names with their places, the most important first, each far enough from those before it to be read."""
    side = max(float(np.ptp(places, axis=0).max()), 1e-9)
    written: list[tuple[int, np.ndarray]] = []
    for k, middle in _middles(places, found, assigned).items():
        name = _one_line(found.names[k])
        away = [(np.abs(middle - other) / side, (len(name) + n) / 2 * LETTER) for n, other in written]
        if all(x > width or y > LINE for (x, y), width in away):
            written.append((len(name), middle))
            yield name, middle, k >= found.n_seen


def _markup(name: Any) -> str:
    """A name as plotly's markup, which knows these three entities and takes any other tag or quote as it is."""
    return escape(str(name), quote=False)
