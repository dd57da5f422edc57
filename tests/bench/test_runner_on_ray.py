"""Cells on the workers of a cluster of two nodes: the files of one process come out."""

from pathlib import Path

import pytest

from benchmarks.two_nodes import two_nodes
from combemb.bench import TABLES
from combemb.bench.cells import cells_of
from combemb.bench.fits import Places
from combemb.bench.results import read_result
from combemb.bench.runner import run
from tests.bench.test_runner import IN_TESTS, ROOT, SMOKE, cell
from tests.commands import done, refused

TIMES = ("seconds", "peak_memory_mb")


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))  # workers import methods of the tests
        with two_nodes() as found:
            yield found


def timeless(record: dict) -> dict:
    """A record without what it took."""
    kept = {name: value for name, value in record.items() if name not in TIMES}
    scores = {name: value for name, value in record.get("scores", {}).items() if name != "fit_seconds"}
    return {**kept, "scores": scores}


def test_the_same_files_come_out_and_a_cell_that_kills_its_workers_has_failed(tmp_path: Path, cluster):
    lacking = cells_of(TABLES["retrieval-cifar10"], SMOKE)[:2]
    cells = [cell("itq"), cell(f"{IN_TESTS}Dying"), cell("combemb"), cell(f"{IN_TESTS}Refusing"), cell("itq", 24)]
    told = []
    outcome = run([*cells, *lacking], Places(tmp_path / "ray", data=tmp_path), engine="ray", tell=told.append)
    assert (outcome.n_done, outcome.n_failed, outcome.n_before) == (5, 2, 0)
    assert [done.n_done for done in told] == [1, 2, 3, 4, 5]
    ((reason, n),) = outcome.missing.items()
    assert n == 2
    assert reason.startswith(f"CIFAR-10 was not found in {tmp_path}")
    assert "the process died" in read_result(tmp_path / "ray", cells[1])["failure"]
    here = [cells[0], *cells[2:]]
    run(here, Places(tmp_path / "here", data=tmp_path))
    for c in here:
        one, many = (read_result(tmp_path / name, c) for name in ("here", "ray"))
        assert timeless(one) == timeless(many)
    files = {path.relative_to(tmp_path / "ray") for path in (tmp_path / "ray").rglob("[!.]*.json")}
    assert files == {Path(c.path) for c in cells}
    assert run(cells, Places(tmp_path / "ray"), engine="ray").n_before == 5


def test_the_command_runs_a_table_on_a_cluster(tmp_path: Path, cluster):
    options = ("--preset", "smoke", "--out", tmp_path)
    shown = done("bench", "run", "regions", *options, "--engine", "ray", "--address", cluster.address).stdout
    assert "3 cells were run" in shown
    assert "0 cells were run; 3 had a result before" in done("bench", "run", "regions", *options).stdout
    found = [read_result(tmp_path / "results", c)["scores"]["n_regions"] for c in cells_of(TABLES["regions"], SMOKE)]
    assert found == [2, 4, 7]


def test_other_engines_are_refused(tmp_path: Path):
    assert "engine='spark' is unknown" in refused("bench", "run", "regions", "--engine", "spark", "--out", tmp_path)
    assert "--address needs --engine ray" in refused("bench", "run", "regions", "--address", "auto", "--out", tmp_path)
    assert list(tmp_path.iterdir()) == []
