"""HTML pages from the templates beside this file, streamed to disk; every value in them is escaped."""

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from combemb.collection.indexed import Entry
from combemb.data.manifests import BETWEEN
from combemb.explorer.thumbnails import Picture, Thumbnails
from combemb.system.files import write_atomically
from combemb.system.progress import Display

if TYPE_CHECKING:
    from jinja2 import Environment


def write_page(
    path: str | Path, name: str, thumbnails: Thumbnails, n_pictures: int, progress: bool | None, **shown: Any
) -> None:
    """Render a template to a file part by part; an old page stays until the new one is complete.

    The template sees `thumbnails`, `picture_of(entry)`, which counts towards `n_pictures`, and what is `shown`.
    """

    def write(temporary: Path) -> None:
        def picture_of(entry: Entry) -> Picture:
            picture = thumbnails.picture(entry)
            display.advance(1)
            return picture

        with (
            temporary.open("w", encoding="utf-8") as file,
            Display("drawing", n_pictures, "pictures", progress) as display,
        ):
            file.writelines(
                environment().get_template(name).generate(thumbnails=thumbnails, picture_of=picture_of, **shown)
            )

    write_atomically(Path(path), write)


@cache
def environment() -> "Environment":
    """Return what loads templates."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - most searches write no page

    loaded = Environment(
        loader=PackageLoader("combemb.explorer"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    loaded.filters |= {"breakable": breakable, "comma_separated": comma_separated, "counted": counted}
    return loaded


def breakable(name: str) -> Markup:
    """Escape a name and allow line breaks between its parts.

    >>> breakable("a<b>_c")
    Markup('a&lt;b&gt;_<wbr>c')
    """
    return Markup(re.sub(r"([_/\\-])", r"\1<wbr>", str(escape(name))))


def comma_separated(label: str) -> str:
    """Return a label as it is shown to readers: several classes are separated by commas."""
    return label.replace(BETWEEN, ", ")


def counted(n: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "class"), counted(2_000, "class"), counted(3, "item")
    ('1 class', '2,000 classes', '3 items')
    """
    ending = "" if n == 1 else "es" if noun.endswith("s") else "s"
    return f"{n:,} {noun}{ending}"
