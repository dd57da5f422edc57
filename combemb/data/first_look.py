"""What looks wrong in labels and ids before anything is learned from them."""

import hashlib
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable

import numpy as np

from combemb.data.given import Given
from combemb.data.images import Images
from combemb.system.errors import Note

Key = Callable[[int], Hashable]  # row -> what equal items have in common; None if nothing can be told

MAX_LISTED = 5  # classes in a note
SAMPLE_BYTES = 4_096  # files of equal size are compared by so many bytes before they are read as a whole


class OddLabels(Note):
    """Labels that are probably mistakes, or from which little can be learned."""


def look_at(given: Given) -> None:
    """Warn of labels that look wrong, as `OddLabels`; raise a ValueError if ids occur more than once.

    Only labelled files that have the same size as one of another class are read.
    """
    if given.ids is not None:
        require_distinct(given.ids.tolist())
    for note in [*_identical(given), *_small_classes(given)]:
        warnings.warn(note, OddLabels, stacklevel=4)


def require_distinct(ids: Iterable[Hashable]) -> None:
    """Raise a ValueError if ids occur more than once."""
    twice = [name for name, n in Counter(ids).items() if n > 1]
    if twice:
        raise ValueError(f"{len(twice)} ids occur more than once, such as {twice[0]!r}; every item needs its own")


def _small_classes(given: Given) -> list[str]:
    """Return a note if there is only one class, and one about classes with a single item."""
    labels, what = given.labels, _what(given)
    counts = (labels.values > 0).sum(axis=0) if labels.is_multi else np.bincount(labels.values[labels.is_labelled])
    names, notes = labels.classes.tolist(), []
    if labels.n_seen == 1:
        only = names[int(np.argmax(counts))]
        notes.append(f"only one class has labels, {only}: they only tell what is not new; label a second class")
    single = [str(name) for name, n in zip(names, counts, strict=False) if n == 1]
    if single:
        shown = ", ".join(single[:MAX_LISTED]) + (", ..." if len(single) > MAX_LISTED else "")
        few = f"classes with a single labelled {what}: {len(single)} ({shown})"
        notes.append(f"{few}; little can be learned about them, so label more of each")
    return notes


def _identical(given: Given) -> list[str]:
    """Return a note if the same content has different labels."""
    labels, what = given.labels, _what(given)
    own: dict[int, Hashable] = {int(i): labels.values[i].tobytes() for i in np.flatnonzero(labels.is_labelled)}
    groups = [list(own)]
    for key in _keys_of_files(given.images) if given.images and given.images.files else _keys_of_rows(given):
        groups = [part for group in groups for part in _equal(group, key) if len({own[row] for row in part}) > 1]
    if not groups:
        return []
    first = groups[0][0]
    pair = [first, next(row for row in groups[0] if own[row] != own[first])]
    ids, texts = np.arange(len(given)) if given.ids is None else given.ids, labels.take(np.array(pair)).texts()
    such_as = " and ".join(f"{ids[row]} ({text})" for row, text in zip(pair, texts, strict=True))
    return [f"identical {what}s under different labels: {len(groups)}, such as {such_as}; keep the right one of each"]


def _what(given: Given) -> str:
    return "item" if given.images is None else "image"


def _equal(rows: list[int], key: Key) -> Iterable[list[int]]:
    """Return groups of rows with equal keys."""
    parts: dict[Hashable, list[int]] = defaultdict(list)
    for row in rows:
        if (found := key(row)) is not None:
            parts[found].append(row)
    return parts.values()


def _keys_of_files(images: Images) -> list[Key]:
    """Return what is compared of files, the cheapest first: size, some bytes, all bytes."""
    files = images.files or ()

    def read(row: int, whole: bool) -> bytes | None:
        try:
            with files[row].open("rb") as file:
                if whole:
                    return hashlib.file_digest(file, "blake2b").digest()
                file.seek(files[row].stat().st_size // 2)  # the beginning may be a header that all files share
                return file.read(SAMPLE_BYTES)
        except OSError:  # it will be listed as broken
            return None

    def size(row: int) -> int | None:
        try:
            return files[row].stat().st_size if files[row].is_file() else None
        except OSError:
            return None

    return [lambda row: size(row) or None, lambda row: read(row, whole=False), lambda row: read(row, whole=True)]


def _keys_of_rows(given: Given) -> list[Key]:
    """Return what is compared of pixels or of the clean view of embeddings: some numbers, all numbers."""
    x = given.x if given.images is None else given.images.pixels
    assert x is not None
    clean = x[:, 0] if given.images is None and x.ndim == 3 else x

    def some(row: int) -> bytes:
        flat = np.ravel(clean[row])
        return flat[len(flat) // 2 :][:16].tobytes()

    return [some, lambda row: hashlib.blake2b(np.ascontiguousarray(clean[row]).data).digest()]
