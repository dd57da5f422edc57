"""What a request may bring: types, lengths, times, and images that are decoded."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from combemb.explorer.server import guard, uploads
from combemb.explorer.server.access import Access
from tests.commands import files
from tests.explorer.conftest import client_of
from tests.explorer.sending import asked, bomb, code, png, upload

TOKEN = "correct-horse-battery-staple"
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n"


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]
)
def test_what_a_form_of_another_site_could_send_is_no_write(client: TestClient, run: Path, kind: str):
    before = files(run)
    answer = client.post("/api/changes", content=b'{"kind": "undo"}', headers={"Content-Type": kind})
    assert code(answer) == (415, "media_type")
    assert code(upload(client, png(), kind)) == (415, "media_type")
    assert files(run) == before


def test_json_may_name_its_encoding(client: TestClient):
    headers = {"Content-Type": "application/json; charset=utf-8"}
    assert client.post("/api/search", content=b'{"row": 3}', headers=headers).status_code == 200


def test_bodies_are_limited(client: TestClient, monkeypatch: pytest.MonkeyPatch):
    parts = (part for part in (b"{}", b""))  # a generator is sent without a length
    answer = client.post("/api/search", content=parts, headers={"Content-Type": "application/json"})
    assert code(answer) == (411, "length")
    assert code(client.post("/login", data={"token": 5_000 * "x"})) == (413, "too_large")
    monkeypatch.setattr(guard, "MAX_JSON_BYTES", 10)
    assert code(client.post("/api/search", json={"row": 1234567})) == (413, "too_large")
    monkeypatch.setattr(guard, "MAX_BYTES", 10)
    assert code(upload(client, png())) == (413, "too_large")
    monkeypatch.setattr(guard, "MAX_BYTES", 10**6)
    monkeypatch.setattr(uploads, "MAX_BYTES", 10)
    assert code(upload(client, png())) == (413, "too_large"), "whatever was said of the length"


def test_too_many_requests_at_a_time(client: TestClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(guard, "MAX_AT_ONCE", 0)
    answer = client.get("/api/run")
    assert code(answer) == (503, "overloaded")
    assert answer.headers["Retry-After"] == "1"


def test_a_bug_is_an_answer_with_headers_and_a_line_in_the_log(
    client: TestClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    def wrong(_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("combemb.explorer.server.described.run", wrong)
    answer = client.get("/api/run")
    assert code(answer) == (500, "internal")
    assert "secret detail" not in answer.text
    assert "secret detail" in caplog.text
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert client.get("/api/jobs").status_code == 200


async def never() -> dict[str, object]:
    await asyncio.sleep(600)
    raise AssertionError("nobody waits that long")


async def in_drops() -> dict[str, object]:
    await asyncio.sleep(0.01)
    return {"type": "http.request", "body": b"x", "more_body": True}


@pytest.mark.parametrize("receive", [never, in_drops])
@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/api/search", "application/json"),
        ("/api/search/image", "image/png"),
        ("/login", "application/x-www-form-urlencoded"),
    ],
)
def test_a_body_that_does_not_arrive_is_not_waited_for(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, path: str, kind: str, receive
):
    for name in ("RECEIVE_SECONDS", "RECEIVE_IMAGE_SECONDS"):
        monkeypatch.setattr(guard, name, 0.2)
    headers = {"content-type": kind, "content-length": "1000"}
    status, content = asked(client.app, path, "POST", headers, receive)
    assert (status, json.loads(content)["error"]["code"]) == (408, "length")


def test_those_without_the_token_do_not_take_the_places_of_the_others(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(guard, "MAX_UNKNOWN_AT_ONCE", 0)
    with client_of(run, access=Access(TOKEN)) as client:
        assert code(client.get("/")) == (503, "overloaded")
        assert code(client.post("/login", data={"token": TOKEN})) == (503, "overloaded")
        assert client.get("/", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_a_bomb_and_broken_files_are_refused_and_the_server_goes_on(client: TestClient):
    whole = png(64)
    refused = {
        "few bytes, many pixels": bomb(30_000),
        "more pixels than allowed, fewer than Pillow refuses": bomb(7_200),
        "cut short": whole[: len(whole) // 2],
        "no image": b"#!/bin/sh\necho hello",
        "empty": b"",
        "runs another program": EPS,
    }
    for what, content in refused.items():
        answer = upload(client, content)
        assert code(answer) == (422, "broken_image"), what
        assert "/tmp" not in answer.text, "names of files of the server are its own"
    assert upload(client, whole).status_code == 200
    assert upload(client, whole, "application/octet-stream").status_code == 200


@pytest.mark.parametrize(("n_bytes", "told"), [(2**27, "MemoryError"), (2**30, "PNG")])
def test_decoding_is_tried_within_a_limit_of_memory(tmp_path: Path, n_bytes: int, told: str):
    (tmp_path / "image").write_bytes(png(6_000))
    command = [sys.executable, "-I", uploads.trial.__file__, tmp_path / "image", "50000000", str(n_bytes), "PNG"]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() == told


def test_no_other_program_decodes_an_upload(client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program, called = tmp_path / "gs", tmp_path / "called"
    program.write_text(f"#!/bin/sh\ntouch {called}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert code(upload(client, EPS)) == (422, "broken_image")
    assert not called.exists()


def test_a_decoder_that_dies_or_hangs_does_not_take_the_server_along(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for ending, told in (("os.kill(os.getpid(), 11)", "stopped the process"), ("time.sleep(60)", "too long")):
        script = tmp_path / "trial.py"
        script.write_text(f"import os, time\n{ending}\n")
        monkeypatch.setattr(uploads.trial, "__file__", str(script))
        monkeypatch.setattr(uploads, "TRIAL_SECONDS", 1.0)
        answer = upload(client, png())
        assert code(answer) == (422, "broken_image")
        assert told in answer.json()["error"]["message"]
    assert client.get("/api/run").status_code == 200


def test_nothing_of_an_upload_stays(client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert upload(client, png()).status_code == 200
    assert upload(client, b"no image").status_code == 422
    assert [path for path in tmp_path.iterdir() if path.name.startswith("combemb")] == []
