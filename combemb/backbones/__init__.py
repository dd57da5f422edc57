"""Networks that turn images into features, and the map that prepares features for a head."""

from combemb.backbones.alexnet import AlexNet
from combemb.backbones.base import Backbone
from combemb.backbones.efficientnet_lite0 import EfficientNetLite0
from combemb.backbones.hugging_face import HuggingFace
from combemb.backbones.nin import NIN
from combemb.backbones.resnet18 import ResNet18
from combemb.backbones.vgg import VGG
from combemb.system.errors import require

__all__ = ["Backbone", "build", "names"]

BUILT_IN: dict[str, type[Backbone]] = {kind.name: kind for kind in (AlexNet, EfficientNetLite0, NIN, ResNet18, VGG)}


def names() -> list[str]:
    """Return the names of the built-in backbones; `build` also accepts `hf:<name or folder>`."""
    return sorted(BUILT_IN)


def build(name: str, *, width: int = 64, weights: str | None = None, pretrained: bool = True) -> Backbone:
    """Build a backbone, in training mode like every new module.

    Parameters
    ----------
    name : str
        One of `names()`, or `hf:` and the name or folder of a Hugging Face vision model. A built-in one may end at a
        named stage, as in `alexnet:conv5`: features are then the output of that stage, averaged over the positions.
    width : int
        Channels of the first stage; for resnet18 only.
    weights : str, optional
        A .safetensors file of the state dict; what it has of later stages is ignored. By default the pretrained weights
        if the backbone has any, otherwise random ones from torch's global generator.
    pretrained : bool
        False skips the pretrained weights of a built-in backbone, for example because others will be loaded.

    Returns
    -------
    Backbone
    """
    is_foreign = name.startswith("hf:")
    kind, colon, stage = (name, "", "") if is_foreign else name.partition(":")
    has_width = kind == ResNet18.name or width == 64
    require(has_width, f"width={width} is for {ResNet18.name} only; {name} has one width, leave it at 64")
    choices = f"{', '.join(names())}, or hf:<name> for a Hugging Face model or the folder of one"
    require(kind in BUILT_IN or is_foreign, f"unknown backbone {name!r}; choose one of {choices}")
    if is_foreign:
        backbone: Backbone = HuggingFace(name.removeprefix("hf:"))
    else:
        backbone = ResNet18(width) if kind == ResNet18.name else BUILT_IN[kind]()
    if weights is None and pretrained:
        backbone.load_pretrained()
    if colon:
        backbone.end_at(stage)
    if weights is not None:
        backbone.load_weights(weights)
    return backbone
