"""Pictures of every view of the explorer on digits, wide and narrow, light and dark.

python benchmarks/explorer_pictures.py --out /tmp/pictures            # all of them, to be looked at
python benchmarks/explorer_pictures.py --out /tmp/pictures --keep     # and those of the README into docs/pictures
"""

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np
from explorer_paint import served
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright
from sklearn.datasets import load_digits

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
N_SEEN, PER_CLASS, SIDE = 7, 120, 64
SIZES = {"wide": (1280, 800), "narrow": (390, 844)}
VIEWS = {  # address, and what is there when the view is complete
    "map": ("#map", "#plot canvas"),
    "clusters": ("#clusters", ".card img"),
    "class": ("#clusters/novel-1", ".tile img"),
    "review": ("#review", ".large img"),
    "search": ("#search/{row}", "#hits img"),
    "model": ("#model", ".chart svg"),
    "export": ("#export", "#export .part"),
}
KEPT = ("map-wide-light", "class-wide-dark", "review-narrow-light", "search-narrow-dark")  # pictures for the README
DOCS = Path(__file__).parents[1] / "docs" / "pictures"
MAX_BYTES = 200_000
LOADED = """() => [...document.images].every((image) => {
  const box = image.getBoundingClientRect();
  return box.width === 0 || box.top > innerHeight || box.bottom < 0 || (image.complete && image.naturalWidth > 0);
})"""


def write_digits(folder: Path) -> Path:
    """Write digits as PNG files; seven of them are labelled, half of their images."""
    digits = load_digits()
    for digit, name in enumerate(NAMES):
        for place, row in enumerate(np.flatnonzero(digits.target == digit)[:PER_CLASS]):
            is_labelled = digit < N_SEEN and place % 2 == 0
            path = folder / (name if is_labelled else "unlabelled") / f"digit-{row:04}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = (digits.images[row] * 255 / 16).astype(np.uint8)
            Image.fromarray(255 - pixels).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(path)
    return folder


def taken(browser: Browser, address: str, out: Path, size: str, scheme: str) -> None:
    """Take the pictures of all views."""
    width, height = SIZES[size]
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme, device_scale_factor=1)
    for name, (view, complete) in VIEWS.items():
        page.goto(address + view.format(row=_row_of_novel(page, address)))
        if name == "map":
            page.wait_for_function("performance.getEntriesByName('map-drawn').length", timeout=120_000)
        page.locator(complete).first.wait_for()
        page.wait_for_function(LOADED)
        page.screenshot(path=out / f"{name}-{size}-{scheme}.png")
    page.close()


def _row_of_novel(page: Page, address: str) -> int:
    return page.request.get(f"{address}api/clusters").json()["clusters"][0]["exemplars"][0]


def keep(out: Path) -> None:
    """Store the pictures of the README with few colours."""
    DOCS.mkdir(exist_ok=True)
    for name in KEPT:
        path = DOCS / f"explorer-{name}.png"
        Image.open(out / f"{name}.png").convert("RGB").quantize(
            256, Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE
        ).save(path, optimize=True)
        assert path.stat().st_size < MAX_BYTES, f"{path} is too large"
        print(f"{path}: {path.stat().st_size / 1e3:.0f} KB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--run", type=Path, help="use this run instead of fitting one")
    parser.add_argument("--keep", action="store_true")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    run = given.run or given.out / "digits"
    if given.run is None:  # what is done already is not done again
        photos = given.out / "photos"
        if not photos.exists():
            write_digits(photos)
        settings = ["--bits", "24", "--set", f"image_size={SIDE}", "--set", "n_views=2"]
        command = ["run", str(photos), "--out", str(run), *settings]
        subprocess.run([sys.executable, "-m", "combemb", *command], check=True)
    with served(run) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for size in SIZES:
            for scheme in ("light", "dark"):
                taken(browser, address, given.out, size, scheme)
        browser.close()
    if given.keep:
        keep(given.out)


if __name__ == "__main__":
    main()
