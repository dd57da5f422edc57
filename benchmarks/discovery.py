"""Discovery on real images: the number of classes, the clusters, and novelty, against what one would use instead.

python benchmarks/discovery.py cifar10 --data DIR --per-class 600 --size 96 --split 0 1 2
python benchmarks/discovery.py digits --split tune-0 tune-1 tune-2 --estimator sizes codes gcd dtc
python benchmarks/discovery.py --report                                           # tables of all that was run

CombEmb at 48 bits and its defaults. Clusters are compared with hidden classes on the unlabelled training items
(`train_`) and on test items (`test_`); the clusters of the others are of the training items alone. All get the true
number of classes, except where it is estimated. Others: k-means and semi-supervised k-means on raw features, HDBSCAN
on their first 50 principal components (noise is wrong), and for novelty one minus the largest probability of a linear
classifier. Each run adds a line of JSON to a file of results; what is there is not run again.
"""

import argparse
import json
import statistics
import time
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
from combemb.class_number import ESTIMATORS, Pile, estimate_n_novel
from combemb.clustering import kmeans
from combemb.data import open_set_split, sources
from combemb.data.labels import read_labels
from combemb.discovery_metrics import agreement, novelty_auroc


def measure(cell: dict[str, Any], source: sources.Source, progress: bool) -> dict[str, Any]:
    train = first_of_each(source.train_targets, cell["per_class"])
    x, targets, test_targets = rows_of(source.train_x, train), source.train_targets[train], source.test_targets
    split = open_set_split(targets, cell["split"], seed=cell["seed"])
    is_novel, is_novel_test = split.is_novel(targets), split.is_novel(test_targets)
    n_novel = len(np.unique(targets[is_novel]))
    model = CombEmb(bits=48, seed=cell["seed"], image_size=cell["size"]).fit(x, split.labels, progress=progress)
    given, test = model.read(x), model.read(source.test_x)
    features, test_features = (np.asarray(items.x[:, 0], np.float32) for items in (given.items, test.items))
    is_unlabelled = split.labels < 0
    found: dict[str, Any] = {"n_classes": len(np.unique(targets))}

    def compare(name: str, clusters: np.ndarray) -> None:
        on = is_unlabelled
        found[name] = agreement(clusters[on].tolist(), targets[on], is_novel[on]).as_dict("train")

    read = read_labels(split.labels, len(targets))
    for estimator in cell["estimators"]:
        began = time.monotonic()
        pile = Pile(model.embed(given).numpy(), read.values, model.codebook, features, cell["seed"])
        number = estimate_n_novel(pile, estimator)
        seconds = round(time.monotonic() - began, 1)
        ends = [len(read.classes) + n for n in (number.n, number.low, number.high)]
        found[f"n_classes_{estimator}"] = {"n": ends[0], "low": ends[1], "high": ends[2], "seconds": seconds}
    estimated = model.discover(given, split.labels, progress=False)
    found["n_estimated"] = len(estimated.names)
    compare("combemb_estimated", estimated.clusters)
    result = model.discover(given, split.labels, n_novel, progress=False)
    compare("combemb", result.clusters)
    said = [None if name == result.neither else name for name in model.predict(test)]  # neither is wrong
    found["combemb"] |= agreement(said, test_targets, is_novel_test).as_dict("test")
    compare("combemb_z", discover(model.embed(given), split.labels, n_novel, progress=False).clusters)
    if cell["others"]:
        compare(
            "kmeans", kmeans(features, found["n_classes"], seed=cell["seed"], n_starts=10, progress=False).assignment
        )
        compare("ss_kmeans", discover(features, split.labels, n_novel, seed=cell["seed"], progress=False).clusters)
        components = PCA(50, random_state=0).fit_transform(features)
        compare("hdbscan", HDBSCAN(min_cluster_size=5, copy=True).fit_predict(components))
    auroc = {"combemb": novelty_auroc(model.novelty(test), is_novel_test)}
    scaler = StandardScaler().fit(features)
    linear = LogisticRegression(max_iter=300).fit(
        scaler.transform(features[~is_unlabelled]), split.labels[~is_unlabelled]
    )
    sure = linear.predict_proba(scaler.transform(test_features)).max(axis=1)
    found["auroc"] = auroc | {"linear": novelty_auroc(1 - sure, is_novel_test)}
    return found


def report(records: list[dict[str, Any]]) -> None:
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        cell = record["cell"]
        kind = "tuning" if cell["split"].startswith("tune") else "reported"
        groups.setdefault(f"{cell['dataset']} ({kind} splits)", []).append(record)
    for name, runs in groups.items():
        print(f"{name}: {len(runs)} runs, splits and seeds {[(r['cell']['split'], r['cell']['seed']) for r in runs]}")
        truth = runs[0]["n_classes"]
        for estimator in ESTIMATORS:
            found = [r[f"n_classes_{estimator}"]["n"] for r in runs if f"n_classes_{estimator}" in r]
            if found:
                error = statistics.mean(abs(n - truth) for n in found)
                print(f"  classes by {estimator:6} {found} of {truth}: mean absolute error {error:.2f}")
        for method in ("combemb", "combemb_estimated", "combemb_z", "kmeans", "ss_kmeans", "hdbscan"):
            those = [r[method] for r in runs if method in r]
            for key in (k for k in ("train_acc_joint", "test_acc_joint") if those and f"{k}_all" in those[0]):
                parts = [statistics.mean(r[f"{key}_{part}"] for r in those) for part in ("all", "seen", "novel")]
                values = " ".join(f"{r[f'{key}_all']:.3f}" for r in those)
                print(
                    f"  {method:18} {key:16} all {parts[0]:.3f} seen {parts[1]:.3f} novel {parts[2]:.3f}   [{values}]"
                )
        for key in ("combemb", "linear"):
            values = [r["auroc"][key] for r in runs]
            each = " ".join(f"{value:.3f}" for value in values)
            print(f"  AUROC of novelty, test, {key:8} {statistics.mean(values):.3f}   [{each}]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", choices=sources.names())
    parser.add_argument("--data", type=Path, help="where the dataset lies; digits need none")
    parser.add_argument("--per-class", type=int, help="training images of each class, the first ones; default all")
    parser.add_argument("--size", type=int, help="side of the images in pixels")
    parser.add_argument("--split", nargs="+", default=["0", "1", "2"])
    parser.add_argument("--seed", nargs="+", type=int, default=[0])
    parser.add_argument("--estimator", nargs="+", default=["sizes", "codes"], choices=list(ESTIMATORS))
    parser.add_argument("--no-others", action="store_true", help="leave out the clusterings of raw features")
    parser.add_argument("--results", type=Path, default=RESULTS / "discovery.jsonl", help="file of results")
    parser.add_argument("--report", action="store_true", help="run nothing, print what there is")
    parser.add_argument("--progress", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    records = [json.loads(line) for line in given.results.read_text().splitlines()] if given.results.exists() else []
    if not given.report:
        source = sources.load(given.dataset, given.data)
        for split, seed in ((split, seed) for split in given.split for seed in given.seed):
            cell = {"dataset": given.dataset, "per_class": given.per_class, "size": given.size, "split": split}
            cell |= {"seed": seed, "estimators": given.estimator, "others": not given.no_others}
            if any(record["cell"] == cell for record in records):
                continue
            record = {"cell": cell, **measure(cell, source, given.progress)}
            records.append(record)
            with given.results.open("a") as file:
                file.write(json.dumps(record) + "\n")
            report([record])
        records = [r for r in records if r["cell"]["dataset"] == given.dataset]
    report(records)


if __name__ == "__main__":
    main()
