"""The page of a discovery: what a browser is given, and that it needs nothing else."""

import json
import re
from collections import defaultdict
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from combemb.discovery.result import Discovery
from combemb.explorer.discovery_page import write_discovery_page
from tests.discoveries import found_in
from tests.pages import HOSTILE, Page
from tests.pictures import PIXELS

SCRIPT = "<script>alert(1)</script>"


class Clusters(Page):
    """A page with the texts of its sections, and for each of their strips the pictures or names in it."""

    def __init__(self, path: Path):
        self.sections: dict[str, list[str]] = defaultdict(list)
        self.strips: dict[str, list[list[str]]] = defaultdict(list)
        self.script = ""
        self.section = None
        super().__init__(path)

    def handle_starttag(self, tag, attributes):
        super().handle_starttag(tag, attributes)
        if tag == "section":
            self.section = dict(attributes)["id"]
        elif tag == "ol":
            self.strips[self.section].append([])
        elif tag == "li":
            self.strips[self.section][-1].append(dict(attributes)["title"])

    def handle_data(self, data):
        super().handle_data(data)
        if "script" in self.open:
            self.script += data
        elif "section" in self.open:
            self.sections[self.section].append(data)

    def facts(self, section: str) -> str:
        """What is said of a cluster beside its pictures."""
        return " ".join("".join(self.sections[section]).split("Nearest to the centre")[0].split())


def entries_of(found: Discovery, ids: list[str], paths: list[str | None]) -> pa.Table:
    labels = [str(name) if known else None for name, known in zip(found.clusters, found.is_labelled, strict=True)]
    return pa.table([pa.array(values, pa.large_string()) for values in (ids, paths, labels)], ["id", "path", "label"])


def plain(found: Discovery) -> pa.Table:
    """Entries without pictures."""
    return entries_of(found, [f"item-{row}" for row in range(len(found))], [None] * len(found))


def photos(folder: Path, found: Discovery) -> pa.Table:
    """Entries with files; the pictures of a cluster are all of one class."""
    folder.mkdir()
    for row, k in enumerate(found.assignment):
        Image.fromarray(PIXELS[k]).resize((200, 150)).save(folder / f"{row}.png")
    paths = [str(folder / f"{row}.png") for row in range(len(found))]
    return entries_of(found, paths, paths)


def written(path: Path, found: Discovery, entries: pa.Table, *on_map: np.ndarray, **options) -> Clusters:
    write_discovery_page(path, found, entries, *on_map, progress=False, **options)
    return Clusters(path)


def test_clusters_stand_novel_ones_first_with_what_is_known_of_them(tmp_path: Path):
    _, found = found_in(["ant", "bee", "cat"], 2)
    confidence = np.where(found.is_labelled, 1, np.linspace(0, 0.9, len(found))).astype(np.float32)
    found = replace(found, n_novel_interval=(1, 4), confidence=confidence)
    page = written(tmp_path / "page.html", found, plain(found), title="My photos")
    assert list(page.sections) == ["cluster-3", "cluster-4", "cluster-0", "cluster-1", "cluster-2"]
    counts = "29 items, 9 of them labelled, in 3 seen classes and 2 novel classes (between 1 and 4); 11 items in novel"
    assert page.text.startswith("My photos")
    assert counts in page.text
    means = [f"{confidence[(found.assignment == k) & ~found.is_labelled].mean():.2f}" for k in range(5)]
    near = found.neighbours["novel-2"]
    assert page.facts("cluster-4") == f"novel-2 items5 mean confidence{means[4]} nearest seen class{near}"
    assert page.facts("cluster-0") == f"ant items6 labelled3 purity100% mean confidence{means[0]}"


def test_seen_classes_are_ordered_by_size(tmp_path: Path):
    _, found = found_in(["ant", "bee"], 1)
    found = replace(found, assignment=np.where(np.arange(len(found)) == 1, 1, found.assignment))  # of an ant a bee
    assert list(written(tmp_path / "page.html", found, plain(found)).sections) == [
        "cluster-2",
        "cluster-1",
        "cluster-0",
    ]


def test_purity_is_the_share_of_the_commonest_label(tmp_path: Path):
    _, found = found_in(["ant", "bee"], 1)
    entries = plain(found)
    labels = pa.array([*["ant", "wasp", "ant", None, None, None], *["gnu"] * 6, *[None] * 6], pa.large_string())
    page = written(tmp_path / "page.html", found, entries.set_column(2, "label", labels))
    assert "purity67% mean" in page.facts("cluster-0")
    assert "purity100% gnu mean" in page.facts("cluster-1")
    assert "purity" not in page.facts("cluster-2")


def test_purity_counts_labelled_items_where_they_lie(tmp_path: Path):
    _, found = found_in(["ant", "bee"], 1)
    bee = np.flatnonzero(found.is_labelled & (found.assignment == 1))[0]
    found = replace(found, nearest=np.where(np.arange(len(found)) == bee, 0, found.nearest))
    page = written(tmp_path / "page.html", found, plain(found))
    assert "purity75% mean" in page.facts("cluster-0")  # three ants and that bee
    assert "purity100% mean" in page.facts("cluster-1")


@pytest.mark.parametrize("per_class", [6, 30])
def test_strips_show_the_nearest_items_and_unlabelled_ones_on_the_border(tmp_path: Path, per_class: int):
    _, found = found_in(["ant", "bee"], 1, per_class)
    page = written(tmp_path / "page.html", found, plain(found), n_pictures=3)
    for k, name in enumerate(found.names):
        nearest, border = (found.exemplars(name, 3), found.borderline(name, per_class))
        border = border[~found.is_labelled[border] & ~np.isin(border, nearest)][:3]
        certain = np.where(found.is_labelled, "labelled", [f"{value:.2f}" for value in found.confidence])
        assert page.strips[f"cluster-{k}"] == [
            [f"item-{row}, {certain[row]}" for row in rows] for rows in (nearest, border) if len(rows)
        ]


def test_no_item_is_shown_twice(tmp_path: Path):
    _, found = found_in(["ant", "bee"], 2)
    strips = written(tmp_path / "page.html", found, plain(found)).strips
    shown = [title.split(",")[0] for strip in strips.values() for titles in strip for title in titles]
    assert sorted(shown) == sorted(f"item-{row}" for row in range(len(found)))
    assert [len(strip) for strip in strips.values()] == [1, 1, 1, 1]  # nothing is left for the border


def test_pictures_are_those_of_the_items_and_lead_to_their_files(tmp_path: Path):
    _, found = found_in(["ant", "bee"], 2)
    page = written(tmp_path / "page.html", found, photos(tmp_path / "photos", found))
    thumbnails = page.thumbnails()
    assert {(thumbnail.size, thumbnail.format) for thumbnail in thumbnails} == {((128, 96), "JPEG")}
    rows = [int(attributes["alt"].removesuffix(".png")) for attributes in page.all("img")]
    colours = [np.asarray(thumbnail).mean(axis=(0, 1)) for thumbnail in thumbnails]
    np.testing.assert_allclose(colours, PIXELS[found.assignment[rows]].mean(axis=(1, 2)), atol=3)
    links = [attributes["href"] for attributes in page.all("a") if not attributes["href"].startswith("#")]
    assert links == [(tmp_path / f"photos/{row}.png").as_uri() for row in rows]
    assert f"Paths are below {tmp_path}/photos/" in page.text


def test_rows_of_an_array_file_are_shown(tmp_path: Path):
    _, found = found_in(["ant"], 1)
    array = tmp_path / "pixels.npy"
    np.save(array, PIXELS[: len(found)])
    entries = entries_of(found, [f"{array}#{row}" for row in range(len(found))], [str(array)] * len(found))
    page = written(tmp_path / "page.html", found, entries)
    rows = [int(attributes["alt"].split("#")[1]) for attributes in page.all("img")]
    assert sorted(rows) == list(range(len(found)))
    colours = [np.asarray(thumbnail).mean(axis=(0, 1)) for thumbnail in page.thumbnails()]
    np.testing.assert_allclose(colours, PIXELS[rows].mean(axis=(1, 2)), atol=3)


def test_items_without_a_picture_show_their_ids(tmp_path: Path):
    _, found = found_in(["ant"], 1)
    entries = photos(tmp_path / "photos", found)
    (tmp_path / "photos/0.png").unlink()
    (tmp_path / "photos/1.png").write_bytes(b"damaged")
    page = written(tmp_path / "page.html", found, entries)
    assert len(page.thumbnails()) == len(found) - 2
    assert {"0.png", "1.png"} < {text for texts in page.sections.values() for text in texts}
    assert page.text.count("file is missing") == 1  # the other one is damaged
    ids = [f"set/{row}." for row in range(len(found))]
    page = written(tmp_path / "page.html", found, entries_of(found, ids, [None] * len(found)))
    assert page.all("img") == []
    assert sorted(re.findall(r"set/\d+[.]", page.text)) == sorted(ids)
    assert "Paths are below" not in page.text


def test_a_page_without_a_map_has_no_scripts(tmp_path: Path):
    _, found = found_in(["ant"], 1)
    page = written(tmp_path / "page.html", found, plain(found))
    assert {tag for tag, _ in page.elements} & {"script", "button", "link", "iframe"} == set()


def test_the_map_comes_with_its_scripts_once_and_needs_nothing_else(tmp_path: Path):
    z, found = found_in(["ant", "bee"], 2)
    page = written(tmp_path / "page.html", found, photos(tmp_path / "photos", found), z[:, :2])
    assert page.script.count("* plotly.js v") == 1
    assert page.script.count("Plotly.newPlot(") == 1
    assert all("src" not in attributes for attributes in page.all("script"))
    assert all(attributes["src"].startswith("data:") for attributes in page.all("img"))
    assert page.all("link") == page.all("iframe") == []
    ids = [f'"{row}.png"' for row in range(len(found))]
    assert all(page.script.count(name) == 1 for name in ids)
    assert [attributes["data-cluster"] for attributes in page.all("button")] == ["2", "3", "0", "1"]


def test_a_map_may_lack_some_items(tmp_path: Path):
    z, found = found_in(["ant", "bee"], 2)
    rows = np.array([0, 5, len(z) - 1])
    page = written(tmp_path / "page.html", found, plain(found), z[rows, :2], rows)
    assert [row for row in range(len(z)) if f'"item-{row}"' in page.script] == rows.tolist()


def test_the_page_depends_on_what_it_shows_alone(tmp_path: Path):
    z, found = found_in(["ant", "bee"], 2)
    entries = photos(tmp_path / "photos", found)
    for name in ("one.html", "two.html"):
        write_discovery_page(tmp_path / name, found, entries, z[:, :2], progress=False)
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


def test_names_are_text_whatever_they_hold(tmp_path: Path):
    z, found = found_in([SCRIPT, "a\"b'c&amp;"], 1)
    ids = [f"'\"><img src=x onerror=alert({row})>" for row in range(len(z))]
    page = written(tmp_path / "page.html", found, entries_of(found, ids, [None] * len(z)), z[:, :2], title="<h1>&")
    assert len(page.all("script")) == 3  # plotly, its configuration and the map
    assert page.all("img") == []
    assert len(page.all("h1")) == 1
    assert "<h1>&" in page.text
    names = [" ".join("".join(texts).split("items")[0].split()) for texts in page.sections.values()]
    assert sorted(names) == sorted(map(str, found.names))
    assert "<script" not in page.script.split("Plotly.newPlot(")[1]
    assert "onerror=alert(0)" in page.script


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_change_nothing_but_texts(tmp_path: Path, name: str):
    array = tmp_path / "pixels.npy"
    np.save(array, PIXELS[:24])

    def page_of(name: str) -> Clusters:
        z, found = found_in([name], 2)
        ids = [f"{name}#{row}" for row in range(len(z))]
        entries = entries_of(found, ids, [str(array) if row % 2 else None for row in range(len(z))])
        return written(tmp_path / "page.html", found, entries, z[:, :2], title=name)

    plain, hostile = page_of("plain"), page_of(name)
    assert hostile.text == plain.text.replace("plain", name)
    attributes = [dict(shown) for tag, shown in plain.elements if tag != "wbr"]
    expected = [{key: (value or "").replace("plain", name) for key, value in shown.items()} for shown in attributes]
    assert [{key: value or "" for key, value in shown.items()} for tag, shown in hostile.elements if tag != "wbr"] == (
        expected
    )
    assert len(hostile.all("script")) == 3
    markup = escape(name, quote=False)  # as plotly reads it
    traces, layout = figure_of(hostile)
    about = [item for trace in traces for item in trace["customdata"]]
    assert sorted(item[1] for item in about) == sorted(f"{markup}#{row}" for row in range(len(about)))
    assert {item[2] for item in about} == {markup, "novel-1", "novel-2"}
    short = escape(name if len(name) <= 24 else f"{name[:23]}…", quote=False)
    assert short in [annotation["text"] for annotation in layout["annotations"]]


def figure_of(page: Clusters) -> tuple[list[dict], dict]:
    """Traces and layout of the map, as a browser reads them from the script."""
    text = page.script.split("Plotly.newPlot(")[1]
    decoder = json.JSONDecoder()
    traces, end = decoder.raw_decode(text, text.index("["))
    return traces, decoder.raw_decode(text, text.index("{", end))[0]


@pytest.mark.filterwarnings("ignore::combemb.discovery.discovering.NothingToDiscover")
@pytest.mark.parametrize(
    ("seen", "n_novel", "counts"),
    [
        ([], 2, "11 items, 0 of them labelled, in 0 seen classes and 2 novel classes; 11 items in novel"),
        (["ant"], 0, "6 items, 3 of them labelled, in 1 seen class and 0 novel classes; 0 items in novel"),
        ([3, 5], 1, "18 items, 6 of them labelled, in 2 seen classes and 1 novel class; 6 items in novel"),
    ],
    ids=["none seen", "none novel", "numbers"],
)
def test_every_discovery_has_a_page(tmp_path: Path, seen: list, n_novel: int, counts: str):
    z, found = found_in(seen, n_novel)
    page = written(tmp_path / "page.html", found, plain(found), z[:, :2])
    assert counts in page.text
    assert len(page.sections) == len(seen) + n_novel


def test_two_hundred_clusters_stay_bearable(tmp_path: Path):
    z, found = found_in([f"class {i}" for i in range(120)], 80, per_class=14)
    Image.fromarray(PIXELS[0]).resize((300, 200)).save(tmp_path / "photo.png")
    path = str(tmp_path / "photo.png")
    page = written(tmp_path / "page.html", found, entries_of(found, [path] * len(z), [path] * len(z)), z[:, :2])
    assert len(page.sections) == 200
    assert max(len(titles) for strips in page.strips.values() for titles in strips) == 6
    assert {thumbnail.size for thumbnail in page.thumbnails()} == {(96, 64)}
    text = (tmp_path / "page.html").read_text()
    assert "content-visibility: auto" in text
    assert "prefers-color-scheme: dark" in text
    assert len(text) < 15e6


@pytest.mark.parametrize(
    ("n_entries", "places", "rows", "message"),
    [
        (5, None, None, "there are 5 entries for 12 items"),
        (12, np.zeros((5, 2)), None, r"places have shape \(5, 2\) for 12 rows"),
        (12, np.zeros((5, 3)), np.arange(5), r"places have shape \(5, 3\) for 5 rows"),
    ],
)
def test_what_does_not_fit_together_is_refused(tmp_path: Path, n_entries: int, places, rows, message: str):
    _, found = found_in(["ant"], 1)
    with pytest.raises(ValueError, match=message):
        write_discovery_page(tmp_path / "page.html", found, plain(found)[:n_entries], places, rows)
    assert list(tmp_path.iterdir()) == []


def test_a_page_that_fails_leaves_the_old_one(tmp_path: Path):
    _, found = found_in(["ant"], 1)
    target = tmp_path / "page.html"
    target.write_text("old")
    with pytest.raises(KeyError):
        write_discovery_page(target, found, plain(found).drop_columns("label"))
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
