"""What the result files say about a table: its numbers, the best of them, how much was run. Nothing is trained."""

import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from combemb.bench.cells import Run, cell_of, cells_of
from combemb.bench.claims import remarks
from combemb.bench.presets import Preset
from combemb.bench.results import is_stale, read_result
from combemb.bench.tables import FEATURES, Column, Row, Table
from combemb.bench.values import Line, Value


@dataclass(frozen=True)
class Summary:
    """A table as far as it was run with a preset.

    Attributes
    ----------
    table, preset : Table, Preset
    lines : tuple of Line
        Those of the rows, then those of the baselines.
    progress : str
        How many cells were run, and which splits or seeds.
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
    progress: str
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
        *(table, preset, tuple(lines), _progress(stored), tuple(remarks(table, lines)), _chance(list(records))),
        tuple(sorted({_about(record) for record in records if "data" in record})),
        tuple(sorted({str(record.get("commit")) for record in records})),
    )


class Stored:
    """The records of a table."""

    def __init__(self, table: Table, preset: Preset, results: Path):
        self.table, self.preset = table, preset
        self.cells = cells_of(table, preset)
        self.runs: list[Run] = sorted({(cell.split, cell.seed) for cell in self.cells})
        found = {cell: read_result(results, cell) for cell in self.cells}
        self.records = {cell: record for cell, record in found.items() if record is not None}

    def value(self, row: Row, column: Column) -> Value:
        """Return the scores of a row in a column; float features are ranked by themselves where others have codes."""
        bits = self.table.bits[0] if column.bits is None else column.bits
        cells = {run: cell_of(self.table, self.preset, row, bits, run) for run in self.runs}
        found = {run: self.records[cell] for run, cell in cells.items() if cell in self.records}
        name = column.score.replace("_codes", "_z") if row.method == FEATURES else column.score
        scores = {run: record["scores"].get(name) for run, record in found.items() if "scores" in record}
        if scores and all(score is None for score in scores.values()):  # such as codes of a method that has none
            return Value({}, 0)
        numbers = dict(zip(self.table.columns, row.published, strict=False))
        return Value(
            {run: score for run, score in scores.items() if score is not None},
            len(cells),
            tuple(dict.fromkeys(record["failure"] for record in found.values() if "failure" in record)),
            any(is_stale(record, cells[run]) for run, record in found.items()),
            numbers.get(column),
        )


def _with_best(lines: list[Line], n_own: int) -> list[Line]:
    """Mark the best mean of each column among the methods with the most runs, baselines left out."""
    best = []
    for values in zip(*(line.values for line in lines[:n_own]), strict=True):
        n_runs = max(len(value.scores) for value in values)
        means = [value.mean for value in values if len(value.scores) == n_runs and value.mean is not None]
        best.append((n_runs, max(means)) if len(means) > 1 else None)
    marked = list(lines)
    for number, line in enumerate(lines[:n_own]):
        pairs = zip(line.values, best, strict=True)
        values = tuple(replace(v, is_best=(len(v.scores), v.mean) == top) for v, top in pairs)
        marked[number] = replace(line, values=values)
    return marked


def _progress(stored: Stored) -> str:
    """Say how many cells were run, and of which splits and seeds if not all were."""
    n, n_done = len(stored.cells), len(stored.records)
    if n_done == n:
        return f"All {n} cells were run."
    several = [part for part in (0, 1) if len({run[part] for run in stored.runs}) > 1]
    parts = []
    for run in stored.runs if several else []:
        own = [cell for cell in stored.cells if (cell.split, cell.seed) == run]
        done = sum(cell in stored.records for cell in own)
        title = ", ".join(f"{('split', 'seed')[part]} {run[part]}" for part in several)
        parts.append(f"{title}: {'all' if done == len(own) else done} of {len(own)}")
    return f"{n_done} of {n} cells were run{': ' if parts else ''}{'; '.join(parts)}."


def _chance(records: list[dict[str, Any]]) -> float | None:
    found = [r["scores"]["novel_chance"] for r in records if "novel_chance" in r.get("scores", {})]
    return statistics.mean(found) if found else None


def _about(record: dict[str, Any]) -> str:
    data = record["data"]
    return f"{data['n_train']:,} training and {data['n_test']:,} test items, fingerprint {data['fingerprint'] or '-'}"
