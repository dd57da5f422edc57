"""Does the protocol meet the paper's? Methods that train no network, on AlexNet's convolutions, beside its table.

python benchmarks/paper_protocol.py --data DIR --weights alexnet_features.safetensors
python benchmarks/paper_protocol.py --data DIR --weights FILE --variant all_images raw_length positions pixels
python benchmarks/paper_protocol.py --report

CIFAR-10 with 600 training images per class at 224 px, `alexnet:conv5` (256 features, averaged over the positions),
splits 0 to 3, seed 0, default settings, half of the seen images labelled. Queries are all test images of novel classes,
the database is all training images. WEIGHTS are those of an AlexNet trained on ImageNet, with torchvision's names. Each
fit appends a line of JSON to a file of results; results that exist are not computed again.

Variants change one thing each: all_images has all training images of DIR, raw_length does not scale features to unit
length, positions keeps the 6 x 6 positions of conv5 (9,216 features), pixels has no network at all (3,072 values of 32
px images). The features of the last two are scaled to unit length and reduced to 1,024 principal components first.
"""

import argparse
import json
import statistics
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from methods import fitted
from piles import PER_CLASS, RESULTS, Features, pile_of, plain, read, retrieval, unit, version
from sklearn.decomposition import PCA

from combemb import methods
from combemb.bench import TABLES
from combemb.bench.protocol import first_of_each, rows_of
from combemb.data import datasets
from combemb.data.augmentation import Views
from combemb.data.given import read_given
from combemb.data.image_items import ImageItems
from combemb.learning.input import ImageInput

DATASET, BACKBONE = "cifar10", "alexnet:conv5"
BITS, SPLITS, SEED = (12, 24, 48), ("0", "1", "2", "3"), 0
SUPERVISED = ("sdh",)
VARIANTS = ("default", "all_images", "raw_length", "positions", "pixels")
SIDE, N_COMPONENTS, AT_ONCE = 32, 1_024, 250  # pixels of an image, components of wide features, images at a time
PUBLISHED = {  # mean of four splits at 12, 24 and 48 bits
    row.method: row.published
    for row in TABLES["retrieval-cifar10"].rows
    if row.method in ("opq", "lopq", "itq", *SUPERVISED)
}


def features_of(path: Path, weights: Path, variant: str) -> Features:
    """Return the clean features of the training and of the test images; combemb caches averaged ones."""
    dataset = datasets.load(DATASET, path)
    rows = first_of_each(dataset.train_targets, None if variant == "all_images" else PER_CLASS[DATASET])
    method = methods.get("itq")(backbone=BACKBONE, backbone_weights=str(weights))
    found: list[Any] = []
    for x, targets in (
        (rows_of(dataset.train_x, rows), dataset.train_targets[rows]),
        (dataset.test_x, dataset.test_targets),
    ):
        if variant in ("positions", "pixels"):
            found += [wide_features(x, method.image_input(), variant), targets]
            continue
        loaded = method.image_input().load(read_given(x), 1, True)
        found += [loaded.items.take(torch.arange(len(loaded.items))).numpy(), targets[loaded.rows]]
    if variant in ("positions", "pixels"):
        found[0], found[2] = reduced(found[0], found[2])
    return Features(found[0][:, None], found[1], found[2], found[3])


@torch.no_grad()
def wide_features(x: Any, reader: ImageInput, variant: str) -> np.ndarray:
    """Return conv5 without its average over the positions (N, 9216), or the pixels (N, 3072)."""
    reader.decide_size(x)
    items = ImageItems(Views(x, SIDE if variant == "pixels" else reader.size, reader.augmentation))
    network, found = reader.backbone.eval(), []
    for rows in torch.arange(len(items)).split(AT_ONCE):
        pixels = items.take(rows)
        found.append((pixels if variant == "pixels" else network.maps(pixels, "conv5")).flatten(1).numpy())
    return np.concatenate(found)


def reduced(x: np.ndarray, test_x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both at unit length, centred, as the leading principal components of the first."""
    x, test_x = unit(x), unit(test_x)
    fitted = PCA(N_COMPONENTS, svd_solver="randomized", random_state=SEED).fit(x)
    return fitted.transform(x), fitted.transform(test_x)


def cells_of(variant: str) -> list[dict[str, Any]]:
    """Return the cells of a variant; wide features have their unit length already."""
    own = {} if variant == "default" else {"variant": variant}
    settings = {} if variant in ("default", "all_images") else {"unit_length": False}
    return [
        {"part": "alexnet", "dataset": DATASET, "method": n, "bits": b, "seed": SEED, "split": s, "settings": settings}
        | own
        for s, n, b in product(SPLITS, PUBLISHED, BITS)
    ]


def run(given: argparse.Namespace, records: list[dict[str, Any]]) -> None:
    """Measure what is missing and append it to the results; unsupervised methods are the same in all splits."""
    for variant in given.variant:
        cells = [cell for cell in cells_of(variant) if not any(r["cell"] == cell for r in records)]
        data = features_of(given.data, given.weights, variant) if cells else None
        fits: dict[Any, Any] = {}
        for cell in cells:
            assert data is not None
            pile = pile_of(data, "balanced", cell["split"], SEED)
            key = cell["method"], cell["bits"], cell["split"] if cell["method"] in SUPERVISED else None
            fits[key] = fits.get(key) or fitted(cell, pile)
            record = plain({"cell": cell, "version": version(), **retrieval(fits[key], pile)})
            records.append(record)
            with given.results.open("a") as file:
                file.write(json.dumps(record) + "\n")


def report(records: list[dict[str, Any]]) -> None:
    """Print the mean over the splits beside the paper's numbers, every split, and the means of the variants."""
    print(
        "| method | bits | the paper's | ours, mean of the splits | " + " | ".join(f"split {s}" for s in SPLITS) + " |"
    )
    print("|---|---:|---:|---:|" + "---:|" * len(SPLITS))
    for (name, published), (at, bits) in product(PUBLISHED.items(), enumerate(BITS)):
        mean, values = of_splits(records, "default", name, bits)
        print(f"| {name} | {bits} | {published[at]:.3f} | {mean} | " + " | ".join(values) + " |")
    print("\n| method | bits | the paper's | " + " | ".join(VARIANTS) + " |\n|---|---:|---:|" + "---:|" * len(VARIANTS))
    for (name, published), (at, bits) in product(PUBLISHED.items(), enumerate(BITS)):
        means = [of_splits(records, variant, name, bits)[0] for variant in VARIANTS]
        print(f"| {name} | {bits} | {published[at]:.3f} | " + " | ".join(means) + " |")


def of_splits(records: list[dict[str, Any]], variant: str, name: str, bits: int) -> tuple[str, list[str]]:
    """Return the novel mAP of a method, the mean over the splits and each of them."""
    wanted = [cell for cell in cells_of(variant) if (cell["method"], cell["bits"]) == (name, bits)]
    found = [next((r["novel_codes"] for r in records if r["cell"] == cell), None) for cell in wanted]
    values = [value for value in found if value is not None]
    mean = f"{statistics.mean(values):.3f}" if len(values) == len(SPLITS) else "not run"
    return mean, ["not run" if value is None else f"{value:.3f}" for value in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10")
    parser.add_argument("--weights", type=Path, help="safetensors file of the convolutions of AlexNet")
    parser.add_argument("--variant", nargs="+", choices=VARIANTS, default=["default"])
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
