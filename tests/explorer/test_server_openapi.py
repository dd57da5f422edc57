"""Whatever a client sends, the answers are those of the OpenAPI description, and nothing is an error of the server."""

import shutil
import traceback
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.testclient import TestClient

from combemb.explorer.server.app import Options, application
from combemb.explorer.server.jobs import Job, Jobs

N_EXAMPLES = 12  # of each route
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
HOST = {"Host": "127.0.0.1"}


@pytest.fixture(scope="module")
def described(finished_run: Path, tmp_path_factory: pytest.TempPathFactory):
    """The application of a run."""
    run = shutil.copytree(finished_run, tmp_path_factory.mktemp("described") / "photos")
    return application(Options(run, prepares=False))


def test_every_route_is_described(described):
    with TestClient(described, base_url="http://127.0.0.1") as client:
        api = client.get("/api/openapi.json").json()
    for path, verbs in api["paths"].items():
        for verb, route in verbs.items():
            assert route["description"], (verb, path)
            assert {"4XX", "5XX"} <= route["responses"].keys(), (verb, path)
            assert any(status.startswith("2") for status in route["responses"])
    wanted = {"embed", "search", "clusters", "changes", "export/labels.{suffix}", "jobs", "map", "assignment", "items"}
    assert {f"/api/{path}" for path in wanted} <= api["paths"].keys()


def test_the_page_of_the_api_shows_all_routes(described):
    with TestClient(described, base_url="http://127.0.0.1") as client:
        page = client.get("/api").text
        api = client.get("/api/openapi.json").json()
    for path in api["paths"]:
        assert f"<code>{path}</code>" in page
    for name in api["components"]["schemas"]:
        assert f'id="{name}"' in page


def unstarted(_: Jobs, kind: str, title: str, command: list[str], done=None, always=lambda: None) -> Job:
    """A job that starts no process."""
    always()
    return Job("1", kind, title, command, status="done")


def test_whatever_is_sent_the_answer_is_as_described(described, monkeypatch: pytest.MonkeyPatch):
    """schemathesis makes the requests; its own plugin for pytest needs an older pytest."""
    monkeypatch.setattr(Jobs, "start", unstarted)
    chosen = settings(
        max_examples=N_EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    statuses: dict[str, set[int]] = {}
    failures: list[str] = []
    schema = schemathesis.openapi.from_asgi("/api/openapi.json", described, headers=HOST)
    for found in schema.get_all_operations():
        operation = found.ok()
        try:
            chosen(given(operation.as_strategy())(asking(statuses.setdefault(operation.label, set()))))()
        except Exception as error:  # all of them at once
            failures.append("".join(traceback.format_exception(error))[-2_000:])
    assert failures == []
    assert len(statuses) > 20
    assert 202 in statuses["POST /api/jobs"], statuses["POST /api/jobs"]
    for label in ("GET /api/run", "GET /api/items", "GET /api/clusters", "POST /api/export/folders", "GET /api/jobs"):
        assert 200 in statuses[label], (label, statuses[label])
    for label in ("POST /api/changes", "POST /api/search", "POST /api/search/image", "POST /api/embed"):
        assert max(statuses[label]) >= 400, (label, statuses[label])


def asking(statuses: set[int]):
    """A function that asks, checks the answer, and notes its status."""

    def ask(case) -> None:
        statuses.add(case.call_and_validate(headers=HOST, checks=CHECKS).status_code)

    return ask
