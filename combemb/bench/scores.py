"""The scores of one fit: mean average precision of codes and of z, and agreement of clusters with hidden classes."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import openTSNE
import torch
from sklearn.decomposition import PCA
from torch import Tensor

from combemb.bench.protocol import Pile, rows_of
from combemb.data.labels import read_labels
from combemb.discovery.kmeans import kmeans
from combemb.discovery.metrics import agreement
from combemb.learning.codes import CodeMethod
from combemb.learning.head import HeadMethod
from combemb.learning.method import Method
from combemb.search.codebook import Codebook
from combemb.search.metrics import code_retrieval, float_retrieval

MAX_QUERIES = 1_000  # of seen classes, and of z; the mAP of codes of novel queries has all of them
METRICS = ("acc_joint", "acc_split", "acc_paper", "nmi", "ari")
N_STARTS = 10  # of k-means
MAP_ITEMS, MAP_STEPS = 1_000, (250, 500)  # test items on a t-SNE map; steps with and without exaggeration
Scores = dict[str, Any]


class Plain:
    """The float features of a backbone, which need no training."""

    def embed(self, x: Any) -> Tensor:
        """Return the clean view of embeddings (N, V, F) or (N, F)."""
        return torch.from_numpy(np.asarray(x[:, 0] if x.ndim == 3 else x, np.float32))


Fitted = Method | Plain


def retrieval(model: Fitted, pile: Pile) -> Scores:
    """Return the mAP of queries of novel and of seen classes: of codes, if the method has any, and of z."""
    z, known = model.embed(pile.test_x), np.flatnonzero(pile.is_known)
    database = model.embed(pile.x)[known]
    codebook: Codebook | None = model.codebook if isinstance(model, CodeMethod) else None
    codes = None if codebook is None else codebook.encode(database)
    found: Scores = {}
    for part, on in (("novel", pile.is_novel_test), ("seen", ~pile.is_novel_test)):
        rows = np.flatnonzero(on)
        if len(rows) == 0:
            continue
        few = rows[np.linspace(0, len(rows) - 1, min(len(rows), MAX_QUERIES)).astype(int)]
        of_z = float_retrieval(z[few], database, *_targets(pile, part, few))
        found |= {f"{part}_z": of_z.map, f"{part}_chance": of_z.chance}
        if codebook is not None and codes is not None:
            asked = rows if part == "novel" else few
            of_codes = code_retrieval(codebook, z[asked], codes, *_targets(pile, part, asked))
            found |= {f"{part}_codes": of_codes.map, f"{part}_queries": of_codes.n_queries}
            found[f"{part}_chance"] = of_codes.chance
    return found


def _targets(pile: Pile, part: str, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the targets of queries and of the database; of several, only novel ones count for novel queries."""
    targets = pile.test_targets[queries], pile.targets[pile.is_known]
    if pile.is_multi and part == "novel":
        return targets[0][:, pile.novel], targets[1][:, pile.novel]
    return targets


def discovery(model: Fitted, pile: Pile, seed: int) -> Scores:
    """Return the agreement of clusters with classes, the number of classes given.

    Clusters are those of k-means on the embeddings, of test items and of unlabelled training items; of k-means with the
    labels; and those of the method's own head if it has one.
    """
    options: dict[str, Any] = {"seed": seed, "n_starts": N_STARTS, "progress": False}
    found: Scores = {}
    for name, x, targets, is_novel in _parts(pile):
        z = model.embed(x)
        clusters = {name: kmeans(z, pile.n_classes, **options).assignment}
        if isinstance(model, HeadMethod):
            clusters[f"head_{name}"] = model.predict(x)
        if name == "train":
            clusters["labels"] = _with_labels(model, pile, z, options)
        for title, assigned in clusters.items():
            agreed = agreement(assigned.tolist(), targets, is_novel)
            found |= {f"{title}_{m}_{p}": v for m in METRICS for p, v in getattr(agreed, m)._asdict().items()}
    return found


def _with_labels(model: Fitted, pile: Pile, z: Tensor, options: dict[str, Any]) -> np.ndarray:
    """Return the clusters of unlabelled training items z by k-means in which labelled ones stay in their class."""
    rows = np.flatnonzero(pile.labels >= 0)
    both = torch.cat([model.embed(rows_of(pile.x, rows)), z])
    labels = read_labels(np.concatenate([pile.labels[rows], np.full(len(z), -1)]), len(both))
    return kmeans(both, pile.n_classes, labels, **options).assignment[len(rows) :]


def _parts(pile: Pile) -> Iterator[tuple[str, Any, np.ndarray, np.ndarray]]:
    """Yield what is clustered: its name, the items, their targets, and which of them are novel."""
    rows = np.flatnonzero((pile.labels < 0) & pile.is_known)
    yield "train", rows_of(pile.x, rows), pile.targets[rows], pile.is_novel[rows]
    yield "test", pile.test_x, pile.test_targets, pile.is_novel_test


def tsne_map(model: Fitted, pile: Pile, seed: int) -> Scores:
    """Return a t-SNE map of some test items: `places` (n, 2) with one decimal, and their `targets`."""
    rows = np.linspace(0, len(pile.test_targets) - 1, min(len(pile.test_targets), MAP_ITEMS)).astype(int)
    z = model.embed(rows_of(pile.test_x, rows)).numpy().astype(np.float64)
    z = PCA(min(50, *z.shape), random_state=seed).fit_transform(z)
    fitted = openTSNE.TSNE(
        perplexity=min(30.0, (len(z) - 1) / 3),
        neighbors="exact",
        initialization=1e-4 * z[:, :2] / max(z[:, 0].std(), 1e-12),
        early_exaggeration_iter=MAP_STEPS[0],
        n_iter=MAP_STEPS[1],
        negative_gradient_method="bh",
        n_jobs=1,
        random_state=seed,
    ).fit(z)
    places, targets = np.round(np.asarray(fitted), 1).tolist(), pile.test_targets[rows].tolist()
    return {"places": places, "targets": targets, "is_novel": pile.is_novel_test[rows].astype(int).tolist()}


def plain(value: Any) -> Any:
    """Return what JSON can hold: Python numbers of six digits, None for NaN."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(inner) for inner in value]
    value = value.item() if isinstance(value, np.generic | Tensor) else value
    if isinstance(value, float):
        return None if math.isnan(value) else round(value, 6)
    return value
