"""All methods with codes on images with several labels each: mAP of queries with a novel label, and of the others.

python benchmarks/several_labels.py MANIFEST            # a table with path, labels (a|b) and split, such as VOC 2007
python benchmarks/several_labels.py --report

Frozen EfficientNet-Lite0 at 96 px, three views, split 0 of the classes in alphabetical order, 48 bits, seed 0, default
settings. A training image with any novel label is unlabelled, and so are half of the others. Queries are test images;
novel ones have at least one novel label, and an image is relevant to them if it shares a novel label; for the other
queries, if it shares any label. The database is all training images. Each fit appends a line of JSON to a file of
results; results that exist are not computed again.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from methods import code_methods
from piles import RESULTS, plain, read, version

from combemb import CombEmb
from combemb.data import open_set_split
from combemb.data.folders import read_images
from combemb.data.given import read_given
from combemb.learning.deep import DeepMethod
from combemb.search.metrics import Retrieval, code_retrieval, float_retrieval

SIZE, SPLIT, BITS, SEED = 96, "0", 48, 0


class Data(NamedTuple):
    """Features x (N, V, F) with labels (N, n_seen) that a method may see, queries, and the targets of both."""

    x: np.ndarray
    labels: np.ndarray
    targets: np.ndarray
    test_x: np.ndarray
    test_targets: np.ndarray
    is_novel_test: np.ndarray
    novel: np.ndarray


def load(manifest: Path) -> Data:
    """Read the features of all images; combemb caches them."""
    images = read_images(manifest)
    if images.is_test is None or images.labels is None or images.labels.ndim != 2:
        raise SystemExit(f"{manifest} has no images with several labels, or no column `split`")
    method, found = CombEmb(image_size=SIZE), []
    for on, n_views in ((~images.is_test, method.n_views), (images.is_test, 1)):
        loaded = method.image_input().load(read_given(images.take(on)), n_views, True)
        found += [np.asarray(loaded.items.x), images.labels[on][loaded.rows]]
    x, targets, test_x, test_targets = found
    split = open_set_split(targets, SPLIT, seed=SEED)
    return Data(x, split.labels, targets, test_x[:, 0], test_targets, split.is_novel(test_targets), split.novel)


def by_part(data: Data, name: str, measured: Any) -> dict[str, float]:
    """Return mAP and chance level of both kinds of queries; measured(mask, query targets, targets) is a Retrieval."""
    parts = {"novel": (data.is_novel_test, data.novel), "seen": (~data.is_novel_test, slice(None))}
    found: dict[str, float] = {}
    for part, (on, columns) in parts.items():
        result: Retrieval = measured(on, data.test_targets[on][:, columns], data.targets[:, columns])
        found |= {f"{part}_{name}": result.map, f"{part}_chance": result.chance, f"{part}_queries": result.n_queries}
    return found


def measure(name: str, data: Data) -> dict[str, Any]:
    """Return the mAP of codes and z of one fit; of the float features if the name is "features"."""
    if name == "features":
        x = np.asarray(data.x[:, 0], np.float32)
        return by_part(data, "codes", lambda on, t, db: float_retrieval(np.float32(data.test_x[on]), x, t, db))
    cls = code_methods()[name]
    unchecked = {"check": False} if issubclass(cls, DeepMethod) else {}  # does not change the model
    began = time.monotonic()
    model = cls(bits=BITS, seed=SEED, **unchecked).fit(data.x, data.labels, progress=False)
    seconds = time.monotonic() - began
    z, database, codes = model.embed(data.test_x), model.embed(data.x), model.encode(data.x)
    return {
        "seconds": seconds,
        **by_part(data, "codes", lambda on, t, db: code_retrieval(model.codebook, z[on], codes, t, db)),
        **by_part(data, "z", lambda on, t, db: float_retrieval(z[on], database, t, db)),
    }


def report(records: list[dict[str, Any]]) -> None:
    """Print one row for each method."""
    keys = ("novel_codes", "novel_z", "seen_codes", "seen_z")
    print("| method | novel mAP | z | seen mAP | z | seconds |\n|---|---:|---:|---:|---:|---:|")
    for record in records:
        values = [f"{record[key]:.3f}" if key in record else "" for key in keys]
        values.append(f"{record['seconds']:.0f}" if "seconds" in record else "")
        print(f"| {record['cell']['method']} | " + " | ".join(values) + " |")
    for part in ("novel", "seen") if records else ():
        n, chance = records[0][f"{part}_queries"], records[0][f"{part}_chance"]
        print(f"\n{part}: {n} queries, chance {chance:.3f}", end="")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", type=Path, nargs="?")
    parser.add_argument("--method", nargs="+", choices=list(code_methods()), default=list(code_methods()))
    parser.add_argument("--results", type=Path, default=RESULTS / "several_labels.jsonl", help="file of results")
    parser.add_argument("--report", action="store_true", help="only print the stored results")
    given = parser.parse_args()
    if not given.report and given.manifest is None:
        parser.error("give a manifest, or --report")
    torch.set_num_threads(1)
    records, data = read(given.results), None
    for name in () if given.report else (*given.method, "features"):
        cell = {"dataset": given.manifest.parent.name, "method": name, "bits": BITS, "split": SPLIT, "seed": SEED}
        if any(record["cell"] == cell for record in records):
            continue
        data = data or load(given.manifest)
        records.append(plain({"cell": cell, "version": version(), **measure(name, data)}))
        with given.results.open("a") as file:
            file.write(json.dumps(records[-1]) + "\n")
        print(f"{name}: novel {records[-1]['novel_codes']:.3f}", flush=True)
    report(records)


if __name__ == "__main__":
    main()
