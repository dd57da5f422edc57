"""A backbone small enough for tests that count what passes through it."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from combemb.backbones.base import Backbone
from combemb.backbones.extract import extract
from combemb.data.augmentation import Augmentation
from combemb.data.images import Images

SIZE = 16
SETTINGS = {"about": {"name": "tiny"}, "size": SIZE, "n_views": 3, "augmentation": Augmentation(), "batch_size": 8}


class Tiny(Backbone):
    """Two stages, 16 x 16 pixels -> 5 maps of 4 x 4 -> 6 features; black pixels give zeros."""

    name = "tiny"
    min_size = default_size = 8
    n_features = 6

    def __init__(self, on_batch=None):
        super().__init__(mean=(0.0,) * 3, std=(255.0,) * 3)
        first, second = nn.Conv2d(3, 5, 4, stride=4, bias=False), nn.Conv2d(5, 6, 2, bias=False)
        for conv in (first, second):
            nn.init.normal_(conv.weight, generator=torch.Generator().manual_seed(0))
        self.stages["first"] = nn.Sequential(first, nn.ReLU())
        self.stages["second"] = nn.Sequential(second, nn.ReLU())
        self.log = Log(on_batch)

    def before_last(self, pixels):
        self.log.add(len(pixels))
        return super().before_last(pixels)

    @property
    def n_seen(self):
        """How many views it was given, without the one that shows how many features there are."""
        return sum(self.log.batches[1:])


class Log:
    """Shared by a backbone and its frozen copy."""

    def __init__(self, on_batch):
        self.batches, self.on_batch = [], on_batch

    def __deepcopy__(self, memo):
        return self

    def add(self, n):
        if self.on_batch:
            self.on_batch(len(self.batches))
        self.batches.append(n)


def pixels(n=30, side=20):
    return np.random.default_rng(0).integers(0, 256, (n, side, side, 3), dtype=np.uint8)


def some_images(n=30):
    return Images(pixels=pixels(n))


def files(folder: Path, n=30, broken=()):
    folder.mkdir(exist_ok=True)
    for i, image in enumerate(pixels(n)):
        path = folder / f"{i:03}.png"
        Image.fromarray(image).save(path)
        if i in broken:
            path.write_bytes(path.read_bytes()[: 100 * (i % 3)])  # nothing, the header, a part
    return Images(files=sorted(folder.glob("*.png")))


def run(images, cache, backbone=None, **settings):
    return extract(images, backbone or Tiny(), cache=cache, **{**SETTINGS, "n_workers": 0, **settings})
