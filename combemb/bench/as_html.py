"""The report as one HTML page that needs nothing else: sortable tables, and the figures inside."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined

from combemb.bench.as_markdown import groups_of
from combemb.bench.claims import verdict

if TYPE_CHECKING:
    from combemb.bench.report import Section

TEMPLATES = Environment(
    loader=PackageLoader("combemb.bench"), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
)
TEMPLATES.trim_blocks = TEMPLATES.lstrip_blocks = True


def page(chapters: dict[str, list[Section]], title: str, introduction: str) -> str:
    """Return the whole report as a page."""
    template = TEMPLATES.get_template("report.html.j2")
    said = {name: verdict(section.summary for section in sections) for name, sections in chapters.items()}
    shown = {"chapters": chapters, "title": title, "introduction": introduction, "said": said}
    return template.render(**shown, as_data=as_data, groups_of=groups_of)


def as_data(path: Path) -> str:
    """Return a picture as the source of an `img`."""
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
