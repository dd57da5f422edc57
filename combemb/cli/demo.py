"""The demo: ten handwritten digits, seven of them half labelled, three never; can short codes find all ten?"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from combemb.data import datasets, open_set_split
from combemb.data.splits import OpenSetSplit
from combemb.discovery.metrics import agreement
from combemb.discovery.result import Discovery
from combemb.learning.method import Method
from combemb.methods.combemb import CombEmb
from combemb.methods.itq import ITQ
from combemb.search.codebook import Codebook
from combemb.search.metrics import Retrieval, code_retrieval, float_retrieval
from combemb.system.files import write_atomically

BITS = 24
PICTURE = "search.png"


def run(folder: Path, seed: int = 0, *, overwrite: bool = False, progress: bool | None = None) -> Iterator[str]:
    """Fit, compare with plain pixels and ITQ, and draw some searches; yields lines to print."""
    digits = datasets.load("digits")
    split = open_set_split(digits.train_targets, seed=seed)
    is_novel = split.is_novel(digits.test_targets)
    n_labelled = int((split.labels >= 0).sum())
    yield f"{len(digits.train_x)} images of digits: {n_labelled} labels, for half of the {_listed(split.seen)};"
    yield f"none for {_listed(split.novel)}, which are in the pile all the same"

    model = CombEmb(bits=BITS, seed=seed).fit(
        digits.train_x, split.labels, folder=folder, overwrite=overwrite, progress=progress
    )
    yield from model.summary()
    itq = ITQ(bits=BITS, seed=seed).fit(digits.train_x, split.labels)

    yield ""
    yield "mean average precision of test images searching the training images"
    yield f"{'':24}{'seen digits':>12}{'novel digits':>14}"
    rows = {f"plain pixels, {64 * 32} bits": None, f"ITQ, {BITS} bits": itq, f"CombEmb, {BITS} bits": model}
    for name, method in rows.items():
        seen, novel = (search_quality(method, digits, queries) for queries in (~is_novel, is_novel))
        yield f"{name:24}{seen.map:12.3f}{novel.map:14.3f}"
    yield f"{'chance':24}{seen.chance:12.3f}{novel.chance:14.3f}"

    found = model.discover(digits.train_x, split.labels, progress=progress)
    yield ""
    yield from discovery_lines(found, split, digits.train_targets)

    picked = np.flatnonzero(is_novel)[:: max(int(is_novel.sum()) // 6, 1)][:6]
    hits = nearest(model.codebook, model.embed(digits.test_x[picked]), model.encode(digits.train_x))
    write_atomically(folder / PICTURE, lambda path: draw_hits(path, digits, picked, hits))
    yield ""
    yield f"written to {folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}"
    yield f"look at {folder / PICTURE}: novel digits and what their codes find"


def discovery_lines(found: Discovery, split: OpenSetSplit, targets: np.ndarray) -> Iterator[str]:
    """What was discovered without being told how many novel digits there are, and how much of it is right."""
    on = split.labels < 0
    right = agreement(found.clusters[on].tolist(), targets[on], split.is_novel(targets[on])).acc_joint
    low, high = found.n_novel_interval
    yield f"discovery, not told how many: {found.n_novel} novel classes (between {low} and {high})"
    parts = f"seen digits {right.seen:.0%}, novel ones {right.novel:.0%}"
    yield f"unlabelled images with their kind: {right.all:.0%}; {parts}"


def search_quality(method: Method | None, digits: datasets.Dataset, queries: np.ndarray) -> Retrieval:
    """Search the training images with some of the test images: by codes, or by pixels without a method."""
    targets, database = digits.test_targets[queries], digits.train_targets
    if method is None:
        return float_retrieval(digits.test_x[queries], digits.train_x[:, 0], targets, database)
    codes = method.encode(digits.train_x)
    return code_retrieval(method.codebook, method.embed(digits.test_x[queries]), codes, targets, database)


def nearest(codebook: Codebook, queries: Tensor, codes: Tensor, k: int = 12) -> np.ndarray:
    """Database rows by falling score: (Q, k)."""
    order = codebook.scores(queries, codes).argsort(dim=1, descending=True, stable=True)
    return order[:, :k].numpy()


def draw_hits(path: Path, digits: datasets.Dataset, queries: np.ndarray, hits: np.ndarray) -> None:
    """One row per query: the query, then what it found, wrong ones framed in red."""
    figure = Figure(figsize=(0.62 * (hits.shape[1] + 1), 0.68 * len(queries)), layout="constrained")
    grid = figure.subplots(len(queries), hits.shape[1] + 1)
    for axes, query, found in zip(grid, queries, hits, strict=True):
        images = [digits.test_x[query], *digits.train_x[found, 0]]
        right = [None, *(digits.train_targets[found] == digits.test_targets[query])]
        for place, image, is_right in zip(axes, images, right, strict=True):
            place.imshow(image.reshape(8, 8), cmap="gray_r")
            place.set(xticks=[], yticks=[])
            for spine in place.spines.values():
                spine.set(color={None: "black", True: "#2a9d4a"}.get(is_right, "#d62828"), linewidth=2)
    figure.savefig(path, dpi=110, format="png")


def _listed(classes: np.ndarray) -> str:
    *first, last = map(str, classes)
    return f"{', '.join(first)} and {last}"
