"""The path of a new user in a real browser: from the map to a run that has learned what the user named."""

import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from playwright.sync_api import Page, expect
from pyarrow import csv

from combemb.collection.class_log import read_log, standing
from combemb.collection.classes import classes_of
from combemb.learning.run_folder import RunFolder
from tests.browser import N_LABELLED, N, browser, digits_run, drawn, page_in, served

FIT_SECONDS = 240  # of a job, on a slow machine


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(digits_run(tmp_path_factory), tmp_path_factory.mktemp("path") / "digits")


@pytest.fixture(scope="module")
def page(run: Path):
    """One page for the whole path: each test goes on where the one before it has stopped."""
    with served(run) as address, browser() as found, page_in(found, accept_downloads=True) as page:
        page.goto(address)
        yield page


def saved(page: Page, text: str) -> None:
    """Wait for the message that something was saved."""
    expect(page.get_by_role("status").filter(has_text=re.compile(re.escape(text)))).to_be_visible()


def names(page: Page) -> list[str]:
    """The classes in the list, in its order."""
    return page.locator(".classes .name").all_inner_texts()


def changes(run: Path) -> list[str]:
    return [change.kind for change in standing(read_log(run))]


def size(run: Path, name: str) -> int:
    return len(classes_of(run).rows(name))


def test_the_map_shows_every_item_in_the_shape_of_its_class(page: Page, run: Path):
    drawn(page)
    traces = page.evaluate("document.getElementById('plot').data.map((t) => [t.marker.symbol, t.x.length])")
    assert sum(n for _, n in traces) == N
    classes = classes_of(run)
    n_novel = sum(name not in classes.seen for name in classes.names)
    assert sum(n for symbol, n in traces if symbol == "diamond") == n_novel
    expect(page.locator("#run-about")).to_have_text(f"{N} items · 3 seen, 2 novel")
    expect(page.get_by_role("link", name=re.compile("Review"))).to_contain_text(str(N - N_LABELLED))


def test_pointing_at_an_item_shows_its_picture(page: Page):
    point = page.evaluate("""() => {
      const plot = document.getElementById("plot"), box = plot.getBoundingClientRect(), layout = plot._fullLayout;
      const trace = plot.data.find((one) => one.marker.symbol === "diamond" && one.x.length);
      return [box.left + layout.xaxis.d2p(trace.x[0]), box.top + layout.yaxis.d2p(trace.y[0])];
    }""")
    page.mouse.move(point[0] - 1, point[1])
    page.mouse.move(*point)
    expect(page.locator("#hover")).to_contain_text("novel-")
    page.wait_for_function("document.querySelector('#hover img')?.naturalWidth > 0")


def test_a_lasso_selects_items_and_escape_lets_them_go(page: Page):
    page.keyboard.press("l")
    box = page.locator("#plot").bounding_box()
    corners = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x in (0.02, 0.98) for y in (0.02, 0.98)]
    page.mouse.move(*corners[0])
    page.mouse.down()
    for place in (corners[1], corners[3], corners[2], corners[0]):
        page.mouse.move(*place, steps=4)
    page.mouse.up()
    bar = page.get_by_role("region", name="Selected items")
    expect(bar).to_contain_text(f"{N} items selected")
    page.keyboard.press("Escape")
    expect(bar).to_be_hidden()
    page.keyboard.press("l")


def test_a_novel_class_opens_with_typical_items_first(page: Page, run: Path):
    page.get_by_role("link", name="Open novel-1").click()
    expect(page.get_by_role("heading", name="novel-1")).to_be_visible()
    tiles = page.get_by_role("list", name="Typical items").locator(".tile")
    page.wait_for_function(
        "[...document.querySelectorAll('.tile img')].slice(0, 4).every((one) => one.naturalWidth > 0)"
    )
    rows = [int(tile.get_attribute("data-row")) for tile in tiles.all()]
    assert set(rows) <= set(classes_of(run).rows("novel-1").tolist())


def test_a_name_is_saved_at_once(page: Page, run: Path):
    n = size(run, "novel-1")
    page.keyboard.press("n")
    page.keyboard.type("a new digit")
    page.keyboard.press("Enter")
    saved(page, f"Saved. {n} items: novel-1 → a new digit")
    assert changes(run) == ["name"]
    assert size(run, "a new digit") == n
    expect(page.get_by_role("heading", name="a new digit")).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", name="a new digit")).to_be_visible()


def test_undo_takes_it_back(page: Page, run: Path):
    page.locator("#cluster-list").get_by_role("link", name=re.compile("novel-2")).click()
    expect(page.get_by_role("heading", name="novel-2")).to_be_visible()
    page.locator("body").press("u")
    saved(page, "Undone: name novel-1")
    assert changes(run) == []
    assert names(page)[:2] == ["novel-1", "novel-2"]


def test_two_classes_are_merged_and_one_is_split(page: Page, run: Path):
    n = size(run, "novel-1") + size(run, "novel-2")
    page.get_by_role("button", name="Merge with…").click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile("novel-1")).click()
    saved(page, "Saved.")
    expect(page.locator("#run-about")).to_contain_text("1 novel")
    assert size(run, "novel-2") == n
    page.get_by_role("button", name="Split…").click()
    page.get_by_role("dialog").get_by_role("button", name="Split").click()
    expect(page.locator("#run-about")).to_contain_text("2 novel")
    assert changes(run) == ["merge", "split"]
    for text in ("Undone: split", "Undone: merge"):
        page.get_by_role("button", name="Undo", exact=True).first.click()
        saved(page, text)
    assert changes(run) == []


def test_single_images_are_moved_and_rejected(page: Page, run: Path):
    page.goto(page.url.split("#")[0] + "#clusters/novel-1")
    first = page.locator(".tile .open").first
    first.focus()
    rows = [int(tile.get_attribute("data-row")) for tile in page.locator(".tile").all()[:3]]
    for key in (" ", "ArrowRight", " "):
        page.keyboard.press(key)
    expect(page.get_by_role("region", name="Selected items")).to_contain_text("2 items selected")
    page.keyboard.press("m")
    page.get_by_role("dialog").get_by_label("Filter classes by name").fill("two")
    page.keyboard.press("Enter")
    saved(page, "Saved. 2 items → two")
    assert [classes_of(run).names[row] for row in rows] == ["two", "two", "novel-1"]
    page.locator(f".tile[data-row='{rows[2]}'] .open").focus()
    page.keyboard.press(" ")
    page.keyboard.press("x")
    saved(page, "Saved. 1 item")
    assert [classes_of(run).names[row] for row in rows] == ["two", "two", None]
    assert changes(run) == ["move", "reject"]


def test_review_goes_by_doubt_and_counts_what_is_left(page: Page, run: Path):
    classes = classes_of(run)
    is_open = ~classes.is_labelled & ~classes.is_said & np.array([name is not None for name in classes.names])
    page.goto(page.url.split("#")[0] + "#review")
    expect(page.locator("#review-left")).to_contain_text(f"{is_open.sum()} items left")
    confidence = np.where(is_open, np.asarray(classes.table["confidence"]), 2)
    title = page.locator("#review-item .path")
    expect(title).to_contain_text(Path(classes.ids[int(confidence.argmin())]).name)
    page.keyboard.press("m")
    page.get_by_role("dialog").get_by_role("button", name=re.compile("zero")).click()
    expect(page.locator("#review-left")).to_contain_text(f"{is_open.sum() - 1} items left")
    assert classes_of(run).names[int(confidence.argmin())] == "zero"


def test_search_by_upload_finds_images_of_the_same_class(page: Page, run: Path):
    page.keyboard.press("/")
    image = sorted((Path(RunFolder(run).config()["path"]) / "zero").iterdir())[0]
    page.get_by_label("Image to search with").set_input_files(image)
    hits = page.get_by_role("list", name="Hits")
    expect(hits.locator(".tile")).to_have_count(20)
    assert all(float(text) for text in hits.locator(".score").all_inner_texts())
    assert hits.locator(".caption .name").all_inner_texts()[:5].count("zero") >= 3
    page.get_by_role("button", name="Novel").click()
    expect(page.locator(".caption .name", has_text="zero")).to_have_count(0)
    page.get_by_role("button", name="All").click()
    hits.locator(".tile .open").first.click()
    page.get_by_role("dialog").get_by_role("button", name="Find similar").click()
    expect(page).to_have_url(re.compile(r"#search/\d+$"))


def test_labels_are_exported_as_they_are_now(page: Page, run: Path, tmp_path: Path):
    page.goto(page.url.split("#")[0] + "#clusters/novel-1")
    for old, new in (("novel-1", "three"), ("novel-2", "four")):
        page.get_by_role("link", name=re.compile(old)).click()
        page.get_by_label("Name", exact=True).fill(new)
        page.get_by_role("button", name="Save").click()
        saved(page, f"{old} → {new}")
    page.keyboard.press("6")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download labels.csv").click()
    download.value.save_as(tmp_path / "labels.csv")
    table = csv.read_csv(
        tmp_path / "labels.csv", convert_options=csv.ConvertOptions(column_types={"label": pa.string()})
    )
    exported = dict(zip(table["id"].to_pylist(), table["label"].to_pylist(), strict=True))
    classes = classes_of(run)
    assert exported == {name: label or "" for name, label in zip(classes.ids, classes.labels(), strict=True)}
    assert {"three", "four"} < set(exported.values())


def test_fit_again_learns_the_names_in_a_new_run(page: Page, run: Path):
    page.get_by_label("Epochs").fill("2")
    page.get_by_role("button", name="Fit again").click()
    job = page.locator(".job").first
    expect(job.get_by_role("progressbar")).to_be_visible()
    expect(job.get_by_role("status")).to_contain_text("Done", timeout=FIT_SECONDS * 1000)
    expect(job).to_contain_text("New classes: four, three")
    job.get_by_role("button", name=re.compile("Open ")).click()
    expect(page.locator("#run-about")).to_contain_text("5 seen")
    drawn(page)
    new = run.parent / page.locator("#run-name").inner_text()
    assert new != run
    assert set(RunFolder(new).config()["classes"]) == {"zero", "one", "two", "three", "four"}
    assert changes(run)  # the old run is kept as it was
