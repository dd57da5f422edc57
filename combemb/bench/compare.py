"""Methods on a user's own data: classes and labels are hidden as in the tables, by the same runner and report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from combemb import methods
from combemb.bench.cells import cell_of, cells_of
from combemb.bench.fits import Places
from combemb.bench.noise import TEST, sentence
from combemb.bench.own_data import OwnData
from combemb.bench.plots import draw
from combemb.bench.presets import Preset
from combemb.bench.protocol import fingerprint
from combemb.bench.report import FIGURES, Section, write_pages
from combemb.bench.results import read_result
from combemb.bench.runner import Done, Outcome
from combemb.bench.runner import run as run_missing
from combemb.bench.summary import Summary, summary_of
from combemb.bench.tables import FEATURES, Column, Fields, Row, Table
from combemb.system.errors import require

RESULTS = "results"
INTRODUCTION = (
    "Some classes were hidden from the methods, and half of the labels of the others; queries are test items. Mean ± "
    "standard deviation over splits and seeds. Bold: the best of the methods. The row in italics has the features "
    "without any method."
)


@dataclass(frozen=True)
class Comparison:
    """What came of a comparison.

    Attributes
    ----------
    summary : Summary
    sentences : tuple of str
        Which differences exceed the noise, by column.
    outcome : Outcome
    files : tuple of Path
    too_small : tuple of str
        Classes that had too few items.
    """

    summary: Summary
    sentences: tuple[str, ...]
    outcome: Outcome
    files: tuple[Path, ...]
    too_small: tuple[str, ...]


def compare(
    data: Path,
    rows: Sequence[tuple[str, Fields]],
    folder: Path,
    *,
    bits: tuple[int, ...] = (24, 48),
    seeds: int = 3,
    splits: tuple[str, ...] = ("0", "1", "2", "3"),
    labels: Path | None = None,
    settings: dict[str, Any] | None = None,
    jobs: int = 1,
    retry: bool = False,
    tell: Callable[[Done], None] = lambda _: None,
) -> Comparison:
    """Compare methods on data with labels, and write report.md, report.html, report.tex and a plot into a folder.

    Parameters
    ----------
    data : Path
        An image folder, a manifest or embeddings, with labels.
    rows : sequence of (str, Fields)
        Methods, with settings of their own; they have their defaults otherwise.
    folder : Path
        Where results and report are written. The same call later runs only what is missing.
    bits : tuple of int
    seeds : int
        How many seeds there are for each split.
    splits : tuple of str
        Which classes are hidden; see `open_set_split`.
    labels : Path, optional
        A file of labels, if they are not in the data.
    settings : dict, optional
        Settings for all methods that have them, such as `image_size`.
    jobs, retry, tell
        As for `runner.run`.

    Returns
    -------
    Comparison
    """
    for name, _ in rows:
        methods.get(name)  # raises an error if there is none
    require(len(rows) > 0 and len(bits) > 0 and seeds > 0, "give at least one method, one length and one seed")
    own = OwnData.read(data, labels)
    name = f"{data.stem}-{fingerprint(own.divided(0))[:8]}"
    preset = _preset(settings or {})
    table = table_of(name, own, rows, bits, (splits, tuple(range(seeds))))
    places = Places(folder / RESULTS, own=((name, data.absolute(), labels and labels.absolute()),))
    outcome = run_missing(cells_of(table, preset), places, jobs=jobs, retry=retry, tell=tell)
    summary = summary_of(table, preset, places.results)
    sentences = tuple(filter(None, (noise_of(table, preset, column, places.results) for column in table.columns)))
    remarks = (*sentences, *([f"How: {TEST}."] if sentences else []), *summary.remarks)
    summary = replace(summary, remarks=remarks)
    (folder / FIGURES).mkdir(parents=True, exist_ok=True)
    section = Section(summary, tuple(draw(summary, places.results, folder / FIGURES)))
    files = write_pages({preset.name: [section]}, folder, f"Methods on {data.name}", INTRODUCTION)
    return Comparison(summary, sentences, outcome, tuple(files), own.too_small)


def table_of(
    dataset: str, own: OwnData, rows: Sequence[tuple[str, Fields]], bits: tuple[int, ...], runs: tuple[Any, Any]
) -> Table:
    """Return a comparison as a table."""
    columns = [Column(f"mAP novel, {b} bits", "novel_codes", b) for b in bits]
    columns.append(Column(f"mAP seen, {bits[-1]} bits", "seen_codes", bits[-1]))
    if own.targets.ndim == 1:
        columns += [Column(f"ACC {part}", f"test_acc_joint_{part}", bits[-1]) for part in ("novel", "all")]
    extras = (
        Column("mAP novel of z", "novel_z", bits[-1]),
        Column("mAP seen of z", "seen_z", bits[-1]),
        Column("seconds of a fit", "fit_seconds", bits[-1]),
    )
    small = f" Classes with too few items count as unlabelled: {', '.join(own.too_small)}." if own.too_small else ""
    return Table(
        *("compare", f"Methods on {dataset.rpartition('-')[0]}", "own data", dataset, "both", tuple(columns)),
        tuple(Row(_title(method, fields), method, fields) for method, fields in rows),
        extras,
        splits=runs[0],
        seeds=runs[1],
        baselines=(Row("float features", FEATURES),),
        note=f"{len(own.class_names)} classes, {len(own.given):,} items. mAP: test items of hidden classes search all "
        f"training items. ACC: k-means on the embeddings of test items, the number of classes given.{small}",
    )


def noise_of(table: Table, preset: Preset, column: Column, results: Path) -> str:
    """Say which leads of the best method in a column exceed the noise; the features count as a method."""
    scores: dict[str, dict[tuple[str, int], float]] = {}
    for row in table.all_rows:
        name = column.score.replace("_codes", "_z") if row.method == FEATURES else column.score
        for run in product(table.splits, table.seeds):
            record = read_result(results, cell_of(table, preset, row, column.bits, run)) or {}
            score = record.get("scores", {}).get(name)
            if score is not None:
                scores.setdefault(row.title, {})[run] = score
    return sentence(column.title, scores)


def _preset(settings: dict[str, Any]) -> Preset:
    """Return the preset of a comparison: the defaults of each method, but for these settings."""
    shown = ", ".join(f"{name}={value}" for name, value in settings.items())
    about = f"Every method has its defaults{f', with {shown}' if shown else ''}"
    return Preset("compare", about, settings, tasks=("both",), is_tuned=False, caveat="", heading="Results")


def _title(method: str, fields: Fields) -> str:
    return ", ".join([method, *(f"{name}={value}" for name, value in fields)])
