"""Two processes of torchrun against one, of one thread each: loss curves over 50 steps, and steps per second.

    python benchmarks/torchrun_speed.py                # combemb, ssgah and ncl, about ten minutes
    python benchmarks/torchrun_speed.py combemb --rounds 1
    python benchmarks/torchrun_speed.py --images       # a backbone that is trained too: steps per second only

10,000 items x 2 views x 512 features, 10 classes of which 7 are seen, batches of 512 over all processes, otherwise the
defaults of each method at 48 bits. The largest difference of the total loss in the first 50 steps is printed (target:
1e-4), and the steps per second of later steps, two processes over one (target: 1.6, where two cores are otherwise
idle). Runs alternate; the median of the rounds counts.

A step on features takes 25 ms, too little to share: messages take half of it. With `--images`, a ResNet-18 of a
quarter of the usual width is trained from random weights, on images of 32 px in batches of 128. Its batch norms are
per process, so that the losses are not compared.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from combemb import methods
from combemb.system import processes
from combemb.system.machine import own_process

METHODS = ("combemb", "ssgah", "ncl")
N, V, FEATURES, CLASSES, SEEN = 10_000, 2, 512, 10, 7
BATCH, EPOCHS = 512, 15  # 300 steps
COMPARED = 50  # steps; those after them are timed
N_IMAGES, SIDE, IMAGES_PER_BATCH, IMAGE_EPOCHS, PLAYERS, UNTIMED = 1_280, 32, 128, 2, 8, 3
TRAINED = {"backbone": "resnet18", "backbone_width": 16, "image_size": SIDE, "finetune": "all"}


def data() -> tuple[np.ndarray, np.ndarray]:
    """Return views (N, V, F) of items around centres, and labels of half of the seen ones."""
    rng = np.random.default_rng(0)
    targets = np.arange(N) % CLASSES
    items = rng.normal(size=(CLASSES, FEATURES))[targets] + 2 * rng.normal(size=(N, FEATURES))
    x = items[:, None] + 0.5 * rng.normal(size=(N, V, FEATURES))
    return x.astype(np.float32), np.where((targets < SEEN) & (rng.random(N) < 0.5), targets, -1)


def images() -> tuple[np.ndarray, np.ndarray]:
    """Return images (N, H, W, 3) uint8 around a noisy image for each class, and labels of half of the seen ones."""
    rng = np.random.default_rng(0)
    targets = np.arange(N_IMAGES) % CLASSES
    x = 128 + 40 * rng.normal(size=(CLASSES, SIDE, SIDE, 3))[targets] + 20 * rng.normal(size=(N_IMAGES, SIDE, SIDE, 3))
    labels = np.where((targets < SEEN) & (rng.random(N_IMAGES) < 0.5), targets, -1)
    return x.clip(0, 255).astype(np.uint8), labels


def work(name: str, folder: Path, on_images: bool) -> None:
    """Fit as one process of a run; write the total loss of each step, and when it ended."""
    own_process()
    torch.set_num_threads(1)
    cls: Any = methods.get(name)
    codes = {"bits": 48} if hasattr(cls, "bits") else {"n_novel": CLASSES - SEEN}
    if on_images:
        own = {"pretraining": ("none",)} if hasattr(cls, "pretraining") else {}
        own |= {"player_width": PLAYERS} if hasattr(cls, "player_width") else {}
        codes |= TRAINED | own | {"batch_size": IMAGES_PER_BATCH, "epochs": IMAGE_EPOCHS}
    else:
        codes |= {"batch_size": BATCH, "epochs": EPOCHS}
    method = cls(**codes, check=False, device="cpu")
    losses, ends, step = [], [], method.step

    def recorded(*given: Any) -> Any:
        terms = step(*given)
        losses.append(float(torch.stack(list(terms.values())).sum().detach()))
        ends.append(time.perf_counter())
        if len(ends) == 1:  # while the processes are together
            place.append(processes.rank())
        return terms

    place: list[int] = []
    method.step = recorded
    method.fit(*(images() if on_images else data()), progress=False)
    first = UNTIMED if on_images else COMPARED
    speed = (len(ends) - first) / (ends[-1] - ends[first - 1])
    (folder / f"{place[0]}.json").write_text(json.dumps({"losses": losses, "speed": speed}))


def run(name: str, n_processes: int, on_images: bool) -> tuple[np.ndarray, float]:
    """Return the losses of all steps, the mean over the processes, and the steps per second."""
    with tempfile.TemporaryDirectory() as folder:
        start = [sys.executable]
        if n_processes > 1:
            start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_processes)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        given = [name, "--work", folder, *(["--images"] if on_images else [])]
        subprocess.run([*start, __file__, *given], env=environment, check=True)
        found = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
    assert len(found) == n_processes
    return np.mean([one["losses"] for one in found], axis=0), min(one["speed"] for one in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=METHODS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", action="store_true", help="train a backbone too")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.methods[0], given.work, given.images)
        sys.stdout.flush()
        os._exit(0)  # threads of gloo may abort an interpreter that shuts down
    for name in given.methods:
        rounds = [[run(name, n, given.images) for n in (1, 2)] for _ in range(given.rounds)]
        ratios = [two / one for (_, one), (_, two) in rounds]
        one, two = (statistics.median(speed for _, speed in column) for column in zip(*rounds, strict=True))
        text = f"{one:.3g} steps/s in one process, {two:.3g} in two, "
        text += f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        if not given.images:
            (alone, _), (together, _) = rounds[0]
            difference = np.abs(alone - together)[:COMPARED].max()
            text = (
                f"losses of {COMPARED} steps from {alone[0]:.3f} to {alone[COMPARED - 1]:.3f} differ by at most "
                f"{difference:.1e}; {text}"
            )
        print(f"{name}: {text}, load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
