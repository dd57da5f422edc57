"""SSGAH and SSAH with players that act on pixels: a small network from scratch, beside codes that learn nothing.

python benchmarks/pixel_players.py --data DIR                           # folder of CIFAR-10
python benchmarks/pixel_players.py --data DIR --pictures FOLDER         # and images that the players make, as PNG files
python benchmarks/pixel_players.py --report

CIFAR-10 at 32 px, 200 training images and 100 queries per class, split 0, 24 bits, seed 0; resnet18 with 8 channels and
random weights, trained as a whole (finetune="all") in 8 epochs of batches of 64. Beside each method is its form without
players' items: plain triplets, random masks and angles. ITQ has raw pixels, and features of the untrained network. Each
fit appends a line of JSON to a file of results; results that exist are not computed again.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from piles import RESULTS, plain, read, version

from combemb import backbones, methods
from combemb.bench.protocol import first_of_each, rows_of
from combemb.data import datasets, open_set_split
from combemb.data.augmentation import Augmentation, Views
from combemb.data.image_items import ImageItems
from combemb.search.metrics import code_retrieval
from combemb.system.machine import seeded

PER_CLASS, QUERIES_PER_CLASS, SIDE, BITS, SEED, WIDTH = 200, 100, 32, 24, 0, 8
TRAINED: dict[str, Any] = {
    "backbone": "resnet18",
    "backbone_width": WIDTH,
    "image_size": SIDE,
    "finetune": "all",
    "epochs": 8,
    "batch_size": 64,
    "learning_rate": 3e-3,
    "player_width": 8,
    "check": False,
}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "itq, pixels": ("itq", {}),
    "itq, untrained network": ("itq", {}),
    "ssah": ("ssah", TRAINED),
    "ssah, random masks": ("ssah", TRAINED | {"adversary": False}),
    "ssgah": ("ssgah", TRAINED),
    "ssgah, plain triplets": ("ssgah", TRAINED | {"synthetic_weight": 0.0, "adversary_weight": 0.0}),
}
N_SHOWN = 8


@torch.no_grad()
def features_of(form: str, x: Any) -> Any:
    """Return what a form is fitted on: the images, their pixels, or features of the untrained network."""
    if form.startswith("ss"):
        return x
    pixels = torch.cat(
        [ImageItems(Views(x, SIDE, Augmentation())).take(rows) for rows in torch.arange(len(x)).split(500)]
    )
    if form == "itq, pixels":
        return pixels.flatten(1).numpy()
    with seeded(SEED):
        network = backbones.build("resnet18", width=WIDTH)
    network.train()  # an untrained network has no statistics of its own
    return torch.cat([network(some) for some in pixels.split(500)]).numpy()


def measure(form: str, path: Path, pictures: Path | None) -> dict[str, Any]:
    """Return the mAP of one fit for queries of seen and of novel classes."""
    dataset = datasets.load("cifar10", path)
    train, test = (
        first_of_each(targets, n)
        for targets, n in ((dataset.train_targets, PER_CLASS), (dataset.test_targets, QUERIES_PER_CLASS))
    )
    images, queries = rows_of(dataset.train_x, train), rows_of(dataset.test_x, test)
    targets, query_targets = dataset.train_targets[train], dataset.test_targets[test]
    split = open_set_split(targets, "0", seed=SEED)
    name, settings = FORMS[form]
    x, test_x = features_of(form, images), features_of(form, queries)
    began, cpu = time.monotonic(), time.process_time()
    model = methods.get(name)(bits=BITS, seed=SEED, **settings).fit(x, split.labels, progress=False)
    found: dict[str, Any] = {"seconds": time.monotonic() - began, "cpu_seconds": time.process_time() - cpu}
    z, codes = model.embed(test_x), model.encode(x)
    is_novel = split.is_novel(query_targets)
    for part, on in (("seen", ~is_novel), ("novel", is_novel)):
        result = code_retrieval(model.codebook, z[on], codes, query_targets[on], targets)
        found |= {part: result.map, f"{part}_chance": result.chance}
    log = getattr(model, "log_", [{}])[-1]
    kept = ("synthetic_positive", "synthetic_negative", "judge_spread", "flipped_bits")
    if pictures is not None and name != "itq":
        picture(model, ImageItems(Views(queries, SIDE, Augmentation())), pictures / f"{form.replace(', ', '-')}.png")
    return found | {key: log[key] for key in kept if key in log}


@torch.no_grad()
def picture(model: Any, items: ImageItems, path: Path) -> None:
    """Draw some queries and, below each, what the players make of it."""
    rows = torch.arange(0, len(items), len(items) // N_SHOWN)[:N_SHOWN]
    x = items.take(rows)
    model.tower_.eval()
    with seeded(SEED):
        if hasattr(model.network_, "generator"):
            made = dict(zip(("positive", "negative"), model.network_.generator(x), strict=True))
        else:
            made = {f"hard, {done:.0%}": model.hard(x, model.pace(done)[0]) for done in (0.35, 1.0)}
    shown = {"query": x, **made}
    figure = Figure(figsize=(N_SHOWN * 1.2, len(shown) * 1.3))
    axes = figure.subplots(len(shown), N_SHOWN, squeeze=False)
    for line, (title, images) in zip(axes, shown.items(), strict=True):
        for axis, image in zip(line, images, strict=True):
            axis.imshow(np.clip(image.permute(1, 2, 0).numpy() / 255, 0, 1))
            axis.set_xticks([])
            axis.set_yticks([])
        line[0].set_ylabel(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100, bbox_inches="tight")


def report(records: list[dict[str, Any]]) -> None:
    """Print one row for each form."""
    print("| | seen mAP | novel mAP | chance | CPU seconds | players |\n|---|---:|---:|---:|---:|---|")
    by_form = {record["cell"]["form"]: record for record in records}
    for form, record in ((form, by_form[form]) for form in FORMS if form in by_form):
        players = ""
        if "flipped_bits" in record:
            players = f"hard images flip {record['flipped_bits']:.0%} of the bits"
        elif "synthetic_positive" in record:
            near, far = record["synthetic_positive"], record["synthetic_negative"]
            players = f"synthetic positives at {near:.1f} bits, negatives at {far:.1f}"
        values = [f"{record[key]:.3f}" for key in ("seen", "novel", "seen_chance")]
        print(f"| {form} | " + " | ".join(values) + f" | {record['cpu_seconds']:.0f} | {players} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10")
    parser.add_argument("--form", nargs="+", choices=list(FORMS), default=list(FORMS))
    parser.add_argument("--pictures", type=Path, help="folder for images that the players make")
    parser.add_argument("--results", type=Path, default=RESULTS / "pixel_players.jsonl", help="file of results")
    parser.add_argument("--report", action="store_true", help="only print the stored results")
    given = parser.parse_args()
    if not given.report and given.data is None:
        parser.error("give --data, or --report")
    torch.set_num_threads(1)
    records = read(given.results)
    for form in () if given.report else given.form:
        cell = {"dataset": "cifar10", "form": form, "bits": BITS, "seed": SEED, "settings": FORMS[form][1]}
        if any(record["cell"] == cell for record in records):
            continue
        records.append(plain({"cell": cell, "version": version(), **measure(form, given.data, given.pictures)}))
        with given.results.open("a") as file:
            file.write(json.dumps(records[-1]) + "\n")
        print(f"{form}: seen {records[-1]['seen']:.3f}", flush=True)
    report(records)


if __name__ == "__main__":
    main()
