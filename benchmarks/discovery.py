"""Discovery on real images: the number of classes, the clusters, and novelty, against common alternatives.

python benchmarks/discovery.py cifar10 --data DIR --per-class 600 --size 96 --split 0 1 2
python benchmarks/discovery.py digits --split tune-0 tune-1 tune-2 --count-by sizes codes gcd dtc
python benchmarks/discovery.py --report                                           # tables of all results

CombEmb at 48 bits with its defaults. Clusters are compared with hidden classes on the unlabelled training items
(`train_`) and on test items (`test_`); the alternatives cluster only the training items. All get the true number of
classes, except where it is estimated. Alternatives: k-means and semi-supervised k-means on raw features, HDBSCAN
on their first 50 principal components (noise counts as wrong), and for novelty one minus the largest probability of a
linear classifier. Each fit appends a line of JSON to a file of results; results that exist are not computed again.
"""

import argparse
import json
import statistics
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from images import RESULTS, first_of_each, rows_of
from sklearn.cluster import HDBSCAN
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from combemb import CombEmb, discover
from combemb.data import datasets, open_set_split
from combemb.data.items import ArrayItems
from combemb.data.labels import read_labels
from combemb.discovery.class_number import COUNTERS, Pile, count_novel
from combemb.discovery.kmeans import kmeans
from combemb.discovery.metrics import METRICS, agreement, novelty_auroc

PARTS = ("all", "seen", "novel")


def clean_features(model: CombEmb, x: Any) -> np.ndarray:
    """Return the clean features of the frozen backbone, or the embeddings as given."""
    items = model.read(x).items
    assert isinstance(items, ArrayItems)
    return np.asarray(items.x[:, 0], np.float32)


def measure(cell: dict[str, Any], dataset: datasets.Dataset, progress: bool) -> dict[str, Any]:
    train = first_of_each(dataset.train_targets, cell["per_class"])
    x, targets = rows_of(dataset.train_x, train), dataset.train_targets[train]
    split = open_set_split(targets, cell["split"], seed=cell["seed"])
    is_novel, is_novel_test = split.is_novel(targets), split.is_novel(dataset.test_targets)
    n_classes, n_novel = len(np.unique(targets)), len(np.unique(targets[is_novel]))
    model = CombEmb(bits=48, seed=cell["seed"], image_size=cell["size"], check=False)
    found: dict[str, Any] = {"n_classes": n_classes}

    def compare(name: str, clusters: np.ndarray) -> None:
        on = split.labels < 0
        found[name] = agreement(clusters[on].tolist(), targets[on], is_novel[on]).as_dict("train")

    if cell["part"] == "others":
        features, test_features = clean_features(model, x), clean_features(model, dataset.test_x)
        compare("kmeans", kmeans(features, n_classes, seed=cell["seed"], n_starts=10, progress=False).assignment)
        compare("ss_kmeans", discover(features, split.labels, n_novel, seed=cell["seed"], progress=False).clusters)
        components = PCA(50, random_state=0).fit_transform(features)
        compare("hdbscan", HDBSCAN(min_cluster_size=5, copy=True).fit_predict(components))
        scaler, on = StandardScaler().fit(features), split.labels >= 0
        linear = LogisticRegression(max_iter=300).fit(scaler.transform(features[on]), split.labels[on])
        sure = linear.predict_proba(scaler.transform(test_features)).max(axis=1)
        return found | {"auroc_linear": novelty_auroc(1 - sure, is_novel_test)}

    model.fit(x, split.labels, progress=progress)
    given, test = model.read(x), model.read(dataset.test_x)
    pile = Pile(model.embed(given).numpy(), read_labels(split.labels, len(targets)).values)
    pile = replace(pile, codebook=model.codebook, features=clean_features(model, x), seed=cell["seed"])
    for count_by in cell["estimators"]:
        began = time.monotonic()
        number = count_novel(pile, count_by)
        seconds = round(time.monotonic() - began, 1)
        ends = [pile.n_seen + n for n in (number.n, number.low, number.high)]
        about = {"n": ends[0], "low": ends[1], "high": ends[2], "seconds": seconds}
        found[f"n_classes_{count_by}"] = about | {"error": abs(ends[0] - n_classes)}
    compare("combemb_estimated", model.discover(given, split.labels, progress=False).clusters)
    compare("combemb_z", discover(pile.x, split.labels, n_novel, seed=cell["seed"], progress=False).clusters)
    result = model.discover(given, split.labels, n_novel, progress=False)
    compare("combemb", result.clusters)
    said = [None if name == result.neither else name for name in model.predict(test)]  # counts as wrong
    found["combemb"] |= agreement(said, dataset.test_targets, is_novel_test).as_dict("test")
    return found | {"auroc_combemb": novelty_auroc(model.novelty(test), is_novel_test)}


def report(records: list[dict[str, Any]]) -> None:
    """Print means over splits, and over seeds if there are several, of all results in a file."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for record in records:
        cell = record["cell"]
        kind = "tuning splits" if cell["split"].startswith("tune") else "splits"
        key = (cell["dataset"], cell["per_class"] or "all", cell["size"], kind, f"seed {cell['seed']}")
        groups.setdefault(key, []).append(record)
    for key, group in groups.items():
        runs = sorted(group, key=lambda record: record["cell"]["split"])
        print("{} ({}/class, {} px), {} {}, {}:".format(*key[:4], sorted({r["cell"]["split"] for r in runs}), key[4]))
        for count_by in COUNTERS:
            found = [r[f"n_classes_{count_by}"] for r in runs if f"n_classes_{count_by}" in r]
            if found:
                each = ", ".join(f"{f['n']} ({f['low']} to {f['high']})" for f in found)
                error = statistics.mean(f["error"] for f in found)
                print(f"  classes by {count_by:6} {each} of {runs[0]['n_classes']}: mean absolute error {error:.2f}")
        for method in ("combemb", "combemb_estimated", "combemb_z", "kmeans", "ss_kmeans", "hdbscan"):
            those = [r[method] for r in runs if method in r]
            for name in METRICS if method == "combemb" else METRICS[:1]:
                for on in (on for on in ("train", "test") if those and f"{on}_acc_joint_all" in those[0]):
                    parts = [statistics.mean(r[f"{on}_{name}_{part}"] for r in those) for part in PARTS]
                    means = "  ".join(f"{part} {mean:.3f}" for part, mean in zip(PARTS, parts, strict=True))
                    each = " ".join(f"{r[f'{on}_{name}_all']:.3f}" for r in those)
                    print(f"  {method:18}{on + '_' + name:16} {means}   [{each}]")
        for name in ("combemb", "linear"):
            values = [r[f"auroc_{name}"] for r in runs if f"auroc_{name}" in r]
            if values:
                each = " ".join(f"{value:.3f}" for value in values)
                print(f"  AUROC of novelty, test, {name:8} {statistics.mean(values):.3f}   [{each}]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", choices=datasets.names())
    parser.add_argument("--data", type=Path, help="folder of the data set; not needed for digits")
    parser.add_argument("--per-class", type=int, help="first training images of each class; default all")
    parser.add_argument("--size", type=int, help="side of the images in pixels")
    parser.add_argument("--split", nargs="+", default=["0", "1", "2"])
    parser.add_argument("--seed", nargs="+", type=int, default=[0])
    parser.add_argument("--count-by", "--estimator", nargs="+", default=["sizes", "codes"], choices=list(COUNTERS))
    parser.add_argument("--part", nargs="+", default=["combemb", "others"], choices=["combemb", "others"])
    parser.add_argument("--results", type=Path, default=RESULTS / "discovery.jsonl", help="file of results")
    parser.add_argument("--report", action="store_true", help="only print the stored results")
    parser.add_argument("--progress", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    records = [json.loads(line) for line in given.results.read_text().splitlines()] if given.results.exists() else []
    if not given.report:
        dataset = datasets.load(given.dataset, given.data)
        for part, split, seed in product(given.part, given.split, given.seed):
            cell = {"dataset": given.dataset, "per_class": given.per_class, "size": given.size, "split": split}
            cell |= {"seed": seed, "part": part, "estimators": given.count_by if part == "combemb" else []}
            if any(record["cell"] == cell for record in records):
                continue
            record = {"cell": cell, **measure(cell, dataset, given.progress)}
            records.append(record)
            with given.results.open("a") as file:
                file.write(json.dumps(record) + "\n")
            report([record])
        records = [r for r in records if r["cell"]["dataset"] == given.dataset]
    report(records)


if __name__ == "__main__":
    main()
