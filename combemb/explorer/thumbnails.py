"""Pictures on a page: small, inside the page, linked to their files, under names that are safe to show."""

import base64
import io
import os
import re
from collections.abc import Iterable
from functools import lru_cache
from html import escape
from pathlib import Path

from combemb.collection.indexed import Entry
from combemb.data.images import BrokenImage

QUALITY = 85  # of a JPEG
REMEMBERED = 4_096  # thumbnails that may be shown again

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
.picture { display: flex; align-items: center; justify-content: center; aspect-ratio: 1 }
.picture img { width: 100%; height: 100%; object-fit: contain }
.missing { padding: 10px; border-radius: 4px; background: var(--empty); color: var(--faint); font-size: 12px;
  text-align: center; overflow-wrap: anywhere }
"""


class Thumbnails:
    """The pictures of one page, `side` pixels at most; their names are shown from below `folder`."""

    def __init__(self, side: int, folder: str = ""):
        self.folder = folder
        self._encoded = lru_cache(REMEMBERED)(lambda entry: encoded(entry, side))

    def picture(self, entry: Entry) -> str:
        """The picture as HTML, which leads to its file; a box with its name if there is none to be read."""
        jpeg = self._encoded(Entry(entry.id, entry.path))
        if jpeg is None:
            name = entry.id if entry.path is None else Path(entry.id).name
            return f'<div class="picture missing">{breakable(name)}</div>'
        name = short_name(entry.id, self.folder)
        picture = f'<div class="picture"><img src="data:image/jpeg;base64,{jpeg}" alt="{escape(name)}"></div>'
        if entry.path is not None and entry.id == entry.path:
            picture = f'<a href="{escape(Path(entry.path).as_uri())}">{picture}</a>'
        return picture


def encoded(entry: Entry, side: int) -> str | None:
    """A small JPEG in base64, None if the picture cannot be read."""
    try:
        image = entry.image(at_least=2 * side)
    except BrokenImage:
        return None
    image.thumbnail((side, side))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=QUALITY, subsampling="4:4:4", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def page_head(title: str, style: str) -> str:
    """The beginning of a page up to its body, with the style of all pages and its own."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}{style}</style>\n</head>\n<body>\n"
    )


def breakable(name: str) -> str:
    """A name as HTML that may be broken between its parts.

    >>> breakable("a<b>_c")
    'a&lt;b&gt;_<wbr>c'
    """
    return re.sub(r"([_/\\-])", r"\1<wbr>", escape(name))


def common_folder(paths: Iterable[str | None]) -> str:
    """The folder below which all files lie, empty if there is none worth naming."""
    folders = {str(Path(path).parent) for path in paths if path is not None}
    common = os.path.commonpath(folders) if folders else ""
    return common if len(Path(common).parts) > 1 else ""


def short_name(name: str, folder: str) -> str:
    """A name without the folder that all have in common."""
    return name.removeprefix(f"{folder}{os.sep}") if folder else name
