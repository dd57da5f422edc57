"""What the losses of CombEmb add to a training step of resnet18, and how soon a second fit on the same images trains.

python benchmarks/finetuning_speed.py

Both use generated images. The steps alternate, so that a busy machine slows both; the median of their ratios counts.
The second fit is a separate process, timed from its start to its first training step.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from combemb.data.given import read_given
from combemb.data.items import ArrayItems
from combemb.learning.fitting import training_data
from combemb.methods.combemb import CombEmb
from combemb.system.machine import own_process

N, SIDE, BATCH, CLASSES, ROUNDS = 256, 32, 64, 10, 5


def pictures(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noise around a colour for each class, and labels of half the items of seven classes."""
    rng = np.random.default_rng(0)
    targets = np.arange(n) % CLASSES
    colours = rng.integers(60, 200, size=(CLASSES, 1, 1, 3))[targets]
    pixels = np.clip(colours + rng.normal(0, 30, size=(n, SIDE, SIDE, 3)), 0, 255).astype(np.uint8)
    return pixels, np.where((targets < 7) & (rng.random(n) < 0.5), targets, -1)


def loss_overhead() -> float:
    """Return the time of a whole step over that of the same passes through resnet18 with a sum as the loss."""
    x, labels = pictures(N)
    model = CombEmb(
        bits=48, backbone="resnet18", finetune="all", image_size=SIDE, batch_size=BATCH, epochs=1, threads=1
    )
    data = training_data(model, read_given(x, labels), progress=False)
    model._begin(data, progress=False)
    assert not isinstance(data.items, ArrayItems)
    (optimiser,) = model.optimisers()
    model.tower_.train()
    ratios = []
    for batch in [next(model.scratch.batches.epoch(i)) for i in range(ROUNDS)]:
        seconds = []
        for losses in (lambda b: {"sum": b.x.square().mean()}, CombEmb.losses.__get__(model)):
            began = time.perf_counter()
            terms = losses(model.mapped(batch))
            optimiser.zero_grad()
            torch.stack(list(terms.values())).sum().backward()
            nn.utils.clip_grad_norm_(model.tower_.parameters(), 1.0)
            optimiser.step()
            seconds.append(time.perf_counter() - began)
        ratios.append(seconds[1] / seconds[0])
        print(
            f"  resnet18 alone {seconds[0]:.2f} s, with the losses {seconds[1]:.2f} s: {ratios[-1]:.3f} x", flush=True
        )
    return statistics.median(ratios)


def second_start(folder: Path) -> float:
    """Return the seconds from the start of a process to its first epoch when the features are in the cache."""
    pixels, labels = pictures(2000)
    for i, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        place = folder / "images" / (f"class-{label}" if label >= 0 else "unlabelled")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{i:04}.png")
    seconds = 0.0
    for number in ("first", "second"):
        run = folder / number
        command = [sys.executable, "-m", "combemb", "fit", str(folder / "images"), "--out", str(run), "--quiet"]
        began = time.time()
        subprocess.run(
            [*command, "--set", "epochs=1"], check=True, env={**os.environ, "COMBEMB_CACHE": str(folder / "cache")}
        )
        seconds = (run / "run.json").stat().st_mtime - began  # written when the training begins
        print(f"  {number} run on 2,000 images: training begins after {seconds:.1f} s", flush=True)
    return seconds


def main() -> None:
    own_process()
    torch.set_num_threads(1)
    print(f"the losses at 48 bits, batch of {BATCH} images of {SIDE} px, one thread")
    print(f"median {loss_overhead():.3f} x (target: at most 1.10)")
    with tempfile.TemporaryDirectory() as folder:
        print(f"second run: {second_start(Path(folder)):.1f} s (target: at most 5)")


if __name__ == "__main__":
    main()
