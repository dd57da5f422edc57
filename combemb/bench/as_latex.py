"""The report as LaTeX: a document of booktabs tables, each of which can be copied into a paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from combemb.bench.as_markdown import groups_of
from combemb.bench.claims import verdict
from combemb.bench.summary import Summary
from combemb.bench.values import Value

if TYPE_CHECKING:
    from combemb.bench.report import Section

SPECIAL = {
    **{"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}"},
    **{"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}"},
    **{"±": r"$\pm$", "–": "--"},
}
BEGIN = r"""\documentclass{article}
\usepackage{booktabs,graphicx,xcolor}
\usepackage[a4paper,margin=2cm]{geometry}
\begin{document}
"""


def document(chapters: dict[str, list[Section]]) -> str:
    """Return the whole report."""
    parts = [BEGIN]
    for sections in chapters.values():
        preset = sections[0].summary.preset
        parts += [rf"\section*{{{escaped(preset.title)}}}", f"{escaped(preset.about)}."]
        said = verdict(section.summary for section in sections)
        if said:
            parts += [r"\begin{itemize}", *(rf"\item {escaped(text)}" for text in said), r"\end{itemize}"]
        parts.append("")
        for section in sections:
            parts += [of_table(section.summary), *(_of_figure(path) for path in section.figures)]
            parts += [r"\clearpage"] if section.summary.is_run else []
    return "\n".join([*parts, r"\end{document}", ""])


def _of_figure(path: Path) -> str:
    return (
        r"\begin{figure}[ht]\centering"
        rf"\includegraphics[width=0.8\linewidth]{{{path.parent.name}/{path.name}}}\end{{figure}}"
    )


def of_table(summary: Summary) -> str:
    """Return a table: a line of ours for each method; below it the published numbers, and the differences to them."""
    table, n = summary.table, len(summary.table.columns)
    of_paper = " of the paper" if table.source.startswith(("Table", "Figure")) else ""
    title = f"{escaped(table.title)} ({escaped(table.source)}{of_paper})"
    if not summary.is_run:
        return f"{title}: not run.\n"
    groups, heads = groups_of(table.columns), " & ".join(escaped(column.title) for column in table.columns)
    lines = [r"\begin{table}[ht]\centering", rf"\caption{{{title}}}"]
    lines += [r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{", rf"\begin{{tabular}}{{l{'c' * n}}}"]
    lines.append(r"\toprule")
    if any(title for title, _ in groups):
        lines.append(
            " & ".join(["", *(rf"\multicolumn{{{k}}}{{c}}{{{escaped(title)}}}" for title, k in groups)]) + r" \\"
        )
    lines += [rf"Method & {heads} \\", r"\midrule"]
    for place, line in enumerate(summary.lines):
        if place == summary.n_own:
            lines.append(r"\midrule")
        lines.append(" & ".join([escaped(line.row.title), *map(cell, line.values)]) + r" \\")
        if any(value.published is not None for value in line.values):
            lines.append(" & ".join([r"\quad\color{gray}published", *map(published, line.values)]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}}"]
    chance = [] if summary.chance is None else [f"Chance level of the mAP of novel queries: {summary.chance:.3f}."]
    remarks = filter(None, [*chance, summary.progress, *summary.remarks, table.note, summary.preset.caveat])
    lines += [r"\\[2pt]", r"\begin{minipage}{\linewidth}\small", *(rf"{escaped(text)}\par" for text in remarks)]
    return "\n".join([*lines, r"\end{minipage}", r"\end{table}", ""])


def cell(value: Value) -> str:
    """Return a value, the best in bold."""
    small = rf" {{\scriptsize {escaped(value.rest)}}}" if value.rest else ""
    return rf"\textbf{{{escaped(value.main)}}}{small}" if value.is_best else f"{escaped(value.main)}{small}"


def published(value: Value) -> str:
    """Return the published number, and ours minus it."""
    if value.published is None:
        return ""
    difference = "" if value.difference is None else rf" {{\scriptsize ${value.difference:+.3f}$}}"
    return rf"\color{{gray}}{value.published:.3f}{difference}"


def escaped(text: str) -> str:
    """Return text in which no character is a command.

    >>> escaped("50 % of a_b")
    '50 \\\\% of a\\\\_b'
    """
    return "".join(SPECIAL.get(letter, letter) for letter in text)
