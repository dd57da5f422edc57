"""A contact sheet: one HTML file with the pictures of queries and of what they found, to be looked at anywhere."""

import base64
import io
import os
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from html import escape
from pathlib import Path

from combemb.collection import Entry, Found, Hit
from combemb.data.images import BrokenImage
from combemb.data.manifests import BETWEEN
from combemb.files import write_atomically
from combemb.progress import Display

SIDE = 192  # of a thumbnail in pixels; the page shows about 160 of them
QUALITY = 85  # of its JPEG
REMEMBERED = 4_096  # thumbnails that several queries may share

STYLE = """
:root { color-scheme: light dark; --page: #f6f6f4; --card: #ffffff; --line: #e2e2de; --text: #1d1d1b;
  --faint: #6b6b66; --empty: #dcdcd8; --same: #1a7f4b; --accent: #3459c4 }
@media (prefers-color-scheme: dark) { :root { --page: #161719; --card: #202225; --line: #34373b; --text: #e9e9e6;
  --faint: #a0a29f; --empty: #3a3d41; --same: #5fcf95; --accent: #8fa9f5 } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 1400px; padding: 24px 20px 48px; background: var(--page); color: var(--text);
  font: 14px/1.45 system-ui, sans-serif }
h1 { margin: 0; font-size: 20px; font-weight: 650; overflow-wrap: anywhere }
header p { margin: 4px 0 0; color: var(--faint); overflow-wrap: anywhere }
section { display: grid; grid-template-columns: 200px 1fr; gap: 24px; margin-top: 24px; padding-top: 24px;
  border-top: 1px solid var(--line) }
h2 { margin: 0 0 8px; font-size: 11px; font-weight: 600; letter-spacing: .06em; text-transform: uppercase;
  color: var(--faint) }
ol { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 12px; margin: 0; padding: 0;
  list-style: none }
figure { margin: 0; padding: 8px; height: 100%; background: var(--card); border: 1px solid var(--line);
  border-radius: 8px }
.query figure { height: auto; border-color: var(--accent); box-shadow: 0 0 0 1px var(--accent) }
@media (min-width: 641px) { .query { position: sticky; top: 20px; align-self: start } }
.picture { display: flex; align-items: center; justify-content: center; aspect-ratio: 1 }
.picture img { width: 100%; height: 100%; object-fit: contain }
.missing { padding: 10px; border-radius: 4px; background: var(--empty); color: var(--faint); font-size: 12px;
  text-align: center; overflow-wrap: anywhere }
figcaption { margin-top: 8px; overflow-wrap: anywhere }
.numbers { display: flex; justify-content: space-between; color: var(--faint); font-variant-numeric: tabular-nums }
.label { font-weight: 600 }
.same { color: var(--same) }
.none { color: var(--faint); font-weight: 400 }
.path { display: block; color: var(--faint); font-size: 12px; line-height: 1.35 }
@media (max-width: 640px) { section { grid-template-columns: 1fr; gap: 18px } .query figure { max-width: 200px } }
"""


def write_contact_sheet(
    path: str | Path, results: list[Found], title: str, about: str = "", progress: bool | None = None
) -> None:
    """Write the page, which is never half-written: an old one stays until the new one is whole."""

    def write(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(_page(results, title, about, progress))

    write_atomically(Path(path), write)


def _page(results: list[Found], title: str, about: str, progress: bool | None) -> Iterator[str]:
    thumbnail = lru_cache(REMEMBERED)(_thumbnail)
    folder = _common_folder(results)
    below = f"Paths are below {folder}/" if folder else ""
    lines = "".join(f"<p>{escape(line)}</p>\n" for line in (about, below) if line)
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<header>\n<h1>{escape(title)}</h1>\n{lines}</header>\n"
    )
    with Display("drawing", sum(1 + len(found.hits) for found in results), "pictures", progress) as display:
        for found in results:
            yield '<section>\n<div class="query">\n<h2>Query</h2>\n'
            yield _figure(found.query, "", _label(found.query, None), folder, thumbnail)
            yield f"</div>\n<div>\n<h2>{_count(len(found.hits))}</h2>\n<ol>\n"
            for rank, hit in enumerate(found.hits, start=1):
                yield f"<li>{_figure(hit, _numbers(rank, hit), _label(hit, found.query), folder, thumbnail)}</li>\n"
            yield "</ol>\n</div>\n</section>\n"
            display.advance(1 + len(found.hits))
    yield "</body>\n</html>\n"


def _count(n: int) -> str:
    return f"{n} hits, best first" if n > 1 else "1 hit" if n else "no hits"


def _figure(entry: Entry, numbers: str, label: str, folder: str, thumbnail: Callable[[Entry], str | None]) -> str:
    name = _short(entry.id, folder)
    encoded = thumbnail(Entry(entry.id, entry.path))
    if encoded is None:
        picture = f'<div class="picture missing">{_text(Path(entry.id).name)}</div>'
    else:
        picture = f'<div class="picture"><img src="data:image/jpeg;base64,{encoded}" alt="{escape(name)}"></div>'
        if entry.id == entry.path:
            picture = f'<a href="{escape(Path(entry.path).as_uri())}">{picture}</a>'
    path = f'<span class="path" title="{escape(entry.id)}">{_text(name)}</span>'
    return f"<figure>{picture}<figcaption>{numbers} {label} {path}</figcaption></figure>\n"


def _numbers(rank: int, hit: Hit) -> str:
    return f'<div class="numbers"><span>{rank}</span><span>{hit.score:.3f}</span></div>'


def _label(entry: Entry, query: Entry | None) -> str:
    """The label, marked where a hit shares one with the query."""
    if entry.label is None:
        return '<span class="label none">no label</span>' if query is not None else ""
    asked = set() if query is None or query.label is None else set(query.label.split(BETWEEN))
    is_same = bool(asked & set(entry.label.split(BETWEEN)))
    text = _text(entry.label.replace(BETWEEN, ", "))
    return f'<span class="label same">✓ {text}</span>' if is_same else f'<span class="label">{text}</span>'


def _text(name: str) -> str:
    """A name as HTML that may be broken between its parts."""
    return re.sub(r"([_/\\-])", r"\1<wbr>", escape(name))


def _thumbnail(entry: Entry) -> str | None:
    """A small JPEG in base64, None if the picture cannot be read."""
    try:
        image = entry.image(at_least=2 * SIDE)
    except BrokenImage:
        return None
    image.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=QUALITY, subsampling="4:4:4")
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _common_folder(results: list[Found]) -> str:
    """The folder below which all pictures lie, empty if there is none worth naming."""
    entries = [entry for found in results for entry in (found.query, *found.hits)]
    folders = {str(Path(entry.path).parent) for entry in entries if entry.path is not None}
    common = os.path.commonpath(folders) if folders else ""
    return common if len(Path(common).parts) > 1 else ""


def _short(name: str, folder: str) -> str:
    return name.removeprefix(f"{folder}{os.sep}") if folder else name
