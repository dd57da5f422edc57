"""Speed of `extract`: its share of the bare network's speed, and OpenVINO against torch.

    python benchmarks/extraction_speed.py [bare|fast]

Files are generated: 32 px PNG, which views enlarge to 96 px, and 300 px JPEG. The time of `extract` is that of a whole
call with an empty cache: worker processes started, files decoded, views cropped and coloured, features written. Runs
alternate, so that a busy machine slows both; the median ratio of the rounds counts, in views per second.

`bare`: against the forward pass of the same frozen backbone by torch on a prepared batch. Both use the same batch size,
keep their memory, and use one thread, which leaves a core to the worker. Target: 0.8 for the clean view, 0.5 for three.

`fast`: with the extra `combemb[fast]`, conversion included, against the same call with COMBEMB_OPENVINO=0. 300 px JPEG
files become views of 224 px, as in a fit with the defaults. Target: 1.6 for the clean view, 1.4 for three.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from combemb import backbones
from combemb.backbones.base import Backbone
from combemb.backbones.extract import extract
from combemb.data.augmentation import Augmentation, Views
from combemb.data.colour import coloured
from combemb.data.images import Images
from combemb.system.machine import memory_kept, own_process

N, SIZE, BATCH, ROUNDS = 1536, 96, 64, 3  # N: views per measurement
TARGET = {1: 0.8, 3: 0.5}
TARGET_FAST = {1: 1.6, 3: 1.4}
FAST_SIZE = 224


def files(folder: Path, kind: str, side: int) -> Images:
    """Write images of smooth noise, whose JPEG files are about as large as those of photographs."""
    rng = np.random.default_rng(0)
    for i in range(N):
        coarse = Image.fromarray(rng.integers(0, 256, (side // 6, side // 6, 3), dtype=np.uint8))
        coarse.resize((side, side), Image.Resampling.BICUBIC).save(folder / f"{i:04}.{kind}")
    return Images(files=sorted(folder.glob(f"*.{kind}")))


def bare(frozen: Backbone, n: int = N, memory: Callable[[], AbstractContextManager[None]] = memory_kept) -> float:
    """Return the views per second of the forward pass alone."""
    ready = torch.rand(BATCH, 3, SIZE, SIZE).mul(255).contiguous(memory_format=torch.channels_last)
    began = time.perf_counter()
    with torch.inference_mode(), memory():
        for _ in range(n // BATCH):
            frozen(ready)
    return n / (time.perf_counter() - began)


def extracted(images: Images, backbone: Backbone, n_views: int, size: int = SIZE) -> float:
    """Return the views per second of a call of `extract` with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        began = time.perf_counter()
        made = extract(
            images,
            backbone,
            about={"name": backbone.name},
            size=size,
            n_views=n_views,
            augmentation=Augmentation(),
            cache=Path(cache),
            batch_size=BATCH,
        )
        seconds = time.perf_counter() - began
        assert not made.is_hit
        assert made.x.shape[:2] == (len(images), n_views)
    return len(images) * n_views / seconds


def print_shares(images: Images, frozen: Backbone) -> None:
    """Print the time per view of three in one process; `extract` leaves the first two parts to workers."""
    views = Views(images, SIZE, Augmentation())
    spent = dict.fromkeys(("decode", "crop and resize", "colour", "forward"), 0.0)

    @contextmanager
    def timed(part: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        spent[part] += time.perf_counter() - began

    with torch.inference_mode():
        with timed("decode"):
            for i in range(BATCH):
                images.read(i, 2 * SIZE)
        with timed("crop and resize"):
            made = [views.read(i, range(3)) for i in range(BATCH)]
        spent["crop and resize"] -= spent["decode"]  # each file was decoded once more
        windows, steps = (torch.from_numpy(np.stack(part, axis=1)) for part in zip(*made, strict=True))
        for view in range(3):
            with timed("colour"):
                pixels = coloured(windows[view], steps[view])
            with timed("forward"):
                frozen(pixels)
    for part, seconds in spent.items():
        share = seconds / sum(spent.values())
        print(f"    {part:20}{share:6.1%}   {seconds * 1000 / 3 / BATCH:6.3f} ms per view")


def share_of_bare(backbone: Backbone, folder: Path) -> int:
    """Print the shares of the bare network's speed; return how many targets were missed."""
    frozen = backbone.for_inference()
    bare(frozen, 2 * BATCH, nullcontext)
    print(f"{backbone.name}, {SIZE} px, batch {BATCH}, {N} views, one thread")
    returned, kept = (BATCH * 1000 / bare(frozen, memory=memory) for memory in (nullcontext, memory_kept))
    print(f"  a batch takes {returned:.0f} ms if memory is returned after it, {kept:.0f} ms if it is kept")
    missed = 0
    for kind, side in (("png", 32), ("jpg", 300)):
        images = files(folder, kind, side)
        print(f"  {kind} of {side} px")
        ratios: dict[int, list[float]] = {n_views: [] for n_views in TARGET}
        for _ in range(ROUNDS):
            speed = bare(frozen)
            for n_views, of_round in ratios.items():
                of_round.append(extracted(images.take(np.arange(N // n_views)), backbone, n_views) / speed)
        for n_views, of_round in ratios.items():
            missed += told(n_views, of_round, "of the bare speed", TARGET[n_views])
        print_shares(images, frozen)
    return missed


def fast_over_torch(backbone: Backbone, folder: Path) -> int:
    """Print OpenVINO's speed over torch's; return how many targets were missed."""
    print(f"{backbone.name}, {FAST_SIZE} px, batch {BATCH}, {N} views of 300 px JPEG files, OpenVINO over torch")
    images, missed = files(folder, "jpg", 300), 0
    for n_views, target in TARGET_FAST.items():
        some, ratios = images.take(np.arange(N // n_views)), []
        for _ in range(ROUNDS):
            speeds = []
            for switch in ("0", "1"):
                os.environ["COMBEMB_OPENVINO"] = switch
                speeds.append(extracted(some, backbone, n_views, FAST_SIZE))
            ratios.append(speeds[1] / speeds[0])
            print(f"      {speeds[0]:.0f} and {speeds[1]:.0f} views per second")
        missed += told(n_views, ratios, "times the speed of torch", target)
    return missed


def told(n_views: int, ratios: list[float], what: str, target: float) -> bool:
    """Print the median ratio; return whether it misses the target."""
    median, each = sorted(ratios)[len(ratios) // 2], " ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"    {n_views} view(s): {median:.2f} {what} ({each}; target: {target})", flush=True)
    return median < target


def main() -> int:
    own_process()
    torch.set_num_threads(1)
    parts = {"bare": share_of_bare, "fast": fast_over_torch}
    backbone = backbones.build("efficientnet_lite0")
    missed = 0
    for name in sys.argv[1:] or parts:
        with tempfile.TemporaryDirectory() as folder:
            missed += parts[name](backbone, Path(folder))
    return missed


if __name__ == "__main__":
    sys.exit(main())
