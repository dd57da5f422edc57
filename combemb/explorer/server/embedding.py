"""Embeddings of what requests name: discovered items, uploaded images, features."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from combemb.collection.predicted import classes_of_embedded
from combemb.collection.splitting import items_of
from combemb.explorer.server import messages
from combemb.explorer.server.problems import Refused
from combemb.explorer.server.served import Served
from combemb.explorer.server.snapshot import Snapshot
from combemb.explorer.server.uploads import uploaded


class Embedded(NamedTuple):
    """Embeddings (n, D), and features (n, F) if discovery used any."""

    z: np.ndarray
    features: np.ndarray | None


def of_image(served: Served, content: bytes) -> Embedded:
    """Embed an uploaded image."""
    with uploaded(content) as path:
        return _of(served, [path])


def of_features(served: Served, x: Sequence[Sequence[float]]) -> Embedded:
    """Embed features."""
    if len({len(row) for row in x}) > 1:
        raise Refused(422, "invalid", "x: its rows differ in length")
    return _of(served, np.array(x, dtype=np.float32))


def of_rows(served: Served, shown: Snapshot, rows: Sequence[int]) -> np.ndarray:
    """Return the embeddings (n, D) of discovered items: stored with the map, or computed again without one."""
    check_rows(shown, rows)
    if served.map_state() == "ready":
        stored = served.map()
        z = np.stack([stored.embedding(row) for row in rows])
    else:
        items = items_of(shown.classes, np.asarray(rows), served.model(), served.path)
        z = _of(served, items).z
    if len(z) < len(rows) or not np.isfinite(z).all():
        raise Refused(404, "missing", "the image of this item can no longer be read")
    return z


def check_rows(shown: Snapshot, rows: Sequence[int]) -> None:
    """Refuse rows that are not there."""
    wrong = next((row for row in rows if not 0 <= row < len(shown)), None)
    if wrong is not None:
        raise Refused(404, "missing", f"there is no item {wrong}; there are {len(shown):,}")


def predicted(shown: Snapshot, embedded: Embedded) -> list[messages.Predicted]:
    """Return the classes of embedded items, as `combemb predict` does."""
    placed = classes_of_embedded(shown.items.found, shown.classes, embedded.z, embedded.features)
    return [messages.Predicted(name=name, kind=kind, confidence=confidence) for name, kind, confidence in placed]


def _of(served: Served, x: object) -> Embedded:
    model = served.model()
    with served.embedding:
        data = model.read(x, progress=False)
        return Embedded(model.embed(data, progress=False).numpy(), data.discovery_features)
