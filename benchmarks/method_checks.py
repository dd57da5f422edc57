"""Single properties of the methods with codes, on the features and images of CIFAR-10.

python benchmarks/method_checks.py quantisers --data DIR     # errors of OPQ and ITQ beside those of FAISS
python benchmarks/method_checks.py synthetic --data DIR      # SSGAH's synthetic items of labelled items held out
python benchmarks/method_checks.py heart --data DIR          # deep methods learn 200 labelled images by heart
python benchmarks/method_checks.py labelled --data DIR       # time and memory of CNNH and SDH with many labels
python benchmarks/method_checks.py repeat --data DIR         # the same fit in another process, or with other rounding
python benchmarks/method_checks.py report                    # all of it, as Markdown

Features are those of `methods.py` (600 images per class, frozen EfficientNet-Lite0 at 96 px, split 0). Each measurement
appends a line of JSON to a file of results; results that exist are not measured again.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from methods import best_settings, code_methods, fitted
from piles import RESULTS, SIZES, features_of, pile_of, plain, read, retrieval, version

from combemb import methods
from combemb.bench.protocol import first_of_each, rows_of
from combemb.data import datasets
from combemb.data.given import read_given
from combemb.learning.deep import DeepMethod
from combemb.search.metrics import code_retrieval
from combemb.system.arrays import unit_rows
from combemb.system.machine import seeded

DATASET, SPLIT, SEEDS = "cifar10", "0", (0, 1, 2)
BITS = (12, 24, 48)
LEARNED, TOGETHER, UNLABELLED = (
    20,
    200,
    100,
)  # images per class and in all that are learned by heart; others beside them
BY_HEART: dict[str, Any] = {"n_views": 1, "view_noise": 0.1, "max_features": 256}  # else the defaults, for new images
MANY = (8_750, 17_500)  # labelled items
TUNED = read(RESULTS / "methods.jsonl")
ROUNDING: dict[str, dict[str, str]] = {  # what other processors do, as far as this one can be told to do the same
    "": {},
    "again": {},
    "2 threads": {"OMP_NUM_THREADS": "2"},
    "torch without AVX-512": {"ATEN_CPU_CAPABILITY": "avx2"},
    "MKL for any processor": {"MKL_CBWR": "COMPATIBLE"},
}
SENSITIVE = ("combemb", "gpq", "ssah", "ssgah")


# OPQ and ITQ beside FAISS


def quantisers(cell: dict[str, Any], path: Path) -> dict[str, float]:
    """Return mean squared errors of our quantiser and of FAISS's: same items, words and number of iterations.

    For OPQ, iterations are a x b: alternations, and iterations of k-means in each. FAISS's own default is 50 x 4.
    """
    x = unit_rows(torch.from_numpy(features_of(DATASET, path, False).x[:, 0].astype(np.float32))).numpy()
    bits, seed, cls = cell["bits"], cell["seed"], methods.get(cell["method"])
    start = cls(bits=bits, seed=seed, iterations=0).fit(x, progress=False).embed(x).numpy()
    turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(start.shape[1],) * 2))[0]
    given = np.ascontiguousarray(start @ turn, np.float32)  # the same principal components, in random directions
    found = {}
    if cell["method"] == "itq":
        itq = faiss.ITQMatrix(bits)
        itq.max_iter = 50
        itq.train(given)
        return {
            "ours": to_signs(cls(bits=bits, seed=seed).fit(x).embed(x).numpy()),
            "FAISS": to_signs(itq.apply(given)),
        }
    for per_rotation in (1, 4):
        model = cls(bits=bits, seed=seed, iterations=50 * per_rotation).fit(x, progress=False)
        z = model.embed(x)
        found[f"ours, {50 * per_rotation} x 1"] = mean_square((z - model.codebook.decode(model.encode(x))).numpy())
        shape = given.shape[1], model.n_sets
        rotation, inner = faiss.OPQMatrix(*shape), faiss.ProductQuantizer(*shape, 4)
        rotation.pq, rotation.niter, rotation.niter_pq = inner, 50, per_rotation
        rotation.train(given)
        turned, quantiser = rotation.apply(given), faiss.ProductQuantizer(*shape, 4)
        quantiser.train(turned)
        decoded = quantiser.decode(quantiser.compute_codes(turned))
        found[f"FAISS, 50 x {per_rotation}"] = mean_square(turned - decoded)
    return found


def to_signs(z: np.ndarray) -> float:
    return mean_square(np.where(z >= 0, 1, -1) - z)


def mean_square(difference: np.ndarray) -> float:
    return float(np.square(difference.astype(np.float64)).sum(axis=1).mean())


# Synthetic items of SSGAH


def synthetic(cell: dict[str, Any], path: Path) -> dict[str, float]:
    """Return distances in bits from labelled items that the fit has not seen: to synthetic and to real items."""
    pile = pile_of(features_of(DATASET, path, False), "balanced", SPLIT, cell["seed"])
    rng = np.random.default_rng(cell["seed"])
    rows = rng.permutation(np.flatnonzero(pile.labels >= 0))
    out = rows[: len(rows) // 5]
    keep = np.setdiff1d(np.arange(len(pile.labels)), out)
    model = code_methods()["ssgah"](bits=cell["bits"], seed=cell["seed"], **best_settings(TUNED, DATASET, "ssgah"))
    model.fit(pile.x[keep], pile.labels[keep], progress=False)
    with torch.no_grad(), seeded(cell["seed"]):
        x = model.feature_map_(torch.from_numpy(pile.clean[out]))
        h, positive, negative = (model.network_(part) for part in (x, *model.network_.generator(x)))
    near, far = ((h - part).square().sum(dim=1) / 4 for part in (positive, negative))
    real = torch.cdist(h, h).square() / 4
    same = torch.from_numpy(pile.labels[out][:, None] == pile.labels[out])
    other = ~torch.eye(len(h), dtype=torch.bool)
    distances = {"positive": near, "negative": far, "same": real[same & other], "different": real[~same]}
    share = {"nearer": float((near < far).float().mean()), "n": len(out)}
    return {name: float(values.mean()) for name, values in distances.items()} | share


# Images that are learned by heart


def heart(cell: dict[str, Any], path: Path) -> dict[str, float]:
    """Return the mAP of 200 labelled images among themselves, after a fit on the images."""
    dataset = datasets.load(DATASET, path)
    rows = first_of_each(dataset.train_targets, LEARNED + UNLABELLED // 10)
    is_learned = np.isin(rows, first_of_each(dataset.train_targets, LEARNED))
    images, targets = rows_of(dataset.train_x, rows), dataset.train_targets[rows]
    cls = code_methods()[cell["method"]]
    model = cls(bits=cell["bits"], seed=cell["seed"], image_size=SIZES[DATASET], **BY_HEART)
    began = time.process_time()
    model.fit(images, np.where(is_learned, targets, -1), progress=False)
    seconds = time.process_time() - began
    learned, known = rows_of(dataset.train_x, rows[is_learned]), targets[is_learned]
    found = code_retrieval(model.codebook, model.embed(learned), model.encode(learned), known, known)
    return {"map": found.map, "chance": found.chance, "cpu_seconds": seconds}


# Many labelled items


@cache
def labelled_file(path: Path) -> tuple[Path, np.ndarray]:
    """Return a file of features of labelled items, and their classes: clean images first, then augmented views."""
    dataset = datasets.load(DATASET, path)
    method = methods.get("cnnh")(image_size=SIZES[DATASET])
    loaded = method.image_input().load(read_given(dataset.train_x), 2, False)
    x = np.asarray(loaded.items.x, np.float32)
    order = np.random.default_rng(0).permutation(len(x))
    together = np.concatenate([x[order, 0], x[order, 1]])[: MANY[-1]]
    file = Path(tempfile.mkdtemp()) / "labelled.npy"
    np.save(file, together)
    return file, np.tile(dataset.train_targets[loaded.rows][order], 2)[: MANY[-1]]


def memory(name: str) -> float:
    """Return the memory of this process now (VmRSS) or at its peak (VmHWM), in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1e3


def fit_labelled(cell: dict[str, Any], file: Path, labels: np.ndarray) -> dict[str, float]:
    """Return the seconds of a fit and how much the memory grows, in this new process."""
    torch.set_num_threads(1)
    cls, n = code_methods()[cell["method"]], cell["n_labelled"]
    x = np.load(file)
    cls(bits=cell["bits"], **({"epochs": 1} if issubclass(cls, DeepMethod) else {})).fit(x[:500], labels[:500])
    before, began, cpu = memory("VmRSS"), time.monotonic(), time.process_time()
    cls(bits=cell["bits"]).fit(x[:n], labels[:n], progress=False)
    seconds = {"seconds": time.monotonic() - began, "cpu_seconds": time.process_time() - cpu}
    return seconds | {"more_megabytes": memory("VmHWM") - before, "matrix_megabytes": 4 * n * n / 1e6}


def labelled(cell: dict[str, Any], path: Path) -> dict[str, float]:
    return in_new_process(fit_labelled, cell, *labelled_file(path))


# Fits that are repeated


def fit_again(cell: dict[str, Any], path: Path | None) -> dict[str, Any]:
    """Return the mAP of a fit in this new process, and digests of its codes and embeddings."""
    threads = 2 if cell["rounding"] == "2 threads" else 1
    torch.set_num_threads(threads)
    own = path if cell["dataset"] == DATASET else None  # the digits come with the package
    pile = pile_of(features_of(cell["dataset"], own, False), "balanced", SPLIT, cell["seed"])
    is_deep = issubclass(code_methods()[cell["method"]], DeepMethod)
    model = fitted(cell | {"settings": cell["settings"] | ({"threads": threads} if is_deep else {})}, pile)
    found = {key: value for key, value in retrieval(model, pile).items() if key in {"novel_codes", "seen_codes"}}
    made = {"codes": model.encode(pile.x), "z": model.embed(pile.x)}
    return found | {name: hashlib.sha256(part.numpy().tobytes()).hexdigest()[:16] for name, part in made.items()}


def repeat(cell: dict[str, Any], path: Path) -> dict[str, Any]:
    os.environ |= {"OMP_NUM_THREADS": "1", **ROUNDING[cell["rounding"]]}
    found = in_new_process(fit_again, cell, path)
    for name in ROUNDING[cell["rounding"]]:
        del os.environ[name]
    return found


def in_new_process(work: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, given)


# Cells and tables

PARTS = {"quantisers": quantisers, "synthetic": synthetic, "heart": heart, "labelled": labelled, "repeat": repeat}


def cells(part: str) -> Iterator[dict[str, Any]]:
    """Yield what a part measures."""
    deep = [name for name, cls in code_methods().items() if issubclass(cls, DeepMethod)]
    if part == "quantisers":
        yield from ({"method": m, "bits": b, "seed": s} for m, b, s in product(("opq", "itq"), BITS, SEEDS))
    elif part == "synthetic":
        yield from ({"method": "ssgah", "bits": bits, "seed": seed} for bits, seed in product((24, 48), SEEDS))
    elif part == "heart":
        yield from ({"method": name, "bits": 48, "seed": 0} for name in deep)
    elif part == "labelled":
        yield from ({"method": name, "bits": 48, "n_labelled": n} for name, n in product(("cnnh", "sdh"), MANY))
    else:
        fit: dict[str, Any] = {"bits": 48, "seed": 0}
        for rounding, name in product(ROUNDING, code_methods()):
            settings = {"epochs": 5} if name in deep else {}
            yield fit | {"dataset": "digits", "method": name, "settings": settings, "rounding": rounding}
        for rounding, name in product([how for how in ROUNDING if how != "2 threads"], SENSITIVE):
            settings = best_settings(TUNED, DATASET, name)
            yield fit | {"dataset": DATASET, "method": name, "settings": settings, "rounding": rounding}


def report(records: list[dict[str, Any]]) -> None:
    """Print a table for each part."""
    for part in PARTS:
        own = [(r["cell"], r["found"]) for r in records if r["part"] == part]
        if not own:
            continue
        print(f"\n{part}\n")
        if part == "repeat":
            repeated([cell | found for cell, found in own])
            continue
        tables: dict[tuple[str, ...], dict[tuple[Any, ...], list[Any]]] = {}
        about = [key for key in ("method", "bits", "n_labelled") if key in own[0][0]]
        for cell, found in own:
            tables.setdefault(tuple(found), {}).setdefault(tuple(cell[key] for key in about), []).append(found)
        for names, rows in tables.items():
            print(f"\n| {' | '.join((*about, *names))} |\n{'|---' * (len(about) + len(names))}|")
            for row, values in rows.items():
                means = [f"{statistics.mean(value[name] for value in values):.4g}" for name in names]
                print(f"| {' | '.join([*map(str, row), *means])} |")


def repeated(records: list[dict[str, Any]]) -> None:
    """Print the largest difference of novel and seen mAP to the first fit, or that it is the same to the last bit."""
    by_key = {(r["dataset"], r["method"], r["rounding"]): r for r in records}
    hows = [how for how in ROUNDING if how]
    print(f"| data | method | {' | '.join(hows)} |\n|---|---|{'---|' * len(hows)}")
    for dataset, name in sorted({key[:2] for key in by_key}):
        first, texts = by_key[dataset, name, ""], []
        for how in hows:
            other = by_key.get((dataset, name, how))
            differences = [abs(other[key] - first[key]) for key in ("novel_codes", "seen_codes")] if other else []
            same = other is not None and all(other[key] == first[key] for key in ("z", "codes"))
            texts.append("same" if same else f"{max(differences):.4f}" if differences else "")
        print(f"| {dataset} | {name} | {' | '.join(texts)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=(*PARTS, "report"))
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10")
    parser.add_argument("--method", nargs="+", choices=list(code_methods()), default=list(code_methods()))
    parser.add_argument("--results", type=Path, default=RESULTS / "method_checks.jsonl", help="file of results")
    given = parser.parse_args()
    if given.part != "report" and given.data is None:
        parser.error("give --data, or report")
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    records = read(given.results)
    for cell in () if given.part == "report" else cells(given.part):
        is_known = any((r["part"], r["cell"]) == (given.part, cell) for r in records)
        if is_known or cell["method"] not in given.method:
            continue
        found = PARTS[given.part](cell, given.data)
        records.append(plain({"part": given.part, "cell": cell, "version": version(), "found": found}))
        with given.results.open("a") as file:
            file.write(json.dumps(records[-1]) + "\n")
        print(cell, records[-1]["found"], flush=True)
    report(records)


if __name__ == "__main__":
    main()
