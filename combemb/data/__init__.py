"""Reading what the user gives: embeddings, labels that cover some classes, and open-set splits of labelled data."""

from combemb.data.embeddings import Embeddings, read_embeddings
from combemb.data.labels import Labels, read_labels
from combemb.data.splits import OpenSetSplit, open_set_split

__all__ = ["Embeddings", "Labels", "OpenSetSplit", "open_set_split", "read_embeddings", "read_labels"]
