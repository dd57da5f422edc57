"""The contact sheet: what a browser is given, and that it needs nothing else."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from combemb.collection.indexed import Hit, SearchResult
from combemb.data.entries import Entry
from combemb.explorer.contact_sheet import THUMBNAIL_SIDE, write_contact_sheet
from combemb.system import progress
from tests.pages import HOSTILE, Page
from tests.pictures import PIXELS, write_folder


def hit(path: object, score: float = 1.0, label: str | None = None) -> Hit:
    return Hit(id=str(path), path=str(path), label=label, score=score)


def entry(path: object, label: str | None = None) -> Entry:
    return Entry(str(path), str(path), label)


def page(path: Path, *results: SearchResult) -> Page:
    write_contact_sheet(path, list(results), "Search in runs/photos", "72 entries")
    return Page(path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "photos", ids=["ant/0.png", "ant/1.png", "bee/2.png"])


def test_queries_and_hits_stand_in_order_with_rank_score_label_and_path(photos: Path, tmp_path: Path):
    hits = [hit(photos / "bee/2.png", 3.25, "bee"), hit(photos / "ant/1.png", 2.5, "ant")]
    shown = page(
        tmp_path / "page.html",
        SearchResult(entry(photos / "ant/0.png", "ant"), hits),
        SearchResult(entry(photos / "bee/2.png"), []),
    )
    assert shown.text == (
        f"Search in runs/photos Search in runs/photos 72 entries Paths are below {photos}/ "
        "Query ant ant/0.png 2 hits, best first 13.250 bee bee/2.png 22.500 ✓ ant ant/1.png "
        "Query bee/2.png no hits"
    )
    colours = [np.asarray(thumbnail).mean(axis=(0, 1)) for thumbnail in shown.thumbnails()]
    np.testing.assert_allclose(colours, PIXELS[[0, 2, 1, 2]].mean(axis=(1, 2)), atol=3)


def test_thumbnails_are_small_and_keep_their_shape(tmp_path: Path):
    for name, size in (("wide.jpg", (1000, 500)), ("tall.png", (300, 900)), ("tiny.png", (20, 10))):
        Image.new("RGB", size, "green").save(tmp_path / name)
    hits = [hit(tmp_path / "wide.jpg"), hit(tmp_path / "tall.png")]
    shown = page(tmp_path / "page.html", SearchResult(entry(tmp_path / "tiny.png"), hits))
    side = THUMBNAIL_SIDE
    assert [thumbnail.size for thumbnail in shown.thumbnails()] == [(20, 10), (side, side // 2), (side // 3, side)]
    assert {thumbnail.format for thumbnail in shown.thumbnails()} == {"JPEG"}


def test_a_page_needs_nothing_but_itself(photos: Path, tmp_path: Path):
    shown = page(tmp_path / "page.html", SearchResult(entry(photos / "ant/0.png"), [hit(photos / "bee/2.png")]))
    assert {tag for tag, _ in shown.elements} & {"script", "link", "iframe", "object"} == set()
    text = (tmp_path / "page.html").read_text()
    assert re.findall(r"https?:|@import|url\(", text) == []
    assert [attributes["href"] for attributes in shown.all("a")] == [
        (photos / name).as_uri() for name in ("ant/0.png", "bee/2.png")
    ]
    assert "prefers-color-scheme: dark" in text


def test_names_are_text_whatever_they_hold(tmp_path: Path):
    name = "a\"b'c&amp;<b onclick=x>é_[red].png"
    Image.new("RGB", (8, 8)).save(tmp_path / name)
    label = "<script>alert(1)</script>|x&y"
    shown = page(tmp_path / "page.html", SearchResult(entry("/elsewhere/<i>.png"), [hit(tmp_path / name, label=label)]))
    assert {tag for tag, _ in shown.elements} & {"b", "i", "script"} == set()
    assert name in shown.text
    assert "<script>alert(1)</script>, x&y" in shown.text
    assert [attributes["alt"] for attributes in shown.all("img")] == [str(tmp_path / name)]
    assert str(tmp_path / name) in [attributes["title"] for attributes in shown.all("span") if "title" in attributes]
    assert [attributes["href"] for attributes in shown.all("a")] == [(tmp_path / name).as_uri()]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_change_nothing_but_texts(tmp_path: Path, name: str):
    array = tmp_path / "pixels.npy"
    np.save(array, PIXELS[:1])

    def sheet(name: str) -> Page:
        hits = [Hit(id=f"{name}#0", path=str(array), label=name, score=1.0), Hit(id=name, score=0.5)]
        write_contact_sheet(tmp_path / "page.html", [SearchResult(Entry(name, label=name), hits)], name, name)
        return Page(tmp_path / "page.html")

    plain, hostile = sheet("plain"), sheet(name)
    assert hostile.text == plain.text.replace("plain", name)
    assert hostile.text.count(name) == 3 + 3 + 2 + 2  # title, heading, about; query; hits
    attributes = [dict(shown) for tag, shown in plain.elements if tag != "wbr"]
    expected = [{key: value.replace("plain", name) for key, value in shown.items()} for shown in attributes]
    assert [shown for tag, shown in hostile.elements if tag != "wbr"] == expected


def test_what_cannot_be_shown_is_a_box_with_its_name(photos: Path, tmp_path: Path):
    (photos / "ant/1.png").write_bytes((photos / "ant/1.png").read_bytes()[:100])
    (photos / "array.npy").write_bytes(b"damaged")
    hits = [
        hit(photos / "ant/gone.png"),
        hit(photos / "ant/1.png"),
        Hit(id=f"{photos}/array.npy#3", path=f"{photos}/array.npy", score=1.0),
        Hit(id="item-7", score=1.0),
    ]
    shown = page(tmp_path / "page.html", SearchResult(entry(photos / "ant/0.png"), hits))
    assert len(shown.thumbnails()) == 1
    boxes = [attributes for attributes in shown.all("div") if "missing" in attributes.get("class", "")]
    assert len(boxes) == 4
    for name in ("gone.png", "1.png", "array.npy#3", "item-7"):
        assert shown.text.count(name) == 2  # in the box and below it


def test_rows_of_an_array_file_are_shown(tmp_path: Path):
    array = tmp_path / "pixels.npy"
    np.save(array, PIXELS[:4])
    hits = [Hit(id=f"{array}#{row}", path=str(array), score=1.0) for row in (2, 4)]  # there is no row 4
    shown = page(tmp_path / "page.html", SearchResult(Entry(f"{array}#0", str(array)), hits))
    colours = [np.asarray(thumbnail).mean(axis=(0, 1)) for thumbnail in shown.thumbnails()]
    np.testing.assert_allclose(colours, PIXELS[[0, 2]].mean(axis=(1, 2)), atol=3)


@pytest.mark.parametrize(
    ("asked", "label", "is_marked"),
    [
        ("ant", "ant", True),
        ("ant", "bee", False),
        ("ant|bee", "bee|cat", True),
        (None, "ant", False),
        (None, None, False),
    ],
)
def test_a_label_that_the_query_has_too_is_marked(
    tmp_path: Path, asked: str | None, label: str | None, is_marked: bool
):
    shown = page(tmp_path / "page.html", SearchResult(Entry("q", label=asked), [Hit(id="h", label=label, score=1.0)]))
    assert ("✓" in shown.text) == is_marked
    assert shown.text.count("no label") == (label is None)


def test_a_hit_without_a_label_has_the_name_that_a_person_gave(tmp_path: Path):
    hits = [Hit(id="a", score=1.0, name="<b>hawk</b>"), Hit(id="b", score=1.0, label="ant"), Hit(id="c", score=1.0)]
    shown = page(tmp_path / "page.html", SearchResult(Entry("q"), hits))
    assert shown.text.endswith("a 11.000 <b>hawk</b> a b 21.000 ant b c 31.000 no label c")


def test_pictures_are_counted_while_the_page_is_written(photos: Path, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    results = [SearchResult(entry(photos / "ant/0.png"), [hit(photos / "bee/2.png")])] * 2
    write_contact_sheet(tmp_path / "page.html", results, "title", progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("%")[0] for line in lines] == [f"drawing {share:>3}" for share in (25, 50, 75, 100)]
    write_contact_sheet(tmp_path / "page.html", results, "title", progress=False)
    assert capsys.readouterr().err == ""


def test_a_page_that_fails_leaves_the_old_one(photos: Path, tmp_path: Path):
    target = tmp_path / "page.html"
    target.write_text("old")
    with pytest.raises(AttributeError):
        write_contact_sheet(target, [SearchResult(entry(photos / "ant/0.png"), [None])], "title")
    assert target.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "photos"]
