"""What turns inputs into the features that a method's head sees: networks for images, a map for embeddings."""

from combemb.backbones.alexnet import AlexNet
from combemb.backbones.base import Backbone
from combemb.backbones.efficientnet_lite0 import EfficientNetLite0
from combemb.backbones.hugging_face import HuggingFace
from combemb.backbones.resnet18 import ResNet18
from combemb.backbones.vgg import VGG

__all__ = ["Backbone", "build", "names"]

BUILT_IN: dict[str, type[Backbone]] = {
    backbone.name: backbone for backbone in (AlexNet, EfficientNetLite0, ResNet18, VGG)
}


def names() -> list[str]:
    """The built-in backbones; `hf:<name or folder>` stands for any Hugging Face vision model beside them."""
    return sorted(BUILT_IN)


def build(name: str, *, width: int = 64, weights: str | None = None, pretrained: bool = True) -> Backbone:
    """A backbone by its name, in training mode as every new module.

    width: channels of the first stage, for resnet18 only. weights: a .safetensors file of its state dict; None means
    pretrained where the backbone has weights of its own, else random ones from torch's global generator. Without
    `pretrained` they are random, or whatever a Hugging Face model comes with, because others will be loaded.
    """
    if name != ResNet18.name and width != 64:
        raise ValueError(f"width={width} is for {ResNet18.name} only; {name} has one width, leave it at 64")
    if name.startswith("hf:"):
        backbone: Backbone = HuggingFace(name.removeprefix("hf:"))
    elif name == ResNet18.name:
        backbone = ResNet18(width)
    elif name in BUILT_IN:
        backbone = BUILT_IN[name]()
    else:
        raise ValueError(
            f"unknown backbone {name!r}; choose one of {', '.join(names())}, "
            "or hf:<name> for a Hugging Face model or the folder of one"
        )
    if weights is not None:
        backbone.load_weights(weights)
    elif pretrained:
        backbone.load_pretrained()
    return backbone
