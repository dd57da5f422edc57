"""Tiny ImageNet as it is published."""

from pathlib import Path

import numpy as np

from combemb.data.datasets.dataset import Dataset, divided, first_with, positions, read_fields
from combemb.data.folders import image_files
from combemb.data.images import Images


def tiny_imagenet(path: Path) -> Dataset:
    """Read Tiny ImageNet from the folder `tiny-imagenet-200`; its validation images are the test images.

    Classes are in the order of wnids.txt, with their names from words.txt.
    """
    folder = first_with("wnids.txt", path, path / "tiny-imagenet-200")
    if folder is None or not (folder / "train").is_dir() or not (folder / "val/val_annotations.txt").exists():
        raise ValueError(
            f"{path} is not Tiny ImageNet: expected tiny-imagenet-200/ with wnids.txt, words.txt, "
            "train/<wnid>/images/, val/images/ and val/val_annotations.txt"
        )
    wnids = [wnid for (wnid,) in read_fields(folder / "wnids.txt", 1)]
    words = dict(read_fields(folder / "words.txt", 2, "\t"))
    train_ids = [f"train/{name}" for name in image_files(folder / "train")]
    annotations = folder / "val/val_annotations.txt"
    files, of_files = zip(*read_fields(annotations, 2, "\t"), strict=True)  # a box follows
    test_ids = [f"val/images/{file}" for file in files]
    in_folders = [name.split("/")[1] for name in train_ids]
    targets = [positions(in_folders, wnids, folder), positions(list(of_files), wnids, annotations)]
    ids = train_ids + test_ids
    images = Images(files=[folder / name for name in ids], ids=np.array(ids))
    is_test = np.arange(len(ids)) >= len(train_ids)
    class_names = np.array([words.get(wnid, wnid) for wnid in wnids])
    return divided("tiny_imagenet", images, np.concatenate(targets), is_test, class_names)
