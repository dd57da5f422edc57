"""The map of a discovery: similar items are near each other, in the colours of their clusters."""

import json
import warnings
from collections.abc import Sequence
from html import escape
from pathlib import Path

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

from combemb.data.embeddings import as_array, check_finite
from combemb.discovery.clusters import Clusters
from combemb.explorer.colours import colours
from combemb.explorer.pages import TEMPLATES
from combemb.system.arrays import Array
from combemb.system.files import write_atomically
from combemb.system.machine import threads_for
from combemb.system.progress import Display

MAX_ITEMS = 20_000  # of more, a sample is on the map
MAX_PCA_ITEMS = 12  # so few have too few neighbours for t-SNE
N_COMPONENTS = 50  # principal components, in which neighbours are searched
N_NEIGHBOURS, BLOCK_ROWS = 10, 10_000  # of an item that is not in the sample; and items placed at a time
STEPS = (250, 500)  # with and without exaggeration
STEPS_PER_UPDATE = 10  # of the progress display
MIN_GRID_ITEMS = 4_000  # from here on forces are computed faster on a grid than by a tree
TREE_THETA, GRID_INTERVAL = 0.8, 2.0  # twice as fast as openTSNE's own 0.5 and 1, with a loss 2 % larger
MAX_NAME_LENGTH = 24  # letters; longer names end in an ellipsis
LETTER_WIDTH, LINE_HEIGHT = 0.015, 0.05  # of a name on the interactive map, relative to the map's side
NAME_SHIFTS = [(0, 0), *((x, y) for y in (1.1, -1.1, 2.2, -2.2) for x in (0, 0.5, -0.5)), (1.1, 0), (-1.1, 0)]


def map_of(z: Array, seed: int = 0, progress: bool | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Place items on a plane by t-SNE, similar ones near each other.

    A dozen items or fewer, or items that are all alike, are placed by their first two principal components instead.
    The same items and seed give the same map on one machine.

    Parameters
    ----------
    z : array or tensor of shape (N, D)
        Embeddings.
    seed : int, default=0
        Seed of t-SNE, and of the sample if there are more than 20,000 items.
    progress : bool or None, default=None
        Whether to show progress; None shows it on a terminal only.

    Returns
    -------
    places : float32 array of shape (n, 2)
    rows : array of shape (n,)
        Rows of z that are on the map.
    """
    items = _checked(z)
    rows = sampled(len(items), seed)
    x = np.asarray(items[rows], dtype=np.float32)
    check_finite(x, allow_constant=True)
    with threads_for(len(x)):
        places = _placed(_components(x, seed), np.arange(len(x)), seed, progress)
    return places.astype(np.float32), rows


def map_of_all(z: Array, seed: int = 0, progress: bool | None = None) -> np.ndarray:
    """Place all items on a plane: those of a sample by `map_of`, others at the median of their nearest ones in it.

    Parameters
    ----------
    z, seed, progress
        As for `map_of`, whose map this is if there are 20,000 items or fewer.

    Returns
    -------
    float32 array of shape (N, 2)
    """
    x = np.asarray(_checked(z), dtype=np.float32)
    check_finite(x, allow_constant=True)
    with threads_for(len(x)):
        return _placed(_components(x, seed), sampled(len(x), seed), seed, progress).astype(np.float32)


def _checked(z: Array) -> np.ndarray:
    items = as_array(z)
    if items.ndim != 2:
        raise ValueError(f"z has shape {items.shape}; give one embedding per item, (N, D)")
    return items


def sampled(n: int, seed: int = 0) -> np.ndarray:
    """Return the rows of n items, or of a sample of 20,000 if there are more."""
    if n <= MAX_ITEMS:
        return np.arange(n)
    return np.sort(np.random.default_rng(seed).choice(n, MAX_ITEMS, replace=False))


def _placed(x: np.ndarray, rows: np.ndarray, seed: int, progress: bool | None) -> np.ndarray:
    """Return places (N, 2) of components (N, d): those of these rows by t-SNE, others near their neighbours."""
    sample = x[rows]
    is_enough = len(sample) > MAX_PCA_ITEMS and sample[:, 0].std() > 0
    if not is_enough:
        return x[:, :2]
    drawn = _fitted(sample, seed, progress)
    places = np.empty((len(x), 2), np.float32)
    others = np.setdiff1d(np.arange(len(x)), rows)
    places[rows] = drawn
    with Display("placing the other items", len(others), "items", progress) as display:
        for some in np.array_split(others, -(-len(others) // BLOCK_ROWS)) if len(others) else []:
            places[some] = drawn.prepare_partial(x[some], initialization="median", k=N_NEIGHBOURS)
            display.advance(len(some))
    return places


def _components(x: np.ndarray, seed: int) -> np.ndarray:
    """Return principal components (n, d), 2 <= d <= 50; zeros where the items have no second one."""
    is_varied = bool(np.ptp(x, axis=0).any())
    x = PCA(min(N_COMPONENTS, *x.shape), random_state=seed).fit_transform(x) if is_varied else np.zeros((len(x), 1))
    return np.pad(x.astype(np.float64), [(0, 0), (0, max(0, 2 - x.shape[1]))])


def _fitted(x: np.ndarray, seed: int, progress: bool | None) -> openTSNE.TSNEEmbedding:
    is_many = len(x) >= MIN_GRID_ITEMS
    start = x[:, :2] / x[:, 0].std() + 0.01 * np.random.default_rng(seed).normal(size=(len(x), 2))
    with Display("drawing the map", sum(STEPS), "steps", progress) as display:
        return openTSNE.TSNE(
            perplexity=min(30.0, (len(x) - 1) / 3),
            neighbors="exact",  # affordable for so few
            initialization=1e-4 * start,
            early_exaggeration_iter=STEPS[0],
            n_iter=STEPS[1],
            negative_gradient_method="fft" if is_many else "bh",
            theta=TREE_THETA,
            ints_in_interval=GRID_INTERVAL,
            callbacks=lambda *_: display.advance(STEPS_PER_UPDATE),
            callbacks_every_iters=STEPS_PER_UPDATE,
            n_jobs=torch.get_num_threads() if is_many else 1,  # a step for few is too short to share
            random_state=seed,
        ).fit(x)


def by_importance(found: Clusters, assigned: np.ndarray) -> list[int]:
    """Order clusters: novel ones first, then by how many items are assigned to them."""
    counts = np.bincount(assigned, minlength=len(found.names))
    return [int(k) for k in np.lexsort((-counts, np.arange(len(counts)) < found.n_seen))]


def write_map_png(path: str | Path, places: np.ndarray, found: Clusters, rows: np.ndarray) -> None:
    """Draw a map to a PNG file, with the name of each cluster at the median of its places or near it.

    Names that would hide those of more important clusters are left out and counted.

    Parameters
    ----------
    path : str or Path
        File to write; an old one is replaced in one step.
    places, rows : arrays of shape (n, 2) and (n,)
        What `map_of` returns.
    found : Clusters
        Clusters of the items.
    """
    n_clusters, assigned = len(found.names), found.assignment[rows]
    side = float(np.clip(6.5 + n_clusters / 20, 7, 15))  # inches
    figure = FigureCanvasAgg(Figure(figsize=(1.3 * side, side), dpi=120)).figure  # this canvas measures names
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
        left_out = f"; {n_left_out} without a name for lack of room" if n_left_out else ""
        items = f"{len(found):,}" if len(found) == len(rows) else f"{len(rows):,} of {len(found):,}"
        colouring = f"{found.n_novel} novel classes in strong colours, {found.n_seen} seen ones in muted colours"
        axes.set_title(f"{items} items; {colouring}{left_out}", fontsize=11, color="#555555", loc="left")
        write_atomically(Path(path), lambda temporary: figure.savefig(temporary, format="png"))


def _write_names(axes: Axes, places: np.ndarray, found: Clusters, assigned: np.ndarray, fontsize: float) -> int:
    """Write names where they hide no other, the most important first; return how many are left out."""
    taken: list[Bbox] = []
    middles = _middles(places, found, assigned)
    for k, (x, y) in middles.items():
        text = axes.text(x, y, _one_line(found.names[k]), fontsize=fontsize, ha="center", va="center")
        text.set(parse_math=False, path_effects=[withStroke(linewidth=2.5, foreground="white", alpha=0.85)])
        text.set(color="#111111", weight="bold") if k >= found.n_seen else text.set(color="#666666")
        box = text.get_window_extent()
        candidates = (box.translated(x * box.width, y * box.height) for x, y in NAME_SHIFTS)
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


def _middles(places: np.ndarray, found: Clusters, assigned: np.ndarray) -> dict[int, np.ndarray]:
    """Return the median place of each cluster that is on the map, the most important first."""
    return {k: np.median(places[its], axis=0) for k in by_importance(found, assigned) if (its := assigned == k).any()}


def _one_line(name: object) -> str:
    text = " ".join(str(name).split())
    return text if len(text) <= MAX_NAME_LENGTH else f"{text[: MAX_NAME_LENGTH - 1]}…"


def map_figure(places: np.ndarray, found: Clusters, rows: np.ndarray, ids: Sequence[str]) -> go.Figure:
    """Draw an interactive map, on which an item shows its id, its cluster and its confidence.

    Parameters
    ----------
    places, rows : arrays of shape (n, 2) and (n,)
        What `map_of` returns.
    found : Clusters
        Clusters of the items.
    ids : sequence of str
        Ids of the n items on the map.

    Returns
    -------
    plotly.graph_objects.Figure
        Two traces, of seen and of novel classes, and the names that do not hide those of more important clusters.
        The customdata of an item begins with the index of its cluster.
    """
    figure = go.Figure(layout=json.loads(TEMPLATES.get_template("map_layout.json").render()))
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
    side = max(float(np.ptp(places, axis=0).max()), 1e-9)
    written: list[tuple[int, np.ndarray]] = []  # each name far enough from those before it to be read
    for k, middle in _middles(places, found, assigned).items():
        name = _one_line(found.names[k])
        away = [(np.abs(middle - other) / side, (len(name) + n) / 2 * LETTER_WIDTH) for n, other in written]
        if all(x > width or y > LINE_HEIGHT for (x, y), width in away):
            written.append((len(name), middle))
            text = f"<b>{_markup(name)}</b>" if k >= found.n_seen else _markup(name)
            figure.add_annotation(x=middle[0], y=middle[1], text=text, showarrow=False)
    return figure


def _markup(name: object) -> str:
    """Return a name as plotly's markup, which knows three entities and takes quotes as they are."""
    return escape(str(name), quote=False)
