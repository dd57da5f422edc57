"""A contact sheet: one HTML file with the pictures of queries and of their hits, which any browser shows."""

from pathlib import Path

from combemb.collection.indexed import SearchResult
from combemb.data.entries import Entry
from combemb.data.labels import LABEL_SEPARATOR
from combemb.explorer.pages import write_page
from combemb.explorer.thumbnails import Thumbnails

THUMBNAIL_SIDE = 192  # pixels; the page shows about 160 of them


def write_contact_sheet(
    path: str | Path, results: list[SearchResult], title: str, about: str = "", progress: bool | None = None
) -> None:
    """Write a page with the pictures of queries and hits.

    Parameters
    ----------
    path : str or Path
        HTML file to write; an old one stays until the new one is complete.
    results : list of SearchResult
        What `Collection.search` returns. Labels that a hit shares with its query are marked.
    title : str
        Heading of the page.
    about : str, default=""
        Text below the heading.
    progress : bool or None, default=None
        Whether to show progress; None shows it on a terminal only.
    """
    entries = [entry for found in results for entry in (found.query, *found.hits)]
    thumbnails = Thumbnails(THUMBNAIL_SIDE, (entry.path for entry in entries))
    shown = {"title": title, "about": about, "results": results, "shares_label": _shares_label}
    write_page(path, "contact_sheet.html.j2", thumbnails, len(entries), progress, **shown)


def _shares_label(hit: Entry, query: Entry) -> bool:
    labels = [set() if entry.label is None else set(entry.label.split(LABEL_SEPARATOR)) for entry in (hit, query)]
    return bool(labels[0] & labels[1])
