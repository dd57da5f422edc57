"""What the explorer shows of a run at one moment: discovered items in the classes that people made of them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from combemb.collection.class_log import Change
from combemb.collection.classes import Classes, applied
from combemb.collection.suggested import Suggestion, suggestions
from combemb.discovery.result import Discovery
from combemb.explorer.colours import colour, colours

LABELLED, SAID = 1, 2  # flags of items
REJECTED = -1  # instead of the number of a class
LABELLED_LAST = 2.0  # more than any confidence


@dataclass(frozen=True, eq=False)
class Items:
    """The N items of a discovery. tag: a text that changes with it. table: id, path, cluster, is_novel, confidence."""

    tag: str
    found: Discovery
    table: pa.Table

    def __len__(self) -> int:
        return len(self.table)

    @cached_property
    def folder(self) -> str:
        """The folder that has all images, with a separator at its end; empty if there is none."""
        parents = {os.path.dirname(path) for path in self.paths if path is not None}  # noqa: PTH120
        folder = os.path.commonpath(parents) if parents else ""
        return folder + os.sep if len(Path(folder).parts) > 1 else ""

    @cached_property
    def confidence(self) -> np.ndarray:
        """Confidence in each item, (N,) float32."""
        return np.asarray(self.table["confidence"], dtype=np.float32)

    @cached_property
    def ids(self) -> np.ndarray:
        """Ids, an object array of shape (N,)."""
        return np.array([*self.table["id"].to_pylist(), None], dtype=object)[:-1]

    @cached_property
    def paths(self) -> list[str | None]:
        """Files of images."""
        found: list[str | None] = self.table["path"].to_pylist()
        return found

    @cached_property
    def row_of(self) -> dict[str, int]:
        """Row of each id."""
        return {name: row for row, name in enumerate(self.ids.tolist())}


class Snapshot:
    """Items, and what people said about them until now.

    Parameters
    ----------
    items : Items
    log : sequence of Change
        All changes of the run, including those that were undone.
    """

    def __init__(self, items: Items, log: Sequence[Change]):
        self.items, self.log = items, list(log)
        self.classes: Classes = applied(items.table, self.log)
        self.state = f"{items.tag}-{len(self.log)}"
        self.names = self.classes.order
        place: dict[str | None, int] = {name: number for number, name in enumerate(self.names)}
        self.numbers = np.array([place.get(name, REJECTED) for name in self.classes.names], dtype=np.int32)

    def __len__(self) -> int:
        return len(self.items)

    def number(self, cluster: str) -> int:
        """Return the number of a class; raise a ValueError that lists the classes if it is unknown."""
        return int(self.numbers[self.classes.rows(cluster)[0]])

    @cached_property
    def is_novel(self) -> np.ndarray:
        """Which classes are not of the labels, by number."""
        return np.array([name not in self.classes.seen for name in self.names], dtype=bool)

    @cached_property
    def flags(self) -> np.ndarray:
        """Flags of each item, (N,) uint8."""
        flags = LABELLED * self.classes.is_labelled + SAID * self.classes.is_said
        return np.asarray(flags, dtype=np.uint8)

    @cached_property
    def is_left(self) -> np.ndarray:
        """Which items nobody has decided on: without a label, not in a named class by a person, not rejected."""
        return np.asarray((self.flags == 0) & (self.numbers != REJECTED))

    @cached_property
    def assignment(self) -> bytes:
        """Numbers of classes, flags and confidences of all items, as the page reads them."""
        confidence = np.rint(255 * np.clip(self.items.confidence, 0, 1)).astype(np.uint8)
        return b"".join((self.numbers.astype("<i4").tobytes(), self.flags.tobytes(), confidence.tobytes()))

    @cached_property
    def suggestions(self) -> dict[str, list[Suggestion]]:
        """Names to suggest for each class that has none of the labels."""
        return suggestions(self.items.found, self.classes, self.log)

    def rows(self, order: str, number: int | None = None) -> np.ndarray:
        """Return rows in an order, of all items or of those of a class; -1 is the number of rejected items."""
        if order == "doubt":
            ordered = self._doubtful
        elif order == "row":
            ordered = np.arange(len(self))
        else:
            by_class, firsts = self._by_distance if order == "exemplars" else self._by_confidence
            if number is not None:
                return by_class[slice(*np.searchsorted(firsts, [number, number + 1]))]
            ordered = by_class
        return ordered if number is None else ordered[self.numbers[ordered] == number]

    @cached_property
    def _doubtful(self) -> np.ndarray:
        rows = np.flatnonzero(self.is_left)
        return rows[np.argsort(self.items.confidence[rows], kind="stable")]

    @cached_property
    def _by_distance(self) -> tuple[np.ndarray, np.ndarray]:
        return self._sorted_by(self.items.found.distance)

    @cached_property
    def _by_confidence(self) -> tuple[np.ndarray, np.ndarray]:
        return self._sorted_by(np.where(self.classes.is_labelled, LABELLED_LAST, self.items.confidence))

    def _sorted_by(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return all rows sorted by class, then by value, and the number of the class of each."""
        order = np.lexsort((values, self.numbers))
        return order, self.numbers[order]

    @cached_property
    def colours(self) -> list[str]:
        """A colour for each class: that of the cluster that most of its items were discovered in."""
        found = self.items.found
        shares = np.zeros((len(self.names), len(found.names)), np.int64)
        kept = self.numbers != REJECTED
        np.add.at(shares, (self.numbers[kept], found.assignment[kept]), 1)
        main, own = shares.argmax(axis=1), colours(found)
        taken: set[int] = set()
        n_more, chosen = found.n_novel, {}
        for number in np.argsort(-shares.max(axis=1), kind="stable").tolist():
            if main[number] in taken:  # a part of a class that was split
                chosen[number] = colour(n_more, is_novel=True)
                n_more += 1
            else:
                chosen[number] = str(own[main[number]])
            taken.add(int(main[number]))
        return [chosen[number] for number in range(len(self.names))]
