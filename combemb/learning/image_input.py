"""What all methods share that may be given images: the backbone, the views, and how images become items."""

import dataclasses
import hashlib
import statistics
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from combemb import backbones
from combemb.backbones.base import Backbone
from combemb.backbones.extract import extract
from combemb.data.augmentation import Augmentation
from combemb.data.embeddings import Embeddings, as_array, read_embeddings
from combemb.data.folders import are_pixels, is_images, listed_images, read_images
from combemb.data.images import BrokenImage, Images
from combemb.data.items import ArrayItems, Items
from combemb.learning.settings import setting
from combemb.system.errors import require
from combemb.system.machine import limited_threads, n_cores, resolved, seeded

SMALLEST_SIZE = 96  # of images for a pretrained backbone, unless given; smaller ones are enlarged
FEW_IMAGES = 256  # whose clean features, those of queries, are not worth a file
MEASURED_IMAGES = 64  # whose sizes are looked at
LAST_STAGE_ROWS = 256  # that go through the last stage of a backbone at a time; its maps are large


@dataclass(frozen=True, eq=False)
class Given:
    """What a user gave, as items to learn from or to embed, with the ids of those that could be read."""

    items: Items
    labels: Any = None  # as they lay beside the items
    ids: np.ndarray | None = None
    rows: np.ndarray | None = None  # which of the images given the items are
    images_key: str | None = None  # which changes with the images
    broken: dict[str, str] = dataclasses.field(default_factory=dict)  # id -> why it is left out


@dataclass(kw_only=True, eq=False, repr=False)
class FromImages:
    """Settings of the way from images to features; embeddings do not need them."""

    seed: int = setting(0, "what is random in a fit follows from it; the global random state is never touched")
    device: str = setting("auto", "auto takes CUDA, then MPS, then the CPU")
    backbone: str = setting(
        "efficientnet_lite0",
        "makes features of images: efficientnet_lite0, resnet18, alexnet, vgg, hf:<name or folder>",
    )
    backbone_weights: str | None = setting(None, "a .safetensors file for it; None takes those that it comes with")
    backbone_width: int = setting(64, "channels of the first stage of resnet18")
    image_size: int | None = setting(
        None, "side in pixels; None: that of the images, at least 96, at most what the backbone was made for"
    )
    n_views: int = setting(3, "views per image that are kept as features, the first the clean image; ours")
    crop_area: float = setting(0.3, "smallest part of an image in a view; ours, SimCLR has 0.08")
    flip: float = setting(0.5, "probability that a view is mirrored; SimCLR's")
    colour: float = setting(0.4, "strength of the change of colours in a view; SimCLR's for small images")
    grey: float = setting(0.2, "probability that a view is grey; SimCLR's")
    blur: float = setting(0.0, "probability that a view is blurred; SimCLR has 0.5 for large images, none for small")

    def check_images(self) -> None:
        """ValueError if the settings for images do not make sense."""
        require(self.n_views > 0, f"n_views={self.n_views} must be above 0")
        require(self.backbone_width > 0, f"backbone_width={self.backbone_width} must be above 0")
        require(self.image_size is None or self.image_size > 0, f"image_size={self.image_size} must be above 0")
        _ = self.augmentation

    @property
    def augmentation(self) -> Augmentation:
        """The strengths together."""
        names = ("crop_area", "flip", "colour", "grey", "blur")
        return Augmentation(**{name: float(getattr(self, name)) for name in names})

    def read(self, x: Any, *, progress: bool | None = None) -> Given:
        """What a user gives, as items to embed: embeddings, or images as the method wants them, without broken ones."""
        images = as_images(x)
        if images is None:
            return as_embeddings(x)
        require(
            not hasattr(self, "classes_") or hasattr(self, "image_size_"),
            "this model was fitted on embeddings; give it embeddings, not images",
        )
        return self._image_items(images, 1, progress)

    def _image_items(self, images: Images, n_views: int, progress: bool | None) -> Given:
        """Images as the items that the method wants: here features of the frozen backbone."""
        return self._extracted(images, n_views, progress)

    @property
    def _takes_pixels(self) -> bool:
        """Whether a fitted method wants pixels, not features of a backbone."""
        return False

    @property
    def _is_pretrained(self) -> bool:
        return self._backbone.has_weights or self.backbone_weights is not None

    def _extracted(self, images: Images, n_views: int, progress: bool | None, last_stage: bool = False) -> Given:
        require(
            self._is_pretrained,
            f"{self.backbone} comes without weights; give backbone_weights=FILE, or let a method that trains a "
            "network train it with finetune='all'",
        )
        self._require_same_backbone()
        with limited_threads(max(1, n_cores() // 2)):  # the others decode
            found = extract(
                images,
                self._backbone,
                about={"backbone": self.backbone, "weights": self._backbone_digest},
                size=int(self._size(images)),
                n_views=int(n_views),
                augmentation=self.augmentation,
                last_stage=last_stage,
                keep=n_views > 1 or len(images) > FEW_IMAGES,
                device=resolved(self.device),
                progress=progress,
            )
        items = ArrayItems(found.x)
        items.n_rows = LAST_STAGE_ROWS if last_stage else items.n_rows
        return made_of(images, items, found.rows, found.broken)

    def _require_same_backbone(self) -> None:
        require(
            self._backbone_digest == getattr(self, "backbone_digest_", self._backbone_digest),
            f"{self.backbone} is another than when this model was fitted: its weights or settings have changed; "
            "bring back the old ones, or fit again",
        )

    def _size(self, images: Images) -> int:
        """The side of the images in pixels, decided once for a fitted method."""
        known: int | None = self.image_size or getattr(self, "image_size_", None)
        if known:
            return int(known)
        largest = self._backbone.default_size
        return min(max(_typical_side(images, largest), min(SMALLEST_SIZE, largest)), largest)

    @cached_property
    def _backbone(self) -> Backbone:
        with seeded(self.seed):
            return backbones.build(self.backbone, width=self.backbone_width, weights=self.backbone_weights)

    @property
    def _borrowed(self) -> dict[str, Tensor]:
        """What a fitted method needs of the backbone's state and its run folder does not hold."""
        return self._backbone.state_dict()

    @cached_property
    def _backbone_digest(self) -> str:
        backbone = self._backbone
        digest = hashlib.sha256(backbone.settings.encode())
        for name, tensor in {"mean": backbone.mean, "std": backbone.std, **self._borrowed}.items():
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().data)
        return digest.hexdigest()[:16]


def as_images(x: Any) -> Images | None:
    """Images of whatever holds images; None for anything else."""
    if isinstance(x, Images):
        return x
    if isinstance(x, str | Path):
        require(Path(x).exists(), f"cannot read {x}: there is no such file or folder")
        return read_images(x) if is_images(x) else None
    if isinstance(x, list | tuple) and x and all(isinstance(path, str | Path) for path in x):
        return listed_images(x)
    if isinstance(x, torch.Tensor) and x.dtype != torch.bfloat16:
        x = x.detach().cpu().numpy()
    return Images(pixels=np.asarray(x)) if isinstance(x, np.ndarray) and are_pixels(x) else None


def made_of(images: Images, items: Items, rows: np.ndarray, broken: dict[int, str]) -> Given:
    """Items with what is known of the images that they are, the readable `rows`; why the others are `broken`."""
    ids = np.arange(len(images)) if images.ids is None else images.ids
    labels = images.known_labels
    return Given(
        items,
        None if labels is None else labels[rows],
        ids[rows],
        rows,
        images.key,
        {str(ids[row]): reason for row, reason in broken.items()},
    )


def as_embeddings(x: Any) -> Given:
    """Embeddings of an array, or of a file with what lies beside them."""
    found = read_embeddings(x) if isinstance(x, str | Path) else Embeddings(as_array(x))
    return Given(ArrayItems(found.x), found.labels, found.ids)


def _typical_side(images: Images, enough: int) -> int:
    """Median of the shorter sides of some images."""
    if images.pixels is not None:
        return int(min(images.pixels.shape[1:3]))
    sides = []
    for i in range(0, len(images), -(-len(images) // MEASURED_IMAGES)):
        try:
            sides.append(min(images.read(i, at_least=enough).size))
        except BrokenImage:
            continue
    return int(statistics.median(sides)) if sides else enough
