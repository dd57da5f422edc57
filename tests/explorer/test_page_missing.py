"""The page when something is missing, gone, broken or changed by somebody else: what is so, and what helps."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from combemb.collection.class_log import read_log
from combemb.collection.classes import classes_of
from combemb.discovery.result import Discovery
from combemb.learning.run_folder import DISCOVERY, PLACES, TABLE, RunFolder
from tests.blobs import blobs
from tests.browser import browser, digits_run, drawn, page_in, served, settled
from tests.commands import done


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(digits_run(tmp_path_factory), tmp_path_factory.mktemp("missing") / "digits")


@pytest.fixture(scope="module")
def address(run: Path):
    with served(run) as address:
        yield address


@pytest.fixture(scope="module")
def chromium():
    with browser() as found:
        yield found


def test_a_run_without_a_discovery_offers_one_and_says_why_it_failed(chromium: Browser, run: Path, tmp_path: Path):
    bare = shutil.copytree(run, tmp_path / "bare")
    for name in (DISCOVERY, TABLE, PLACES):
        (bare / name).unlink()
    data = Path(RunFolder(run).config()["path"])
    with served(bare) as address, page_in(chromium, expected="409 (Conflict)") as page:
        settled(page, address, "model")
        expect(page.locator("#run-about")).to_have_text("3 seen classes · nothing discovered yet")
        expect(page.locator("dl.facts")).to_contain_text("3 seen classes")
        expect(page.get_by_role("row", name=re.compile("^epochs 6"))).to_be_visible()
        page.goto(f"{address}#review")  # what needs a discovery leads to where one is made
        away = data.rename(data.with_name("away"))
        try:
            page.get_by_role("button", name="Discover classes").click()
            expect(page.get_by_role("heading", name="The discovery failed")).to_be_visible(timeout=120_000)
            expect(page.locator("#map-state")).to_contain_text(str(data))
        finally:
            away.rename(data)
        page.get_by_role("button", name="Try again").click()
        drawn(page)
        expect(page.locator("#run-about")).to_contain_text("3 seen, ")


def test_a_deleted_image_is_shown_by_its_name(chromium: Browser, address: str, run: Path):
    row = int(Discovery.load(run / DISCOVERY).exemplars("novel-1", 1)[0])
    file = Path(classes_of(run).ids[row])
    away = file.rename(file.with_suffix(".away"))
    try:
        with page_in(chromium, expected="404 (Not Found)") as page:
            settled(page, address, "clusters/novel-1")
            tile = page.locator(f".tile[data-row='{row}']")
            expect(tile.locator(".no-picture")).to_have_text(re.compile(file.name))
            tile.locator(".open").click()
            expect(page.get_by_role("dialog")).to_contain_text("no picture")
    finally:
        away.rename(file)


def test_a_broken_upload_is_not_taken_for_the_last_one(chromium: Browser, address: str, run: Path):
    whole = {"name": "whole.png", "mimeType": "image/png", "buffer": Path(classes_of(run).ids[0]).read_bytes()}
    with page_in(chromium, expected="422 (Unprocessable") as page:
        settled(page, address, "search")
        upload = page.get_by_label("Image to search with")
        upload.set_input_files(whole)
        expect(page.locator("#query img")).to_be_visible()
        names = page.locator("#hits .open").evaluate_all("all => all.map((one) => one.getAttribute('aria-label'))")
        assert all(re.search(r", score -?\d+\.\d\d$", name) for name in names)
        upload.set_input_files({**whole, "name": "cut.png", "buffer": whole["buffer"][:100]})
        expect(page.get_by_role("heading", name="the image cannot be read")).to_be_visible()
        expect(page.locator("#query")).to_have_text("cut.png")
        expect(page.get_by_role("button", name="Try again")).to_have_count(0)


def test_classes_have_their_colours_wherever_the_page_begins(chromium: Browser, address: str):
    with page_in(chromium) as page:
        settled(page, address, "review")
        page.keyboard.press("m")
        expect(page.locator(".choices .mark")).to_have_count(4)
        marks = page.locator(".choices .mark").evaluate_all("all => all.map((one) => getComputedStyle(one).color)")
        assert len(set(marks)) == len(marks) == 4


def test_two_tabs_cannot_undo_each_other_by_mistake(chromium: Browser, run: Path, tmp_path: Path):
    shared = shutil.copytree(run, tmp_path / "shared")
    with served(shared) as address, page_in(chromium) as one, page_in(chromium, expected="409 (Conflict)") as other:
        for page in (one, other):
            settled(page, address, "clusters/novel-1")
        name(one, "from one")
        expect(one.get_by_role("status").filter(has_text="from one")).to_be_visible()
        name(other, "from the other")
        expect(other.get_by_role("status")).to_contain_text("The classes were changed elsewhere")
        expect(other.locator("#cluster-list")).to_contain_text("from one")
        assert [change.to for change in read_log(shared)] == ["from one"]
        other.get_by_role("button", name="Undo", exact=True).first.click()
        expect(other.get_by_role("heading", name="novel-1")).to_be_visible()
        assert classes_of(shared).order[0] == "novel-1"


def name(page: Page, text: str) -> None:
    page.get_by_label("Name", exact=True).fill(text)
    page.get_by_role("button", name="Save").click()


def test_a_failed_job_says_why(chromium: Browser, address: str, run: Path):
    data = Path(RunFolder(run).config()["path"])
    away = data.rename(data.with_name("away"))
    try:
        with page_in(chromium) as page:
            settled(page, address, "export")
            page.get_by_role("button", name="Discover again").click()
            status = page.locator(".job").first.get_by_role("status")
            expect(status).to_contain_text("Failed: ", timeout=120_000)
            expect(status).to_contain_text(str(data))
    finally:
        away.rename(data)


def test_a_server_that_is_gone_is_noticed_and_comes_back(chromium: Browser, run: Path):
    context = chromium.new_context()  # refused connections are on the console, as they should be
    page = context.new_page()
    with served(run) as address:
        settled(page, address, "clusters/novel-1")
    page.get_by_label("Name", exact=True).fill("lost")
    page.get_by_role("button", name="Save").click()
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("The server does not answer")
    assert classes_of(run).order[0] == "novel-1"
    with served(run, port=int(address.rstrip("/").rsplit(":", 1)[1])):
        expect(alert).to_be_hidden(timeout=30_000)
    context.close()


def test_embeddings_without_anything_novel(chromium: Browser, tmp_path: Path):
    pile = blobs(3, 0)
    labels = np.array(["" if label < 0 else f"class {label}" for label in pile.labels])
    np.savez(tmp_path / "x.npz", x=pile.x, labels=labels)
    done("fit", tmp_path / "x.npz", "--out", tmp_path / "run", "--method", "itq", "--bits", "4", "--quiet")
    done("discover", tmp_path / "run", "--n-novel", "0", "--quiet")
    (tmp_path / "run" / PLACES).unlink()  # the server draws the map by itself
    with served(tmp_path / "run") as address, page_in(chromium) as page:
        page.goto(address)
        expect(page.get_by_role("progressbar", name="Progress of the map")).to_be_visible()
        drawn(page)
        expect(page.get_by_text("Nothing novel was found")).to_be_visible()
        settled(page, address, "clusters/class 0")
        expect(page.locator(".tile .no-picture").first).to_be_visible()
        settled(page, address, "review")
        expect(page.get_by_role("heading", name=re.compile("Is this"))).to_be_visible()
        assert page.locator(".no-picture:empty").count() == 0
        settled(page, address, "search")
        expect(page.get_by_text("There is no index")).to_be_visible()
        expect(page.get_by_label("Image to search with")).to_be_hidden()
        expect(page.get_by_label("Class", exact=True)).to_be_hidden()
        settled(page, address, "export")
        expect(page.get_by_text("This run is one of embeddings").first).to_be_visible()
