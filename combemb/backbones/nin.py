"""The network in network for small images that NINH was published with."""

from torch import nn

from combemb.backbones.base import Backbone


class NIN(Backbone):
    """Lai et al., "Simultaneous feature learning and hash coding" (CVPR 2015), after Lin et al. (2014); F = 1024.

    Each convolution is followed by one of 1x1 and both by ReLUs; there are no batch norms. The last 1x1 convolution of
    the published trunk depends on the bits and belongs to the method. Poolings round up, as in Caffe.
    """

    name = "nin"
    default_size = 32
    min_size = 8
    n_features = 1024

    def __init__(self) -> None:
        super().__init__()
        largest, average = (pool(3, 2, ceil_mode=True) for pool in (nn.MaxPool2d, nn.AvgPool2d))
        self.stages["conv1"] = nn.Sequential(*_conv(3, 96, 5), *_conv(96, 96), largest, nn.Dropout())
        self.stages["conv2"] = nn.Sequential(*_conv(96, 256, 5), *_conv(256, 256), largest)
        self.stages["conv3"] = nn.Sequential(*_conv(256, 384), *_conv(384, 384), average, nn.Dropout())
        self.stages["conv4"] = nn.Sequential(*_conv(384, 1024, 3))
        self._initialise()


def _conv(inputs: int, outputs: int, side: int = 1) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(inputs, outputs, side, padding=side // 2), nn.ReLU(inplace=True)
