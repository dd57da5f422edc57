"""Novel- and seen-class mAP on real images: CombEmb, its unquantised z, the paper's form, ITQ and the float features.

python benchmarks/images.py cifar10 --data DIR --per-class 600 --size 96          # DIR/train/<class>/*, DIR/test/...
python benchmarks/images.py cifar10 --data DIR --split tune-0 tune-1 tune-2 --seed 0 --set n_neighbours=10
python benchmarks/images.py --report                                              # tables of all results

Each fit appends a line of JSON to a file of results; results that exist are not computed again.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from combemb.cli.options import parse_settings
from combemb.data import datasets, open_set_split
from combemb.data.images import Images
from combemb.learning.codes import CodeMethod as Method
from combemb.methods.combemb import CombEmb
from combemb.methods.itq import ITQ
from combemb.search.metrics import code_retrieval, float_retrieval

RESULTS = Path(__file__).parent / "results"
METHODS = ("combemb", "published", "itq", "features")


def first_of_each(targets: np.ndarray, n: int | None) -> np.ndarray:
    """Return the rows of the first n items of every class."""
    if n is None:
        return np.arange(len(targets))
    if targets.ndim > 1:
        raise SystemExit("items have several classes: --per-class and --queries-per-class cannot be used")
    return np.sort(np.concatenate([np.flatnonzero(targets == c)[:n] for c in np.unique(targets)]))


def rows_of(x: Any, rows: np.ndarray) -> Any:
    return x.take(rows) if isinstance(x, Images) else x[rows]


def make(name: str, bits: int, seed: int, fields: dict[str, Any], size: int | None) -> Method:
    common: dict[str, Any] = {"bits": bits, "seed": seed, "image_size": size}
    if name == "itq":
        return ITQ(**common)
    common["check"] = False  # does not change the model
    if name == "published":
        return CombEmb.as_published(**common, **fields)
    return CombEmb(**common, **fields)


def float_features(x: Any, size: int | None) -> torch.Tensor:
    """Return the clean features (N, F) of the frozen backbone."""
    items = ITQ(image_size=size).read(x, progress=True).items
    return torch.cat([items.take(rows) for rows in torch.arange(len(items)).split(4096)])


def measure(cell: dict[str, Any], dataset: datasets.Dataset, progress: bool) -> dict[str, Any]:
    """Return the mAP of one method on one split, for queries of the novel and of the seen classes."""
    name, size = cell["method"], cell["size"]
    train, test = (
        first_of_each(targets, n)
        for targets, n in (
            (dataset.train_targets, cell["per_class"]),
            (dataset.test_targets, cell["queries_per_class"]),
        )
    )
    x, targets = rows_of(dataset.train_x, train), dataset.train_targets[train]
    queries, query_targets = rows_of(dataset.test_x, test), dataset.test_targets[test]
    split = open_set_split(targets, cell["split"], seed=cell["seed"])
    parts = {"novel": split.is_novel(query_targets), "seen": ~split.is_novel(query_targets)}
    found: dict[str, Any] = {}
    began = time.monotonic()
    if name == "features":
        database, z = float_features(x, size), float_features(queries, size)
        mean, std = database.mean(dim=0), database.std(dim=0) + 1e-6
        for part, mask in parts.items():
            raw = float_retrieval(z[mask], database, query_targets[mask], targets)
            scaled = float_retrieval((z[mask] - mean) / std, (database - mean) / std, query_targets[mask], targets)
            found |= {part: max(raw.map, scaled.map), f"{part}_chance": raw.chance}
        return found
    method = make(name, cell["bits"], cell["seed"], parse_settings(CombEmb, cell["set"]), size)
    method.fit(x, split.labels, progress=progress)
    found["seconds"] = round(time.monotonic() - began, 1)
    z, database, codes = method.embed(queries), method.embed(x), method.encode(x)
    for part, mask in parts.items():
        found[part] = code_retrieval(method.codebook, z[mask], codes, query_targets[mask], targets).map
        found[f"{part}_z"] = float_retrieval(z[mask], database, query_targets[mask], targets).map
    last = getattr(method, "log_", [{}])[-1]
    return found | {key: last[key] for key in ("threshold", "positives_per_anchor", "pair_precision") if key in last}


def report(records: list[dict[str, Any]]) -> None:
    """Print mean and deviation over the seeds of all results in a file."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for record in records:
        cell = record["cell"]
        groups.setdefault(tuple(str(cell[key]) for key in cell if key != "seed"), []).append(record)
    for runs in groups.values():
        cell = runs[0]["cell"]
        parts = []
        for key in ("novel", "novel_z", "seen", "seen_z"):
            values = [record[key] for record in runs if key in record]
            if values:
                parts.append(f"{key} {statistics.mean(values):.3f} ± {statistics.pstdev(values):.3f}")
        novel = " ".join(f"{record['novel']:.3f}" for record in runs)
        about = f"{cell['dataset']} {cell['per_class'] or 'all'}/class {cell['size'] or ''}px split {cell['split']:6}"
        settings = " ".join([*cell["set"], *([f"views={cell['views']}"] if "views" in cell else [])])
        print(f"{about} {cell['bits']:3} bits {cell['method']:9} {'  '.join(parts)}   [{novel}] {settings}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", choices=datasets.names())
    parser.add_argument("--data", type=Path, help="folder of the data set; not needed for digits")
    parser.add_argument("--per-class", type=int, help="first training images of each class; default all")
    parser.add_argument("--queries-per-class", type=int, help="first test images of each class; default all")
    parser.add_argument("--size", type=int, help="side of the images in pixels")
    parser.add_argument("--views", type=int, help="views of the digits; default 1")
    parser.add_argument("--bits", nargs="+", type=int, default=[48])
    parser.add_argument("--split", nargs="+", default=["0"])
    parser.add_argument("--seed", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--method", nargs="+", choices=METHODS, default=["combemb", "itq", "features"])
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings of CombEmb")
    parser.add_argument("--results", type=Path, default=RESULTS / "images.jsonl", help="file of results")
    parser.add_argument("--report", action="store_true", help="only print the stored results")
    parser.add_argument("--progress", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.results.parent.mkdir(exist_ok=True)
    records = [json.loads(line) for line in given.results.read_text().splitlines()] if given.results.exists() else []
    if not given.report:
        options = {"n_views": given.views} if given.views else {}
        dataset = datasets.load(given.dataset, given.data, **options)
        wanted = [
            (name, split, seed, bits)
            for bits in given.bits
            for split in given.split
            for name in given.method
            for seed in (given.seed if name != "features" else given.seed[:1])
        ]
        for name, split, seed, bits in wanted:
            cell = {
                "dataset": given.dataset,
                "per_class": given.per_class,
                "queries_per_class": given.queries_per_class,
                "size": given.size,
                "method": name,
                "split": split,
                "bits": bits if name != "features" else 0,
                "seed": seed,
                "set": given.set if name in ("combemb", "published") else [],
            }
            cell |= {"views": given.views} if given.views else {}
            if any(record["cell"] == cell for record in records):
                continue
            record = {"cell": cell, **measure(cell, dataset, given.progress)}
            records.append(record)
            with given.results.open("a") as file:
                file.write(json.dumps(record) + "\n")
            report([record])
        records = [r for r in records if r["cell"]["dataset"] == given.dataset]
        print()
    report(records)


if __name__ == "__main__":
    main()
