"""`combemb bench`: the tables and figures of the paper: list them, run what is missing, write the report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from combemb.cli.console import err, notes_shown, running, say
from combemb.cli.guarded import guarded
from combemb.cli.options import Address, Quiet
from combemb.cli.several import Several

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from combemb.bench.cells import Cell
    from combemb.bench.fits import Places
    from combemb.bench.runner import Done, Outcome

RESULTS, REPORT = "results", "report"
SHOWN = {"novel_codes": "mAP", "novel_z": "mAP of z", "test_acc_joint_all": "ACC", "n_regions": "regions"}
Out = Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder of results and report.")]
Jobs = Annotated[int, typer.Option(min=1, help="Processes, of one thread each.")]
Retry = Annotated[bool, typer.Option("--retry", help="Also run cells again that failed before.")]

bench = typer.Typer(
    help="Tables and figures of the paper: list them, run what is missing, write a report with the published numbers.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


def list_tables(folder: Out = Path("bench")) -> None:
    """List tables and figures, how many of their cells have been run, and the presets.

    Example: `combemb bench list`
    """
    from combemb.bench import TABLES
    from combemb.bench.cells import cells_of
    from combemb.bench.presets import PRESETS
    from combemb.bench.results import read_result

    with running():
        rows = [("table", "of the paper", *PRESETS, "title")]
        for table in TABLES.values():
            counts = []
            for preset in PRESETS.values():
                cells = cells_of(table, preset)
                n_done = sum(read_result(folder / RESULTS, cell) is not None for cell in cells)
                counts.append(f"{n_done}/{len(cells)}" if cells else "-")
            rows.append((table.name, table.source, *counts, table.title))
        say_aligned(rows, n_right=len(PRESETS))
        say("")
        for name, preset in PRESETS.items():
            say(f"preset {name}: {preset.about}")


def run_tables(
    tables: Annotated[
        list[str], typer.Argument(metavar="TABLE...", help="Names, starts of names, data sets, or `all`.")
    ],
    preset: Annotated[str, typer.Option(help="Features and training; `combemb bench list` shows them.")] = "cpu",
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the data sets, or of the only one that is needed.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Weights of AlexNet (.safetensors), for presets that need them.")
    ] = None,
    jobs: Jobs = 1,
    splits: Annotated[
        list[str] | None, typer.Option("--splits", help="Only these class splits; the report has 0 to 3.")
    ] = None,
    seeds: Annotated[
        list[int] | None,
        typer.Option("--seeds", help="Other seeds than those of the table, which the report leaves out."),
    ] = None,
    folder: Out = Path("bench"),
    retry: Retry = False,
    engine: Annotated[
        str | None,
        typer.Option(metavar="ray", help="Spread the cells over a Ray cluster, by default one for each of its cores."),
    ] = None,
    address: Address = None,
    quiet: Quiet = False,
) -> None:
    """Run the cells of tables that have no result yet; each result is a file, so a stopped run continues.

    Features are extracted once and stay in the cache. If data are missing, the rest runs. With `--engine ray`, all
    machines read the data at the same path; the results are written here.

    Example: `combemb bench run retrieval-cifar10 --preset cpu --data data/ --jobs 2`
    """
    from combemb.bench import chosen
    from combemb.bench.cells import cells_of
    from combemb.bench.fits import Places
    from combemb.bench.presets import preset_of
    from combemb.system.errors import require

    with running(quiet, "stopped; the same command continues"):
        wanted = [
            cell
            for table in chosen(tables)
            for cell in cells_of(table, preset_of(preset), tuple(splits or ()) or None, tuple(seeds or ()) or None)
        ]
        if not wanted:
            raise ValueError(f"preset {preset} is not for these tables; `combemb bench list` shows which have cells")
        require(engine == "ray" or address is None, "--address needs --engine ray")
        outcome = run_cells(wanted, Places(folder / RESULTS, data, weights), jobs, retry, engine, address)
        told(outcome)
        say(f"results in {folder / RESULTS}; next: combemb bench report --out {folder}")
        if outcome.missing or outcome.n_failed:
            raise typer.Exit(1)


def report(
    folder: Out = Path("bench"),
    tables: Annotated[list[str] | None, typer.Option("--tables", help="Only these, by name as for `run`.")] = None,
    preset: Annotated[
        list[str] | None, typer.Option("--preset", help="Only these; by default all that have results.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write the report of what was run, as Markdown, HTML and LaTeX with figures; nothing is trained.

    Example: `combemb bench report`
    """
    from combemb.bench import chosen
    from combemb.bench.presets import preset_of
    from combemb.bench.report import write_report

    with running(quiet):
        files = write_report(
            folder / RESULTS,
            folder / REPORT,
            chosen(tables) if tables else None,
            [preset_of(name) for name in preset] if preset else None,
        )
        say(f"written to {folder / REPORT}: {', '.join(str(path.relative_to(folder / REPORT)) for path in files)}")


def run_cells(
    cells: Iterable[Cell], places: Places, jobs: int, retry: bool, engine: str | None = None, address: str | None = None
) -> Outcome:
    """Run cells and print a line for each."""
    from combemb.bench.runner import run

    with notes_shown():
        return run(cells, places, jobs=jobs, retry=retry, tell=tell, engine=engine, address=address)


def tell(done: Done) -> None:
    """Print what came of a cell, and how much is left."""
    record, scores = done.record, done.record.get("scores", {})
    if "failure" in record:
        result = f"FAILED: {record['failure']}"
    else:
        result = ", ".join(f"{title} {scores[key]:.3g}" for key, title in SHOWN.items() if key in scores)
    left = f", {duration(done.seconds_left)} left" if done.n_done < done.n_all else ""
    say(f"[{done.n_done}/{done.n_all}] {done.cell}: {result} ({record.get('seconds', 0):.0f} s{left})")


def told(outcome: Outcome) -> None:
    """Print what came of a run, and what is missing."""
    failed = f", {outcome.n_failed} of them failed" if outcome.n_failed else ""
    before = f"; {outcome.n_before} had a result before" if outcome.n_before else ""
    say(f"{cells_were(outcome.n_done)} run{failed}{before}")
    for reason, n in outcome.missing.items():
        err.print(escape(f"{cells_were(n)} not run: {reason}"), soft_wrap=True)


def cells_were(n: int) -> str:
    """Return the start of a sentence about n cells.

    >>> cells_were(1), cells_were(2)
    ('1 cell was', '2 cells were')
    """
    return "1 cell was" if n == 1 else f"{n} cells were"


def say_aligned(rows: Sequence[Sequence[str]], n_left: int = 2, n_right: int | None = None) -> None:
    """Print rows in columns; lines may be wider than a terminal.

    Those after the first n_left are numbers, n_right of them or all.
    """
    widths = [max(map(len, texts)) for texts in zip(*rows, strict=True)]
    last = len(widths) if n_right is None else n_left + n_right
    for row in rows:
        places = [
            text.rjust(width) if n_left <= column < last else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        say("  ".join(places).rstrip())


def duration(seconds: float) -> str:
    """Return a time as people say it.

    >>> duration(42.4), duration(4_000)
    ('42 s', '1 h 7 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


bench.command("list")(guarded(list_tables))
bench.command("run", cls=Several)(guarded(run_tables))
bench.command("report", cls=Several)(guarded(report))
