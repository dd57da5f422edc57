"""HTML pages from the templates beside this file, streamed to disk; every value in them is escaped."""

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from combemb.data.entries import Entry
from combemb.data.labels import LABEL_SEPARATOR
from combemb.explorer.thumbnails import Thumbnails
from combemb.system.files import write_atomically
from combemb.system.progress import Display

TEMPLATES = Environment(
    loader=PackageLoader("combemb.explorer"), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
)
TEMPLATES.trim_blocks = TEMPLATES.lstrip_blocks = True
TEMPLATES.globals["Path"] = Path


def write_page(
    path: str | Path, template: str, thumbnails: Thumbnails, n_pictures: int, progress: bool | None, **shown: Any
) -> None:
    """Render a template to a file part by part; an old page stays until the new one is complete.

    The template sees `thumbnails`, `jpeg_of(entry)`, which counts towards `n_pictures`, and what is `shown`.
    """

    def write(temporary: Path) -> None:
        def jpeg_of(entry: Entry) -> str | None:
            jpeg = thumbnails.jpeg(entry)
            display.advance(1)
            return jpeg

        parts = TEMPLATES.get_template(template).generate(thumbnails=thumbnails, jpeg_of=jpeg_of, **shown)
        with (
            Display("drawing", n_pictures, "pictures", progress) as display,
            temporary.open("w", encoding="utf-8") as file,
        ):
            file.writelines(parts)

    write_atomically(Path(path), write)


def breakable(name: str) -> Markup:
    """Escape a name and allow line breaks between its parts.

    >>> breakable("a<b>_c")
    Markup('a&lt;b&gt;_<wbr>c')
    """
    return Markup(re.sub(r"([_/\\-])", r"\1<wbr>", str(escape(name))))


TEMPLATES.filters |= {"breakable": breakable, "comma_separated": lambda label: label.replace(LABEL_SEPARATOR, ", ")}
