"""Real piles: uneven classes, few labels, small sets, nothing novel. CombEmb against what needs no training.

python benchmarks/piles.py digits
python benchmarks/piles.py cifar10 --data DIR --kind balanced uneven --split 0 1 2
python benchmarks/piles.py cifar10 --data DIR --split tune-0 --set n_meta_classes=8 --part retrieval
python benchmarks/piles.py --report                                               # tables of all results

Kinds: balanced (all items), uneven (sizes fall like largest / (1 + 36 rank / (C - 1)), at least 6), ten (the first ten
of each class), two_labels (two for each seen class), no_novel (without the items of novel classes). Parts: retrieval
and discovery, which share a fit, and others, which do not depend on the method. Everything is measured against hidden
classes; queries are all test items. Each part of a cell appends a line of JSON to a file of results; results that exist
are not computed again.
"""

import argparse
import json
import math
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pile_report import line, markdown, report
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from combemb import CombEmb
from combemb.bench.protocol import first_of_each, rows_of
from combemb.cli.options import parse_settings
from combemb.data import datasets, open_set_split
from combemb.data.given import read_given
from combemb.data.images import Images
from combemb.data.labels import read_labels
from combemb.discovery.kmeans import kmeans
from combemb.discovery.metrics import agreement, novelty_auroc
from combemb.search.metrics import code_retrieval, float_retrieval

RESULTS = Path(__file__).parent / "results"
BITS = 48
KINDS = ("balanced", "uneven", "ten", "two_labels", "no_novel")
PARTS = ("retrieval", "discovery", "others")
SIZES = {"digits": None, "cifar10": 96, "cifar100": 96, "cub200": 224, "tiny_imagenet": 96}  # in pixels
PER_CLASS = {"cifar10": 600}  # the first so many training images of each class; all of the other sets
STEEPNESS, SMALLEST = 36, 6  # of uneven classes
N_COMPONENTS, N_DIRECTIONS, RIDGE = 256, 64, 1.0  # of the whitened features


@dataclass(frozen=True, eq=False)
class Features:
    """Features of a whole data set: x (N, V, F) with the clean view first, test_x (n, F), and the targets of both."""

    x: np.ndarray
    targets: np.ndarray
    test_x: np.ndarray
    test_targets: np.ndarray


@dataclass(frozen=True, eq=False)
class Pile:
    """A part of the training items with the labels that a method may see; the rest is hidden truth."""

    x: np.ndarray
    labels: np.ndarray
    targets: np.ndarray
    is_novel: np.ndarray
    test_x: np.ndarray
    test_targets: np.ndarray
    is_novel_test: np.ndarray

    @property
    def clean(self) -> np.ndarray:
        """The clean view (N, F) of the items."""
        return np.asarray(self.x[:, 0], np.float32)

    @property
    def n_seen(self) -> int:
        """Number of seen classes."""
        return len(np.unique(self.targets[~self.is_novel]))

    @property
    def n_novel(self) -> int:
        """Number of novel classes, 0 if nothing is novel."""
        return len(np.unique(self.targets[self.is_novel]))


def features_of(name: str, path: Path | None, progress: bool) -> Features:
    """Return the features of all items, three views of training images; combemb caches them."""
    dataset = datasets.load(name, path)
    if not isinstance(dataset.train_x, Images):
        return Features(dataset.train_x, dataset.train_targets, dataset.test_x, dataset.test_targets)
    rows = first_of_each(dataset.train_targets, PER_CLASS.get(name))
    method = CombEmb(image_size=SIZES[name])
    found = []
    for x, targets, n_views in (
        (rows_of(dataset.train_x, rows), dataset.train_targets[rows], method.n_views),
        (dataset.test_x, dataset.test_targets, 1),
    ):
        loaded = method.image_input().load(read_given(x), n_views, progress)
        found += [np.asarray(loaded.items.x), targets[loaded.rows]]
    return Features(found[0], found[1], found[2][:, 0], found[3])


def uneven_sizes(largest: int, n_classes: int, rng: np.random.Generator) -> np.ndarray:
    """Return the sizes (C,) of classes in random order, the largest about 37 times the smallest."""
    ranks = rng.permutation(n_classes)
    sizes = largest / (1 + STEEPNESS * ranks / max(n_classes - 1, 1))
    return np.maximum(np.round(sizes).astype(int), SMALLEST)


def pile_of(data: Features, kind: str, split: str, seed: int) -> Pile:
    """Return a pile of one kind; half of each seen class is labelled, unless the kind says otherwise."""
    rng, targets = np.random.default_rng(seed), data.targets
    classes, sizes = np.unique(targets, return_counts=True)
    if kind == "uneven":
        sizes = uneven_sizes(sizes.max(), len(sizes), rng)
    elif kind == "ten":
        sizes = np.full(len(sizes), 10)
    rows = np.sort(np.concatenate([np.flatnonzero(targets == c)[:n] for c, n in zip(classes, sizes, strict=True)]))
    known = open_set_split(targets[rows], split, seed=seed)
    labels, is_novel = known.labels.copy(), known.is_novel(targets[rows])
    if kind == "two_labels":
        for c in known.seen:
            labels[rng.permutation(np.flatnonzero(labels == c))[2:]] = -1
    is_novel_test = known.is_novel(data.test_targets)
    on, test = (~novel if kind == "no_novel" else novel | True for novel in (is_novel, is_novel_test))
    return Pile(
        *(data.x[rows[on]], labels[on], targets[rows[on]], is_novel[on]),
        *(data.test_x[test], data.test_targets[test], is_novel_test[test]),
    )


def by_part(pile: Pile, name: str, measured: Any) -> dict[str, float | None]:
    """Return the mAP of novel and of seen queries; measured(mask, query targets) returns a Retrieval."""
    found: dict[str, float | None] = {}
    for part, mask in (("novel", pile.is_novel_test), ("seen", ~pile.is_novel_test)):
        found[f"{part}_{name}"] = measured(mask, pile.test_targets[mask]).map if mask.any() else None
    return found


def floats(pile: Pile, name: str, x: Any, test_x: Any) -> dict[str, float | None]:
    return by_part(pile, name, lambda on, t: float_retrieval(test_x[on], x, t, pile.targets))


def retrieval(model: CombEmb, pile: Pile) -> dict[str, Any]:
    """Return the mAP of codes and of z, and what the fit said about itself."""
    z, database, codes = model.embed(pile.test_x), model.embed(pile.x), model.encode(pile.x)
    check, last = getattr(model, "check_", None), (getattr(model, "log_", None) or [{}])[-1]
    return {
        **by_part(pile, "codes", lambda on, t: code_retrieval(model.codebook, z[on], codes, t, pile.targets)),
        **floats(pile, "z", database, z),
        **{key: last.get(key) for key in ("positives_per_anchor", "pair_precision")},
        "check": check.as_dict() if hasattr(check, "as_dict") else check,
    }


def accuracy(clusters: np.ndarray, pile: Pile) -> dict[str, float]:
    """Return acc_joint of the unlabelled items: of all, of seen and of novel classes."""
    on = pile.labels < 0
    return agreement(clusters[on].tolist(), pile.targets[on], pile.is_novel[on]).acc_joint._asdict()


def discovery(model: CombEmb, pile: Pile) -> dict[str, Any]:
    """Return how well classes are discovered if their number is estimated."""
    result = model.discover(pile.x, pile.labels, progress=False)
    low, high = result.n_novel_interval
    hidden = pile.labels < 0
    seen, novel = hidden & ~pile.is_novel, hidden & pile.is_novel
    return {
        **{"found": result.n_novel, "low": low, "high": high},
        "seen_right": np.mean(result.clusters[seen] == pile.targets[seen]),
        "called_novel": result.is_novel[novel].mean() if novel.any() else None,
        "seen_called_novel": result.is_novel[seen].mean(),
        "acc": accuracy(result.clusters, pile),
        "auroc": novelty_auroc(model.novelty(pile.test_x), pile.is_novel_test),
    }


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def principal(x: np.ndarray, n: int | None) -> np.ndarray:
    """Return the first n principal directions (F, n) of centred rows (N, F); None for all."""
    _, vectors = np.linalg.eigh(x.T @ x)
    return vectors[:, ::-1][:, :n]


def whitened(pile: Pile, n_components: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return items (N, d) and test items (n, d), whitened within the labelled classes of their principal components."""
    x, test_x = unit(pile.clean.astype(np.float64)), unit(np.asarray(pile.test_x, np.float64))
    x, test_x = x - x.mean(axis=0), test_x - x.mean(axis=0)
    components = principal(x, n_components)
    x, test_x = x @ components, test_x @ components
    classes = [x[pile.labels == c] for c in np.unique(pile.labels[pile.labels >= 0])]
    residual = np.concatenate([members - members.mean(axis=0) for members in classes])
    scatter = residual.T @ residual
    values, vectors = np.linalg.eigh(scatter + RIDGE * scatter.diagonal().mean() * np.eye(len(scatter)))
    x, test_x = x @ (vectors / np.sqrt(values)), test_x @ (vectors / np.sqrt(values))
    directions = principal(x, N_DIRECTIONS)
    return x @ directions, test_x @ directions


def others(pile: Pile, seed: int) -> dict[str, Any]:
    """Return what needs no method: float features, a linear classifier, k-means, distances."""
    x, test_x = pile.clean, np.asarray(pile.test_x, np.float32)
    on, n_classes = pile.labels >= 0, pile.n_seen + pile.n_novel
    scaler = StandardScaler().fit(x)
    linear = LogisticRegression(max_iter=300).fit(scaler.transform(x[on]), pile.labels[on])
    said, hidden_seen = linear.predict(scaler.transform(x)), ~on & ~pile.is_novel
    sure = linear.predict_proba(scaler.transform(test_x)).max(axis=1)
    cosine = (unit(test_x) @ unit(x[on]).T).max(axis=1)
    options: dict[str, Any] = {"seed": seed, "n_starts": 10, "progress": False}
    known = read_labels(pile.labels, len(x))
    return {
        **floats(pile, "raw", x, test_x),
        **floats(pile, "whitened", *whitened(pile, N_COMPONENTS)),
        **floats(pile, "whitened_all", *whitened(pile, None)),
        "seen_right_linear": np.mean(said[hidden_seen] == pile.targets[hidden_seen]),
        "acc_kmeans": accuracy(kmeans(x, n_classes, **options).assignment, pile),
        "acc_ss_kmeans": accuracy(kmeans(x, n_classes, known, **options).assignment, pile),
        "auroc_softmax": novelty_auroc(1 - sure, pile.is_novel_test),
        "auroc_nearest": novelty_auroc(1 - cosine, pile.is_novel_test),
    }


def measure(cells: list[dict[str, Any]], pile: Pile, progress: bool) -> Iterator[dict[str, Any]]:
    """Yield a record for each part of a cell; those of the method share one fit."""
    about = {"n_labelled": (pile.labels >= 0).sum(), "n_seen": pile.n_seen, "n_novel": pile.n_novel}
    model, fitted = None, {}
    for cell in cells:
        if cell["part"] != "others" and model is None:
            began, cpu = time.monotonic(), time.process_time()
            model = CombEmb(bits=BITS, seed=cell["seed"], **parse_settings(CombEmb, cell["set"]))
            model.fit(pile.x, pile.labels, progress=progress)
            fitted = {"fit_seconds": time.monotonic() - began, "fit_cpu_seconds": time.process_time() - cpu}
        began = time.monotonic()
        if model is None or cell["part"] == "others":
            found = others(pile, cell["seed"])
        else:
            found = fitted | (retrieval if cell["part"] == "retrieval" else discovery)(model, pile)
        seconds, size = time.monotonic() - began, len(pile.x)
        yield plain({"cell": cell, "version": version(), "n_items": size, **about, **found, "seconds": seconds})


def version() -> str:
    """Return the commit that is measured."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout.strip()


def plain(value: Any) -> Any:
    """Return what JSON can hold: Python numbers of six digits, None for NaN."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(inner) for inner in value]
    value = value.item() if isinstance(value, np.generic | torch.Tensor) else value
    if isinstance(value, float):
        return None if math.isnan(value) else round(value, 6)
    return value


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", choices=list(SIZES))
    parser.add_argument("--data", type=Path, help="folder of the data set; not needed for digits")
    parser.add_argument("--kind", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--split", nargs="+", default=["0", "1", "2"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings of CombEmb")
    parser.add_argument("--results", type=Path, default=RESULTS / "piles.jsonl", help="file of results")
    parser.add_argument("--before", type=Path, default=RESULTS / "piles_before.jsonl", help="results of earlier code")
    parser.add_argument("--report", action="store_true", help="only print the stored results")
    parser.add_argument(
        "--markdown", metavar="SPLIT", help="with --report: the tables of docs/reproduce.md, of this split"
    )
    parser.add_argument("--progress", action="store_true")
    given = parser.parse_args()
    if not given.report and given.dataset is None:
        parser.error("give a data set, or --report")
    torch.set_num_threads(1)
    given.results.parent.mkdir(exist_ok=True)
    records, data = read(given.results), None
    for split, kind in () if given.report else product(given.split, given.kind):
        cell = {"dataset": given.dataset, "kind": kind, "split": split, "seed": given.seed}
        of_method = {"bits": BITS, "set": sorted(given.set)}
        cells = [cell | {"part": part} | (of_method if part != "others" else {}) for part in given.part]
        cells = [cell for cell in cells if not any(record["cell"] == cell for record in records)]
        if not cells:
            continue
        data = data or features_of(given.dataset, given.data, given.progress)
        for record in measure(cells, pile_of(data, kind, split, given.seed), given.progress):
            records.append(record)
            with given.results.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(line(record), flush=True)
    if given.markdown:
        markdown(records, read(given.before), given.markdown)
        return
    report([r for r in records if given.dataset in {None, r["cell"]["dataset"]}], read(given.before))


if __name__ == "__main__":
    main()
