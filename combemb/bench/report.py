"""The report: Markdown, HTML and LaTeX with the same tables, and plots, from result files alone."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from combemb.bench import TABLES
from combemb.bench.as_html import page
from combemb.bench.as_latex import document
from combemb.bench.as_markdown import text
from combemb.bench.plots import draw
from combemb.bench.presets import PRESETS, Preset
from combemb.bench.summary import Summary, summary_of
from combemb.bench.tables import Table
from combemb.system.files import write_atomically

MARKDOWN, HTML, LATEX, FIGURES = "report.md", "report.html", "report.tex", "figures"

INTRODUCTION = (
    "Mean ± standard deviation over the class splits (retrieval) or the seeds (discovery); in brackets how many of "
    "them were run, if not all. Below it the published number, and ours minus the published one. Bold: the best mean "
    "of the methods with the most runs. Rows in italics are not in the publication. Remarks compare two methods on the "
    "splits and seeds that both have."
)


@dataclass(frozen=True)
class Section:
    """A table with its figure, if there is anything to draw."""

    summary: Summary
    figures: tuple[Path, ...]


def write_report(
    results: Path, folder: Path, tables: Iterable[Table] | None = None, presets: Iterable[Preset] | None = None
) -> list[Path]:
    """Write report.md, report.html, report.tex and figures/ from what was run; nothing is trained.

    Parameters
    ----------
    results : Path
        The folder of result files.
    folder : Path
        The folder to write to.
    tables, presets : iterable, optional
        All tables, and the presets that have results, by default.

    Returns
    -------
    list of Path
        The files.
    """
    tables = list(TABLES.values() if tables is None else tables)
    if presets is None:
        presets = [preset for name, preset in PRESETS.items() if (results / name).is_dir()]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FIGURES).mkdir(exist_ok=True)
    chapters: dict[str, list[Section]] = {}
    for preset in presets or [PRESETS["cpu"]]:
        for table in tables:
            if table.task in preset.tasks:
                summary = summary_of(table, preset, results)
                section = Section(summary, tuple(draw(summary, results, folder / FIGURES)))
                chapters.setdefault(preset.name, []).append(section)
    return write_pages(chapters, folder, "Tables and figures of the paper", INTRODUCTION)


def write_pages(chapters: dict[str, list[Section]], folder: Path, title: str, introduction: str) -> list[Path]:
    """Write the three forms of a report, and return their files and those of the figures."""
    contents = {
        MARKDOWN: text(chapters, title, introduction),
        HTML: page(chapters, title, introduction),
        LATEX: document(chapters),
    }
    for name, content in contents.items():
        write_atomically(folder / name, partial(_write, content))
    drawn = [figure for sections in chapters.values() for section in sections for figure in section.figures]
    return [*(folder / name for name in contents), *drawn]


def _write(content: str, path: Path) -> None:
    path.write_text(content, encoding="utf-8")
