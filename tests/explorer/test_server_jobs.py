"""Jobs: what they say about their progress, how they end, and what fitting again makes."""

import dataclasses
import json
import os
import sys
import time
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from combemb import methods
from combemb.cli.options import parse_settings
from combemb.explorer.server import messages
from combemb.explorer.server.jobs import Job, Jobs
from combemb.explorer.server.problems import Refused
from combemb.explorer.server.work import as_options, comparison, free_run
from combemb.learning.run_folder import PLACES

MODULE = """import sys, time
{}
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a module that jobs can run."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))

    def write(*lines: str) -> list[str]:
        (tmp_path / "a_job.py").write_text(MODULE.format("\n".join(lines)))
        return ["a_job"]

    return write


def ended(jobs: Jobs, job: Job) -> messages.Job:
    deadline = time.monotonic() + 300
    while job.status == "running":
        assert time.monotonic() < deadline, "it hangs"
        time.sleep(0.05)
    jobs.close()
    return job.message()


def test_a_job_says_how_far_it_is():
    job = Job("1", "fit", "fit again", [])
    job.read("step 1 of 4: fit, learning from the data")
    assert (job.step, job.progress) == (messages.Step(number=1, of=4, name="fit, learning from the data"), None)
    job.read("step 1 of 4, extracting features  28%  24 images/s  27 s left")
    assert (job.step.name, job.progress, job.text) == ("extracting features", 0.28, "24 images/s  27 s left")
    job.read("drawing the map 100%  9 steps/s  0 s left")
    assert (job.progress, job.text) == (1.0, "drawing the map 9 steps/s  0 s left")
    job.read("note: something")
    assert job.message().lines == ["step 1 of 4: fit, learning from the data", "note: something"]


def test_jobs_end_well_or_say_why(module):
    jobs = Jobs()
    result = messages.Result(run="next", compared=None)
    calls = []
    job = jobs.start("fit", "a job", module("print('hello')"), lambda: result, lambda: calls.append("always"))
    told = ended(jobs, job)
    assert (told.status, told.result, told.lines, told.progress) == ("done", result, ["hello"], 1.0)
    failing = module("print('error: no such thing', file=sys.stderr)", "sys.exit(1)")
    told = ended(jobs, jobs.start("fit", "a job", failing, lambda: result, lambda: calls.append("always")))
    assert (told.status, told.error, told.result) == ("failed", "no such thing", None)

    def wrong() -> None:
        raise ValueError("cannot be compared")

    told = ended(jobs, jobs.start("fit", "a job", module(""), wrong, lambda: calls.append("always")))
    assert (told.status, told.error) == ("failed", "cannot be compared")
    assert calls == ["always"] * 3
    assert [job.id for job in jobs.all()] == ["3", "2", "1"]


def test_one_job_at_a_time_which_can_be_stopped(module):
    jobs = Jobs()
    running = module("print('started', flush=True)", "time.sleep(600)")
    job = jobs.start("map", "a long job", running)
    with pytest.raises(Refused, match="a job is running already: a long job"):
        jobs.start("map", "another", running)
    while "started" not in job.lines:
        time.sleep(0.02)
    job.stop()
    assert ended(jobs, job).status == "stopped"
    job = jobs.start("map", "a stubborn job", module("import signal", "signal.signal(2, signal.SIG_IGN)", *LONG))
    while "started" not in job.lines:
        time.sleep(0.02)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("combemb.explorer.server.jobs.SECONDS_TO_STOP", 0.2)
        job.stop()
    assert ended(jobs, job).status == "stopped"


LONG = ("print('started', flush=True)", "time.sleep(600)")


def test_a_server_that_ends_stops_its_job(module):
    jobs = Jobs()
    job = jobs.start("map", "a long job", module(*LONG))
    while "started" not in job.lines:
        time.sleep(0.02)
    jobs.close()
    assert job.status == "stopped"
    assert job._process.poll() is not None


def test_names_of_next_runs(tmp_path: Path):
    assert free_run(tmp_path / "photos").name == "photos-2"
    (tmp_path / "photos-2").mkdir()
    assert free_run(tmp_path / "photos").name == "photos-3"
    assert free_run(tmp_path / "photos-2").name == "photos-3"


@pytest.mark.parametrize("method", methods.names())
def test_a_job_keeps_the_settings_of_every_method(method: str):
    cls = methods.get(method)
    usual = {field.name: getattr(cls, field.name) for field in dataclasses.fields(cls)}
    stored = json.loads(json.dumps(usual))  # as the configuration of a run has them
    assert parse_settings(cls, as_options(stored)) == usual


def test_fit_again(client: TestClient, run: Path):
    client.post("/api/changes", json={"kind": "name", "cluster": "novel-1", "to": "owl"})
    state = client.get("/api/clusters").json()["state"]
    current = client.app.state.current
    told = client.post("/api/jobs", json={"kind": "fit", "settings": {"seed": 1}}).json()
    n_owls = next(c["n_items"] for c in client.get("/api/clusters").json()["clusters"] if c["name"] == "owl")
    assert told["title"] == f"fit again with {24 + n_owls} labels"
    busy = client.post("/api/jobs", json={"kind": "map"})
    assert (busy.status_code, busy.json()["error"]["code"]) == (409, "busy")
    told = ended(current.jobs, current.jobs.get(told["id"]))
    assert told.status == "done", (told.error, told.lines)
    result = client.get("/api/jobs/1").json()["result"]
    assert result["run"] == "photos-2"
    assert result["compared"] == client.get("/api/runs/photos-2/compared").json()
    assert result["compared"]["classes_added"] == ["owl"]
    assert result["compared"]["n_common"] == 72
    counts = {count["name"]: (count["before"], count["after"]) for count in result["compared"]["counts"]}
    assert counts["labelled items"] == (24, 24 + n_owls)
    assert client.get("/api/clusters").json()["state"] == state, "the old run is kept"
    runs = client.get("/api/runs").json()["runs"]
    assert {run["name"]: run["is_current"] for run in runs} == {"photos": True, "photos-2": False}
    chosen = client.post("/api/runs/current", json={"name": "photos-2"}).json()
    assert (chosen["name"], chosen["map"], chosen["index"]) == ("photos-2", "ready", "ready")
    assert "owl" in chosen["classes"]
    assert {setting["name"]: setting["value"] for setting in chosen["settings"]}["seed"] == 1
    assert client.post("/api/runs/current", json={"name": ".."}).status_code == 404
    assert client.post("/api/runs/current", json={"name": "other"}).status_code == 404


def test_a_run_that_is_compared_with_itself_has_not_changed(run: Path):
    found = comparison(run, run)
    assert (found.n_moved, found.moves, found.classes_added, found.n_common) == (0, [], [], 72)
    assert all(count.before == count.after for count in found.counts)


def test_a_missing_map_is_drawn(client: TestClient, run: Path):
    before = client.get("/api/map").content
    (run / PLACES).unlink()
    assert client.get("/api/map").status_code == 409
    told = client.post("/api/jobs", json={"kind": "map"}).json()
    jobs = client.app.state.current.jobs
    assert ended(jobs, jobs.get(told["id"])).status == "done"
    assert client.get("/api/map").content == before


def test_data_that_are_gone_cannot_be_fitted_again(client: TestClient, run: Path, photos: Path):
    away = photos.with_name("away")
    photos.rename(away)
    try:
        answer = client.post("/api/jobs", json={"kind": "fit"})
    finally:
        away.rename(photos)
    assert answer.status_code == 409
    assert "are no longer at" in answer.json()["error"]["message"]
    assert client.get("/api/jobs/7").status_code == 404
