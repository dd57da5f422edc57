"""What the result files say about a table: means and deviations, the best, the published orders. Nothing is trained."""

import statistics
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from combemb.bench.cells import cell_of, cells_of
from combemb.bench.presets import Preset
from combemb.bench.results import is_stale, read_result
from combemb.bench.tables import FEATURES, Column, Order, Row, Table

NOT_RUN, NO_SCORE = "not run", "–"


@dataclass(frozen=True)
class Value:
    """The scores of a row in a column.

    Attributes
    ----------
    scores : tuple of float
        One for each split and seed that was run.
    n_wanted : int
        How many there are to be.
    failures : tuple of str
        Messages of fits that failed.
    is_stale : bool
        Whether another version, or one with other defaults, wrote one of the results.
    published : float, optional
    is_best : bool
        Whether no other method of the table has a larger mean.
    """

    scores: tuple[float, ...]
    n_wanted: int
    failures: tuple[str, ...] = ()
    is_stale: bool = False
    published: float | None = None
    is_best: bool = False

    @property
    def mean(self) -> float | None:
        """The mean, None without any score."""
        return statistics.mean(self.scores) if self.scores else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation over splits and seeds, None for fewer than two."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None

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
        return f"{self.mean:.3f}"

    @property
    def rest(self) -> str:
        """The deviation, and whether some runs are missing or stale."""
        if self.mean is None:
            return ""
        spread = [] if self.deviation is None else [f"± {self.deviation:.3f}"]
        few = [f"({len(self.scores)} of {self.n_wanted})"] if len(self.scores) < self.n_wanted else []
        return " ".join([*spread, *few, *(["stale"] if self.is_stale else [])])

    def __str__(self) -> str:
        return f"{self.main} {self.rest}".strip()


@dataclass(frozen=True)
class Line:
    """A row of a table with its values, those of the extra columns in `extras`."""

    row: Row
    values: tuple[Value, ...]
    extras: tuple[Value, ...]


@dataclass(frozen=True)
class Summary:
    """A table as far as it was run with a preset.

    Attributes
    ----------
    table, preset : Table, Preset
    lines : tuple of Line
        Those of the rows, then those of the baselines.
    remarks : tuple of str
        What holds of the published orders and of ours against the others, and what failed.
    chance : float, optional
        The mean chance level of the mAP of novel queries.
    data : tuple of str
        Sizes and fingerprints of the data that were used.
    commits : tuple of str
    """

    table: Table
    preset: Preset
    lines: tuple[Line, ...]
    remarks: tuple[str, ...]
    chance: float | None
    data: tuple[str, ...]
    commits: tuple[str, ...]

    @property
    def n_own(self) -> int:
        """Number of lines that are not baselines."""
        return len(self.table.rows)

    @property
    def is_run(self) -> bool:
        """Whether any cell was run."""
        return any(value.scores or value.failures for line in self.lines for value in line.values)


def summary_of(table: Table, preset: Preset, results: Path) -> Summary:
    """Return what the results say about a table."""
    stored = Stored(table, preset, results)
    lines = [
        Line(row, *(tuple(stored.value(row, column) for column in own) for own in (table.columns, table.extras)))
        for row in table.all_rows
    ]
    lines = _with_best(lines, len(table.rows))
    records = stored.records.values()
    return Summary(
        *(table, preset, tuple(lines), tuple(_remarks(table, lines)), _chance(list(records))),
        tuple(sorted({_about(record) for record in records if "data" in record})),
        tuple(sorted({str(record.get("commit")) for record in records})),
    )


class Stored:
    """The records of a table."""

    def __init__(self, table: Table, preset: Preset, results: Path):
        self.table, self.preset = table, preset
        cells = cells_of(table, preset)
        self.runs = sorted({(cell.split, cell.seed) for cell in cells})
        found = {cell: read_result(results, cell) for cell in cells}
        self.records = {cell: record for cell, record in found.items() if record is not None}

    def value(self, row: Row, column: Column) -> Value:
        """Return the scores of a row in a column; float features are ranked by themselves where others have codes."""
        bits = self.table.bits[0] if column.bits is None else column.bits
        cells = [cell_of(self.table, self.preset, row, bits, run) for run in self.runs]
        found = [self.records[cell] for cell in cells if cell in self.records]
        name = column.score.replace("_codes", "_z") if row.method == FEATURES else column.score
        scores = [record["scores"].get(name) for record in found if "scores" in record]
        if scores and all(score is None for score in scores):  # such as codes of a method that has none
            return Value((), 0)
        numbers = dict(zip(self.table.columns, row.published, strict=False))
        return Value(
            tuple(score for score in scores if score is not None),
            len(cells),
            tuple(dict.fromkeys(record["failure"] for record in found if "failure" in record)),
            any(is_stale(self.records[cell], cell) for cell in cells if cell in self.records),
            numbers.get(column),
        )


def _with_best(lines: list[Line], n_own: int) -> list[Line]:
    """Mark the best mean of each column among the methods, baselines left out."""
    best = []
    for values in zip(*(line.values for line in lines[:n_own]), strict=True):
        means = [value.mean for value in values if value.mean is not None]
        best.append(max(means) if len(means) > 1 else None)
    marked = list(lines)
    for number, line in enumerate(lines[:n_own]):
        pairs = zip(line.values, best, strict=True)
        values = tuple(replace(v, is_best=v.mean is not None and v.mean == top) for v, top in pairs)
        marked[number] = replace(line, values=values)
    return marked


def _remarks(table: Table, lines: list[Line]) -> list[str]:
    """Return what holds and what does not, as far as it was run."""
    by_title = {line.row.title: line for line in lines}
    remarks = [text for order in table.orders if (text := _of_order(table, order, by_title))]
    own = [line for line in lines[: len(table.rows)] if line.row.is_ours]
    others = [line for line in lines[: len(table.rows)] if line.row.method != FEATURES and not line.row.is_ours]
    remarks += [text for line in own if len(own) == 1 and (text := _lead(table, line, others))]
    remarks += [text for line in own if table.more_bits_help and (text := _by_bits(table, line))]
    for line in lines:
        for failure in dict.fromkeys(f for value in line.values for f in value.failures):
            remarks.append(f"{line.row.title} failed: {failure}")
    return remarks


def _of_order(table: Table, order: Order, lines: dict[str, Line]) -> str:
    """Say in which columns a published order holds; nothing if it cannot be seen yet."""
    holds: list[str] = []
    fails: list[str] = []
    columns = list(enumerate(table.columns))
    for number, column in columns[-1:] if order.last_column_only else columns:
        means = [lines[title].values[number].mean for title in order.rows]
        if None in means:
            continue
        is_right = all(low < high for low, high in pairwise(means))  # type: ignore[operator]
        (holds if is_right else fails).append(column.title)
    return _verdict(f"published order: {order.text}", holds, fails)


def _by_bits(table: Table, line: Line) -> str:
    holds: list[str] = []
    fails: list[str] = []
    for (_, low), (column, high) in pairwise(zip(table.columns, line.values, strict=True)):
        if low.mean is not None and high.mean is not None:
            (holds if high.mean >= low.mean else fails).append(column.title)
    return _verdict(f"published order: longer codes of {line.row.title} are not worse", holds, fails)


def _verdict(text: str, holds: list[str], fails: list[str]) -> str:
    if not holds and not fails:
        return ""
    if not fails:
        return f"{text}: holds ({', '.join(holds)})"
    return f"{text}: DOES NOT HOLD ({', '.join(fails)}){f'; holds ({chr(44).join(holds)})' if holds else ''}"


def _lead(table: Table, ours: Line, others: list[Line]) -> str:
    """Say in which columns ours is first, and whether by more than the deviation of either."""
    clear: list[str] = []
    first: list[str] = []
    behind: list[str] = []
    for number, column in enumerate(table.columns):
        mean = ours.values[number].mean
        rivals = [line.values[number] for line in others if line.values[number].mean is not None]
        if mean is None or not rivals:
            continue
        best = max(rivals, key=lambda value: value.mean or 0.0)
        lead = mean - (best.mean or 0.0)
        spread = max(ours.values[number].deviation or 0.0, best.deviation or 0.0)
        title = f"{column.group} {column.title}".strip()
        (behind if lead <= 0 else clear if lead > spread else first).append(f"{title} {lead:+.3f}")
    parts = [
        *([f"first by more than the deviation: {', '.join(clear)}"] if clear else []),
        *([f"first by less than the deviation: {', '.join(first)}"] if first else []),
        *([f"NOT FIRST: {', '.join(behind)}"] if behind else []),
    ]
    return f"{ours.row.title} against the best other method: {'; '.join(parts)}" if parts else ""


def _chance(records: list[dict[str, Any]]) -> float | None:
    found = [r["scores"]["novel_chance"] for r in records if "novel_chance" in r.get("scores", {})]
    return statistics.mean(found) if found else None


def _about(record: dict[str, Any]) -> str:
    data = record["data"]
    return f"{data['n_train']:,} training and {data['n_test']:,} test items, fingerprint {data['fingerprint'] or '-'}"
