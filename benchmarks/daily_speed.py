"""Seconds of daily commands on 720 photos from a cold start, and the share of each part.

python benchmarks/daily_speed.py cifar10 --data DIR                               # DIR/train/<class>/*, DIR/test/...

Images of the data set are written as JPEG files of 300 px, and a run is fitted on them; half of the images of seven of
ten classes are labelled. Then `combemb discover` writes its tables, map and page, and `combemb search` looks for a new
photo. Every command is a process of its own with an ordinary environment, and the median of its rounds counts. On a
shared machine compare the CPU time, and what the import of torch takes. Parts are timed in another process.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from combemb.bench.protocol import first_of_each
from combemb.data import datasets
from combemb.data.images import Images

N, SIDE, N_CLASSES, SEEN_SHARE, ROUNDS = 720, 300, 10, 0.7, 5
TARGET = {"discover": 10.0, "search": 2.5}  # in seconds
PARTS = {  # the functions of each part; those inside another one are not counted twice
    "discover": {
        "load the run": ["combemb.methods:load"],
        "read and embed": ["combemb.learning.method:Method.read", "combemb.learning.method:Method.embed"],
        "discover": ["combemb.learning.method:Method.discover"],
        "tables": ["combemb.collection.discovered:write_tables"],
        "map": ["combemb.explorer.discovery_map:map_of_all"],
        "picture of the map": ["combemb.explorer.discovery_map:write_map_png"],
        "page": ["combemb.explorer.discovery_page:write_discovery_page"],
    },
    "search": {
        "load run and index": ["combemb.collection.indexed:Collection.open"],
        "features of the query": ["combemb.learning.method:Method.read"],
        "embed": ["combemb.learning.method:Method.embed"],
        "search": ["combemb.search.index:CodeIndex.search"],
    },
}
TIMED = """
import importlib, json, sys, time

began = time.perf_counter()
spent, inside = {}, []

def timed(part, function):
    def wrapper(*arguments, **options):
        inside.append(part)
        start = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            inside.pop()
            if not inside:
                spent[part] = spent.get(part, 0) + time.perf_counter() - start
    return wrapper

for part, places in json.loads(sys.argv.pop(1)).items():
    for place in places:
        module, _, path = place.partition(":")
        *owners, name = path.split(".")
        owner = importlib.import_module(module)
        for step in owners:
            owner = getattr(owner, step)
        function = owner.__dict__[name]
        is_class_method = isinstance(function, classmethod)
        wrapper = timed(part, function.__func__ if is_class_method else function)
        setattr(owner, name, classmethod(wrapper) if is_class_method else wrapper)
from combemb.cli import app

spent["imports"] = time.perf_counter() - began
app(sys.argv[1:], standalone_mode=False)
spent["other"] = time.perf_counter() - began - sum(spent.values())
print(json.dumps(spent), file=sys.stderr)
"""


def write_photos(name: str, path: Path, folder: Path) -> Path:
    """Write images of the first classes as photos, unlabelled ones into a folder of their own; return a new photo."""
    dataset = datasets.load(name, path)
    train, test = dataset.train_x, dataset.test_x
    if not isinstance(train, Images) or not isinstance(test, Images):
        raise SystemExit(f"{name} has no images; choose another data set")
    classes = np.unique(dataset.train_targets)[:N_CLASSES]
    rows = first_of_each(dataset.train_targets, N // len(classes))
    rows = rows[np.isin(dataset.train_targets[rows], classes)]
    for number, row in enumerate(rows):
        c = int(np.flatnonzero(classes == dataset.train_targets[row])[0])
        is_labelled = c < SEEN_SHARE * len(classes) and number % 2 == 0
        place = folder / "photos" / (f"class-{c}" if is_labelled else "unlabelled")
        place.mkdir(parents=True, exist_ok=True)
        write_photo(train.read(row, SIDE), place / f"{number:04}.jpg")
    write_photo(test.read(0, SIDE), folder / "new.jpg")
    return folder / "new.jpg"


def write_photo(image: Image.Image, file: Path) -> None:
    image.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(file, quality=90)


def combemb(*arguments: object) -> tuple[float, float]:
    """Run a command quietly, return its wall and CPU time in seconds."""
    return timed("-m", "combemb", *arguments, "--quiet")


def timed(*arguments: object) -> tuple[float, float]:
    """Run Python with these arguments, return its wall and CPU time in seconds."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *map(str, arguments)], check=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def print_shares(*arguments: object) -> None:
    """Print the seconds of each part of a command and its share."""
    parts = json.dumps(PARTS[str(arguments[0])])
    command = [sys.executable, "-c", TIMED, parts, *map(str, arguments), "--quiet"]
    shown = subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True).stderr
    spent = json.loads(shown.splitlines()[-1])
    for part, seconds in spent.items():
        print(f"    {part:24}{seconds:6.2f} s  {seconds / sum(spent.values()):4.0%}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=sorted(set(datasets.names()) - {"digits", "nus_wide"}))
    parser.add_argument("--data", type=Path, required=True, help="where its published files are")
    options = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        query, run = write_photos(options.dataset, options.data, folder), folder / "run"
        combemb("fit", folder / "photos", "--out", run, "--set", "check=False")
        combemb("index", run)
        n = sum(1 for _ in folder.glob("photos/*/*.jpg"))
        print(f"{n} photos of {SIDE} px, medians of {ROUNDS} rounds")
        wall, cpu = map(statistics.median, zip(*(timed("-c", "import torch") for _ in range(ROUNDS)), strict=True))
        print(f"  python -c 'import torch': {wall:.1f} s, {cpu:.1f} s of CPU time")
        for verb, arguments in (("discover", [run]), ("search", [run, query])):
            walls, cpus = zip(*(combemb(verb, *arguments) for _ in range(ROUNDS)), strict=True)
            found, used = statistics.median(walls), statistics.median(cpus)
            missed += found > TARGET[verb]
            each = " ".join(f"{seconds:.1f}" for seconds in walls)
            print(f"  {verb}: {found:.1f} s ({each}; target: {TARGET[verb]:g}), {used:.1f} s of CPU time")
            print_shares(verb, *arguments)
    return missed


if __name__ == "__main__":
    sys.exit(main())
