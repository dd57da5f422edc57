"""Presets: on which features, at which size and for how long the methods of a table are trained. They are data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from combemb.system.errors import require

CAVEAT = (
    "The backbone was trained on ImageNet, whose classes overlap these (Tiny-ImageNet is a part of it): a novel class "
    "is novel to the labels, not to the backbone. The paper has other features, so a difference to its numbers is not "
    "one of the methods alone."
)
WEIGHTS = "<file of weights>"  # a setting that `--weights` gives
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Preset:
    """Settings for all methods; a method gets those that it has.

    Attributes
    ----------
    name, about : str
    all, deep : Settings
        For every method, and for methods that train a network.
    of_task, of_dataset, of_method : mapping to Settings
        Settings that replace the former, the later ones first.
    stages : tuple of (str, Settings)
        First stages of the backbone, for methods that have none of their own: names of `combemb pretrain` and settings.
    per_class, per_class_test : mapping of str to int
        The first so many training and test images of each class; `"*"` is for all other data sets.
    tasks : tuple of str
    is_tuned : bool
        Whether methods have the settings of `recipes.py`, which were found on frozen features.
    splits, seeds : tuple, optional
        Fewer than a table has.
    caveat : str
        What to know about the features; it is printed with the tables.
    heading : str
        A title for the report, if not the name.
    """

    name: str
    about: str
    all: Settings
    deep: Settings = field(default_factory=dict)
    of_task: Mapping[str, Settings] = field(default_factory=dict)
    of_dataset: Mapping[str, Settings] = field(default_factory=dict)
    of_method: Mapping[str, Settings] = field(default_factory=dict)
    stages: tuple[tuple[str, Settings], ...] = ()
    per_class: Mapping[str, int] = field(default_factory=dict)
    per_class_test: Mapping[str, int] = field(default_factory=dict)
    tasks: tuple[str, ...] = ("retrieval", "discovery", "regions")
    is_tuned: bool = True
    splits: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    caveat: str = CAVEAT
    heading: str = ""

    @property
    def title(self) -> str:
        """A title for the report."""
        return self.heading or f"Preset {self.name}"


UNCHECKED = {"check": False}  # the check on hidden classes is a second fit
FROZEN = {"backbone": "efficientnet_lite0", "n_views": 3, **UNCHECKED}
PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "cpu",
            "Frozen EfficientNet-Lite0 at 224 px, three views; hours on two cores",
            {**FROZEN, "image_size": 224},
        ),
        Preset(
            "small",
            "As cpu, at 96 px and with at most 600 training images per class",
            {**FROZEN, "image_size": 96},
            per_class={"*": 600},
        ),
        Preset(
            "alexnet",
            "Frozen convolutions of AlexNet at 224 px, averaged over the positions; needs --weights",
            {"backbone": "alexnet:conv5", "backbone_weights": WEIGHTS, "n_views": 3, "image_size": 224, **UNCHECKED},
            tasks=("retrieval",),
        ),
        Preset(
            "paper",
            "Fine-tuned AlexNet (needs --weights) for retrieval, ResNet-18 from SimCLR for discovery; for a GPU",
            UNCHECKED,
            deep={"finetune": "all", "epochs": 200, "batch_size": 256},
            of_task={
                "retrieval": {"backbone": "alexnet", "backbone_weights": WEIGHTS, "image_size": 224},
                "discovery": {"backbone": "resnet18", "image_size": 32, "backbone_rate": 1.0},
            },
            of_dataset={"tiny_imagenet": {"image_size": 64}},
            stages=(("simclr", {}),),  # that of the methods with first stages of their own, so that all share it
            is_tuned=False,
            caveat="For retrieval: " + CAVEAT + " For discovery, the backbone starts from random weights.",
        ),
        Preset(
            "smoke",
            "A few images of 32 px and a few steps: shows that everything runs; its numbers mean nothing",
            {**FROZEN, "n_views": 2, "image_size": 32},
            deep={"epochs": 2, "batch_size": 64, "start_steps": 5},
            per_class={"*": 12},
            per_class_test={"*": 4},
            splits=("0",),
            seeds=(0,),
        ),
    )
}


def preset_of(name: str) -> Preset:
    """Return a preset by name."""
    require(name in PRESETS, f"there is no preset {name!r}; choose one of {', '.join(PRESETS)}")
    return PRESETS[name]
