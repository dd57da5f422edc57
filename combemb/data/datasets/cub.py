"""CUB-200-2011 as it is published."""

from pathlib import Path

import numpy as np

from combemb.data.datasets.dataset import Dataset, divided, first_with, from_folder, positions, read_fields
from combemb.data.images import Images
from combemb.system.errors import require

EXPECTED = (
    "CUB-200-2011: expected CUB_200_2011/ with images.txt, image_class_labels.txt, classes.txt, train_test_split.txt "
    "and images/"
)


def cub200(path: Path) -> Dataset:
    """Read CUB-200-2011 from the folder `CUB_200_2011`, or from `train/<class>/` and `test/<class>/`.

    Images are in the order of images.txt, classes in the order of classes.txt.
    """
    folder = first_with("images.txt", path, path / "CUB_200_2011")
    if folder is None:
        return from_folder("cub200", path, EXPECTED)
    ids, files = zip(*read_fields(folder / "images.txt", 2), strict=True)
    class_ids, class_names = zip(*read_fields(folder / "classes.txt", 2), strict=True)
    of_image = {}
    for name in ("image_class_labels.txt", "train_test_split.txt"):
        table = dict(read_fields(folder / name, 2))
        is_complete = table.keys() == set(ids)
        require(is_complete, f"{folder / name} and images.txt list different images; take both from one archive")
        of_image[name] = [table[id_] for id_ in ids]
    targets = positions(of_image["image_class_labels.txt"], list(class_ids), folder / "image_class_labels.txt")
    is_train = positions(of_image["train_test_split.txt"], ["0", "1"], folder / "train_test_split.txt") == 1
    images = Images(files=[folder / "images" / file for file in files], ids=np.array(files))
    return divided("cub200", images, targets, ~is_train, np.array(class_names))
