"""`combemb discover`: find novel classes among the items of a run."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Column, Table

from combemb.cli.console import notes_shown, out, printable, running, say, tell_broken
from combemb.cli.options import Embeddings, Images, LabelFile, Quiet, Run, chosen_data, read_label_file

if TYPE_CHECKING:
    import numpy as np

    from combemb.collection.discovered import DiscoveredItems
    from combemb.discovery.clusters import Clusters

MAX_CLUSTERS_PRINTED = 40


def discover(
    run: Run,
    images: Images = None,
    embeddings: Embeddings = None,
    labels: LabelFile = None,
    n_novel: Annotated[int | None, typer.Option(help="Number of novel classes, if you know it.")] = None,
    count_by: Annotated[
        str, typer.Option(help="How to estimate that number otherwise: merging, sizes, codes, gcd or dtc.")
    ] = "merging",
    to_folders: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Create a folder for each cluster, with links to its images.")
    ] = None,
    copy: Annotated[bool, typer.Option("--copy", help="Copy the images into these folders instead.")] = False,
    folder: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="Folder to write to instead of the run folder.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the discovery of the run by one of other items.")
    ] = False,
    page: Annotated[bool, typer.Option("--page/--no-page", help="Write the page and the map, or do not.")] = True,
    quiet: Quiet = False,
) -> None:
    """Find the items that belong to no labelled class, estimate the number of novel classes, and cluster the items.

    Writes discovery.parquet and discovery.csv (id, path, cluster, is_novel, confidence, class), a page
    (discovery.html) and a map (discovery-map.png) into the run folder, and replaces those of an earlier call. What you
    said about items with `combemb classes` still holds: the page and the column `class` show it, and the confidence is
    that of the class; `cluster` is what was found. `combemb predict` uses this discovery; one of other items
    (`--images`, `--embeddings`) is written to another folder with `--out`, or replaces it with `--overwrite`.

    Example: `combemb discover runs/photos --to-folders sorted/`
    """
    from combemb.collection import discovered, folders
    from combemb.collection.classes import NotApplied, classes_of
    from combemb.learning.run_folder import MAP, PAGE, PLACES, TABLE, TEXT, RunFolder
    from combemb.system.files import written_together

    with running(quiet):
        data = chosen_data(images, embeddings)
        if to_folders:
            folders.check_empty(to_folders)
        elif copy:
            raise ValueError("--copy only works with --to-folders; use both")
        names = read_label_file(labels)
        RunFolder(run).config()  # raises an error if this is not a run folder
        target = RunFolder(run if folder is None else folder)
        # Old and new clusters must not be mixed, whatever happens.
        with target.written(), written_together(target.folder, (PLACES, *(() if page else (PAGE, MAP)))):
            with notes_shown():
                result = discovered.discover_in(
                    run,
                    data,
                    labels=names,
                    n_novel=n_novel,
                    count_by=count_by,
                    to_folders=to_folders,
                    out=folder,
                    overwrite=overwrite,
                    progress=not quiet,
                )
            discovered.write_tables(result)
            places = write_page(result, run, progress=not quiet) if page else None
        if places is not None and folder is None:
            from combemb.explorer.stored_map import store_map

            store_map(run, places, result.z)
        # Elsewhere are other items, most of which nobody has said anything about.
        with notes_shown() if folder is None else warnings.catch_warnings(action="ignore", category=NotApplied):
            classes = classes_of(run, target.folder / TABLE)
        tell_broken(result.broken, "the clusters")
        _print_summary(result.named[0], target.folder / TABLE)
        say(f"written to {target.folder}: {', '.join([TABLE, TEXT, *([PAGE, MAP] if page else [])])}")
        if classes.changes:
            n_rejected = sum(name is None for name in classes.names)
            rejected = f"; rejected items, in no class: {n_rejected:,}" if n_rejected else ""
            say(f"changes by `combemb classes` that hold: {len(classes.changes)}{rejected}")
        if to_folders:
            assert result.files is not None
            names = [result.found.neither if name is None else name for name in classes.names]
            folders.write_folders(to_folders, result.files, names, copy=copy, progress=not quiet)
            say(f"{len(result.files):,} images {'copied' if copy else 'linked'} into {to_folders}")


def write_page(result: DiscoveredItems, run: Path, *, progress: bool) -> np.ndarray:
    """Write the page and the map of a discovery, with the classes as people named them; return the places (N, 2)."""
    from combemb.explorer.discovery_map import map_of_all, sampled, write_map_png  # openTSNE and plotly take seconds
    from combemb.explorer.discovery_page import write_discovery_page
    from combemb.learning.run_folder import MAP, PAGE

    found, kept = result.named
    everywhere, rows = map_of_all(result.z, progress=progress), sampled(len(kept))
    places = everywhere[kept[rows]]
    write_map_png(result.folder / MAP, places, found, rows)
    shown = (found, result.entries.take(kept), places, rows)
    n_rejected, title = len(result.entries) - len(kept), f"Classes in {run}"
    write_discovery_page(result.folder / PAGE, *shown, title=title, n_rejected=n_rejected, progress=progress)
    return everywhere


def _print_summary(found: Clusters, everything: Path) -> None:
    """Print the counts, and a table of the clusters, novel ones first."""
    low, high = found.n_novel_interval
    between = f", probably {low} to {high}" if low < high else ""
    say(
        f"{len(found):,} items, {int(found.is_labelled.sum()):,} of them labelled: {found.n_seen} seen classes, "
        f"{found.n_novel} novel{between}; {int(found.is_novel.sum()):,} items belong to novel classes"
    )
    titles = ("cluster", "items", "labelled", "confidence", "nearest seen class")
    table = Table(*(Column(title, overflow="fold") for title in titles), box=None, pad_edge=False)
    clusters = [*range(found.n_seen, len(found.names)), *range(found.n_seen)]
    for k in clusters[:MAX_CLUSTERS_PRINTED]:
        is_mine, name = found.assignment == k, found.names[k]
        confidence = found.confidence[is_mine & ~found.is_labelled]
        mean = f"{confidence.mean():.2f}" if len(confidence) else "-"
        counts = f"{is_mine.sum():,}", f"{(is_mine & found.is_labelled).sum():,}"
        nearest = found.neighbours.get(name, "")
        table.add_row(escape(printable(name)), *counts, mean, escape(printable(nearest)))
    out.print(table)
    if len(clusters) > MAX_CLUSTERS_PRINTED:
        say(f"... and {len(clusters) - MAX_CLUSTERS_PRINTED} more, all in {everything}")
