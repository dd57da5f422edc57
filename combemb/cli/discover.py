"""How `combemb discover` shows what it found: on the terminal, as a page and as a map."""

import re
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from combemb.collection.discovered import Discovered
from combemb.learning.run_folder import MAP, PAGE, TABLE

SHOWN = 40  # clusters on the terminal, at most
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # what would move the cursor or change colours


def write_pictures(result: Discovered, progress: bool | None) -> None:
    """Write the map as a picture, and the page with the map and the clusters."""
    from combemb.explorer.discovery_map import map_of, write_map_png  # noqa: PLC0415 - openTSNE and plotly take seconds
    from combemb.explorer.discovery_page import write_discovery_page  # noqa: PLC0415

    places, rows = map_of(result.z, progress=progress)
    write_map_png(result.run / MAP, places, result.found, rows)
    title = f"Classes in {result.run}"
    write_discovery_page(result.run / PAGE, result.found, result.entries, places, rows, title=title, progress=progress)


def remove_pictures(run: Path) -> None:
    """Without the page and the map of an earlier call, which would show other clusters than the tables list."""
    for name in (PAGE, MAP):
        (run / name).unlink(missing_ok=True)


def print_summary(result: Discovered, console: Console) -> None:
    """Counts, and a table of the clusters, novel ones first."""
    found = result.found
    low, high = found.n_novel_interval
    between = f", probably {low} to {high}" if low < high else ""
    n_novel_items = int(found.is_novel.sum())
    console.print(
        f"{len(found):,} items, {int(found.is_labelled.sum()):,} of them labelled: {found.n_seen} seen classes, "
        f"{found.n_novel} novel{between}; {n_novel_items:,} items are of novel classes",
        soft_wrap=True,
    )
    sizes, confidence = found.sizes, found.confidence
    table = Table(box=None, pad_edge=False)
    for title in ("cluster", "items", "labelled", "confidence", "nearest seen class"):
        table.add_column(title, overflow="fold")
    names = [*found.names[found.n_seen :], *found.names[: found.n_seen]]
    for name in names[:SHOWN]:
        rows = found.clusters == name
        mean = confidence[rows & ~found.is_labelled]
        table.add_row(
            escape(CONTROL.sub("?", str(name))),
            f"{sizes[name]:,}",
            f"{int((rows & found.is_labelled).sum()):,}",
            f"{mean.mean():.2f}" if len(mean) else "-",
            escape(CONTROL.sub("?", str(found.neighbours.get(name, "")))),
        )
    console.print(table)
    if len(names) > SHOWN:
        console.print(f"... and {len(names) - SHOWN} more, all in {result.run / TABLE}", soft_wrap=True, markup=False)
