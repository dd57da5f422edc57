"""The items of a block as a model encodes them, with their ids and labels."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from combemb.data.embeddings import dense
from combemb.data.entries import listed
from combemb.data.given import Given, read_given
from combemb.data.images import Images, ManyBroken
from combemb.learning.codes import CodeMethod
from combemb.scale.plan import Block, Kind
from combemb.scale.sources import paths_and_labels, plain_labels, rows_of
from combemb.scale.store import Store, is_local, opened

IMAGES_AT_ONCE = 256  # up to so many, features are not kept in the cache: finished blocks are what is kept


@dataclass(frozen=True, eq=False)
class Items:
    """Items of a block.

    Attributes
    ----------
    x : array (n, F) or (n, V, F), or None
        Embeddings.
    paths : list of str, or None
        Paths or URLs of images.
    ids : list of str, or None
        Names of the items; None if they are numbered.
    labels : list of str or None, or None
        One text per item, None if it is unlabelled; None if the table has no column of labels.
    """

    x: np.ndarray | None
    paths: list[str] | None
    ids: list[str] | None
    labels: list[str | None] | None

    def __len__(self) -> int:
        return len(self.paths if self.x is None else self.x)  # type: ignore[arg-type]


def read_items(block: Block, kind: Kind, store: Store) -> Items:
    """Read a block: embeddings, or the paths of images."""
    table, x = rows_of(block.table, store, block.start, block.n_rows)
    if table is None:
        return Items(x, None, None, None)
    if kind == "images":
        paths, labels = paths_and_labels(table, block.table.url)
        return Items(None, paths, paths, labels)
    x = np.concatenate([dense(chunk) for chunk in table["embedding"].chunks])
    name = next((name for name in ("label", "labels") if name in table.column_names), None)
    raw_labels = None if name is None else plain_labels(table[name])
    ids = table["id"].to_pylist() if "id" in table.column_names else None
    _, entries = listed(Given(None, x, raw_labels, None, None if ids is None else np.array(ids, dtype=object)))
    labels = None if name is None else entries["label"].to_pylist()
    return Items(x, None, None if ids is None else entries["id"].to_pylist(), labels)


def encoded(model: CodeMethod, items: Items) -> tuple[np.ndarray, np.ndarray, dict[str, str]]:
    """Return the codes (n, M) of the items that can be read, their places (n,), and reasons why others cannot be."""
    if items.x is not None:
        return model.encode(items.x, progress=False).numpy(), np.arange(len(items)), {}
    assert items.paths is not None, "items are images or embeddings"
    codes, rows = [], []
    broken: dict[str, str] = {}
    for start in range(0, len(items), IMAGES_AT_ONCE):
        with _near(items.paths[start : start + IMAGES_AT_ONCE]) as files:
            found, places, reasons = _encoded_images(model, files)
        codes.append(found)
        rows.append(places + start)
        broken |= {items.paths[start + place]: reason for place, reason in reasons.items()}
    return np.concatenate(codes), np.concatenate(rows), broken


def _encoded_images(model: CodeMethod, files: list[Path]) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
    images = Images(files=files, ids=np.arange(len(files)))
    try:
        data = model.read(read_given(images), progress=False)
    except ManyBroken:  # they may be few among all images; the driver counts them
        reasons = [images.reason(row) for row in range(len(images))]
        rows = np.array([row for row, reason in enumerate(reasons) if reason is None], dtype=np.int64)
        broken = {row: reason for row, reason in enumerate(reasons) if reason is not None}
        none = np.empty((0, len(model.codebook.sizes)), np.uint8)
        return model.encode(images.take(rows), progress=False).numpy() if len(rows) else none, rows, broken
    rows = np.arange(len(images)) if data.rows is None else data.rows
    broken = {int(row): reason for row, reason in data.broken.items()}
    return model.encode(data, progress=False).numpy(), rows, broken


@contextmanager
def _near(paths: list[str]) -> Iterator[list[Path]]:
    """Yield image files on this machine, those on other file systems as copies that are removed afterwards.

    The cache of features is set aside: what it has was perhaps computed in another way, by OpenVINO or in other
    batches, and a code must not depend on what a machine has seen before.
    """
    system, _ = opened(paths[0])
    with tempfile.TemporaryDirectory() as folder, _environment("COMBEMB_CACHE", folder):
        if is_local(system):
            yield [Path(opened(path)[1] if "://" in path else path) for path in paths]
            return
        files = [Path(folder) / f"{place}{Path(path).suffix}" for place, path in enumerate(paths)]
        for path, file in zip(paths, files, strict=True):
            try:
                system.get_file(path, str(file))
            except FileNotFoundError:
                file.unlink(missing_ok=True)  # counts as an image that cannot be read
        yield files


@contextmanager
def _environment(name: str, value: Any) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = str(value)
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
