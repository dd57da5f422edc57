"""The runner: only missing cells run, results are whole, failures are recorded, the same seed gives the same score."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from combemb.bench import TABLES
from combemb.bench.cells import cell_of, cells_of
from combemb.bench.fits import Places
from combemb.bench.presets import PRESETS
from combemb.bench.results import is_stale, read_result, write_result
from combemb.bench.runner import Clock, run
from combemb.bench.tables import Row
from combemb.system.version import __version__

DIGITS, SMOKE = TABLES["retrieval-digits"], PRESETS["smoke"]
ROOT = Path(__file__).parents[2]
IN_TESTS = "tests.bench.methods_of_tests:"


def cell(method: str, bits: int = 12):
    return cell_of(DIGITS, SMOKE, Row(method, method), bits, ("0", 0))


def test_only_missing_cells_run_and_the_same_seed_gives_the_same_score(tmp_path: Path):
    cells, told = [cell("itq"), cell("combemb"), cell("itq")], []
    outcome = run(cells, Places(tmp_path), tell=told.append)
    assert (outcome.n_done, outcome.n_before, outcome.n_failed) == (2, 0, 0)
    assert [(done.n_done, done.n_all) for done in told] == [(1, 2), (2, 2)]
    assert told[-1].seconds_left == 0
    first = {c: read_result(tmp_path, c) for c in cells}
    again = run(cells, Places(tmp_path))
    assert (again.n_done, again.n_before) == (0, 2)
    (tmp_path / cells[1].path).unlink()
    assert run(cells, Places(tmp_path)).n_done == 1
    assert read_result(tmp_path, cells[0]) == first[cells[0]]  # not touched
    repeated = read_result(tmp_path, cells[1])["scores"]
    assert repeated.pop("fit_seconds") > 0
    assert repeated == {name: v for name, v in first[cells[1]]["scores"].items() if name != "fit_seconds"}


def test_a_record_holds_what_is_needed_to_repeat_it(tmp_path: Path):
    run([cell("combemb")], Places(tmp_path))
    record = read_result(tmp_path, cell("combemb"))
    assert record["cell"]["split"] == "0"
    assert record["settings"]["epochs"] == 2
    assert record["settings"]["similarity_weight"] == 20.0  # a default
    assert (record["settings"]["bits"], record["settings"]["seed"]) == (12, 0)
    assert record["packages"].keys() >= {"python", "torch", "numpy", "scikit-learn"}
    assert record["version"] == __version__
    assert "commit" in record
    assert record["data"] == {
        "name": "digits",
        "n_train": 120,
        "n_test": 40,
        "fingerprint": record["data"]["fingerprint"],
    }
    assert len(record["data"]["fingerprint"]) == 16
    assert 0 < record["seconds"] < 600
    assert 50 < record["peak_memory_mb"] < 100_000
    scores = record["scores"]
    assert {"novel_codes", "novel_z", "seen_codes", "seen_z"} <= scores.keys()
    assert scores["novel_chance"] == pytest.approx(0.1)
    assert not is_stale(record, cell("combemb"))
    assert is_stale({**record, "version": "0.0.1"}, cell("combemb"))
    assert is_stale({**record, "settings": {**record["settings"], "similarity_weight": 5.0}}, cell("combemb"))


def test_a_failure_is_recorded_and_runs_again_only_when_asked_to(tmp_path: Path):
    cells = [cell(f"{IN_TESTS}Refusing"), cell("itq")]
    outcome = run(cells, Places(tmp_path))
    assert (outcome.n_done, outcome.n_failed) == (2, 1)
    record = read_result(tmp_path, cells[0])
    assert record["failure"] == "ValueError: found nothing; needed everything"
    assert record["failed_at"].startswith("methods_of_tests.py:")
    assert "scores" not in record
    assert run(cells, Places(tmp_path)).n_done == 0
    assert run(cells, Places(tmp_path), retry=True).n_done == 1


def test_processes_give_the_same_scores_and_survive_one_that_dies(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    cells = [cell("itq"), cell(f"{IN_TESTS}Dying"), cell("combemb"), cell("gpq", 24)]
    outcome = run(cells, Places(tmp_path / "many"), jobs=2)
    assert (outcome.n_done, outcome.n_failed) == (4, 1)
    assert "the process died" in read_result(tmp_path / "many", cells[1])["failure"]
    alive = [cells[0], *cells[2:]]
    run(alive, Places(tmp_path / "one"))
    for c in alive:
        one, many = (read_result(tmp_path / name, c)["scores"] for name in ("one", "many"))
        assert one.pop("fit_seconds") > 0 < many.pop("fit_seconds")
        assert one == many


def test_missing_data_are_named_and_the_rest_runs(tmp_path: Path):
    lacking = cells_of(TABLES["retrieval-cifar10"], SMOKE)[:3]
    outcome = run([*lacking, cell("itq")], Places(tmp_path, data=tmp_path))
    (reason,) = outcome.missing
    assert outcome.missing[reason] == 3
    assert outcome.n_done == 1
    assert f"CIFAR-10 was not found in {tmp_path}: expected cifar10 or cifar-10-batches-py" in reason
    assert "data_batch_1 to 5" in reason
    without = run(lacking, Places(tmp_path))
    assert "give --data DIR with cifar10 or" in next(iter(without.missing))


def test_weights_that_a_preset_needs_are_asked_for(tmp_path: Path):
    preset = replace(PRESETS["alexnet"], splits=("0",))
    outcome = run(cells_of(DIGITS, preset)[:1], Places(tmp_path))
    assert "needs the weights of alexnet:conv5: give --weights FILE" in next(iter(outcome.missing))


def is_running(pid: str) -> bool:
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize(("jobs", "stop"), [(1, signal.SIGKILL), (2, signal.SIGKILL), (2, signal.SIGINT)])
def test_a_stopped_run_loses_the_cells_in_progress_at_most_and_leaves_no_process(tmp_path: Path, jobs: int, stop: int):
    command = [sys.executable, "-m", "combemb", "bench", "run", "retrieval-digits", "--preset", "smoke", "--quiet"]
    command += ["--out", str(tmp_path), "--jobs", str(jobs)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True)
    results = tmp_path / "results"
    try:
        while len(list(results.rglob("[!.]*.json"))) < 2:
            assert process.poll() is None
            time.sleep(0.05)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    finally:
        if stop == signal.SIGINT:  # Ctrl-C in a terminal reaches all
            os.killpg(process.pid, stop)
        else:
            process.kill()
        code = process.wait(60)
    assert code == (130 if stop == signal.SIGINT else -stop)
    assert len(children) >= jobs - 1
    until = time.monotonic() + 30
    while any(map(is_running, children)):
        assert time.monotonic() < until, "a worker process outlives the run"
        time.sleep(0.05)
    kept = {path: path.read_bytes() for path in results.rglob("[!.]*.json")}
    assert all("scores" in json.loads(content) for content in kept.values())
    todo = [c for c in cells_of(DIGITS, SMOKE) if results / c.path not in kept][:1]
    before = [c for c in cells_of(DIGITS, SMOKE) if results / c.path in kept]
    outcome = run([*before, *todo], Places(results))
    assert (outcome.n_before, outcome.n_done) == (len(kept), 1)
    assert all(path.read_bytes() == content for path, content in kept.items())


def test_a_damaged_result_counts_as_missing(tmp_path: Path):
    path = write_result(tmp_path, cell("itq"), {"cell": {}, "scores": {}})
    assert read_result(tmp_path, cell("itq")) == {"cell": {}, "scores": {}}
    path.write_text(path.read_text()[:-4])
    assert read_result(tmp_path, cell("itq")) is None


def test_the_time_left_follows_what_each_method_took():
    cells = [cell("itq"), cell("itq", 24), cell("combemb"), cell("combemb", 24), cell("gpq")]
    clock = Clock(cells, 2)
    clock.stop(cells[0], {"seconds": 1.0})
    clock.stop(cells[2], {"seconds": 9.0})
    assert clock.seconds_left == (1 + 9 + 5) / 2  # one cell each, and that of a method nobody has seen yet
    clock.drop(cells[4:])
    assert clock.seconds_left == (1 + 9) / 2
