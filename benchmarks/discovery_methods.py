"""All methods that discover classes, on the same features: random search on a tuning split, then a table.

python benchmarks/discovery_methods.py tune cifar10 --data DIR      # 20 random trials per method, split tune-0
python benchmarks/discovery_methods.py table cifar10 --data DIR     # split 0, seeds 0 to 2, best settings of the trials
python benchmarks/discovery_methods.py report                       # trials and tables, as Markdown

Features and labels are those of the balanced piles (`piles.py`): frozen EfficientNet-Lite0 at 96 px, half of the seen
images labelled. Every method is given the number of classes. Its items are clustered by k-means on `embed`, as in the
paper, and by its own head if it has one; unlabelled training images (train) and test images (test) are clustered apart.
Beside them stand k-means and semi-supervised k-means on the raw features, and on the features after the map that all of
these methods start from, which whitens within the labelled classes (whitened; at unit length, as `embed` is): what a
method adds is the difference to these. A trial draws every setting of `SPACES` at random, trial 0 has the defaults.
Trials are judged by `acc_joint` (all) of unlabelled training images: the mean of that of k-means on `embed` and that of
the method's own head, of k-means alone if it has no head. Judged by k-means alone, the best trials had collapsed heads.
Settings are chosen on CIFAR-10 and used for all data sets. Each fit appends a line of JSON to a file of results;
results that exist are not computed again.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from methods import RATE, Between
from piles import RESULTS, SIZES, Pile, features_of, pile_of, plain, read, version

from combemb import methods
from combemb.backbones.feature_map import fit_feature_map
from combemb.data.labels import read_labels
from combemb.discovery.kmeans import kmeans
from combemb.discovery.metrics import agreement
from combemb.learning.head import HeadMethod
from combemb.learning.method import Method
from combemb.system.arrays import unit

TRIALS, TUNED_ON, TUNING_SPLIT = 20, "cifar10", "tune-0"
SEEDS, SPLIT = (0, 1, 2), "0"
FEATURES = ("raw features", "whitened features")  # that are clustered without training
MAP_FEATURES, ROWS = 256, 4_096  # of the map, as methods have from 1,536 labelled items on; rows mapped at a time
METRICS, PARTS = ("acc_joint", "acc_paper", "nmi", "ari"), ("seen", "novel", "all")
SPACES: dict[str, dict[str, Between | list[Any]]] = {  # a range, or the values to choose from
    "combemb": {
        "temperature": Between(0.05, 0.2),
        "similarity_weight": Between(5.0, 40.0),
        "n_meta_classes": [None, 2, 4],
    },
    "dtc": {
        "variant": ["baseline", "pi", "te", "tep"],
        "consistency_weight": Between(1.0, 100.0),
        "refresh_every": [1, 5, 10],
        "width": [256, 512, 1024],
    },
    "dualrank": {
        "n_ranked": [1, 2, 3],
        "n_words": [128, 512, 2048],
        "mutual_weight": Between(0.1, 3.0),
        "consistency_weight": Between(1.0, 50.0),
    },
    "gcd": {
        "label_weight": Between(0.1, 0.9),
        "temperature": Between(0.1, 1.0),
        "label_temperature": Between(0.05, 0.3),
        "width": [256, 512, 1024],
    },
    "ncl": {
        "positive_threshold": [0.5, 0.6, 0.7, 0.8, 0.95],
        "temperature": Between(0.03, 0.3),
        "label_weight": Between(0.03, 1.0),
        "consistency_weight": Between(1.0, 50.0),
    },
    "orca": {
        "scale": Between(5.0, 30.0),
        "max_margin": [0.0, 0.25, 0.5],
        "pair_weight": Between(0.3, 3.0),
        "entropy_weight": Between(0.3, 3.0),
    },
    "rankstats": {
        "n_ranked": [1, 2, 3, 5],
        "consistency_weight": Between(1.0, 50.0),
        "start_steps": [100, 300, 1_000],
        "width": [256, 512, 1024],
    },
}


def names() -> list[str]:
    """Return the methods that discover classes: those with a head, and CombEmb."""
    return [n for n in methods.names() if n == "combemb" or issubclass(methods.get(n), HeadMethod)]


def drawn(name: str, trial: int) -> dict[str, Any]:
    """Return the settings of a trial; those of trial 0 are the defaults."""
    if trial == 0:
        return {}
    rng = np.random.default_rng([trial, *name.encode()])
    space = sorted((SPACES.get(name, {}) | RATE).items())
    return {key: v.draw(rng) if isinstance(v, Between) else v[rng.integers(len(v))] for key, v in space}


def parts_of(pile: Pile) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield what is clustered: its name, items with views, targets, and which of these are novel."""
    hidden = pile.labels < 0
    yield "train", pile.x[hidden], pile.targets[hidden], pile.is_novel[hidden]
    yield "test", pile.test_x, pile.test_targets, pile.is_novel_test


def compared(clusters: Any, targets: np.ndarray, is_novel: np.ndarray) -> dict[str, dict[str, float]]:
    """Return all metrics of a clustering."""
    found = agreement(np.asarray(clusters).tolist(), targets, is_novel)
    return {metric: getattr(found, metric)._asdict() for metric in METRICS}


def without_training(pile: Pile, seed: int) -> dict[str, Any]:
    """Return the agreement of k-means and semi-supervised k-means, on raw and on whitened features."""
    options: dict[str, Any] = {"seed": seed, "n_starts": 10, "progress": False}
    n_classes, known, white = pile.n_seen + pile.n_novel, pile.labels >= 0, whitening_of(pile, seed)
    found: dict[str, Any] = {}
    for (part, x, targets, is_novel), kind in product(parts_of(pile), FEATURES):
        clean, labelled = np.asarray(x[:, 0] if x.ndim == 3 else x, np.float32), pile.clean[known]
        if kind == FEATURES[1]:
            clean, labelled = white(clean), white(labelled)
        both = np.concatenate([labelled, clean])
        labels = read_labels(np.concatenate([pile.labels[known], np.full(len(clean), -1)]), len(both))
        for name, clusters in (
            ("k-means", kmeans(clean, n_classes, **options).assignment),
            ("k-means with labels", kmeans(both, n_classes, labels, **options).assignment[known.sum() :]),
        ):
            found.setdefault(f"{name}, {kind}", {})[part] = compared(clusters, targets, is_novel)
    return found


def whitening_of(pile: Pile, seed: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return the map that deep methods fit on the clean items and the labels, with rows at unit length."""
    labels = read_labels(pile.labels, len(pile.labels))
    feature_map = fit_feature_map(torch.from_numpy(pile.clean).split(ROWS), MAP_FEATURES, labels, seed=seed)

    def white(x: np.ndarray) -> np.ndarray:
        return np.concatenate([unit(feature_map(rows)).numpy() for rows in torch.from_numpy(x).split(ROWS)])

    return white


def measure(cell: dict[str, Any], pile: Pile, progress: bool) -> dict[str, Any]:
    """Return the agreement of the clusters of one fit, by k-means on `embed` and by the method's own head."""
    cls: type[Method] = methods.get(cell["method"])
    own = {"n_novel": pile.n_novel} if issubclass(cls, HeadMethod) else {"bits": 48}
    model = cls(seed=cell["seed"], **{"check": False}, **own, **cell["settings"])
    began = time.monotonic()
    model.fit(pile.x, pile.labels, progress=progress)
    found: dict[str, Any] = {"seconds": time.monotonic() - began, "embed": {}, "head": {}}
    for part, x, targets, is_novel in parts_of(pile):
        options: dict[str, Any] = {"seed": cell["seed"], "n_starts": 10, "progress": False}
        clusters = kmeans(model.embed(x).numpy(), pile.n_seen + pile.n_novel, **options).assignment
        found["embed"][part] = compared(clusters, targets, is_novel)
        if isinstance(model, HeadMethod):
            found["head"][part] = compared(model.predict(x), targets, is_novel)
    return plain({"cell": cell, "version": version(), **found})


def accuracies(record: dict[str, Any]) -> dict[str, float]:
    """Return `acc_joint` (all) of unlabelled training images, of k-means on `embed` and of the own head if any."""
    return {how: record[how]["train"]["acc_joint"]["all"] for how in ("embed", "head") if record[how]}


def score(record: dict[str, Any]) -> float:
    """Return what trials are judged by: the mean of these accuracies."""
    return statistics.mean(accuracies(record).values())


def trials_of(records: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [r for r in records if (r["cell"]["part"], r["cell"]["method"]) == ("tune", name)]


def best_settings(records: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the settings of the best trial; the defaults if there is none."""
    trials = trials_of(records, name)
    return dict(max(trials, key=score)["cell"]["settings"]) if trials else {}


def wanted(given: argparse.Namespace, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cells of a part that have no result yet."""
    about = {"part": given.part, "dataset": given.dataset}
    if given.part == "tune":
        pairs = [(name, trial) for trial in range(TRIALS) for name in given.method]
        cells = [{"method": n, "seed": 0, "split": TUNING_SPLIT, "settings": drawn(n, t)} for n, t in pairs]
    else:
        chosen = {name: best_settings(records, name) for name in given.method}
        pairs = [(name, seed) for seed in given.seed for name in given.method]
        cells = [{"method": "none", "seed": s, "split": SPLIT, "settings": {}} for s in given.seed]
        cells += [{"method": n, "seed": s, "split": SPLIT, "settings": chosen[n]} for n, s in pairs]
    cells = [{**about, **cell} for cell in cells]
    return [cell for cell in cells if not any(r["cell"] == cell for r in records)]


def run(given: argparse.Namespace, records: list[dict[str, Any]]) -> None:
    """Measure what is missing and append it to the results."""
    if given.dataset is None or (given.part == "tune" and given.dataset != TUNED_ON):
        raise SystemExit(f"name a data set; trials are made on {TUNED_ON}")
    cells = wanted(given, records)
    data = features_of(given.dataset, given.data, given.progress) if cells else None
    for cell in cells:
        assert data is not None
        pile = pile_of(data, "balanced", cell["split"], cell["seed"])
        if cell["method"] == "none":
            record = plain({"cell": cell, "version": version(), **without_training(pile, cell["seed"])})
        else:
            record = measure(cell, pile, given.progress)
        records.append(record)
        with given.results.open("a") as file:
            file.write(json.dumps(record) + "\n")
        if cell["method"] != "none":
            texts = ", ".join(f"{how} {value:.3f}" for how, value in accuracies(record).items())
            print(f"{cell['method']:9} {cell['split']} seed {cell['seed']}: {texts} {cell['settings']}", flush=True)


def rows_of(records: list[dict[str, Any]], dataset: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the rows of the table of a data set: a name, and the metrics of each seed by part of the data."""
    own = [r for r in records if (r["cell"]["part"], r["cell"]["dataset"]) == ("table", dataset)]
    without = [r for r in own if r["cell"]["method"] == "none"]
    for kind, name in product(FEATURES, ("k-means", "k-means with labels")):
        yield f"{name}, {kind}", [r[f"{name}, {kind}"] for r in without]
    for name in sorted({r["cell"]["method"] for r in own} - {"none"}):
        best = best_settings(records, name)
        mine = [r for r in own if r["cell"]["method"] == name and r["cell"]["settings"] == best]
        for how in ("embed", "head"):
            if mine and mine[0][how]:
                yield f"{name}, {'k-means on embed' if how == 'embed' else 'own head'}", [r[how] for r in mine]


def report(records: list[dict[str, Any]]) -> None:
    """Print the tables of each data set, and the trials that led to the settings."""
    for dataset in sorted({r["cell"]["dataset"] for r in records if r["cell"]["part"] == "table"}):
        for part, about in (("train", "unlabelled training images"), ("test", "test images")):
            print(f"\n{dataset}, split {SPLIT}, {about}: mean of the seeds, and deviation of `acc_joint` (all)\n")
            print("| method | " + " | ".join(f"{m}: {', '.join(PARTS)}" for m in METRICS) + " | deviation | seeds |")
            print("|---|" + "---|" * len(METRICS) + "---:|---:|")
            for name, found in rows_of(records, dataset):
                cells = [
                    " / ".join(f"{statistics.mean(f[part][metric][p] for f in found):.3f}" for p in PARTS)
                    for metric in METRICS
                ]
                spread = statistics.pstdev([f[part]["acc_joint"]["all"] for f in found])
                print(f"| {name} | {' | '.join(cells)} | {spread:.3f} | {len(found)} |")
    print(f"\nTrials on {TUNED_ON}, split {TUNING_SPLIT}: `acc_joint` (all) of unlabelled training images by k-means")
    print("on `embed`, by the own head, and the mean of both, by which the best trial is chosen\n")
    print(
        "| method | trials | defaults | best | its settings | seconds of a fit, median |\n|---|---:|---|---|---|---:|"
    )
    for name in sorted({r["cell"]["method"] for r in records if r["cell"]["part"] == "tune"}):
        trials = trials_of(records, name)
        first = next((accuracy_text(r) for r in trials if not r["cell"]["settings"]), "not run")
        best = max(trials, key=score)
        settings = ", ".join(f"{k}={v}" for k, v in best["cell"]["settings"].items()) or "defaults"
        seconds = statistics.median(r["seconds"] for r in trials)
        print(f"| {name} | {len(trials)} | {first} | {accuracy_text(best)} | {settings} | {seconds:.0f} |")


def accuracy_text(record: dict[str, Any]) -> str:
    """Return the accuracies that a trial is judged by, and their mean if there are two."""
    found = [*accuracies(record).values()]
    return " / ".join(f"{value:.3f}" for value in (found if len(found) == 1 else [*found, score(record)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("tune", "table", "report"))
    parser.add_argument("dataset", nargs="?", choices=[name for name in SIZES if name != "digits"])
    parser.add_argument("--data", type=Path, help="folder of the data set")
    parser.add_argument("--method", nargs="+", choices=names(), default=names())
    parser.add_argument("--seed", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--results", type=Path, default=RESULTS / "discovery_methods.jsonl", help="file of results")
    parser.add_argument("--progress", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    records = read(given.results)
    if given.part != "report":
        run(given, records)
    report(records)


if __name__ == "__main__":
    main()
