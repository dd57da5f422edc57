"""Pages as a browser reads them."""

import base64
import io
from html.parser import HTMLParser
from pathlib import Path

from PIL import Image

VOID = {"meta", "img", "wbr"}
HOSTILE = [  # names that would be markup, code or a template if they were not escaped
    "<b>bold</b>",
    "a\"b'c&amp;&lt;",
    "{{ 7*7 }}{% raw %}{# x #}",
    "</script><script>alert(1)</script>",
    '" onerror="alert(1)" x="',
    "</title></style></section><!--",
    "%{x}_{plot_id}-\\u003c$é",
]


class Page(HTMLParser):
    """Reads a page, and fails where an element is not closed in its place."""

    def __init__(self, path: Path):
        super().__init__()
        self.open, self.elements, self.texts = [], [], []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.texts.append(data)

    @property
    def text(self) -> str:
        """What is to be read, with white space as a browser shows it."""
        return " ".join("".join(self.texts).split())

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.elements if name == tag]

    def thumbnails(self) -> list[Image.Image]:
        sources = [attributes["src"].removeprefix("data:image/jpeg;base64,") for attributes in self.all("img")]
        return [Image.open(io.BytesIO(base64.b64decode(source, validate=True))) for source in sources]
