"""Does the protocol meet the paper's? Methods that train no network, on AlexNet's convolutions, beside its table.

python benchmarks/paper_protocol.py --data DIR --weights alexnet_features.safetensors
python benchmarks/paper_protocol.py --report

CIFAR-10 with 600 training images per class at 224 px, `alexnet:conv5` (256 features, averaged over the positions),
splits 0 to 3, seed 0, default settings, half of the seen images labelled. Queries are all test images of novel classes,
the database is all training images. WEIGHTS are those of an AlexNet trained on ImageNet, with torchvision's names. Each
fit appends a line of JSON to a file of results; results that exist are not computed again.
"""

import argparse
import json
import statistics
from itertools import product
from pathlib import Path
from typing import Any

import torch
from images import RESULTS, first_of_each, rows_of
from methods import measure
from piles import PER_CLASS, Features, pile_of, read

from combemb import methods
from combemb.data import datasets
from combemb.data.given import read_given

DATASET, BACKBONE = "cifar10", "alexnet:conv5"
BITS, SPLITS, SEED = (12, 24, 48), ("0", "1", "2", "3"), 0
PUBLISHED = {  # table 1 of the CombEmb paper, mean of four splits at 12, 24 and 48 bits
    "opq": (0.107, 0.119, 0.138),
    "lopq": (0.134, 0.127, 0.124),
    "itq": (0.157, 0.165, 0.201),
    "sdh": (0.185, 0.193, 0.213),
}


def features_of(path: Path, weights: Path) -> Features:
    """Return the clean features of the training and of the test images; combemb caches them."""
    dataset = datasets.load(DATASET, path)
    rows = first_of_each(dataset.train_targets, PER_CLASS[DATASET])
    method = methods.get("itq")(backbone=BACKBONE, backbone_weights=str(weights))
    found: list[Any] = []
    for x, targets in (
        (rows_of(dataset.train_x, rows), dataset.train_targets[rows]),
        (dataset.test_x, dataset.test_targets),
    ):
        loaded = method.image_input().load(read_given(x), 1, True)
        found += [loaded.items.take(torch.arange(len(loaded.items))).numpy(), targets[loaded.rows]]
    return Features(found[0][:, None], found[1], found[2], found[3])


def run(given: argparse.Namespace, records: list[dict[str, Any]]) -> None:
    """Measure what is missing and append it to the results."""
    cells = [
        {"part": "alexnet", "dataset": DATASET, "method": n, "bits": b, "seed": SEED, "split": s, "settings": {}}
        for s, n, b in product(SPLITS, PUBLISHED, BITS)
    ]
    cells = [cell for cell in cells if not any(r["cell"] == cell for r in records)]
    data = features_of(given.data, given.weights) if cells else None
    for cell in cells:
        assert data is not None
        record = measure(cell, pile_of(data, "balanced", cell["split"], SEED), progress=False)
        records.append(record)
        with given.results.open("a") as file:
            file.write(json.dumps(record) + "\n")


def report(records: list[dict[str, Any]]) -> None:
    """Print the mean over the splits beside the paper's numbers, and every split."""
    print("| method | bits | ours, mean of the splits | the paper's | " + " | ".join(f"split {s}" for s in SPLITS))
    print("|---|---:|---:|---:|" + "---:|" * len(SPLITS))
    for (name, published), (at, bits) in product(PUBLISHED.items(), enumerate(BITS)):
        found = {r["cell"]["split"]: r for r in records if (r["cell"]["method"], r["cell"]["bits"]) == (name, bits)}
        values = [found[split]["novel_codes"] for split in SPLITS if split in found]
        texts = [f"{found[split]['novel_codes']:.3f}" if split in found else "not run" for split in SPLITS]
        mean = f"{statistics.mean(values):.3f}" if len(values) == len(SPLITS) else "not run"
        print(f"| {name} | {bits} | {mean} | {published[at]:.3f} | " + " | ".join(texts) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10")
    parser.add_argument("--weights", type=Path, help="safetensors file of the convolutions of AlexNet")
    parser.add_argument("--results", type=Path, default=RESULTS / "paper_protocol.jsonl", help="file of results")
    parser.add_argument("--report", action="store_true", help="only print the stored results")
    given = parser.parse_args()
    if not given.report and (given.data is None or given.weights is None):
        parser.error("give --data and --weights, or --report")
    torch.set_num_threads(1)
    records = read(given.results)
    if not given.report:
        run(given, records)
    report(records)


if __name__ == "__main__":
    main()
