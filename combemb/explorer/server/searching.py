"""Search of the index for what is like an item, with the classes that people made."""

import numpy as np

from combemb.explorer.server import bodies, messages
from combemb.explorer.server.served import Served
from combemb.explorer.server.snapshot import REJECTED, Snapshot

FEW = 8  # a filter that keeps less than a part in so many is searched by itself
MORE = 4  # factor for the number of hits when too few pass a filter


def search(
    served: Served,
    shown: Snapshot,
    z: np.ndarray,
    query: messages.Query,
    k: int,
    *,
    kind: bodies.Kind | None = None,
    cluster: str | None = None,
) -> messages.Found:
    """Return the entries nearest to an embedding (1, D), without the item itself.

    Parameters
    ----------
    served, shown : Served, Snapshot
    z : float32 array of shape (1, D)
    query : Query
        What the answer says about the query.
    k : int
        Number of hits.
    kind, cluster : optional
        Only entries in seen or in novel classes, or in this class.
    """
    rows = served.rows_of_entries()
    is_wanted = _wanted(shown, rows, kind, cluster)
    if query.row is not None:
        is_wanted[rows == query.row] = False
    entries, scores = _nearest(served, z, k, is_wanted)
    listed = served.collection().entries.take(entries).to_pylist()
    hits = []
    for entry, score, about in zip(entries.tolist(), scores.tolist(), listed, strict=True):
        row = int(rows[entry])
        number = REJECTED if row < 0 else int(shown.numbers[row])
        has_picture = about["path"] is not None
        place = f"/api/entries/{entry}" if row < 0 else f"/api/items/{row}"
        hits.append(
            messages.Hit(
                score=score,
                row=None if row < 0 else row,
                entry=entry,
                id=about["id"],
                name=about["id"].removeprefix(shown.items.folder),
                label=about["label"],
                cluster=None if number == REJECTED else shown.names[number],
                is_novel=number != REJECTED and bool(shown.is_novel[number]),
                thumbnail=f"{place}/thumbnail?v={shown.items.tag}" if has_picture else None,
                picture=f"{place}/picture?v={shown.items.tag}" if has_picture else None,
            )
        )
    return messages.Found(query=query, hits=hits)


def _wanted(shown: Snapshot, rows: np.ndarray, kind: bodies.Kind | None, cluster: str | None) -> np.ndarray:
    """Return which entries pass the filters, (n,) bool."""
    if kind is None and cluster is None:
        return np.ones(len(rows), dtype=bool)
    numbers = np.where(rows < 0, REJECTED, shown.numbers[rows])
    is_wanted = numbers != REJECTED
    if kind is not None:
        is_wanted &= shown.is_novel[numbers] == (kind == "novel")
    if cluster is not None:
        is_wanted &= numbers == shown.number(cluster)
    return np.asarray(is_wanted)


def _nearest(served: Served, z: np.ndarray, k: int, is_wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest wanted entries and their scores: those of the whole ranking, as far as it is needed."""
    collection, n = served.collection(), int(is_wanted.sum())
    if n == 0:
        return np.empty(0, np.int64), np.empty(0)
    if n * FEW < len(is_wanted):
        entries, scores = collection.nearest(z, k, among=is_wanted)
        return entries[0], scores[0]
    asked = min(len(is_wanted), k * len(is_wanted) // n + k)
    while True:
        entries, scores = (found[0] for found in collection.nearest(z, asked))
        kept = is_wanted[entries]
        if kept.sum() >= min(k, n) or asked >= len(is_wanted):
            return entries[kept][:k], scores[kept][:k]
        asked *= MORE
