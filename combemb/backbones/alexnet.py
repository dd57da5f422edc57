"""AlexNet in its one-column form, which older papers on hashing use."""

from torch import Tensor, nn

from combemb.backbones.base import Backbone

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pixels in 0..1, for which weights are made
TORCHVISION = {  # its layers that have weights, by their names here; None: the class scores, which are no feature
    "features.0": "stages.conv1.0",
    "features.3": "stages.conv2.0",
    "features.6": "stages.conv3.0",
    "features.8": "stages.conv4.0",
    "features.10": "stages.conv5.0",
    "classifier.1": "stages.fc.2",
    "classifier.4": "stages.fc.5",
    "classifier.6": None,
}


class AlexNet(Backbone):
    """Krizhevsky, "One weird trick" (2014): five convolutions, then two layers of 4096; F = 4096 (fc7).

    `conv5` ends with an average pooling to 6x6, which changes nothing at 224 pixels and allows other sizes. Below 63
    pixels the last max pooling has no input left. Weights may have torchvision's names; pixels have its scale.
    """

    name = "alexnet"
    default_size = 224
    min_size = 63
    n_features = 4096

    def __init__(self) -> None:
        super().__init__(*(tuple(255 * value for value in values) for values in (MEAN, STD)))
        self.stages["conv1"] = nn.Sequential(nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2))
        self.stages["conv2"] = nn.Sequential(nn.Conv2d(64, 192, 5, 1, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2))
        self.stages["conv3"] = nn.Sequential(nn.Conv2d(192, 384, 3, 1, 1), nn.ReLU(inplace=True))
        self.stages["conv4"] = nn.Sequential(nn.Conv2d(384, 256, 3, 1, 1), nn.ReLU(inplace=True))
        self.stages["conv5"] = nn.Sequential(
            nn.Conv2d(256, 256, 3, 1, 1), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2), nn.AdaptiveAvgPool2d(6)
        )
        self.stages["fc"] = fc = nn.Sequential(nn.Flatten())
        for inputs in (256 * 6 * 6, 4096):
            fc.extend([nn.Dropout(), nn.Linear(inputs, 4096), nn.ReLU(inplace=True)])
        self._initialise()

    def renamed(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return weights by their names here, without torchvision's class scores."""
        named = {}
        for key, tensor in weights.items():
            layer, _, kind = key.rpartition(".")
            here = TORCHVISION.get(layer, layer)
            if here is not None:
                named[f"{here}.{kind}"] = tensor
        return named
