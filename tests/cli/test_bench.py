"""`combemb bench`: what it lists, runs, reports and refuses."""

from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from combemb.bench import TABLES
from combemb.bench.presets import PRESETS
from combemb.cli.several import Several
from tests.commands import call, done, refused


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The figure of regions, run, and a table whose data are missing."""
    folder = tmp_path_factory.mktemp("bench")
    result = call("bench", "run", "regions", "retrieval-nus_wide", "--preset", "smoke", "--out", folder)
    assert result.exit_code == 1  # not everything was run
    assert "[1/40] plane, combemb, 1 bits, split 0, seed 0: regions 2" in result.stdout
    assert "[3/40] plane" in result.stdout
    assert "3 cells were run" in result.stdout
    assert "37 cells were not run: NUS-WIDE is needed: give --data DIR with nus_wide or NUS-WIDE" in result.stderr
    return folder


def test_list_names_all_tables_and_presets_and_counts_results(folder: Path):
    shown = done("bench", "list", "--out", folder).stdout
    assert all(name in shown for name in PRESETS)
    lines = {line.split()[0]: line.split() for line in shown.splitlines() if line}
    assert all(name in lines for name in TABLES)
    assert lines["regions"][3:8] == ["0/3", "0/3", "-", "0/3", "3/3"]


def test_a_second_run_has_nothing_to_do(folder: Path):
    shown = done("bench", "run", "regions", "--preset", "smoke", "--out", folder).stdout
    assert "0 cells were run; 3 had a result before" in shown


def test_report_writes_three_forms_and_figures(folder: Path):
    shown = done("bench", "report", "--out", folder, "--tables", "regions", "retrieval-nus_wide").stdout
    assert "report.md, report.html, report.tex, figures/smoke-regions.png" in shown
    text = (folder / "report/report.md").read_text()
    assert "| CombEmb (ours) | 2 | 4 | 7 |" in text
    assert "`retrieval-nus_wide`: not run." in text


def test_unknown_names_list_the_choices():
    assert "there is no table 'x'; choose all" in refused("bench", "run", "x")
    assert "there is no preset 'x'; choose one of cpu, small, alexnet, paper, smoke" in refused(
        "bench", "run", "regions", "--preset", "x"
    )
    assert "preset alexnet is not for these tables" in refused("bench", "run", "regions", "--preset", "alexnet")


def test_options_take_several_values():
    app = typer.Typer()

    @app.command(cls=Several)
    def show(path: str, bits: Annotated[list[int], typer.Option()], name: Annotated[str, typer.Option()] = "") -> None:
        typer.echo((path, bits, name))

    def shown(*args: str) -> str:
        return CliRunner().invoke(app, args).stdout.strip()

    for args in (["--bits", "24", "48"], ["--bits", "24", "--bits", "48"]):
        assert shown("x", *args, "--name", "a") == "('x', [24, 48], 'a')"
    assert shown("--bits", "24", "--", "x") == "('x', [24], '')"
    assert shown("x", "--name", "a", "b", "--bits", "24") == ""  # --name takes one
