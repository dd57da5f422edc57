"""The report as LaTeX: a document of booktabs tables, each of which can be copied into a paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from combemb.bench.as_markdown import groups_of
from combemb.bench.summary import Summary, Value

if TYPE_CHECKING:
    from combemb.bench.report import Section

SPECIAL = {
    **{"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}"},
    **{"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}"},
    **{"±": r"$\pm$", "–": "--"},
}
BEGIN = r"""\documentclass{article}
\usepackage{booktabs,graphicx,xcolor}
\usepackage[margin=2cm,landscape]{geometry}
\begin{document}
"""


def document(chapters: dict[str, list[Section]]) -> str:
    """Return the whole report."""
    parts = [BEGIN]
    for sections in chapters.values():
        preset = sections[0].summary.preset
        parts.append(rf"\section*{{{escaped(preset.title)}}}")
        parts.append(f"{escaped(preset.about)}.\n\n{escaped(preset.caveat)}\n")
        for section in sections:
            parts.append(of_table(section.summary))
    return "\n".join([*parts, r"\end{document}", ""])


def of_table(summary: Summary) -> str:
    """Return a table: a line of ours for each method, and below it the published numbers."""
    table, n = summary.table, len(summary.table.columns)
    groups, heads = groups_of(table.columns), " & ".join(escaped(column.title) for column in table.columns)
    lines = [r"\begin{table}[ht]\centering", rf"\caption{{{escaped(table.title)} ({escaped(table.source)})}}"]
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
            numbers = ["" if v.published is None else rf"\color{{gray}}{v.published:.3f}" for v in line.values]
            lines.append(" & ".join([r"\quad\color{gray}published", *numbers]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}}"]
    if summary.chance is not None:
        lines.append(rf"\\[2pt]{{\small Chance level of the mAP: {summary.chance:.3f}.}}")
    lines += [rf"\\{{\small {escaped(remark)}}}" for remark in summary.remarks]
    return "\n".join([*lines, r"\end{table}", ""])


def cell(value: Value) -> str:
    """Return a value, the best in bold."""
    small = rf" {{\scriptsize {escaped(value.rest)}}}" if value.rest else ""
    return rf"\textbf{{{escaped(value.main)}}}{small}" if value.is_best else f"{escaped(value.main)}{small}"


def escaped(text: str) -> str:
    """Return text in which no character is a command.

    >>> escaped("50 % of a_b")
    '50 \\\\% of a\\\\_b'
    """
    return "".join(SPECIAL.get(letter, letter) for letter in text)
