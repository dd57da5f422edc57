"""The page of a discovery: one HTML file with the map and pictures of every cluster, which any browser shows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from markupsafe import Markup

from combemb.data.entries import Entry
from combemb.discovery.clusters import Clusters
from combemb.explorer.colours import colours
from combemb.explorer.discovery_map import by_importance, map_figure
from combemb.explorer.pages import TEMPLATES, write_page
from combemb.explorer.thumbnails import Thumbnails

FEW_CLUSTERS = 50  # with more of them pictures are fewer and smaller
N_PICTURES, THUMBNAIL_SIDE = (10, 6), (128, 96)  # per strip, and pixels: for few clusters, and for more
MAP_BUTTONS = ["zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"]  # none that would send data anywhere
Strips = tuple[np.ndarray, np.ndarray]  # rows of the pictures at the centre and on the border of a cluster


def write_discovery_page(
    path: str | Path,
    found: Clusters,
    entries: pa.Table,
    places: np.ndarray | None = None,
    rows: np.ndarray | None = None,
    *,
    title: str = "Discovered classes",
    n_rejected: int = 0,
    n_pictures: int | None = None,
    progress: bool | None = None,
) -> None:
    """Write a page with the map and pictures of every cluster.

    Parameters
    ----------
    path : str or Path
        HTML file to write; an old one stays until the new one is complete.
    found : Clusters
        Clusters of N items.
    entries : pyarrow.Table
        Columns id, path and label of the N items.
    places, rows : arrays of shape (n, 2) and (n,), optional
        What `map_of` returns; without places the page has no map, without rows they are those of all items.
    title : str
        Heading of the page.
    n_rejected : int
        Number of items in no class, which are not among the N; the page says so.
    n_pictures : int, optional
        Pictures per strip; by default 10, for more than 50 clusters 6.
    progress : bool or None, default=None
        Whether to show progress; None shows it on a terminal only.
    """
    if len(entries) != len(found.assignment):
        raise ValueError(f"there are {len(entries)} entries for {len(found.assignment)} items; give one per item")
    if places is not None and rows is None:
        rows = np.arange(len(entries))
    if places is not None and rows is not None and np.shape(places) != (len(rows), 2):
        raise ValueError(f"places have shape {np.shape(places)} for {len(rows)} rows; give ({len(rows)}, 2)")
    is_many = len(found.names) > FEW_CLUSTERS
    strips = [_strips(found, name, N_PICTURES[is_many] if n_pictures is None else n_pictures) for name in found.names]
    drawn = np.concatenate([np.array([], np.int64), *(strip for pair in strips for strip in pair)])
    named = np.unique(drawn if rows is None else np.concatenate([drawn, rows]))
    thumbnails = Thumbnails(THUMBNAIL_SIDE[is_many], entries["path"].take(named).to_pylist())
    shown = {"title": title, "found": found, "is_many": is_many, "n_rejected": n_rejected}
    shown["clusters"] = _clusters(found, entries, strips)
    shown["map"] = None if places is None or rows is None else _map(places, found, rows, entries, thumbnails)
    write_page(path, "discovery_page.html.j2", thumbnails, len(drawn), progress, **shown)


def _strips(found: Clusters, name: object, n: int) -> Strips:
    """Return rows nearest to the centre, and unlabelled ones on the border that are not among them."""
    nearest, border = found.exemplars(name, n), found.borderline(name, 2 * n)
    return nearest, border[~np.isin(border, nearest) & ~found.is_labelled[border]][:n]


def _map(places: np.ndarray, found: Clusters, rows: np.ndarray, entries: pa.Table, thumbnails: Thumbnails) -> Markup:
    """Return the map with the whole of plotly's JavaScript; plotly escapes what it shows."""
    names = [thumbnails.short_name(name) for name in entries["id"].take(rows).to_pylist()]
    config = {"scrollZoom": True, "displaylogo": False, "responsive": True, "modeBarButtons": [MAP_BUTTONS]}
    script = TEMPLATES.get_template("map.js").render()
    figure = map_figure(places, found, rows, names)
    return Markup(figure.to_html(config, full_html=False, div_id="map", post_script=script))


def _clusters(found: Clusters, entries: pa.Table, strips: list[Strips]) -> Iterator[dict[str, Any]]:
    """Yield what the template shows of each cluster, the most important first."""
    colour, neighbours = colours(found), found.neighbours
    for k in by_importance(found, found.assignment):
        is_mine, name = found.assignment == k, found.names[k]
        labels = entries["label"].take(np.flatnonzero(found.nearest == k)).drop_null().to_numpy()
        values, counts = np.unique(labels, return_counts=True)
        yield {
            **{"k": k, "name": str(name), "kind": "novel" if k >= found.n_seen else "seen", "colour": colour[k]},
            **{"n_items": is_mine.sum(), "n_labelled": (is_mine & found.is_labelled).sum()},
            "commonest_label": values[counts.argmax()] if len(labels) else None,
            "purity": counts.max() / len(labels) if len(labels) else None,
            "confidences": found.confidence[is_mine & ~found.is_labelled],
            "neighbour": neighbours.get(name),
            "nearest": _pictures(found, entries, strips[k][0]),
            "borderline": _pictures(found, entries, strips[k][1]),
        }


def _pictures(found: Clusters, entries: pa.Table, rows: np.ndarray) -> list[tuple[Entry, str]]:
    texts = ["labelled" if found.is_labelled[row] else f"{found.confidence[row]:.2f}" for row in rows]
    items = entries.select(["id", "path", "label"]).take(rows).to_pylist()
    return [(Entry(**item), text) for item, text in zip(items, texts, strict=True)]
