"""The report as Markdown."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from combemb.bench.claims import verdict
from combemb.bench.summary import Summary
from combemb.bench.tables import Column
from combemb.bench.values import Line, Value

if TYPE_CHECKING:
    from combemb.bench.report import Section


def text(chapters: dict[str, list[Section]], title: str, introduction: str) -> str:
    """Return the whole report."""
    parts = [f"# {title}\n", f"{introduction}\n"]
    for sections in chapters.values():
        preset = sections[0].summary.preset
        parts.append(f"## {preset.title}\n\n{preset.about}.\n")
        said = verdict(section.summary for section in sections)
        parts += ["\n".join([*(f"- {text}" for text in said), ""])] if said else []
        for section in sections:
            parts.append(of_table(section.summary))
            parts += [f"![{path.stem}]({path.parent.name}/{path.name})\n" for path in section.figures]
    return "\n".join(parts)


def of_table(summary: Summary, level: str = "###") -> str:
    """Return a table with its remarks."""
    table, preset = summary.table, summary.preset
    parts = [f"{level} {table.title} ({table.source})\n"]
    if not summary.is_run:
        return "\n".join([*parts, f"`{table.name}`: not run.\n"])
    parts += [grid(table.columns, [(line, line.values) for line in summary.lines], summary.n_own)]
    if table.extras:
        shown = [(line, line.extras) for line in summary.lines]
        parts += ["More of the same fits:\n", grid(table.extras, shown, summary.n_own)]
    if summary.chance is not None:
        parts.append(f"Chance level of the mAP of novel queries: {summary.chance:.3f}.\n")
    remarks = [summary.progress, *summary.remarks, *filter(None, (table.note, preset.caveat))]
    remarks += [f"Data: {data}" for data in summary.data]
    remarks.append(f"Commit{'s' if len(summary.commits) > 1 else ''}: {', '.join(summary.commits)}")
    return "\n".join([*parts, *(f"- {remark}" for remark in remarks), ""])


def grid(columns: tuple[Column, ...], rows: list[tuple[Line, tuple[Value, ...]]], n_own: int) -> str:
    """Return the lines of a table."""
    heads = [f"{column.group}: {column.title}" if column.group else column.title for column in columns]
    kept = [number for number in range(len(columns)) if any(values[number].n_wanted for _, values in rows)]
    lines = [["method", *(heads[number] for number in kept)], ["---", *["---:"] * len(kept)]]
    for place, (line, values) in enumerate(rows):
        title = line.row.title if place < n_own else f"*{line.row.title}*"
        lines.append([title, *(cell(values[number]) for number in kept)])
    return "\n".join(f"| {' | '.join(parts)} |" for parts in lines) + "\n"


def cell(value: Value) -> str:
    """Return a value with the published number below it."""
    shown = f"**{value.main}** {value.rest}".strip() if value.is_best else str(value)
    if value.published is None:
        return shown
    difference = "" if value.difference is None else f", {value.difference:+.3f}"
    return f"{shown}<br>paper {value.published:.3f}{difference}"


def groups_of(columns: tuple[Column, ...]) -> list[tuple[str, int]]:
    """Return the titles above neighbouring columns, with their number of columns."""
    return [(title, len(list(own))) for title, own in groupby(columns, key=lambda column: column.group)]
