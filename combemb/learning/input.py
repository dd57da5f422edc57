"""Input of methods: data as a user gives them become items to learn from or to embed, images by a backbone."""

import hashlib
import statistics
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from combemb import backbones
from combemb.backbones.base import Backbone, LastStage, MapStage
from combemb.backbones.extract import extract
from combemb.data.augmentation import Augmentation, Views
from combemb.data.embeddings import check_finite
from combemb.data.given import Given, Loaded
from combemb.data.image_items import ImageItems, readable
from combemb.data.images import BrokenImage, Images
from combemb.data.items import ArrayItems, Items, chunks
from combemb.learning.settings import setting
from combemb.system.errors import require
from combemb.system.machine import limited_threads, resolved, seeded, threads_beside_decoding
from combemb.system.team import ALONE, Team

MIN_SIDE = 96  # pixels; smaller images are enlarged
MAX_UNCACHED_IMAGES = 256  # clean features of up to so many images, such as queries, are not cached
MEASURED_IMAGES = 64
LAST_STAGE_ROWS = 256  # inputs of a last stage are large, so fewer are in memory at a time


@dataclass(kw_only=True, eq=False, repr=False)
class ImageSettings:
    """Settings that turn images into features; without effect for embeddings."""

    backbone: str = setting(
        "efficientnet_lite0",
        "network that turns images into features: efficientnet_lite0, resnet18, alexnet, vgg, nin, hf:<name or folder>"
        "; a built-in one may end at a stage, as in alexnet:conv5",
    )
    backbone_weights: str | None = setting(None, "a .safetensors file of its weights; None: its own, if it has any")
    backbone_width: int = setting(64, "channels of the first stage of resnet18", above=0)
    image_size: int | None = setting(
        None, "side in pixels; None: that of the images, at least 96, at most what the backbone was made for", above=0
    )
    n_views: int = setting(3, "views per image stored as features, the first is the clean image; ours", above=0)
    crop_area: float = setting(0.3, "smallest part of an image in a view; ours, SimCLR has 0.08", above=0, at_most=1)
    flip: float = setting(0.5, "probability that a view is mirrored; SimCLR's", at_least=0, at_most=1)
    colour: float = setting(0.4, "strength of the colour jitter; SimCLR's for small images", at_least=0, at_most=1)
    grey: float = setting(0.2, "probability that a view is grey; SimCLR's", at_least=0, at_most=1)
    blur: float = setting(
        0.0,
        "probability that a view is blurred; SimCLR: 0.5 for large images, 0 for small",
        at_least=0,
        at_most=1,
    )


class ImageInput:
    """The reader of images of one method.

    Parameters
    ----------
    settings : ImageSettings
        They are copied, so later changes of a fitted method's settings have no effect here.
    seed, device : int, str
        Those of the method.
    trained : {"none", "last", "all"}
        The part of the backbone that the method trains. Images become features, inputs of the last stage, or pixels.
    wants_maps : bool
        Whether the method uses the maps of a frozen backbone. Images then become inputs of the last stage, unless that
        stage makes vectors.
    """

    def __init__(
        self, settings: ImageSettings, seed: int, device: str, trained: str = "none", *, wants_maps: bool = False
    ):
        names = ("crop_area", "flip", "colour", "grey", "blur")
        self.augmentation = Augmentation(**{name: float(getattr(settings, name)) for name in names})
        self.name, self.width, self.weights = settings.backbone, settings.backbone_width, settings.backbone_weights
        self.seed, self.device, self.trained, self.wants_maps = int(seed), device, trained, wants_maps
        self.size = int(settings.image_size or 0)  # in pixels; 0 until `decide_size`
        self.known_digest: str | None = None  # of the backbone of a fitted method; another one is refused
        self.first_stage_weights: Path | None = None

    def start_from(self, weights: Path) -> None:
        """Use the weights of a first stage."""
        self.first_stage_weights = weights
        for name in ("backbone", "digest", "map_stage"):
            self.__dict__.pop(name, None)

    @cached_property
    def backbone(self) -> Backbone:
        """The network; with random weights if a fitted method has stored all of them."""
        has_own = self.trained == "all" and self.known_digest is not None
        with seeded(self.seed):
            weights = None if has_own else self.first_stage_weights or self.weights
            return backbones.build(
                self.name, width=self.width, weights=weights and str(weights), pretrained=not has_own
            )

    @property
    def is_pretrained(self) -> bool:
        """Whether the backbone starts with trained weights."""
        return self.backbone.has_weights or (self.first_stage_weights or self.weights) is not None

    @cached_property
    def digest(self) -> str:
        """A digest of everything that determines the features and is not stored in the run folder."""
        return self._digest({} if self.trained == "all" else self.backbone.state_dict())

    @property
    def start_digest(self) -> str:
        """A digest of the backbone with the weights that a first stage starts from."""
        return self._digest(self.backbone.state_dict())

    def _digest(self, state: dict[str, Tensor]) -> str:
        digest = hashlib.sha256(self.backbone.settings.encode())
        for name, tensor in {"mean": self.backbone.mean, "std": self.backbone.std, **state}.items():
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().data)
        return digest.hexdigest()[:16]

    def decide_size(self, images: Images) -> None:
        """Choose the side of the images in pixels, unless it is set."""
        if not self.size:
            largest = self.backbone.default_size
            self.size = min(max(_typical_side(images, largest), min(MIN_SIDE, largest)), largest)

    @cached_property
    def map_stage(self) -> MapStage | None:
        """The last stage of a frozen backbone for images of the size decided, if the method uses maps and it has any.

        Inputs of that stage are smaller than its maps in most backbones, and in the cache for `finetune="last"` too.
        """
        if not self.wants_maps or self.trained != "none":
            return None
        stage = MapStage(self.backbone.for_inference().to(resolved(self.device)), self.size)
        return stage if stage.has_maps else None

    def part(self, device: torch.device) -> LastStage | Backbone | MapStage | None:
        """Return a copy of the part of the backbone that the method trains or whose maps it uses; None if neither."""
        if self.trained == "none":
            return self.map_stage
        backbone = deepcopy(self.backbone).to(device).eval()
        return LastStage(backbone, self.size) if self.trained == "last" else backbone

    @property
    def own_weights(self) -> dict[str, Tensor] | None:
        """The weights of a backbone that a first stage trained and that is not trained as a whole; otherwise None."""
        is_own = self.first_stage_weights is not None and self.trained != "all"
        return self.backbone.state_dict() if is_own else None

    def load(self, given: Given, n_views: int, progress: bool | None, team: Team = ALONE) -> Loaded:
        """Return images as the items that the method uses, without those that a process of the team cannot read."""
        assert given.images is not None
        self.decide_size(given.images)
        require(
            self.known_digest in {None, self.digest},
            f"{self.name} is not the one that this model was fitted with: its weights or settings have changed; "
            "restore the old ones, or fit again",
        )
        read = self._pixels if self.trained == "all" else self._features
        items, rows, broken = read(given.images, n_views, progress, team)
        assert given.ids is not None
        named = {str(given.ids[row]): reason for row, reason in broken.items()}
        stage = self.map_stage
        are_features, pooled = self.trained == "none" and stage is None, None if stage is None else self._pooled
        return Loaded(items, given, given.ids[rows], rows, given.images.key, named, are_features, pooled)

    def _pooled(self, x: Tensor) -> Tensor:
        """Return features (n, F) of flattened inputs of the frozen last stage."""
        assert self.map_stage is not None
        features: Tensor = self.map_stage(x.to(resolved(self.device)))
        return features.cpu()

    def _features(
        self, images: Images, n_views: int, progress: bool | None, team: Team
    ) -> tuple[Any, np.ndarray, dict[int, str]]:
        require(
            self.is_pretrained,
            f"{self.name} comes without weights; set backbone_weights=FILE, or train it with "
            "finetune='all' of a method that trains a network",
        )
        is_last = self.trained == "last" or self.map_stage is not None
        with limited_threads(threads_beside_decoding()):
            found = extract(
                images,
                self.backbone,
                about={"backbone": self.name, "weights": self.digest},
                size=self.size,
                n_views=int(n_views),
                augmentation=self.augmentation,
                last_stage=is_last,
                keep=n_views > 1 or len(images) > MAX_UNCACHED_IMAGES,
                device=resolved(self.device),
                progress=progress,
                team=team,
            )
        items = ArrayItems(found.x)
        items.n_rows = LAST_STAGE_ROWS if is_last else items.n_rows
        return items, found.rows, found.broken

    def _pixels(
        self, images: Images, _: int, progress: bool | None, team: Team
    ) -> tuple[Any, np.ndarray, dict[int, str]]:
        if self.known_digest is None:  # raises an error if the backbone cannot process this size
            self.backbone.n_outputs(self.size, self.backbone.for_inference(), torch.device("cpu"))
        rows, broken = readable(images, progress, team)
        return ImageItems(Views(images, self.size, self.augmentation, self.seed), rows), rows, broken


def load_items(
    given: Given, images: ImageInput | None, n_views: int, progress: bool | None, team: Team = ALONE
) -> Loaded:
    """Return embeddings, or images by their reader, as items; images that cannot be read are left out."""
    if given.images is None:
        assert given.x is not None
        return Loaded(ArrayItems(given.x), given, given.ids)
    if images is None:
        raise ValueError("this model was fitted on embeddings; give it embeddings, not images")
    return images.load(given, n_views, progress, team)


def embeddable(items: Items, n_inputs: int | None, progress: bool | None) -> Iterator[Tensor]:
    """Return items in chunks of rows if a method can embed them: features, n_inputs of them; pixels if that is None."""
    require(
        isinstance(items, ArrayItems) == (n_inputs is not None),
        "this model was fitted on images with finetune='all'; give it images",
    )
    if isinstance(items, ArrayItems):
        if items.n_features != n_inputs:
            raise ValueError(f"x has {items.n_features} features; this model was fitted on {n_inputs}")
        check_finite(items.x[:, 0], allow_constant=True, progress=progress)
    return chunks(items, "embedding", progress)


def _typical_side(images: Images, enough: int) -> int:
    """Return the median of the shorter sides of some images."""
    if images.pixels is not None:
        return int(min(images.pixels.shape[1:3]))
    sides = []
    for i in range(0, len(images), -(-len(images) // MEASURED_IMAGES)):
        try:
            sides.append(min(images.read(i, at_least=enough).size))
        except BrokenImage:
            continue
    return int(statistics.median(sides)) if sides else enough
