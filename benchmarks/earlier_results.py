"""Tables of results that were measured before `combemb bench` existed, on images and on discovery.

python benchmarks/earlier_results.py benchmarks/results/images.jsonl        # or sweeps.jsonl, discovery.jsonl

They belong to the versions that the pages name. `combemb bench run` and `combemb compare` measure today's code.
"""

import statistics
import sys
from pathlib import Path
from typing import Any

from piles import read

from combemb.discovery.class_number import COUNTERS
from combemb.discovery.metrics import METRICS

PARTS = ("all", "seen", "novel")


def of_retrieval(records: list[dict[str, Any]]) -> None:
    """Print mean and deviation over the seeds."""
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


def of_discovery(records: list[dict[str, Any]]) -> None:
    """Print means over splits."""
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
    records = read(Path(sys.argv[1]))
    (of_discovery if "estimators" in records[0]["cell"] else of_retrieval)(records)


if __name__ == "__main__":
    main()
