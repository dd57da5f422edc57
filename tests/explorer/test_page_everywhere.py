"""The page for everybody: keys, names for screen readers, narrow screens, both themes."""

import re
import shutil
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from combemb.collection import changes
from combemb.collection.class_log import read_log
from combemb.collection.classes import classes_of
from combemb.learning.run_folder import RunFolder
from tests.browser import VIEWS, browser, digits_run, drawn, page_in, served, settled

LONG = "<img src=x onerror=alert(1)>" + "a_name_without_any_place_to_break_it_" * 3
NAMED_ROLES = {"button", "link", "textbox", "searchbox", "checkbox", "combobox", "spinbutton", "progressbar", "dialog"}
OVERFLOWING = """() => [...document.querySelectorAll("main *, header *, dialog[open] *")].filter((one) => {
  const box = one.getBoundingClientRect();
  const scrolls = one.closest(".wide, #plot, .unseen, .run") || one.ownerSVGElement;
  return box.width && !scrolls && (box.right > innerWidth + 1 || box.left < -1);
}).map((one) => one.outerHTML.slice(0, 120))"""
TALL = """[...document.querySelectorAll(".settings .value")].filter((one) => one.clientHeight > 70)
  .map((one) => one.textContent)"""  # a letter in each line
CONTRAST = """(selector) => {
  const parts = (text) => text.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255);
  const light = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const weights = [0.2126, 0.7152, 0.0722];
  const luminance = (text) => parts(text).map(light).reduce((sum, part, i) => sum + part * weights[i], 0);
  const element = document.querySelector(selector);
  let ground = element;
  while (getComputedStyle(ground).backgroundColor === "rgba(0, 0, 0, 0)") ground = ground.parentElement;
  const colours = [getComputedStyle(element).color, getComputedStyle(ground).backgroundColor];
  const [a, b] = colours.map(luminance).sort((x, y) => x - y);
  return (b + 0.05) / (a + 0.05);
}"""
SHIFTS = """new PerformanceObserver((list) => {
  const unexpected = list.getEntries().filter((entry) => !entry.hadRecentInput);
  window.shifted = unexpected.reduce((sum, entry) => sum + entry.value, window.shifted ?? 0);
}).observe({type: "layout-shift", buffered: true})"""
LOADED = "[...document.querySelectorAll('.tile img')].slice(0, 6).every((one) => one.naturalWidth)"
TEXTS = ("h2", "#run-about", "#views a:not([aria-current])", "#views a[aria-current]", ".main", ".caption")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which a class has a very long name."""
    run = shutil.copytree(digits_run(tmp_path_factory), tmp_path_factory.mktemp("everywhere") / "digits")
    changes.store(run, changes.name(classes_of(run), "novel-2", LONG))
    return run


@pytest.fixture(scope="module")
def address(run: Path):
    with served(run) as address:
        yield address


@pytest.fixture(scope="module")
def chromium():
    with browser() as found:
        yield found


def without_name(page: Page) -> list[str]:
    """Controls that a screen reader has no name for."""
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    controls = [node for node in nodes if not node["ignored"] and node["role"]["value"] in NAMED_ROLES]
    assert len(controls) > 4
    return [str(node) for node in controls if not node["name"]["value"].strip()]


@pytest.mark.parametrize("width", [1280, 390])
def test_every_view_fits_and_every_control_has_a_name(chromium: Browser, address: str, width: int):
    with page_in(chromium, width, 844) as page:
        for view in (*VIEWS, "clusters/novel-1", f"clusters/{quote(LONG)}", "search/5"):
            settled(page, address, view)
            assert without_name(page) == [], view
            assert page.locator("img[src=x]").count() == 0  # names are text, never markup
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate("document.querySelector('main').scrollWidth") <= width
            assert page.evaluate(OVERFLOWING) == [], view
            if view == "model":
                assert page.locator(".settings .value").count() > 20
                assert page.evaluate(TALL) == []
        page.locator("#hits .open").first.click()
        assert without_name(page) == []
        assert page.evaluate(OVERFLOWING) == []


def test_everything_that_is_done_by_mouse_is_done_by_keys(chromium: Browser, address: str, run: Path):
    before = len(read_log(run))
    with page_in(chromium) as page:
        page.goto(address)
        drawn(page)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("2")
        expect(page.get_by_role("heading", name="Clusters")).to_be_visible()
        expect(page.get_by_role("heading", name="novel-1")).to_be_visible()  # the first class opens
        page.keyboard.press("ArrowDown")
        expect(page.get_by_role("heading", name="novel-1")).to_be_hidden()
        page.keyboard.press("ArrowUp")
        expect(page.get_by_role("heading", name="novel-1")).to_be_visible()
        page.locator(".tile").first.wait_for()
        page.locator("#main").focus()
        page.keyboard.press("ArrowRight")  # to the images
        focused = "document.activeElement.getAttribute('aria-label')"
        first = page.evaluate(focused)
        assert "novel-1, confidence" in first
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
        assert float(outline.removesuffix("px")) >= 2
        page.keyboard.press("ArrowRight")
        assert page.evaluate(focused) != first
        page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text(re.compile("2 of "))
        page.keyboard.press("ArrowRight")
        expect(dialog).to_contain_text(re.compile("3 of "))
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        page.keyboard.press("n")
        assert page.evaluate("document.activeElement.id") == "name"
        page.keyboard.press("u")  # a letter in a field is a letter
        assert page.get_by_label("Name", exact=True).input_value() == "u"
        page.locator("#main").focus()
        page.keyboard.press("?")
        expect(dialog.get_by_role("heading", name="Keys")).to_be_visible()
        page.keyboard.press("Escape")
        page.keyboard.press("/")
        expect(page.get_by_label("Image to search with")).to_be_focused()
    assert len(read_log(run)) == before


def test_light_and_dark_are_both_readable(chromium: Browser, address: str):
    grounds = {}
    for scheme in ("light", "dark"):
        with page_in(chromium, color_scheme=scheme) as page:
            settled(page, address, "clusters/novel-1")
            page.locator(".tile").first.wait_for()
            grounds[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
            for selector in TEXTS:
                assert page.evaluate(CONTRAST, selector) >= 4.5, (scheme, selector)
    assert grounds["light"] != grounds["dark"]


def test_the_switch_of_themes_is_remembered(chromium: Browser, address: str):
    with page_in(chromium, color_scheme="light") as page:
        settled(page, address, "model")
        ground = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(ground)
        for name in ("system", "light"):
            page.get_by_role("button", name=f"Theme: {name}").click()
        assert page.evaluate(ground) != light
        page.reload()
        expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
        assert page.evaluate(ground) != light


def test_nothing_moves_while_pictures_are_loaded(chromium: Browser, address: str):
    with page_in(chromium) as page:
        page.add_init_script(SHIFTS)
        settled(page, address, "clusters/novel-1")
        page.wait_for_function(LOADED)
        assert page.evaluate("window.shifted ?? 0") < 0.1


def test_the_model_is_explained(chromium: Browser, address: str, run: Path):
    classes = RunFolder(run).config()["classes"]
    with page_in(chromium) as page:
        settled(page, address, "model")
        expect(page.locator(".chart path").first).to_be_visible()
        expect(page.locator("#model-parts")).to_contain_text("12 bits")
        expect(page.locator("table.words thead button")).to_have_text(classes)
        page.locator("table.words").get_by_role("button", name=classes[0]).click()
        expect(page.locator("#model-parts")).to_contain_text(f"{classes[0]} shares a meta-class with")
        expect(page.get_by_role("row", name=re.compile("^epochs 6"))).to_be_visible()
