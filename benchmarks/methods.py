"""All methods with codes on the same features: random search on a tuning split, then a table on another one.

python benchmarks/methods.py tune cifar10 --data DIR         # 20 trials per method, split tune-0, 24 bits
python benchmarks/methods.py table cifar10 --data DIR        # 12, 24 and 48 bits, seeds 0 to 2, split 0
python benchmarks/methods.py report                          # trials and table, as Markdown

Features, labels and queries are those of the balanced piles (`piles.py`): CIFAR-10 has 600 images per class, frozen
EfficientNet-Lite0 at 96 px. A trial draws every setting of `SPACES` at random, trial 0 is the method with its defaults;
the best one has the largest mean of novel and seen mAP. The table uses the best settings of each method, as found, and
the defaults of methods that were not tuned. Each fit appends a line of JSON to a file of results; results that exist
are not computed again.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from piles import RESULTS, SIZES, Features, Pile, features_of, floats, pile_of, plain, read, retrieval, version

from combemb import methods
from combemb.learning.codes import CodeMethod
from combemb.learning.deep import DeepMethod

TRIALS, TUNING_BITS = 20, 24
BITS, SEEDS, SPLIT = (12, 24, 48), (0, 1, 2), "0"


class Between(NamedTuple):
    """A range from which a setting is drawn log-uniformly, as a whole number if its ends are."""

    low: float
    high: float

    def draw(self, rng: np.random.Generator) -> float:
        """Return a number of the range, of three digits."""
        value = float(np.exp(rng.uniform(np.log(self.low), np.log(self.high))))
        return round(value) if isinstance(self.low, int) else float(f"{value:.3g}")


RATE = {"learning_rate": Between(1e-4, 1e-2)}  # of every method that trains a network
SPACES: dict[str, dict[str, Between | list[Any]]] = {  # a range, or the values to choose from
    "cnnh": {"passes": Between(3, 30), "hidden": [128, 512, 2048], "class_weight": [0.0, 0.1, 1.0]},
    "combemb": {
        "temperature": Between(0.05, 0.2),
        "similarity_weight": Between(5.0, 40.0),
        "n_meta_classes": [None, 2, 4],
    },
    "gpq": {
        "sub_vector": [12, 24, 48],
        "sharpness": Between(5.0, 40.0),
        "class_weight": Between(0.03, 1.0),
        "entropy_weight": Between(0.03, 1.0),
    },
    "itq": {"unit_length": [True, False], "iterations": Between(20, 100)},
    "lopq": {
        "n_components": Between(32, 256),
        "unit_length": [True, False],
        "n_words": [4, 16],
        "local_words": [True, False],
    },
    "ninh": {"slice_size": [25, 50, 100], "epsilon": [0.1, 0.25, 0.5], "margin": Between(0.5, 4.0)},
    "opq": {"n_components": Between(32, 256), "n_words": [4, 8, 16], "unit_length": [True, False]},
    "sdh": {
        "n_anchors": [500, 1_000, 2_000],
        "kernel_width": Between(0.2, 2.0),
        "fit_weight": Between(1e-6, 1e-2),
        "kernel_ridge": Between(1e-3, 1.0),
    },
    "ssah": {
        "consistent_weight": Between(0.3, 3.0),
        "quantisation_weight": Between(0.01, 1.0),
        "occlusion": [0.1, 0.3, 0.5],
        "angle": [10.0, 30.0, 60.0],
    },
    "ssdh": {
        "margin": Between(0.5, 4.0),
        "pair_margin": Between(1.0, 4.0),
        "graph_weight": Between(0.03, 1.0),
        "pseudo_weight": Between(0.03, 1.0),
    },
    "ssgah": {
        "margin": Between(0.1, 0.5),
        "synthetic_weight": Between(0.1, 1.0),
        "adversary_weight": Between(0.03, 1.0),
        "quantisation_weight": Between(0.003, 0.1),
    },
}


def code_methods() -> dict[str, type[CodeMethod]]:
    """Return the methods with codes by name."""
    found = {name: methods.get(name) for name in methods.names()}
    return {name: cls for name, cls in found.items() if issubclass(cls, CodeMethod)}


def drawn(name: str, trial: int) -> dict[str, Any]:
    """Return the settings of a trial; those of trial 0 are the defaults."""
    if trial == 0:
        return {}
    rng = np.random.default_rng([trial, *name.encode()])
    space = SPACES.get(name, {}) | (RATE if issubclass(methods.get(name), DeepMethod) else {})
    settings: dict[str, Any] = {}
    for setting, values in sorted(space.items()):
        settings[setting] = values.draw(rng) if isinstance(values, Between) else values[rng.integers(len(values))]
    return settings


def fitted(cell: dict[str, Any], pile: Pile, progress: bool = False) -> CodeMethod:
    """Return the method of a cell, fitted."""
    cls = code_methods()[cell["method"]]
    unchecked = {"check": False} if issubclass(cls, DeepMethod) else {}  # does not change the model
    model = cls(bits=cell["bits"], seed=cell["seed"], **unchecked, **cell["settings"])
    return model.fit(pile.x, pile.labels, progress=progress)


def measure(cell: dict[str, Any], pile: Pile, progress: bool) -> dict[str, Any]:
    """Return the mAP of one fit, for queries of the novel and of the seen classes."""
    began = time.monotonic()
    model = fitted(cell, pile, progress)
    seconds = time.monotonic() - began
    found = retrieval(model, pile)
    return plain({"cell": cell, "version": version(), "seconds": seconds, **found})


def score(record: dict[str, Any]) -> float:
    """Return what trials are compared by."""
    return statistics.mean((record["novel_codes"], record["seen_codes"]))


def best_settings(records: list[dict[str, Any]], dataset: str, name: str) -> dict[str, Any]:
    """Return the settings of the best trial; the defaults if there is none."""
    trials = [
        r for r in records if (c := r["cell"])["part"] == "tune" and (c["dataset"], c["method"]) == (dataset, name)
    ]
    return dict(max(trials, key=score)["cell"]["settings"]) if trials else {}


def wanted(part: str, dataset: str, names: list[str], records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cells of a part: trials, or those of the table."""
    if part == "tune":
        trials = [(name, trial) for trial in range(TRIALS) for name in names]
        own = [
            {"method": n, "bits": TUNING_BITS, "seed": 0, "split": "tune-0", "settings": drawn(n, t)} for n, t in trials
        ]
    else:
        chosen = {name: best_settings(records, dataset, name) for name in names}
        cells = [(name, bits, seed) for seed in SEEDS for bits in BITS for name in names]
        own = [{"method": n, "bits": b, "seed": s, "split": SPLIT, "settings": chosen[n]} for n, b, s in cells]
    return [{"part": part, "dataset": dataset, **cell} for cell in own]


def without_training(pile: Pile) -> dict[str, Any]:
    """Return the mAP of the plain float features and the chance level."""
    chance = {}
    for part, on in (("novel", pile.is_novel_test), ("seen", ~pile.is_novel_test)):
        chance[part] = float(np.mean([np.mean(pile.targets == t) for t in pile.test_targets[on]]))
    return plain({**floats(pile, "features", pile.clean, pile.test_x), "chance": chance})


def report(records: list[dict[str, Any]]) -> None:
    """Print the table of each data set, and the trials that led to its settings."""
    for dataset in sorted({r["cell"]["dataset"] for r in records}):
        own = [r for r in records if r["cell"]["dataset"] == dataset]
        plainly = next((r for r in own if r["cell"]["part"] == "plain"), None)
        print(f"\n{dataset}, split {SPLIT}, mean of seeds {', '.join(map(str, SEEDS))}; settings: best of the trials\n")
        print(
            "| method | "
            + " | ".join(f"novel, {b} bits" for b in BITS)
            + " | "
            + " | ".join(f"seen, {b}" for b in BITS),
            end="",
        )
        print(" | seconds at 48 |\n|---|" + "---:|" * (2 * len(BITS) + 1))
        for name in sorted({r["cell"]["method"] for r in own if r["cell"]["part"] == "table"}):
            print(f"| {name} | " + " | ".join(row_of(own, name)) + " |")
        if plainly:
            chance = plainly["chance"]
            print(
                f"\nfloat features: novel {plainly['novel_features']:.3f}, seen {plainly['seen_features']:.3f}; ",
                end="",
            )
            print(f"chance: novel {chance['novel']:.3f}, seen {chance['seen']:.3f}")
        print(
            "\n| method | trials | defaults: novel, seen | best: novel, seen | its settings |\n|---|---:|---|---|---|"
        )
        trials = [r for r in own if r["cell"]["part"] == "tune"]
        for name in sorted({r["cell"]["method"] for r in trials}):
            mine = [r for r in trials if r["cell"]["method"] == name]
            first, best = mine[0], max(mine, key=score)
            values = [f"{r['novel_codes']:.3f}, {r['seen_codes']:.3f}" for r in (first, best)]
            settings = ", ".join(f"{k}={v}" for k, v in best["cell"]["settings"].items()) or "defaults"
            print(f"| {name} | {len(mine)} | {' | '.join(values)} | {settings} |")


def row_of(records: list[dict[str, Any]], name: str) -> list[str]:
    """Return the means over the seeds: novel and seen for each length, and the time of a fit."""
    texts = []
    for key in ("novel_codes", "seen_codes"):
        for bits in BITS:
            values = [r[key] for r in of_table(records, name, bits)]
            spread = f" ± {statistics.pstdev(values):.3f}" if len(values) > 1 else ""
            texts.append(f"{statistics.mean(values):.3f}{spread}" if values else "")
    seconds = [r["seconds"] for r in of_table(records, name, BITS[-1])]
    return [*texts, f"{statistics.median(seconds):.0f}" if seconds else ""]


def of_table(records: list[dict[str, Any]], name: str, bits: int) -> list[dict[str, Any]]:
    """Return the fits of a method with its best settings, one for each seed."""
    own = [r for r in records if (c := r["cell"])["part"] == "table" and (c["method"], c["bits"]) == (name, bits)]
    return [r for r in own if r["cell"]["settings"] == best_settings(records, r["cell"]["dataset"], name)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("tune", "table", "report"))
    parser.add_argument("dataset", nargs="?", choices=list(SIZES))
    parser.add_argument("--data", type=Path, help="folder of the data set; not needed for digits")
    parser.add_argument("--method", nargs="+", choices=list(code_methods()), default=list(code_methods()))
    parser.add_argument("--results", type=Path, default=RESULTS / "methods.jsonl", help="file of results")
    parser.add_argument("--progress", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    records = read(given.results)
    if given.part != "report":
        run(given, records)
    report(records)


def run(given: argparse.Namespace, records: list[dict[str, Any]]) -> None:
    """Measure what is missing and append it to the results."""
    if given.dataset is None:
        raise SystemExit("name a data set, such as digits")
    cells = wanted(given.part, given.dataset, given.method, records)
    if given.part == "table":
        cells.append({"part": "plain", "dataset": given.dataset, "split": SPLIT, "method": "features"})
    cells = [cell for cell in cells if not any(r["cell"] == cell for r in records)]
    data: Features = features_of(given.dataset, given.data, given.progress)
    piles: dict[tuple[str, int], Pile] = {}
    for cell in cells:
        key = cell["split"], cell.get("seed", 0)
        pile = piles[key] = piles.get(key) or pile_of(data, "balanced", *key)
        is_plain = cell["part"] == "plain"
        record = {"cell": cell, **without_training(pile)} if is_plain else measure(cell, pile, given.progress)
        records.append(record)
        given.results.parent.mkdir(exist_ok=True)
        with given.results.open("a") as file:
            file.write(json.dumps(record) + "\n")
        if not is_plain:
            about = f"{cell['method']:8} {cell['bits']} bits, split {cell['split']}, seed {cell['seed']}"
            print(
                f"{about}: novel {record['novel_codes']:.3f}, seen {record['seen_codes']:.3f} {cell['settings']}",
                flush=True,
            )


if __name__ == "__main__":
    main()
