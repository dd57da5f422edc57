"""`combemb demo`: ten handwritten digits, three of them without any label; do short codes find all ten?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from combemb.cli.console import running, say
from combemb.cli.options import Overwrite, Quiet
from combemb.cli.outcome import lines_of_fit

if TYPE_CHECKING:
    import numpy as np

    from combemb.data.datasets import Dataset

BITS = 24


def demo(
    folder: Annotated[Path, typer.Option("--out", "-o", help="Folder to write the run to.")] = Path("runs/digits"),
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Learn handwritten digits, seven of them half labelled and three unlabelled, and search for all ten."""
    import numpy as np

    from combemb import CodeIndex, CombEmb, open_set_split
    from combemb.data import datasets
    from combemb.discovery.metrics import agreement
    from combemb.learning.run_folder import SEARCHES, RunFolder
    from combemb.methods.itq import ITQ
    from combemb.search.metrics import code_retrieval, float_retrieval
    from combemb.system.files import write_atomically

    with running(quiet):
        digits = datasets.load("digits")
        x, targets = digits.train_x, digits.train_targets
        split = open_set_split(targets)
        is_novel, unlabelled = split.is_novel(digits.test_targets), split.labels < 0
        seen_digits, novel_digits = (", ".join(map(str, classes)) for classes in (split.seen, split.novel))
        say(f"{len(x)} images of digits: {(~unlabelled).sum()} labels, for half of the images of {seen_digits};")
        say(f"none for {novel_digits}, of which there are images too")

        model = CombEmb(bits=BITS).fit(x, split.labels, folder=folder, overwrite=overwrite, progress=not quiet)
        for line in lines_of_fit(folder):
            say(line)
        itq = ITQ(bits=BITS).fit(x, split.labels)

        say("\nmean average precision when test images search the training images")
        say(f"{'':24}{'seen digits':>12}{'novel digits':>14}")
        queries = [(digits.test_x[rows], digits.test_targets[rows]) for rows in (~is_novel, is_novel)]
        seen, novel = (float_retrieval(q, x[:, 0], truth, targets) for q, truth in queries)
        say(f"{f'plain pixels, {64 * 32} bits':24}{seen.map:12.3f}{novel.map:14.3f}")
        for method in (itq, model):
            codebook, codes = method.codebook, method.encode(x)
            seen, novel = (code_retrieval(codebook, method.embed(q), codes, truth, targets) for q, truth in queries)
            say(f"{f'{type(method).__name__}, {BITS} bits':24}{seen.map:12.3f}{novel.map:14.3f}")
        say(f"{'chance':24}{seen.chance:12.3f}{novel.chance:14.3f}")

        found = model.discover(x, split.labels, progress=not quiet)
        truth = targets[unlabelled]
        right = agreement(found.clusters[unlabelled].tolist(), truth, split.is_novel(truth)).acc_joint
        low, high = found.n_novel_interval
        say(f"\ndiscovery, number not given: {found.n_novel} novel classes (between {low} and {high})")
        parts = f"seen digits {right.seen:.0%}, novel digits {right.novel:.0%}"
        say(f"unlabelled images in their class: {right.all:.0%}; {parts}")

        picked = np.flatnonzero(is_novel)[:: max(int(is_novel.sum()) // 6, 1)][:6]
        index = CodeIndex(model.codebook)
        index.add(model.encode(x))
        hits = index.search(model.embed(digits.test_x[picked]), 12).ids
        with RunFolder(folder).written():
            write_atomically(folder / SEARCHES, lambda path: _draw(path, digits, picked, np.asarray(hits)))
        say(f"\nwritten to {folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
        say(f"{folder / SEARCHES} shows searches with novel digits")


def _draw(path: Path, digits: Dataset, queries: np.ndarray, hits: np.ndarray) -> None:
    """Draw one row per query: the query, then its hits, framed in green if they are right and in red if not."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(0.62 * (hits.shape[1] + 1), 0.68 * len(queries)), layout="constrained")
    grid = figure.subplots(len(queries), hits.shape[1] + 1)
    for axes, query, found in zip(grid, queries, hits, strict=True):
        images = [digits.test_x[query], *digits.train_x[found, 0]]
        is_right = digits.train_targets[found] == digits.test_targets[query]
        colours = ["black", *("#2a9d4a" if right else "#d62828" for right in is_right)]
        for place, image, colour in zip(axes, images, colours, strict=True):
            place.imshow(image.reshape(8, 8), cmap="gray_r")
            place.set(xticks=[], yticks=[])
            for spine in place.spines.values():
                spine.set(color=colour, linewidth=2)
    figure.savefig(path, dpi=110, format="png")
