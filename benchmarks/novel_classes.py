"""Why supervised methods lose novel classes: what their outputs keep, when it is lost, and what brings it back.

python benchmarks/novel_classes.py examine --data DIR       # outputs of each method, and mAP in the course of training
python benchmarks/novel_classes.py weights --data DIR       # SSDH with other weights of its terms for unlabelled items
python benchmarks/novel_classes.py ablations --data DIR     # SSAH without adversary, SSGAH without synthetic items
python benchmarks/novel_classes.py report                   # all of it, as Markdown

CIFAR-10 as in `methods.py` (600 images per class, frozen EfficientNet-Lite0 at 96 px, split 0), each method with the
best settings of its trials. "Oracle" fits have labels of half of the novel items too, as of seen ones: a method that
cannot learn them either is broken. Each fit appends a line of JSON to a file of results; results that exist are not
computed again.
"""

import argparse
import json
import statistics
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from methods import best_settings, code_methods
from methods import measure as measure_codes
from piles import RESULTS, Pile, features_of, floats, pile_of, plain, principal, read, retrieval, version
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from combemb.data import open_set_split
from combemb.learning.deep import DeepMethod

DATASET, SPLIT = "cifar10", "0"
EXAMINED = ("itq", "sdh", "cnnh", "ninh", "ssdh", "ssgah", "gpq", "ssah", "combemb")
EXAMINED_BITS, SHARE = 48, 0.95
MOMENTS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of training, as a share of the epochs
WEIGHTS = (  # of the graph and of the pseudo-labels
    *((0.0, 0.0), (0.1, 0.1), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)),
    *((10.0, 0.0), (0.0, 10.0), (10.0, 10.0)),
)
ABLATIONS: dict[str, dict[str, Any]] = {
    "ssah": {"adversary": False},
    "ssgah": {"synthetic_weight": 0.0, "adversary_weight": 0.0},
}
ABLATED_BITS, SEEDS = (24, 48), (0, 1, 2)


def with_moments(cls: type[Any], pile: Pile) -> type[Any]:
    """Return the method with a list `moments_`: share of training done, novel and seen mAP of z."""

    class Watched(cls):  # type: ignore[misc]
        def on_epoch(self, data: Any, epoch: int) -> None:
            """Measure before some of the epochs; nothing random is drawn."""
            super().on_epoch(data, epoch)
            n_epochs = self.n_epochs(len(data))
            if epoch in {round(moment * n_epochs) for moment in MOMENTS}:
                self._measure(epoch / n_epochs)

        def on_end(self, data: Any) -> None:
            super().on_end(data)
            self._measure(1.0)

        @torch.no_grad()
        def _measure(self, done: float) -> None:
            modes = [(module, module.training) for module in self.tower_.modules()]
            self.tower_.eval()
            z, test_z = (self.tower_(torch.from_numpy(x).float()) for x in (pile.clean, np.asarray(pile.test_x)))
            self.moments_ = [*getattr(self, "moments_", []), {"done": done, **floats(pile, "z", z, test_z)}]
            for module, is_training in modes:
                module.training = is_training

    return Watched


def shape_of(z: np.ndarray, pile: Pile) -> dict[str, float]:
    """Return how the outputs (N, D) of the items vary.

    directions: principal components that hold 95 % of the variance of items of seen classes; in_means: the share of the
    variance of seen, and of novel items around their own means, inside the span of the means of the seen classes.
    """
    seen, novel = z[~pile.is_novel], z[pile.is_novel]
    targets = pile.targets[~pile.is_novel]
    means = np.stack([seen[targets == c].mean(axis=0) for c in np.unique(targets)])
    centred = seen - seen.mean(axis=0)
    values = np.linalg.eigvalsh(centred.T @ centred)[::-1]
    span = principal(means - means.mean(axis=0), len(means) - 1)  # (D, C - 1)
    novel_means = np.stack([novel[pile.targets[pile.is_novel] == c].mean(axis=0) for c in pile_novel(pile)])
    between = novel_means - novel_means.mean(axis=0)
    return {
        "directions": int(np.searchsorted(np.cumsum(values) / values.sum(), SHARE) + 1),
        "seen_in_means": float(((centred @ span) ** 2).sum() / (centred**2).sum()),
        "novel_in_means": float(((between @ span) ** 2).sum() / (between**2).sum()),
    }


def pile_novel(pile: Pile) -> np.ndarray:
    """Return the novel classes."""
    return np.unique(pile.targets[pile.is_novel])


def probe(z: np.ndarray, test_z: np.ndarray, pile: Pile) -> float:
    """Return the accuracy on novel test items of a linear classifier of the novel classes, fitted on their targets."""
    scaler = StandardScaler().fit(z)
    fitted = LogisticRegression(max_iter=500).fit(scaler.transform(z[pile.is_novel]), pile.targets[pile.is_novel])
    on = pile.is_novel_test
    return float(fitted.score(scaler.transform(test_z[on]), pile.test_targets[on]))


def oracle(pile: Pile, seed: int) -> Pile:
    """Return the pile with labels of half of the items of the novel classes too."""
    drawn = open_set_split(pile.targets, "1", seed=seed)  # sees all classes that are novel in split 0
    labels = np.where(pile.is_novel, drawn.labels, pile.labels)
    return replace(pile, labels=labels)


def examine(cell: dict[str, Any], pile: Pile) -> dict[str, Any]:
    """Return what the outputs of a method keep, beside its mAP with and without labels of the novel classes."""
    cls = code_methods()[cell["method"]]
    is_deep = issubclass(cls, DeepMethod)
    settings = {"bits": cell["bits"], "seed": cell["seed"], **({"check": False} if is_deep else {}), **cell["settings"]}
    model = (with_moments(cls, pile) if is_deep else cls)(**settings).fit(pile.x, pile.labels, progress=False)
    z, test_z = (np.asarray(model.embed(x), np.float64) for x in (pile.x, pile.test_x))
    signs, test_signs = (np.where(part >= 0, 1.0, -1.0) for part in (z, test_z))
    found = {**retrieval(model, pile), **shape_of(z, pile), "probe_z": probe(z, test_z, pile)}
    if cls.query_side().startswith("Hamming"):
        found["probe_codes"] = probe(signs, test_signs, pile)
    if is_deep:
        x, test_x = (model.feature_map_(torch.from_numpy(part).float()) for part in (pile.clean, pile.test_x))
        found |= floats(pile, "inputs", x, test_x)
        found |= {"moments": model.moments_, "probe_inputs": probe(x.numpy(), test_x.numpy(), pile)}
    told = oracle(pile, cell["seed"])
    known = cls(**settings).fit(told.x, told.labels, progress=False)
    found |= {f"oracle_{key}": value for key, value in retrieval(known, told).items() if key.endswith("codes")}
    return plain({"cell": cell, "version": version(), **found})


def wanted(part: str, tuned: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cells of a part."""
    chosen = {name: best_settings(tuned, DATASET, name) for name in EXAMINED}
    if part == "examine":
        own = [{"method": name, "bits": EXAMINED_BITS, "seed": 0, "settings": chosen[name]} for name in EXAMINED]
    elif part == "weights":
        base = {"method": "ssdh", "bits": EXAMINED_BITS, "seed": 0}
        weights = [{"graph_weight": graph, "pseudo_weight": pseudo} for graph, pseudo in WEIGHTS]
        own = [base | {"settings": chosen["ssdh"] | weight} for weight in weights]
    else:
        cells = product(ABLATIONS.items(), ABLATED_BITS, SEEDS)
        own = [{"method": n, "bits": b, "seed": s, "settings": chosen[n] | without} for (n, without), b, s in cells]
    return [{"part": part, "dataset": DATASET, "split": SPLIT, **cell} for cell in own]


def run(given: argparse.Namespace, records: list[dict[str, Any]], tuned: list[dict[str, Any]]) -> None:
    """Measure what is missing and append it to the results."""
    cells = [cell for cell in wanted(given.part, tuned) if not any(r["cell"] == cell for r in records)]
    data = features_of(DATASET, given.data, False) if cells else None
    for cell in cells:
        assert data is not None
        pile = pile_of(data, "balanced", SPLIT, cell["seed"])
        record = examine(cell, pile) if given.part == "examine" else measure_codes(cell, pile, False)
        records.append(record)
        with given.results.open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(
            f"{cell['method']} {cell['bits']} bits, seed {cell['seed']}: novel {record['novel_codes']:.3f}", flush=True
        )


def table(columns: dict[str, list[str]]) -> None:
    """Print columns of texts as Markdown."""
    print("\n| " + " | ".join(columns) + " |\n|---|" + "---:|" * (len(columns) - 1))
    for row in zip(*columns.values(), strict=True):
        print("| " + " | ".join(row) + " |")


def texts(records: list[dict[str, Any]], key: str) -> list[str]:
    """Return a column of numbers, empty where there is none."""
    found = [record.get(key) for record in records]
    return ["" if v is None else str(v) if isinstance(v, int) else f"{v:.3f}" for v in found]


def report(records: list[dict[str, Any]], tuned: list[dict[str, Any]]) -> None:
    """Print all tables."""
    parts = {part: [r for r in records if r["cell"]["part"] == part] for part in ("examine", "weights", "ablations")}
    examined = parts["examine"]
    names = [r["cell"]["method"] for r in examined]
    columns = {
        "novel mAP: inputs": "novel_inputs",
        "z": "novel_z",
        "codes": "novel_codes",
        "codes, oracle": "oracle_novel_codes",
        "seen mAP: codes": "seen_codes",
        "directions": "directions",
        "seen in means": "seen_in_means",
        "novel in means": "novel_in_means",
        "novel probe: inputs": "probe_inputs",
        "of z": "probe_z",
        "of codes": "probe_codes",
    }
    table({"method": names} | {title: texts(examined, key) for title, key in columns.items()})
    watched = [r for r in examined if "moments" in r]
    for part in ("novel", "seen"):
        marks = {
            f"{part} z, {moment:.0%}": [_at(r["moments"], moment, f"{part}_z") for r in watched] for moment in MOMENTS
        }
        table({"method": [r["cell"]["method"] for r in watched]} | marks)
    found = {
        tuple(r["cell"]["settings"][f"{name}_weight"] for name in ("graph", "pseudo")): r for r in parts["weights"]
    }
    rows = [found[weights] for weights in WEIGHTS if weights in found]
    about = {"SSDH: graph": [f"{r['cell']['settings']['graph_weight']:g}" for r in rows]}
    about |= {"pseudo-labels": [f"{r['cell']['settings']['pseudo_weight']:g}" for r in rows]}
    keys = ("novel_codes", "novel_z", "seen_codes")
    table(about | {key.replace("_", ", "): texts(rows, key) for key in keys})
    ablations(parts["ablations"], tuned)


def _at(moments: list[dict[str, Any]], moment: float, key: str) -> str:
    nearest = min(moments, key=lambda found: abs(found["done"] - moment))
    is_near = abs(nearest["done"] - moment) <= max(0.01, moment / 3)  # SSDH has 13 epochs
    return f"{nearest[key]:.3f}" if is_near else ""


def ablations(records: list[dict[str, Any]], tuned: list[dict[str, Any]]) -> None:
    """Print the means over the seeds, with and without the part that is left out."""
    rows: list[list[str]] = []
    for (name, without), bits in product(ABLATIONS.items(), ABLATED_BITS):
        best = best_settings(tuned, DATASET, name)
        for settings, title in ((best, name), (best | without, f"{name}, {_text(without)}")):
            own = [
                r
                for r in (*tuned, *records)
                if (c := r["cell"])["part"] in ("table", "ablations")
                and (c["method"], c["bits"], c["settings"]) == (name, bits, settings)
            ]
            rows.append([title, str(bits), *(_mean(own, key) for key in ("novel_codes", "seen_codes"))])
    table(dict(zip(("method", "bits", "novel", "seen"), map(list, zip(*rows, strict=True)), strict=True)))


def _text(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def _mean(records: list[dict[str, Any]], key: str) -> str:
    values = [record[key] for record in records]
    return (
        f"{statistics.mean(values):.3f} ± {statistics.pstdev(values):.3f}" if len(values) == len(SEEDS) else "not run"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("examine", "weights", "ablations", "report"))
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10")
    parser.add_argument("--results", type=Path, default=RESULTS / "novel_classes.jsonl", help="file of results")
    parser.add_argument("--tuned", type=Path, default=RESULTS / "methods.jsonl", help="results of methods.py")
    given = parser.parse_args()
    torch.set_num_threads(1)
    records, tuned = read(given.results), read(given.tuned)
    if given.part != "report":
        run(given, records, tuned)
    report(records, tuned)


if __name__ == "__main__":
    main()
