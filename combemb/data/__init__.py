"""Reading what the user gives: images, embeddings, labels that cover some classes, and open-set splits."""

from combemb.data import datasets
from combemb.data.embeddings import Embeddings, read_embeddings
from combemb.data.folders import is_images, read_images
from combemb.data.images import BrokenImage, Images
from combemb.data.labels import Labels, read_labels
from combemb.data.splits import OpenSetSplit, open_set_split

__all__ = [
    "BrokenImage",
    "Embeddings",
    "Images",
    "Labels",
    "OpenSetSplit",
    "datasets",
    "is_images",
    "open_set_split",
    "read_embeddings",
    "read_images",
    "read_labels",
    "sources",
]

sources = datasets  # the former name
