"""The page of a discovery: one HTML file with the map and pictures of every cluster, to be looked at anywhere."""

from collections.abc import Iterator
from html import escape
from pathlib import Path

import numpy as np
import pyarrow as pa

from combemb.collection.indexed import Entry
from combemb.data.labels import LABEL_SEPARATOR
from combemb.discovery.result import Discovery
from combemb.explorer.discovery_map import colours, map_figure
from combemb.explorer.thumbnails import Thumbnails, breakable, common_folder, page_head, short_name
from combemb.system.files import write_atomically
from combemb.system.progress import Display

MANY = 50  # clusters; with more of them pictures are fewer and smaller
N_PICTURES, SIDE = (10, 6), (128, 96)  # in a strip, and in pixels: up to so many clusters, and above

STYLE = """
nav { margin-top: 8px }
a { color: var(--accent) }
h2 { margin: 32px 0 0; font-size: 17px; font-weight: 650 }
.map { height: min(75vh, 720px); margin-top: 20px; padding: 8px; background: var(--card);
  border: 1px solid var(--line); border-radius: 8px }
.map .annotation-text { fill: var(--text) !important; stroke: var(--card); stroke-width: 3px; paint-order: stroke }
.map .legendtext { fill: var(--text) !important }
section { display: grid; grid-template-columns: 220px minmax(0, 1fr); gap: 8px 24px; margin-top: 16px;
  padding-top: 16px; border-top: 1px solid var(--line); content-visibility: auto; contain-intrinsic-size: auto 250px }
section:target h3 { color: var(--accent) }
h3 { display: flex; align-items: baseline; gap: 8px; margin: 0; font-size: 15px; font-weight: 650 }
.wide { grid-column: 1 / -1 }
h3 span, dd { min-width: 0; overflow-wrap: anywhere }
.colour { flex: none; width: 10px; height: 10px; border-radius: 50% }
dl { display: grid; grid-template-columns: auto 1fr; gap: 0 12px; margin: 6px 0 0 }
dt { color: var(--faint) }
dd { margin: 0; font-variant-numeric: tabular-nums }
button { margin-top: 8px; padding: 2px 10px; border: 1px solid var(--line); border-radius: 6px;
  background: var(--card); color: var(--accent); font: inherit; font-size: 12px; cursor: pointer }
h4 { margin: 0 0 6px; font-size: 11px; font-weight: 600; letter-spacing: .06em; text-transform: uppercase;
  color: var(--faint) }
.strips { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, var(--strip)), 1fr)); gap: 14px 24px }
ol { display: grid; grid-template-columns: repeat(auto-fill, minmax(var(--picture), 1fr)); gap: 8px; margin: 0;
  padding: 0; list-style: none }
.few { --strip: 100%; --picture: 92px }
.many { --strip: 470px; --picture: 70px }
li { max-width: 128px; color: var(--faint); font-size: 11px; text-align: center; font-variant-numeric: tabular-nums }
.picture { padding: 3px; border: 1px solid var(--line); border-radius: 6px; background: var(--card) }
.missing { overflow: hidden; background: var(--empty); font-size: 11px }
.borderline .picture { border: 1px dashed var(--faint) }
@media (max-width: 640px) { section { grid-template-columns: minmax(0, 1fr) } .map { height: min(65vh, 100vw) }
  .map .annotation-text { font-size: 9px !important } .map .modebar { display: none } .few { --picture: 68px } }
"""

BUTTONS = ["zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"]  # on the map; none that would send data anywhere

# A click on an item leads to its cluster, a button of a cluster marks its items; a double click takes the marks away.
LINKS = """
const plot = document.getElementById("{plot_id}");
const mark = (rows) => Plotly.restyle(plot, {selectedpoints: rows}, [0, 1]);
const rowsOf = (trace, cluster) => (trace.customdata || []).flatMap((about, row) => about[0] === cluster ? [row] : []);
plot.on("plotly_click", (event) => { location.hash = "cluster-" + event.points[0].customdata[0]; });
plot.on("plotly_doubleclick", () => mark([null, null]));
document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-cluster]");
  if (!button) return;
  mark(plot.data.map((trace) => rowsOf(trace, Number(button.dataset.cluster))));
  plot.scrollIntoView({block: "center"});
});
"""


def write_discovery_page(
    path: str | Path,
    found: Discovery,
    entries: pa.Table,
    places: np.ndarray | None = None,
    rows: np.ndarray | None = None,
    *,
    title: str = "Discovered classes",
    n_pictures: int | None = None,
    side: int | None = None,
    progress: bool | None = None,
) -> None:
    """Write the page, which is never half-written. entries: id, path and label of the N items.

    places (n, 2) and rows (n,): of `map_of`, left out if there is to be no map. n_pictures in a strip and their `side`
    in pixels: 10 and 128, for more than 50 clusters 6 and 96.
    """
    if len(entries) != len(found.assignment):
        raise ValueError(f"there are {len(entries)} entries for {len(found.assignment)} items; give one per item")
    if places is not None and rows is None:
        rows = np.arange(len(entries))
    if places is not None and rows is not None and np.shape(places) != (len(rows), 2):
        raise ValueError(f"places have shape {np.shape(places)} for {len(rows)} rows; give ({len(rows)}, 2)")
    page = _Page(found, entries, places, rows, n_pictures=n_pictures, side=side)

    def write(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(page.parts(title, progress))

    write_atomically(Path(path), write)


class _Page:
    """What the page shows, and its HTML in parts."""

    def __init__(
        self,
        found: Discovery,
        entries: pa.Table,
        places: np.ndarray | None,
        rows: np.ndarray | None,
        *,
        n_pictures: int | None,
        side: int | None,
    ):
        self.found, self.entries, self.places, self.rows = found, entries, places, rows
        self.is_many = len(found.names) > MANY
        n_pictures = N_PICTURES[self.is_many] if n_pictures is None else n_pictures
        side = SIDE[self.is_many] if side is None else side
        self.colours = colours(found)
        self.strips = [_strips(found, name, n_pictures) for name in found.names]
        shown = np.concatenate([np.array([], np.int64), *(rows for strips in self.strips for rows in strips)])
        shown = shown if rows is None else np.concatenate([shown, rows])
        self.thumbnails = Thumbnails(side, common_folder(entries["path"].take(np.unique(shown)).to_pylist()))

    def parts(self, title: str, progress: bool | None) -> Iterator[str]:
        found = self.found
        yield page_head(title, STYLE) + self.header(title)
        if self.places is not None:
            yield self.map()
        sizes = np.bincount(found.assignment, minlength=len(found.names))
        order = np.argsort(-sizes, kind="stable")
        n_pictures = sum(len(rows) for strips in self.strips for rows in strips)
        with Display("drawing", n_pictures, "pictures", progress) as display:
            for is_novel in (True, False):
                chosen = order[(order >= found.n_seen) == is_novel].tolist()
                if chosen:
                    yield f'<h2 id="{_kind(is_novel)}">{_kind(is_novel).capitalize()} classes</h2>\n'
                for k in chosen:
                    yield self.cluster(k)
                    display.advance(sum(map(len, self.strips[k])))
        yield "</body>\n</html>\n"

    def header(self, title: str) -> str:
        found = self.found
        low, high = found.n_novel_interval
        between = f" (between {low} and {high})" if low < high else ""
        counts = (
            f"{_number(len(found.assignment), 'item')}, {found.is_labelled.sum():,} of them labelled, in "
            f"{_number(found.n_seen, 'seen class')} and {_number(found.n_novel, 'novel class')}{between}; "
            f"{_number(int(found.is_novel.sum()), 'item')} in novel classes"
        )
        confidence = (
            "Confidence is 0 for an item half-way between two clusters and near 1 for one far from all others; means "
            "are of unlabelled items. Purity is the share of the commonest label among the labelled items that are "
            "nearest to a cluster's centre, wherever their label puts them."
        )
        below = f"Paths are below {self.thumbnails.folder}/" if self.thumbnails.folder else ""
        lines = "".join(f"<p>{escape(line)}</p>\n" for line in (counts, confidence, below) if line)
        links = [f'<a href="#{_kind(is_novel)}">{_kind(is_novel)} classes</a>' for is_novel in (True, False)]
        nav = f"<nav>{', '.join(links)}</nav>\n" if found.n_seen and found.n_novel else ""
        return f"<header>\n<h1>{escape(title)}</h1>\n{lines}{nav}</header>\n"

    def map(self) -> str:
        """The map with the whole of plotly's JavaScript."""
        assert self.places is not None
        assert self.rows is not None
        ids = self.entries["id"].take(self.rows).to_pylist()
        names = [short_name(name, self.thumbnails.folder) for name in ids]
        figure = map_figure(self.places, self.found, self.rows, names)
        config = {"scrollZoom": True, "displaylogo": False, "responsive": True, "modeBarButtons": [BUTTONS]}
        html = figure.to_html(config, full_html=False, div_id="map", post_script=LINKS)
        return f'<div class="map">{html}</div>\n'

    def cluster(self, k: int) -> str:
        name = breakable(str(self.found.names[k]))
        colour = button = ""
        if self.places is not None:
            colour = f'<span class="colour" style="background: {self.colours[k]}"></span>'
            button = f'<button data-cluster="{k}">show on the map</button>'
        nearest, borderline = (self.strip(rows) for rows in self.strips[k])
        strips = f"<div><h4>Nearest to the centre</h4>\n<ol>{nearest}</ol></div>\n"
        if borderline:
            strips += f'<div class="borderline"><h4>Borderline</h4>\n<ol>{borderline}</ol></div>\n'
        return (
            f'<section id="cluster-{k}">\n'
            f"<div><h3>{colour}<span>{name}</span></h3>\n<dl>{self.facts(k)}</dl>{button}</div>\n"
            f'<div class="strips {"many" if self.is_many else "few"}">{strips}</div>\n</section>\n'
        )

    def facts(self, k: int) -> str:
        found = self.found
        rows = np.flatnonzero(found.assignment == k)
        is_labelled = found.is_labelled[rows]
        facts = {"items": f"{len(rows):,}"}
        if k < found.n_seen:
            facts["labelled"] = f"{is_labelled.sum():,}"
        labels = self.entries["label"].take(np.flatnonzero(found.nearest == k)).drop_null().to_numpy()
        if len(labels):
            facts["purity"] = _purity(labels, str(found.names[k]))
        if not is_labelled.all():
            facts["mean confidence"] = f"{found.confidence[rows][~is_labelled].mean():.2f}"
        html = "".join(f"<dt>{what}</dt><dd>{value}</dd>" for what, value in facts.items())
        if k >= found.n_seen and found.n_seen > 0:
            nearest = breakable(str(found.neighbours[found.names[k]]))
            html += f'<dt class="wide">nearest seen class</dt><dd class="wide">{nearest}</dd>'
        return html

    def strip(self, rows: np.ndarray) -> str:
        pictures = []
        for row, about in zip(rows.tolist(), self.entries.take(rows).to_pylist(), strict=True):
            entry = Entry(about["id"], about["path"], about["label"])
            confidence = "labelled" if self.found.is_labelled[row] else f"{self.found.confidence[row]:.2f}"
            name = escape(f"{entry.id}, {confidence}")
            pictures.append(f'<li title="{name}">{self.thumbnails.picture(entry)}{confidence}</li>')
        return "\n".join(pictures)


def _strips(found: Discovery, name: object, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows nearest to the centre, and unlabelled ones on the border that are not among them."""
    nearest = found.exemplars(name, n)
    border = found.borderline(name, 2 * n)
    return nearest, border[~np.isin(border, nearest) & ~found.is_labelled[border]][:n]


def _purity(labels: np.ndarray, name: str) -> str:
    """The share of the commonest label, which is named unless the cluster is."""
    values, counts = np.unique(labels, return_counts=True)
    commonest = values[counts.argmax()]
    of = "" if commonest == name else f" {breakable(commonest.replace(LABEL_SEPARATOR, ', '))}"
    return f"{counts.max() / len(labels):.0%}{of}"


def _kind(is_novel: bool) -> str:
    return "novel" if is_novel else "seen"


def _number(n: int, noun: str) -> str:
    """A number with its noun.

    >>> _number(1, "class"), _number(2_000, "class"), _number(3, "item")
    ('1 class', '2,000 classes', '3 items')
    """
    ending = "" if n == 1 else "es" if noun.endswith("s") else "s"
    return f"{n:,} {noun}{ending}"
