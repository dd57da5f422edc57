"""A number of a table: the scores of its runs, their mean and deviation, and what is missing."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from combemb.bench.cells import Run
from combemb.bench.tables import Row

NOT_RUN, NO_SCORE = "not run", "–"


@dataclass(frozen=True)
class Value:
    """The scores of a row in a column.

    Attributes
    ----------
    scores : mapping
        (split, seed) -> score, of those that were run.
    n_wanted : int
        How many there are to be.
    failures : tuple of str
        Messages of fits that failed.
    is_stale : bool
        Whether another version, or one with other defaults, wrote one of the results.
    published : float, optional
    is_best : bool
        Whether no other method of the table with as many runs has a larger mean, and none has more runs.
    """

    scores: Mapping[Run, float]
    n_wanted: int
    failures: tuple[str, ...] = ()
    is_stale: bool = False
    published: float | None = None
    is_best: bool = False

    @property
    def mean(self) -> float | None:
        """The mean, None without any score."""
        return statistics.mean(self.scores.values()) if self.scores else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation over splits and seeds, None for fewer than two."""
        return statistics.stdev(self.scores.values()) if len(self.scores) > 1 else None

    @property
    def difference(self) -> float | None:
        """The mean minus the published number."""
        return None if self.mean is None or self.published is None else self.mean - self.published

    @property
    def main(self) -> str:
        """The mean, or why there is none."""
        if self.n_wanted == 0:
            return NO_SCORE
        if self.mean is None:
            return "failed" if self.failures else NOT_RUN
        return number(self.mean)

    @property
    def rest(self) -> str:
        """The deviation, and whether some runs are missing or stale."""
        if self.mean is None:
            return ""
        spread = [] if self.deviation is None else [f"± {number(self.deviation, self.mean)}"]
        few = [f"({len(self.scores)} of {self.n_wanted})"] if len(self.scores) < self.n_wanted else []
        return " ".join([*spread, *few, *(["stale"] if self.is_stale else [])])

    def __str__(self) -> str:
        return f"{self.main} {self.rest}".strip()


def number(value: float, beside: float | None = None) -> str:
    """Return a number with three decimals, with fewer if it, or the one that it is beside, is above 1.

    >>> number(0.5), number(1234.56), number(7), number(1.04, beside=12.3)
    ('0.500', '1,234.6', '7', '1.0')
    """
    if beside is not None:
        return f"{value:,.1f}" if beside > 1 else f"{value:.3f}"
    return f"{value:,.1f}".removesuffix(".0") if value > 1 else f"{value:.3f}"


@dataclass(frozen=True)
class Line:
    """A row of a table with its values, those of the extra columns in `extras`."""

    row: Row
    values: tuple[Value, ...]
    extras: tuple[Value, ...]
