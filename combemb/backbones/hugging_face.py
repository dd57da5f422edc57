"""Any Hugging Face vision model as a backbone, through transformers (an optional extra)."""

import importlib
import inspect
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from combemb.backbones.base import Backbone, first_of
from combemb.system.errors import require

IGNORED_CONFIG = ("_name_or_path", "transformers_version")  # do not decide the features
POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "first token": lambda x: x[:, 0],
    "mean of tokens": lambda x: x.mean(dim=1),
    "mean of all but the first token": lambda x: x[:, 1:].mean(dim=1),
    "mean of positions": lambda x: x.mean(dim=(2, 3)),
}


class HuggingFace(Backbone):
    """A vision model by its name on the hub or its folder: ViT, DINOv2, CLIP, SigLIP, ResNet, ConvNeXt and others.

    Stages are `embeddings` and one per layer of the encoder, the last with the final norm and pooling. They are guessed
    from the names of the parts and accepted if they reproduce the model's own vector for a random picture. Otherwise
    the whole model is the only stage, `model`; `stage_names` and the printed backbone show it.

    The vector is the model's `pooler_output`; for ViT's dense pooler, for which many checkpoints have no weights, it is
    the first token. Pixels are scaled as in preprocessor_config.json; without it, to -1..1 and with a warning.
    """

    has_weights = True

    def __init__(self, model_name: str):
        model, settings = load(model_name)
        super().__init__(*pixel_scale(settings))
        self.name = f"hf:{model_name}"
        config = {key: value for key, value in model.config.to_dict().items() if key not in IGNORED_CONFIG}
        self.settings = json.dumps(config, sort_keys=True, default=str)
        self.default_size = image_side(settings, model.config)
        self.min_size = side(getattr(model.config, "patch_size", None)) or self.min_size
        whole = WholeModel(model).eval()
        shape = (2, 3, self.default_size, self.default_size)
        picture = self.normalised(torch.randint(256, shape, generator=torch.Generator().manual_seed(0)))
        with torch.no_grad():
            vectors = whole(picture)
            self.stages.update(split(model, picture, vectors) or {"model": whole})
        self.n_features = vectors.shape[1]
        self.train()


def load(name: str) -> tuple[Any, dict[str, Any]]:
    """Load a vision model in float32 from the hub or a folder, and the settings of its image processor if any."""
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise ValueError(f"hf:{name} needs transformers ({error}); pip install combemb[hf]") from error
    where = {"pretrained_model_name_or_path": name, "local_files_only": Path(name).is_dir()}
    log = transformers.utils.logging
    verbosity, has_bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.disable_progress_bar()
    log.set_verbosity_error()  # it reports unused heads; missing tensors are checked below
    try:
        how = {"trust_remote_code": False, "output_loading_info": True}
        model, report = transformers.AutoModel.from_pretrained(**where, **how)
    except Exception as error:  # an unknown name, no network, a damaged file, shapes that do not fit
        reason = (str(error) or repr(error)).splitlines()[0]
        raise ValueError(f"cannot load hf:{name}: {reason}; give a model's name on the hub or its folder") from error
    finally:
        log.set_verbosity(verbosity)
        if has_bars:
            log.enable_progress_bar()
    missing = [key for key in report["missing_keys"] if "pooler" not in key.split(".")]
    n = len(missing)
    require(n == 0, f"the files of hf:{name} lack {n} tensors ({first_of(missing)}); download them again")
    model = getattr(model, "vision_model", model)  # one half of models such as CLIP
    reads = model.main_input_name
    require(reads == "pixel_values", f"hf:{name} is not a vision model: it reads {reads}, not pixel_values")
    try:
        settings, _ = transformers.ImageProcessingMixin.get_image_processor_dict(**where)
    except OSError as error:  # it has none, or none that could be downloaded
        warnings.warn(f"hf:{name} has no image processor; pixels are scaled to -1..1 ({error})", stacklevel=4)
        settings = {}
    if hasattr(model.config, "mask_ratio"):
        model.config.mask_ratio = 0.0  # show a masked autoencoder the whole picture
    return model.float(), settings


def pixel_scale(settings: dict[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation in units of a pixel, (p - mean) / std, of an image processor."""
    rescale = settings.get("rescale_factor", 1 / 255) if settings.get("do_rescale", True) else 1.0
    if settings.get("do_normalize", True):
        mean, std = settings.get("image_mean") or (0.5,) * 3, settings.get("image_std") or (0.5,) * 3
    else:
        mean, std = (0.0,) * 3, (1.0,) * 3
    return tuple(value / rescale for value in mean), tuple(value / rescale for value in std)


def image_side(settings: dict[str, Any], config: Any) -> int:
    """Return the side of the images after the model's own resizing and cropping; 224 if unknown."""
    crop = settings.get("crop_size") if settings.get("do_center_crop", True) else None
    return side(crop) or side(settings.get("size")) or side(getattr(config, "image_size", None)) or 224


def side(size: Any) -> int | None:
    """Return the shorter side of a size in any form that configurations use."""
    if isinstance(size, dict):
        size = [size[key] for key in ("height", "width", "shortest_edge") if size.get(key)]
    return min(size, default=None) if isinstance(size, list | tuple) else size


class WholeModel(nn.Module):
    """A model as a function of normalised pixels (B, 3, H, W) to its vector (B, F)."""

    def __init__(self, model: Any):
        super().__init__()
        if hasattr(getattr(model, "pooler", None), "dense"):
            model.pooler = None
        self.model = model
        self.options = options(model)
        self.has_class_token = any("cls_token" in name or "class_emb" in name for name, _ in model.named_parameters())

    def forward(self, x: Tensor) -> Tensor:
        """Return the pooler_output if there is one, otherwise the first token, otherwise the mean."""
        output = self.model(x, **self.options)
        pooled = output.get("pooler_output")
        if pooled is not None:
            return cast(Tensor, pooled.flatten(1))
        hidden = output.last_hidden_state
        kind = "mean of positions" if hidden.ndim == 4 else "first token" if self.has_class_token else "mean of tokens"
        return POOLS[kind](hidden)


class Part(nn.Module):
    """A part of a model as a function of one tensor: other required arguments are None, the first output counts."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module
        others = list(inspect.signature(module.forward).parameters.values())[1:]
        self.nones = [None for p in others if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
        self.options = options(module)

    def forward(self, x: Tensor) -> Tensor:
        """Run the part."""
        output = self.module(x, *self.nones, **self.options)
        return cast(Tensor, output[0] if isinstance(output, tuple) else output)


class Pool(nn.Module):
    """Pools tokens (B, T, C) or maps (B, C, h, w) to vectors (B, C)."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind

    def extra_repr(self) -> str:
        """Show the kind when the backbone is printed."""
        return self.kind

    def forward(self, x: Tensor) -> Tensor:
        """Pool x."""
        return POOLS[self.kind](x)


def options(module: nn.Module) -> dict[str, bool]:
    """Return options that adapt position embeddings to the size of the image, if the module has any."""
    known = inspect.signature(module.forward).parameters
    return {"interpolate_pos_encoding": True} if "interpolate_pos_encoding" in known else {}


def split(model: Any, picture: Tensor, vectors: Tensor) -> dict[str, nn.Module] | None:
    """Return stages that compute these vectors of this picture, or None if the structure is not understood."""
    embeddings = child(model, "embeddings", "embedder")
    layers = child(getattr(model, "encoder", model), "layers", "layer", "stages")
    if embeddings is None or not isinstance(layers, nn.ModuleList):
        return None
    front = nn.Sequential(Part(embeddings), child(model, "pre_layrnorm") or nn.Identity())
    *middle, end = [Part(layer) for layer in layers]
    x = attempt(nn.Sequential(front, *middle, end), picture)
    for tail in tails(model) if x is not None else ():
        found = attempt(tail, x)
        if found is not None and found.shape == vectors.shape and (found - vectors).norm() <= 1e-4 * vectors.norm():
            stages = [front, *middle, nn.Sequential(end, *tail)]
            return {f"layer{i}" if i else "embeddings": stage for i, stage in enumerate(stages)}
    return None


def tails(model: Any) -> Iterator[nn.Sequential]:
    """Yield what may follow the last layer: the final norm before or after a pooling, or no norm."""
    norm = child(model, "layernorm", "post_layernorm", "norm")
    own = child(model, "head", "pooler")
    pools: list[nn.Module] = [Pool(kind) for kind in POOLS]
    for pool in pools if own is None else [own, *pools]:
        if norm is not None:
            yield nn.Sequential(norm, pool, nn.Flatten())
            yield nn.Sequential(pool, nn.Flatten(), norm)
        yield nn.Sequential(pool, nn.Flatten())


def child(module: nn.Module, *names: str) -> nn.Module | None:
    """Return the first child with one of these names."""
    return next((part for name, part in module.named_children() if name in names), None)


def attempt(module: nn.Module, x: Tensor | None) -> Tensor | None:
    """Return the module's output, or None if it does not accept x: foreign code may raise anything then."""
    try:
        return cast(Tensor, module(x))
    except Exception:
        return None
