"""Features of images by a frozen backbone, computed once and kept in a cache."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from combemb.backbones.base import Backbone
from combemb.backbones.decoding import Decoded, Decoder
from combemb.backbones.feature_cache import FEATURE_DTYPE, Found, Store, Writer, view_keys
from combemb.backbones.openvino_network import converted, is_wanted
from combemb.data.augmentation import Augmentation, Views
from combemb.data.image_items import ImageItems
from combemb.data.images import Images, refuse_many_broken
from combemb.system.ahead import ahead
from combemb.system.errors import require
from combemb.system.machine import memory_kept
from combemb.system.progress import Display

SECONDS_BETWEEN_SAVES = 5.0  # a killed process loses at most this much work
MAX_VIEWS = ImageItems.n_views
MANY_PIXELS = 20_000_000  # torch computes views with fewer before OpenVINO would be ready: 400 views of 224 px
CPU = torch.device("cpu")
Keys = tuple[np.ndarray, np.ndarray]  # of images (N, 2) and views (V,)


@dataclass(frozen=True, eq=False)
class Features:
    """Features of the N' images, of N, that could be read.

    Attributes
    ----------
    x : array (N', V, F) of float16
        Read-only, and a memory map if it is large; view 0 is the clean one.
    rows : array (N',)
        Positions of these images among the N.
    broken : dict
        Position of each image that could not be read -> reason.
    folder, is_hit : Path or None, bool
        Where the features are stored, and whether all of them were there before.
    """

    x: np.ndarray
    rows: np.ndarray
    broken: dict[int, str]
    folder: Path | None
    is_hit: bool


def extract(
    images: Images,
    backbone: Backbone,
    *,
    about: dict[str, Any],
    size: int,
    n_views: int,
    augmentation: Augmentation,
    seed: int = 0,
    last_stage: bool = False,
    cache: Path | None = None,
    keep: bool = True,
    device: torch.device = CPU,
    batch_size: int = 64,
    n_workers: int | None = None,
    progress: bool | None = None,
) -> Features:
    """Return the features of `n_views` views of every image, from the cache or computed and added to it.

    The cache has every view of an image by itself, so only what is not there is computed: new and changed images, views
    that were not asked for before, and what a killed call left. A call waits for another process that extracts by the
    same backbone. Images that cannot be read are left out; more than a tenth of them raise a ValueError.

    Parameters
    ----------
    images : Images
    backbone : Backbone
    about : dict
        Identifies the weights of the backbone, as JSON.
    size, n_views, augmentation, seed
        Side of a view in pixels, and the views: the clean one and `n_views - 1` augmented ones.
    last_stage : bool
        Store the input of the last stage, flattened, instead of the features.
    cache : Path, optional
        Root of the cache; by default COMBEMB_CACHE or the user's cache folder.
    keep : bool
        False stores nothing: for a few images, such as queries.
    device, batch_size, n_workers, progress
        Where and how to compute; 0 workers decode in threads, None chooses a number.

    Returns
    -------
    Features
    """
    require(min(n_views, batch_size) > 0, f"n_views={n_views} and batch_size={batch_size} must be 1 or more")
    require(n_views <= MAX_VIEWS, f"n_views={n_views:,} is more than the {MAX_VIEWS:,} that there are; use fewer")
    smallest = backbone.min_size
    require(size >= smallest, f"size={size} is too small for {backbone.name}; give {smallest} or more")
    views = Views(images, size, augmentation, seed)
    holds = {"backbone": about, "size": size, "last_stage": last_stage}
    store = Store.of(cache, f"{backbone.name}-{size}px", holds)
    keys = images.image_keys, view_keys(n_views, {"augmentation": asdict(augmentation), "seed": seed})
    found, broken = _looked_up(store, keys, images)
    if broken is not None:
        return _features(store, found, broken, is_hit=True)
    with torch.inference_mode(), memory_kept():
        if not keep:
            work = _Work(images, _decoders(views, found, batch_size), 0, device)
            return _in_memory(work, found, work.network(backbone, size, last_stage))
        with store.alone(progress):
            found, broken = _looked_up(store, keys, images)  # another process may have added some
            if broken is not None:
                return _features(store, found, broken, is_hit=True)
            work = _Work(images, _decoders(views, found, batch_size), n_workers, device)
            network = work.network(backbone, size, last_stage)
            done = int(found.is_there.all(axis=1).sum())
            with Display("extracting features", len(images), "images", progress, done=done) as display:
                broken = _fill(store, work, network, keys, display)
            return _features(store, store.find(*keys), broken, is_hit=False)


def _looked_up(store: Store, keys: Keys, images: Images) -> tuple[Found, dict[int, str] | None]:
    """Return what is in the cache, and if no other image can be read, the reasons.

    Images that could not be read are tried every time: a disk may be back.
    """
    found = store.find(*keys)
    broken: dict[int, str] = {}
    for row in np.flatnonzero(~found.is_there.all(axis=1)).tolist():
        reason = images.reason(row)
        if reason is None:
            return found, None
        broken[row] = reason
        refuse_many_broken(broken, images)
    return found, broken


def _features(store: Store, found: Found, broken: dict[int, str], is_hit: bool) -> Features:
    rows = np.delete(np.arange(len(found.row)), list(broken))
    return Features(found.take(rows, store.path), rows, broken, store.path, is_hit)


class _Network(NamedTuple):
    """A frozen network, pixels (B, 3, size, size) -> features (B, F)."""

    compute: Callable[[Tensor], Tensor]
    n_features: int
    name: str


class _LastInput(nn.Module):
    """The input of a backbone's last stage, flattened."""

    def __init__(self, backbone: Backbone):
        super().__init__()
        self.backbone = backbone

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, 3, size, size) -> (B, C*h*w)."""
        return self.backbone.before_last(pixels).flatten(1)


def _decoders(views: Views, found: Found, batch_size: int) -> list[Decoder]:
    """Return what decodes the views that are not in the cache: one for all images that lack the same ones."""
    is_missing = ~found.is_there
    decoders = []
    for pattern in np.unique(is_missing[is_missing.any(axis=1)], axis=0):
        rows = np.flatnonzero((is_missing == pattern).all(axis=1))
        decoders.append(Decoder(views, np.flatnonzero(pattern).tolist(), rows, batch_size))
    return decoders


class _Work:
    """The views to compute. Decoding starts at once, so that it runs while the network is built."""

    def __init__(self, images: Images, decoders: list[Decoder], n_workers: int | None, device: torch.device):
        self.images, self.device = images, device
        self.n_views = sum(len(decoder.rows) * len(decoder.numbers) for decoder in decoders)
        self.parts = [(decoder.numbers, decoder.decoded(n_workers)) for decoder in decoders]

    def network(self, backbone: Backbone, size: int, last_stage: bool) -> _Network:
        """Return the frozen network, by OpenVINO if that is faster."""
        frozen = backbone.for_inference().to(self.device)
        network = _LastInput(frozen) if last_stage else frozen
        n_features = backbone.n_outputs(size, network, self.device)
        is_fast = self.device.type == "cpu" and self.n_views * size**2 >= MANY_PIXELS and is_wanted()
        fast = converted(network, size) if is_fast else None
        name = fast.name if fast else f"torch {torch.__version__}"
        return _Network(fast or network, n_features, name)

    def computed(self, network: _Network) -> Iterator[tuple[Decoded, list[int], np.ndarray]]:
        """Yield decoded batches, the numbers of the views, and their features (B, V, F).

        While the network runs on one view, a thread makes the pixels of the next one.
        """
        for numbers, batches in self.parts:
            views: list[np.ndarray] = []
            for decoded, pixels in ahead(self._pixels(batches)):
                if pixels is not None:
                    views.append(network.compute(pixels).half().cpu().numpy())
                if pixels is None or len(views) == len(numbers):
                    x = np.stack(views, axis=1) if views else np.empty((0, len(numbers), network.n_features))
                    yield decoded, numbers, x
                    views = []

    def _pixels(self, batches: Iterator[Decoded]) -> Iterator[tuple[Decoded, Tensor | None]]:
        """Yield each view of each batch, None for a batch without images that can be read."""
        for decoded in batches:
            if len(decoded.rows) == 0:
                yield decoded, None
            for pixels in decoded.pixels(self.device):
                yield decoded, pixels


def _fill(store: Store, work: _Work, network: _Network, keys: Keys, display: Display) -> dict[int, str]:
    """Store the features; return the reasons why images cannot be read."""
    image_keys, keys_of_views = keys
    broken: dict[int, str] = {}
    saved = time.monotonic()
    with Writer(store, network.n_features, work.n_views, network.name) as writer:
        for decoded, numbers, x in work.computed(network):
            broken.update(decoded.broken)
            refuse_many_broken(broken, work.images)
            _require_finite(x, decoded.rows, numbers, work.images)
            writer.add(image_keys[decoded.rows], keys_of_views[numbers], x)
            display.advance(len(decoded.rows) + len(decoded.broken))
            if time.monotonic() - saved >= SECONDS_BETWEEN_SAVES:
                writer.save()
                saved = time.monotonic()
    return broken


def _in_memory(work: _Work, found: Found, network: _Network) -> Features:
    """Compute features without storing them; those in the cache are used."""
    x = np.empty((*found.row.shape, network.n_features), FEATURE_DTYPE)
    for number, segment in enumerate(found.segments):
        x[found.segment == number] = segment.x[found.row[found.segment == number]]
    broken: dict[int, str] = {}
    for decoded, numbers, part in work.computed(network):
        broken.update(decoded.broken)
        refuse_many_broken(broken, work.images)
        x[decoded.rows[:, None], numbers] = part
    rows = np.delete(np.arange(len(x)), list(broken))
    return Features(x[rows], rows, broken, None, is_hit=False)


def _require_finite(x: np.ndarray, rows: np.ndarray, numbers: list[int], images: Images) -> None:
    for at, view in enumerate(numbers):
        bad = np.flatnonzero(~np.isfinite(x[:, at]).all(axis=1))
        if len(bad) > 0:
            why = "not finite in float16 (they hold NaN or exceed ±65,504); check the weights of the backbone"
            raise ValueError(f"the features of view {view} of {images.name(int(rows[bad[0]]))} are {why}")
