"""What can be searched: the items that a run has indexed, each with its path and its label."""

import hashlib
import json
import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from PIL import Image
from safetensors import safe_open

from combemb import methods
from combemb.data.images import BrokenImage, Images
from combemb.data.labels import LABEL_SEPARATOR, read_labels
from combemb.learning.image_input import Given, as_embeddings, as_images
from combemb.learning.run_folder import WEIGHTS, Run
from combemb.methods import Method
from combemb.search.index import CodeIndex
from combemb.system.files import write_atomically

INDEX, ENTRIES = "index.safetensors", "entries.parquet"
FORMAT = 1
COLUMNS = pa.schema([(name, pa.large_string()) for name in ("id", "path", "label")])
ABOUT = b"combemb_entries"  # under which the Parquet file says what it belongs to
ROW = "#"  # stands between the path of an array file and the row of an image in it


@dataclass(frozen=True)
class Entry:
    """An item by its id, the file it lies in if it is an image, and its label; several are joined by `|`.

    The id of an image is its absolute path, of one in an array file with `#` and the row behind it.
    """

    id: str
    path: str | None = None
    label: str | None = None

    def image(self, at_least: int = 0) -> Image.Image:
        """The picture, as `Images.read` gives it; BrokenImage if there is none."""
        if self.path is None:
            raise BrokenImage("not an image")
        if self.id == self.path:
            return Images(files=[Path(self.path)]).read(0, at_least)
        try:
            return Images(pixels=np.load(self.path, mmap_mode="r")).read(int(self.id.rpartition(ROW)[2]))
        except (OSError, ValueError, IndexError) as error:
            raise BrokenImage(str(error)) from error


@dataclass(frozen=True, kw_only=True)
class Hit(Entry):
    """An entry that a query found; the larger its score, the nearer it is."""

    score: float


@dataclass(frozen=True)
class Found:
    """A query and what it found, the best first."""

    query: Entry
    hits: list[Hit]


class Collection:
    """The entries of a run folder, searched by images or embeddings.

    `index` holds the codes; its entry i is row i of `entries`, a table of id, path and label. `broken` names the
    images that the last `add` or `search` could not read, with the reasons.
    """

    def __init__(self, run: str | Path):
        """Make an empty collection for the model of a run; nothing is written before `save`."""
        self.folder = Path(run)
        self.model: Method = methods.load(run)
        self._weights = _digest_of_weights(self.folder)
        self.index = CodeIndex(self.model.codebook)
        self.entries: pa.Table = COLUMNS.empty_table()
        self.broken: dict[str, str] = {}

    @classmethod
    def build(
        cls,
        run: str | Path,
        source: Any = None,
        *,
        labels: Any = None,
        overwrite: bool = False,
        progress: bool | None = None,
    ) -> Self:
        """Index a source, or what the run was fitted on, and write the index into the run folder.

        source: as for `Method.fit`. labels: one per item; left out, those that lie beside the items are taken.
        """
        if has_index(run) and not overwrite:
            raise ValueError(f"{run} has an index already; use overwrite to replace it, or add to it")
        collection = cls(run)
        fitted_on = source_of(collection.model, collection.folder) if source is None else None
        collection._add(fitted_on or source, labels, fitted_on is not None, progress)
        collection.save()
        return collection

    @classmethod
    def open(cls, run: str | Path) -> Self:
        """The collection in a run folder. ValueError if there is none, or if it is damaged or of another model."""
        Run(run).config()  # says if this is no run folder
        if not has_index(run):
            raise ValueError(f"{run} has no index yet; make one: {_command(run)}")
        collection = cls(run)
        entries, about = _read_entries(collection.folder)
        if about.get("model") != collection._weights:
            raise ValueError(f"the index in {run} was made before the model was fitted anew; {_again(run)}")
        try:
            collection.index = CodeIndex.load(collection.folder / INDEX, codebook=collection.model.codebook)
        except ValueError as error:
            raise ValueError(f"{error}: {_command(run)} --overwrite") from error
        is_other = about.get("index") != _digest_of_index(collection.folder / INDEX)
        if is_other or len(entries) != len(collection.index):
            raise ValueError(f"{INDEX} and {ENTRIES} in {run} do not belong together; {_again(run)}")
        collection.entries = entries
        return collection

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def n_labelled(self) -> int:
        """How many entries have a label."""
        return len(self) - int(self.entries["label"].null_count)

    def add(self, source: Any, *, labels: Any = None, progress: bool | None = None) -> None:
        """Add the items of a source; ValueError if one is there already. `save` writes the result."""
        self._add(source, labels, False, progress)

    def search(self, queries: Any, k: int = 20, *, progress: bool | None = None) -> list[Found]:
        """The k nearest entries of each query that can be read; all entries if there are fewer than k.

        queries: an image, or anything that `Method.fit` takes. Scores are those of the codebook (Eq. 9), exactly.
        """
        items, asked = listed(queries, None, 0)
        given, asked = self._read(items, asked, progress)
        found = self.index.search(self.model.embed(given, progress=progress), k)
        rows = np.asarray(found.ids)  # (Q, k)
        nearest = iter(self.entries.take(rows.ravel()).to_pylist())
        return [
            Found(Entry(**query), [Hit(**next(nearest), score=score) for score in scores.tolist()])
            for query, scores in zip(asked.to_pylist(), found.scores, strict=True)
        ]

    def save(self) -> None:
        """Write both files into the run folder; until they are whole the old ones stay."""

        def write_both(temporary: Path) -> None:
            self.index.save(temporary)
            about = {"format": FORMAT, "model": self._weights, "index": _digest_of_index(temporary)}
            table = self.entries.replace_schema_metadata({ABOUT: json.dumps(about)})
            write_atomically(
                self.folder / ENTRIES,
                lambda path: pq.write_table(table, path, compression="zstd", write_page_checksum=True),
            )

        write_atomically(self.folder / INDEX, write_both)

    def _add(self, source: Any, labels: Any, train_only: bool, progress: bool | None) -> None:
        items, entries = listed(source, labels, len(self), train_only)
        self._refuse_known(entries["id"])
        given, entries = self._read(items, entries, progress)
        codes = self.model.encode(given, progress=progress)
        self.index.add(codes)
        self.entries = pa.concat_tables([self.entries, entries])

    def _read(self, items: Images | Given, entries: pa.Table, progress: bool | None) -> tuple[Given, pa.Table]:
        """What the model embeds, and the entries of those items."""
        given = items if isinstance(items, Given) else self.model.read(items, progress=progress)
        self.broken = given.broken
        return given, entries if given.rows is None else entries.take(given.rows)

    def _refuse_known(self, ids: pa.ChunkedArray) -> None:
        known = ids.filter(pc.is_in(ids, value_set=self.entries["id"])).to_pylist()
        if known:
            raise ValueError(
                f"{len(known)} of {len(ids)} items are in the index already, such as {known[0]}; add the others only, "
                "or index all of them again with overwrite"
            )
        counts = pc.value_counts(ids)
        twice = counts.filter(pc.greater(counts.field("counts"), 1)).field("values").to_pylist()
        if twice:
            raise ValueError(
                f"{len(twice)} ids are there more than once, such as {twice[0]!r}; every item needs its own"
            )


def has_index(run: str | Path) -> bool:
    """Whether there is an index in a run folder, whole or not."""
    return (Path(run) / INDEX).exists() or (Path(run) / ENTRIES).exists()


def source_of(model: Method, run: Path) -> Path:
    """Where the data lie that the model of a run was fitted on; ValueError if that is not known, or no longer so."""
    source: str | None = getattr(model, "source_", None)
    what = f"what {run} was fitted on"
    if source is None:
        raise ValueError(f"{what} was not read from a path; say where it is, with --images or --embeddings")
    if not Path(source).exists():
        raise ValueError(f"{what} is not at {source} any more; say where it is now, with --images or --embeddings")
    return Path(source)


def listed(source: Any, labels: Any, n_before: int = 0, train_only: bool = False) -> tuple[Images | Given, pa.Table]:
    """The items of a source, or its part to train on, and their entries; items without ids are numbered on."""
    images = as_images(source)
    items: Images | Given = as_embeddings(source) if images is None else images
    n = len(items) if isinstance(items, Images) else len(items.items)
    numbers = np.arange(n_before, n_before + n)
    ids: Iterable[Any] = numbers if items.ids is None else items.ids
    paths: list[str | None] = [None] * n
    if images is not None and images.files is not None:
        ids = paths = [_absolute(file) for file in images.files]
    elif images is not None and isinstance(source, str | Path):
        paths = [_absolute(source)] * n
        ids = [f"{paths[0]}{ROW}{row}" for row in range(n)]
    ids = [str(name) for name in ids]
    if images is not None:  # under these names broken ones are reported
        items = replace(images, ids=np.array(ids, dtype=object))
    names = images.class_names if images is not None and labels is None else None
    texts = _label_texts(items.labels if labels is None else labels, n, names)
    entries = pa.table([ids, paths, texts], schema=COLUMNS)
    if train_only and isinstance(items, Images) and items.is_test is not None:
        rows = np.flatnonzero(~items.is_test)
        return items.take(rows), entries.take(rows)
    return items, entries


def _label_texts(labels: Any, n: int, class_names: np.ndarray | None) -> list[str | None]:
    """Labels in any form as one text per item, None where there is none."""
    if labels is None:
        return [None] * n
    read = read_labels(labels, n)
    if read.is_multi:
        classes = (read.classes if class_names is None else class_names).astype(str)
        return [LABEL_SEPARATOR.join(classes[row > 0]) or None for row in read.values]
    texts: list[str | None] = np.array([*read.classes.astype(str), None], dtype=object)[read.values].tolist()
    return texts


def _absolute(path: str | Path) -> str:
    """A path that is the same however it was spelled, as text; bytes that are no UTF-8 are spelled out."""
    return os.fsencode(os.path.abspath(path)).decode("utf-8", "backslashreplace")  # noqa: PTH100 - links stay


def _read_entries(folder: Path) -> tuple[pa.Table, dict[str, Any]]:
    path = folder / ENTRIES
    try:
        table = pq.read_table(path, page_checksum_verification=True)
        about = json.loads(table.schema.metadata[ABOUT])
        if about["format"] != FORMAT:
            raise ValueError(f"it has format {about['format']}, this combemb reads {FORMAT}")
        return table.cast(COLUMNS), about
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise ValueError(f"cannot read {path}: {str(error).splitlines()[0]}; {_again(folder)}") from error


def _digest_of_weights(folder: Path) -> str:
    """Which changes with every fit: binary codes of all models have the same codebook."""
    with (folder / WEIGHTS).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of_index(path: Path) -> str:
    """Of the head of the file alone, which holds a checksum of every array."""
    with safe_open(path, "np") as file:
        return hashlib.sha256(json.dumps(file.metadata(), sort_keys=True).encode()).hexdigest()


def _command(run: str | Path) -> str:
    return f"combemb index {shlex.quote(str(run))}"


def _again(run: str | Path) -> str:
    return f"index again: {_command(run)} --overwrite"
