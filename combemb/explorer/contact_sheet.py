"""A contact sheet: one HTML file with the pictures of queries and of what they found, to be looked at anywhere."""

from collections.abc import Iterator
from html import escape
from pathlib import Path

from combemb.collection.indexed import Entry, Found, Hit
from combemb.data.labels import LABEL_SEPARATOR
from combemb.explorer.thumbnails import Thumbnails, breakable, common_folder, page_head, short_name
from combemb.system.files import write_atomically
from combemb.system.progress import Display

SIDE = 192  # of a thumbnail in pixels; the page shows about 160 of them

STYLE = """
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
    entries = [entry for found in results for entry in (found.query, *found.hits)]
    thumbnails = Thumbnails(SIDE, common_folder(entry.path for entry in entries))
    below = f"Paths are below {thumbnails.folder}/" if thumbnails.folder else ""
    lines = "".join(f"<p>{escape(line)}</p>\n" for line in (about, below) if line)
    yield f"{page_head(title, STYLE)}<header>\n<h1>{escape(title)}</h1>\n{lines}</header>\n"
    with Display("drawing", len(entries), "pictures", progress) as display:
        for found in results:
            yield '<section>\n<div class="query">\n<h2>Query</h2>\n'
            yield _figure(found.query, "", _label(found.query, None), thumbnails)
            yield f"</div>\n<div>\n<h2>{_count(len(found.hits))}</h2>\n<ol>\n"
            for rank, hit in enumerate(found.hits, start=1):
                yield f"<li>{_figure(hit, _numbers(rank, hit), _label(hit, found.query), thumbnails)}</li>\n"
            yield "</ol>\n</div>\n</section>\n"
            display.advance(1 + len(found.hits))
    yield "</body>\n</html>\n"


def _count(n: int) -> str:
    return f"{n} hits, best first" if n > 1 else "1 hit" if n else "no hits"


def _figure(entry: Entry, numbers: str, label: str, thumbnails: Thumbnails) -> str:
    name = breakable(short_name(entry.id, thumbnails.folder))
    path = f'<span class="path" title="{escape(entry.id)}">{name}</span>'
    return f"<figure>{thumbnails.picture(entry)}<figcaption>{numbers} {label} {path}</figcaption></figure>\n"


def _numbers(rank: int, hit: Hit) -> str:
    return f'<div class="numbers"><span>{rank}</span><span>{hit.score:.3f}</span></div>'


def _label(entry: Entry, query: Entry | None) -> str:
    """The label, marked where a hit shares one with the query."""
    if entry.label is None:
        return '<span class="label none">no label</span>' if query is not None else ""
    asked = set() if query is None or query.label is None else set(query.label.split(LABEL_SEPARATOR))
    is_same = bool(asked & set(entry.label.split(LABEL_SEPARATOR)))
    text = breakable(entry.label.replace(LABEL_SEPARATOR, ", "))
    return f'<span class="label same">✓ {text}</span>' if is_same else f'<span class="label">{text}</span>'
