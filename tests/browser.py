"""The page in a real browser: Debian's chromium, a server in a process of its own, and a run on a few digits."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright
from sklearn.datasets import load_digits

from tests.commands import done
from tests.real_processes import command, ended, started

SEEN, NOVEL, PER_CLASS = ("zero", "one", "two"), ("three", "four"), 24
N, N_LABELLED = PER_CLASS * (len(SEEN) + len(NOVEL)), PER_CLASS // 2 * len(SEEN)
VIEWS = ("map", "clusters", "review", "search", "model", "export")
SECONDS = 30  # for anything on the page; a busy machine is slow
MISSING = "no chromium was found; the tests of the page need one: apt-get install chromium"


def executable() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.fail(MISSING)
    return found


@contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=executable(), args=["--no-sandbox"])
        yield found
        found.close()


@contextmanager
def page_in(
    found: Browser, width: int = 1280, height: int = 800, expected: str | None = None, **options
) -> Iterator[Page]:
    """A page; at its end nothing may have gone wrong that a console would show, besides what is expected."""
    context = found.new_context(viewport={"width": width, "height": height}, **options)
    page = context.new_page()
    page.set_default_timeout(SECONDS * 1000)
    expect.set_options(timeout=SECONDS * 1000)
    problems: list[str] = []
    page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    yield page
    context.close()
    unexpected = [text for text in problems if expected is None or expected not in text]
    assert not unexpected, unexpected


@contextmanager
def served(run: Path, port: int = 0) -> Iterator[str]:
    """The address of a server of a run, which is asked to stop at the end."""
    output = run.parent / f"server-{time.monotonic_ns()}.txt"
    process = started(command, output, "serve", run, "--port", port)
    try:
        yield _address(output)
    finally:
        process.terminate()
        ended(process)


def _address(output: Path) -> str:
    for _ in range(600):
        words = output.read_text().split() if output.exists() else []
        address = next((word.rstrip(";") for word in words if word.startswith("http://")), None)
        if address:
            return address
        time.sleep(0.1)
    raise AssertionError(f"the server does not start: {output.read_text()}")


def settled(page: Page, address: str, view: str) -> None:
    """Open a view, and wait until all is there."""
    page.goto(f"{address}#{view}")
    expect(page.locator(f"section#{view.partition('/')[0]}")).to_be_visible()
    page.wait_for_load_state("networkidle")


def drawn(page: Page) -> None:
    """Wait until the map is there."""
    page.wait_for_function("performance.getEntriesByName('map-drawn').length > 0", timeout=120_000)


def write_digits(folder: Path) -> Path:
    """Digits as PNG files: half of the seen ones in class folders, all others in unlabelled/."""
    digits = load_digits()
    for digit, name in enumerate((*SEEN, *NOVEL)):
        for place, row in enumerate(np.flatnonzero(digits.target == digit)[:PER_CLASS]):
            is_labelled = name in SEEN and place % 2 == 0
            path = folder / (name if is_labelled else "unlabelled") / f"{name}-{place:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = (255 - digits.images[row] * 255 / 16).astype(np.uint8)
            Image.fromarray(pixels).resize((32, 32), Image.Resampling.BICUBIC).save(path)
    return folder


def digits_run(factory: pytest.TempPathFactory) -> Path:
    """A run with index, discovery and map, made once; tests that change it take a copy."""
    return _digits_run(str(factory.getbasetemp()))


@cache
def _digits_run(base: str) -> Path:
    folder = Path(base) / "page"
    run = folder / "digits"
    settings = [f"--set={text}" for text in ("image_size=32", "n_views=2", "epochs=6", "check=False")]
    done("fit", write_digits(folder / "photos"), "--out", run, "--bits", "12", "--quiet", *settings)
    done("discover", run, "--n-novel", "2", "--quiet")
    done("index", run, "--quiet")
    return run
