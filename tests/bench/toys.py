"""Small data in the published layouts, and presets at toy size."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from combemb.bench.presets import Preset
from combemb.data.datasets.cifar import CIFAR10_CLASSES

SIDE, TOY_SIZE = 32, 64  # pixels; AlexNet needs 63
TOY_WIDTH = 4  # channels of the first stage of resnet18


def write_cifar10(folder: Path, n_train: int = 6, n_test: int = 2) -> Path:
    """Noise around a colour of each class, as folders train/<class>/ and test/<class>/."""
    rng = np.random.default_rng(0)
    for name in CIFAR10_CLASSES:
        colour = rng.integers(40, 215, 3)
        for part, n in (("train", n_train), ("test", n_test)):
            for i in range(n):
                place = folder / part / name
                place.mkdir(parents=True, exist_ok=True)
                pixels = np.clip(colour + rng.normal(0, 25, (SIDE, SIDE, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(place / f"{i}.png")
    return folder


def toy(preset: Preset) -> Preset:
    """The preset with the same settings, as small as they can be."""
    small = {"image_size": TOY_SIZE, "epochs": 1, "batch_size": 32, "n_views": 2, "start_steps": 2}

    def shrunk(settings):
        narrow = {"backbone_width": TOY_WIDTH} if settings.get("backbone") == "resnet18" else {}
        return {name: min(small[name], v) if name in small else v for name, v in settings.items()} | narrow

    return replace(
        preset,
        all=shrunk(preset.all),
        deep=shrunk({"epochs": 1, "batch_size": 32, "pretraining_epochs": 1, "start_steps": 2, **preset.deep}),
        of_task={task: shrunk(settings) for task, settings in preset.of_task.items()},
        of_dataset={name: shrunk(settings) for name, settings in preset.of_dataset.items()},
        stages=tuple((name, shrunk({"epochs": 1, **settings})) for name, settings in preset.stages),
        splits=("0",),
        seeds=(0,),
        is_tuned=False,
    )
