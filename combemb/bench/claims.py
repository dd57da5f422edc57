"""What the paper claims of its numbers and what of it holds in ours: orders of rows, longer codes, ours before others.

Two values are compared on the runs that both have, so that a table that is not complete compares like with like.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from combemb.bench.tables import FEATURES, Column, Row, Table
from combemb.bench.values import Line, Value

if TYPE_CHECKING:
    from combemb.bench.summary import Summary

DECISIVE = {"test_acc_joint_novel", "test_acc_joint_all"}  # of the scores of discovery
SCORES = {
    "retrieval": "Retrieval, mAP of novel queries",
    "discovery": "Discovery, ACC of novel and of all classes",
}
CLEAR, CLOSE = "first by more than the deviation", "first by less than the deviation"
SINGLE, BEHIND = "first on a single run, which has no deviation", "NOT FIRST"
KINDS = CLEAR, CLOSE, SINGLE, BEHIND


@dataclass(frozen=True)
class Gap:
    """By how much a value is above another one.

    Attributes
    ----------
    mean : float
    spread : float, optional
        The larger one of their standard deviations; None for a single run.
    n_runs, n_wanted : int
        How many runs both have, and how many there are to be.
    """

    mean: float
    spread: float | None
    n_runs: int
    n_wanted: int

    @classmethod
    def between(cls, high: Value, low: Value) -> Gap | None:
        """Compare two values; None if they have no run in common."""
        runs = sorted(high.scores.keys() & low.scores.keys())
        if not runs:
            return None
        highs, lows = ([value.scores[run] for run in runs] for value in (high, low))
        spread = max(statistics.stdev(highs), statistics.stdev(lows)) if len(runs) > 1 else None
        return cls(statistics.mean(highs) - statistics.mean(lows), spread, len(runs), high.n_wanted)

    @property
    def is_complete(self) -> bool:
        """Whether both have all runs."""
        return self.n_runs == self.n_wanted

    def shown(self, *details: str) -> str:
        """Return the difference with details in brackets, and how many runs there are if not all."""
        details += () if self.is_complete else (f"{self.n_runs} of {self.n_wanted} runs",)
        return " ".join([f"{self.mean:+.3f}", *([f"({', '.join(details)})"] if details else [])])


@dataclass(frozen=True)
class Lead:
    """How far a row of ours is before the best other method in a column, and whether all methods have all runs."""

    row: str
    column: str
    rival: str
    gap: Gap
    is_complete: bool

    @property
    def kind(self) -> str:
        """Whether it is one, and a clear one."""
        if self.gap.mean <= 0:
            return BEHIND
        if self.gap.spread is None:
            return SINGLE
        return CLEAR if self.gap.mean > self.gap.spread else CLOSE

    def __str__(self) -> str:
        return f"{self.column} {self.gap.shown(self.rival)}"


@dataclass(frozen=True)
class Check:
    """A published order: the columns in which it holds, and those in which it does not."""

    text: str
    holds: tuple[str, ...]
    fails: tuple[str, ...]

    def __str__(self) -> str:
        parts = [f"DOES NOT HOLD ({', '.join(self.fails)})"] if self.fails else []
        parts += [f"holds ({', '.join(self.holds)})"] if self.holds else []
        return f"published order: {self.text}: {'; '.join(parts)}"


def remarks(table: Table, lines: Sequence[Line]) -> Iterator[str]:
    """Say of a table what holds and what does not, as far as it was run, and what failed."""
    yield from map(str, checks(table, lines))
    found = leads(table, lines)
    for row in dict.fromkeys(lead.row for lead in found):
        own = [lead for lead in found if lead.row == row]
        parts = [f"{kind}: {', '.join(map(str, of_kind))}" for kind in KINDS if (of_kind := _of_kind(own, kind))]
        yield f"{row} against the best other method: {'; '.join(parts)}"
    yield from _without_training(table, lines)
    for line in lines:
        for failure in dict.fromkeys(f for value in line.values for f in value.failures):
            yield f"{line.row.title} failed: {failure}"


def checks(table: Table, lines: Sequence[Line]) -> list[Check]:
    """Return the published orders of a table, without those that cannot be seen yet."""
    of_title = {line.row.title: line for line in lines}
    found = []
    for order in table.orders:
        values = [of_title[title].values for title in order.rows]
        shown = [
            (column.title, [Gap.between(high[n], low[n]) for low, high in pairwise(values)])
            for n, column in enumerate(table.columns)
        ]
        found.append(_check(order.text, shown[-1:] if order.last_column_only else shown, lambda gap: gap > 0))
    for line in lines:
        if table.more_bits_help and line.row.is_ours:
            pairs = pairwise(zip(table.columns, line.values, strict=True))
            shown = [(column.title, [Gap.between(long, short)]) for (_, short), (column, long) in pairs]
            found.append(_check(f"longer codes of {line.row.title} are not worse", shown, lambda gap: gap >= 0))
    return [check for check in found if check.holds or check.fails]


def _check(text: str, columns: list[tuple[str, list[Gap | None]]], is_right: Callable[[float], bool]) -> Check:
    """Return in which columns all gaps are right, each with the smallest of them."""
    holds: list[str] = []
    fails: list[str] = []
    for title, gaps in columns:
        known = [gap for gap in gaps if gap is not None]
        if len(known) == len(gaps):
            smallest = min(known, key=lambda gap: gap.mean)
            (holds if is_right(smallest.mean) else fails).append(f"{title} {smallest.shown()}")
    return Check(text, tuple(holds), tuple(fails))


def leads(table: Table, lines: Sequence[Line]) -> list[Lead]:
    """Return how far ours is before the best other method with as many labels, in each column where both were run."""
    found = []
    for ours in lines:
        rivals = [line for line in lines if line.row in _rivals(table, ours.row)]
        for number, column in enumerate(table.columns):
            gaps = [(Gap.between(ours.values[number], line.values[number]), line.row.title) for line in rivals]
            seen = [(gap, title) for gap, title in gaps if gap is not None]
            if seen:
                gap, rival = min(seen, key=lambda pair: pair[0].mean)
                is_complete = len(seen) == len(rivals) and all(gap.is_complete for gap, _ in seen)
                found.append(Lead(ours.row.title, _title(column), rival, gap, is_complete))
    return found


def verdict(summaries: Iterable[Summary]) -> list[str]:
    """Say of all tables of a preset in how many cells ours is first, in which it is not, and which orders hold."""
    tables = [(summary.table, summary.lines) for summary in summaries]
    said = [text for task in SCORES for text in _of_task(task, tables)]
    orders = [(table.name, check) for table, lines in tables for check in checks(table, lines)]
    fails = [(name, check) for name, check in orders if check.fails]
    if orders:
        said.append(f"Published orders: {len(orders) - len(fails)} of {len(orders)} hold wherever they can be seen.")
    said += [
        f"Published order that DOES NOT HOLD, {name}: {check.text} ({', '.join(check.fails)})." for name, check in fails
    ]
    return said


def _of_task(task: str, tables: Sequence[tuple[Table, Sequence[Line]]]) -> list[str]:
    found: dict[str, list[str]] = {}
    counts = dict.fromkeys(KINDS, 0)
    n_wanted = n_complete = 0
    for table, lines in tables:
        if table.task == task:
            columns = [_title(c) for c in table.columns if task == "retrieval" or c.score in DECISIVE]
            n_wanted += len(columns) * sum(bool(_rivals(table, row)) for row in table.rows)
            own = [lead for lead in leads(table, lines) if lead.column in columns]
            n_complete += sum(lead.is_complete for lead in own)
            several = len({lead.row for lead in own}) > 1
            for kind in KINDS:
                shown = [f"{lead.row}, {lead}" if several else str(lead) for lead in _of_kind(own, kind)]
                counts[kind] += len(shown)
                found.setdefault(kind, []).extend([f"{table.name}: {', '.join(shown)}"] if shown else [])
    n = sum(counts.values())
    if n == 0:
        return []
    said = (
        f"{SCORES[task]}: {n} of {n_wanted} cells were run beside another method, {n_complete} of them by all methods "
        "in all runs. "
        f"CombEmb is first in {n - counts[BEHIND]}, in {counts[CLEAR]} by more than the standard deviation."
    )
    named = [kind for kind in KINDS if kind != CLEAR and found[kind]]
    return [said, *(f"{task.capitalize()}, {kind}: {'; '.join(found[kind])}." for kind in named)]


def _rivals(table: Table, row: Row) -> list[Row]:
    """Return the other methods that have as many labels as a row of ours; none of other rows."""
    share = row.labelled_share
    others = [r for r in table.rows if r.method != row.method and r.labelled_share == share]
    return others if row.is_ours and row in table.rows else []


def _of_kind(leads: list[Lead], kind: str) -> list[Lead]:
    return [lead for lead in leads if lead.kind == kind]


def _without_training(table: Table, lines: Sequence[Line]) -> Iterator[str]:
    """Say where plain features are above ours."""
    for plain in lines:
        for ours in lines:
            if plain.row.method == FEATURES and ours.row.is_ours:
                triples = zip(table.columns, plain.values, ours.values, strict=True)
                gaps = [(_title(column), Gap.between(value, features)) for column, features, value in triples]
                below = [f"{title} {gap.shown()}" for title, gap in gaps if gap is not None and gap.mean <= 0]
                if below:
                    yield f"{ours.row.title} is NOT above {plain.row.title}, without training: {', '.join(below)}"


def _title(column: Column) -> str:
    return f"{column.group} {column.title}".strip()
