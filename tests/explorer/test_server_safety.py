"""Who may ask, what is served, and what an upload can do."""

import asyncio
import io
import logging
import struct
import zlib
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from combemb.explorer.server import guard, pictures, uploads
from combemb.explorer.server.access import COOKIE, Access, is_loopback, read_token
from combemb.explorer.server.app import Options
from combemb.explorer.server.problems import Refused
from combemb.explorer.server.serving import serve
from tests.commands import files
from tests.explorer.conftest import HERE, client_of

TOKEN = "correct-horse-battery-staple"
UNDO = {"kind": "undo"}
NAME = {"kind": "name", "cluster": "novel-1", "to": "owl"}


def code(answer) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def png(side: int = 32) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.zeros((side, side, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


def bomb(side: int) -> bytes:
    """A PNG of a few kilobytes that becomes side x side pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    compress, rows = zlib.compressobj(9), b"\0" * (side // 8 + 1)
    lines = b"".join(compress.compress(rows) for _ in range(side)) + compress.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", lines) + chunk(b"IEND", b"")


def upload(
    client: TestClient, content: bytes, kind: str = "image/png", path: str = "/api/predict/image", **headers: str
):
    return client.post(path, content=content, headers={"Content-Type": kind, **headers})


# From where


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8017", "127.0.0.1.evil.example", "10.0.0.1:8017", ""])
def test_a_name_that_was_made_to_lead_here_is_refused(client: TestClient, host: str):
    for path in ("/", "/api/run", "/static/index.html"):
        assert code(client.get(path, headers={"Host": host})) == (403, "origin")


@pytest.mark.parametrize("host", ["127.0.0.1:8017", "localhost:9", "[::1]:8017", "localhost"])
def test_names_of_this_machine_are_known(client: TestClient, host: str):
    assert client.get("/api/jobs", headers={"Host": host}).status_code == 200


def test_a_server_for_others_has_addresses_and_the_names_it_was_given(run: Path):
    access = Access(TOKEN, ("explorer.example",))
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    with client_of(run, access=access) as client:
        for host in ("10.0.0.1:8017", "[fe80::1]:8017", "explorer.example"):
            assert client.get("/api/jobs", headers={"Host": host, **bearer}).status_code == 200
        assert code(client.get("/api/jobs", headers={"Host": "evil.example", **bearer})) == (403, "origin")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": HERE, "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_another_site_cannot_write(client: TestClient, run: Path, headers: dict[str, str]):
    before = files(run)
    assert code(client.post("/api/changes", json=NAME, headers=headers)) == (403, "origin")
    assert code(upload(client, png(), **headers)) == (403, "origin")
    assert code(client.delete("/api/jobs/1", headers=headers)) == (403, "origin")
    assert files(run) == before


def test_another_site_cannot_show_pictures_but_may_link(client: TestClient):
    other = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert code(client.get("/api/items/3/thumbnail", headers=other)) == (403, "origin")
    assert client.get("/", headers={**other, "Sec-Fetch-Mode": "navigate"}).status_code == 200


def test_the_page_itself_can_write(client: TestClient):
    own = {"Origin": HERE, "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}
    assert client.post("/api/changes", json=NAME, headers=own).status_code == 200


# What kind


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


def test_slow_uploads_end(monkeypatch: pytest.MonkeyPatch):
    class Slow:
        async def stream(self):
            yield b"a part"
            await asyncio.sleep(60)

    monkeypatch.setattr(uploads, "RECEIVE_SECONDS", 0.05)

    async def receive() -> None:
        await uploads.Turns().of(Slow(), len)

    with pytest.raises(Refused, match="did not arrive") as error:
        asyncio.run(receive())
    assert error.value.status == 408


@pytest.mark.parametrize("path", ["/", "/api", "/api/run", "/api/none", "/static/none", "/api/items/3/thumbnail"])
def test_every_answer_has_the_headers(client: TestClient, path: str):
    headers = client.get(path).headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    policy = headers["Content-Security-Policy"]
    assert "script-src 'self' 'unsafe-eval';" in policy  # what plotly's WebGL needs, and no more
    assert "default-src 'none'" in policy
    assert headers["Referrer-Policy"] == "same-origin"
    assert "server" not in headers


def test_no_page_has_a_script_of_its_own(client: TestClient, run: Path):
    with client_of(run, access=Access(TOKEN)) as guarded:
        pages = [client.get("/").text, client.get("/api").text, guarded.get("/").text]
    for page in pages:
        assert "<script>" not in page
        assert " onclick=" not in page
        assert "http://" not in page.replace("http://www.w3.org/", "")
        assert "https://" not in page


# What is served


@pytest.mark.parametrize(
    "path",
    ["/static/../server/app.py", "/static/%2e%2e/server/app.py", "/static/..%2fserver%2fapp.py", "/static//etc/passwd",
     "/static/%2fetc%2fpasswd", "/static/..\\server\\app.py", "/static/", "/run.json", "/api/items/../run.json"],
)  # fmt: skip
def test_nothing_else_is_served(client: TestClient, path: str):
    status, content = asked(client.app, path)
    assert status in {404, 405}
    assert b"import" not in content
    assert b"root:" not in content


def asked(app, path: str) -> tuple[int, bytes]:
    """Ask for a path as it stands, since clients resolve dots in it."""
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": "GET", "path": unquote(path), "raw_path": path.encode(), "root_path": ""}
    scope |= {"query_string": b"", "headers": [(b"host", b"127.0.0.1")], "http_version": "1.1", "scheme": "http"}
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def test_static_files_are_no_links(client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from combemb.explorer.server.routes import pages

    folder = tmp_path / "static"
    folder.mkdir()
    (folder / "page.js").write_text("1")
    (tmp_path / "secret.js").write_text("secret")
    (folder / "link.js").symlink_to(tmp_path / "secret.js")
    static = TestClient(pages.Static(directory=folder, follow_symlink=False))
    assert static.get("/page.js").text == "1"
    assert static.get("/page.js").headers["Cache-Control"] == "no-cache"
    from starlette.exceptions import HTTPException

    with pytest.raises(HTTPException):
        static.get("/link.js")


def test_links_that_lead_out_of_the_data_are_not_shown(run: Path, photos: Path, tmp_path: Path):
    outside = tmp_path / "outside.png"
    outside.write_bytes(png())
    inside = photos / "unlabelled" / "link.png"
    inside.symlink_to(outside)
    try:
        own = pictures.Pictures(str(photos))
        assert own.may_show(str(photos / "ant" / "000.png"))
        for path in (inside, outside, photos / ".." / "outside.png", photos, tmp_path, "/etc/passwd", None):
            assert own.may_show(None if path is None else str(path)) is (path == photos), path
        assert pictures.Pictures(str(photos), (tmp_path,)).may_show(str(inside))
    finally:
        inside.unlink()


def test_an_item_that_became_a_link_is_not_shown(client: TestClient, run: Path, photos: Path, tmp_path: Path):
    item = client.get("/api/items?rows=3").json()["items"][0]
    file, kept = Path(item["id"]), tmp_path / "kept.png"
    assert client.get("/api/items/3/thumbnail").status_code == 200
    file.rename(kept)
    try:
        file.symlink_to(kept)
        assert code(client.get("/api/items/3/picture")) == (404, "missing")
        assert client.get("/api/export/images.zip").content.count(kept.read_bytes()) == 0
        note = client.get("/api/run").json()["notes"]
        assert note == ["1% of the images are outside the folder of the data; show them with --image-root"]
        with client_of(run, image_roots=(tmp_path,)) as allowed:
            assert allowed.get("/api/items/3/picture").status_code == 200
    finally:
        file.unlink()
        kept.rename(file)


def test_pictures_with_too_many_pixels_are_not_decoded(client: TestClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pictures, "MAX_PIXELS", 1_000)
    answer = client.get("/api/items/3/picture")
    assert code(answer) == (404, "missing")
    assert "1,024 pixels" in answer.json()["error"]["message"]


# Uploads


def test_a_bomb_and_broken_files_are_refused_and_the_server_goes_on(client: TestClient):
    whole = png(64)
    refused = {
        "few bytes, many pixels": bomb(30_000),
        "cut short": whole[: len(whole) // 2],
        "no image": b"#!/bin/sh\necho hello",
        "empty": b"",
        "runs another program": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n",
    }
    for what, content in refused.items():
        answer = upload(client, content)
        assert code(answer) == (422, "broken_image"), what
        assert "/tmp" not in answer.text, "names of files of the server are its own"
    assert upload(client, whole).status_code == 200
    assert upload(client, whole, "application/octet-stream").status_code == 200


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


# The token


def test_without_the_token_there_is_a_form_and_nothing_else(run: Path):
    with client_of(run, access=Access(TOKEN)) as client:
        page = client.get("/")
        assert page.status_code == 401
        assert 'action="/login"' in page.text
        for path in ("/api", "/api/run", "/api/openapi.json", "/static/index.html", "/static/plotly.min.js"):
            assert code(client.get(path)) == (401, "token")
        for wrong in ("", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}"):
            assert code(client.get("/api/run", headers={"Authorization": wrong})) == (401, "token")
        assert code(client.get(f"/api/run?token={TOKEN}")) == (401, "token")
        assert code(client.get("/api/run", headers={"Cookie": f"{COOKIE}={TOKEN}"})) == (401, "token")
        assert client.get("/api/run", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
        assert code(client.post("/api/changes", json=UNDO)) == (401, "token")


def test_the_form_exchanges_the_token_for_a_cookie(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("combemb.explorer.server.routes.pages.SECONDS_AFTER_WRONG", 0.0)
    with client_of(run, access=Access(TOKEN)) as client:
        wrong = client.post("/login", data={"token": "wrong"})
        assert wrong.status_code == 401
        assert "not the token" in wrong.text
        assert "Set-Cookie" not in wrong.headers
        elsewhere = client.post("/login", data={"token": TOKEN}, headers={"Origin": "http://evil.example"})
        assert code(elsewhere) == (403, "origin")
        right = client.post("/login", data={"token": f" {TOKEN}\n"}, follow_redirects=False)
        assert (right.status_code, right.headers["Location"]) == (303, "/")
        cookie = right.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert TOKEN not in cookie
        assert client.get("/api/run").status_code == 200, "the client has the cookie"
        assert client.get("/").status_code == 200


def test_tokens_and_sessions_are_compared_by_their_digests(monkeypatch: pytest.MonkeyPatch):
    compared = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return a == b

    monkeypatch.setattr("hmac.compare_digest", compare)
    access = Access(TOKEN)
    assert access.is_token(TOKEN)
    assert not access.is_token("x")
    assert not access.is_token("é" * 99)
    assert compared == [(32, 32)] * 3
    assert TOKEN not in repr(access)


def test_no_secret_is_logged(run: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("combemb.explorer.server.routes.pages.SECONDS_AFTER_WRONG", 0.0)
    with caplog.at_level(logging.DEBUG), client_of(run, access=Access(TOKEN)) as client:
        client.post("/login", data={"token": TOKEN})
        client.post("/login", data={"token": f"{TOKEN}x"})
        client.get("/api/run", headers={"Authorization": f"Bearer {TOKEN}"})
    assert TOKEN not in caplog.text


def test_a_new_token_is_for_its_owner_only(tmp_path: Path):
    file = tmp_path / "token"
    token = read_token(file)
    assert len(token) >= 32
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_token(file) == token
    for text, told in (("short\n", "5 characters"), (f"{TOKEN}\x07 {TOKEN}", "no header can have")):
        file.write_text(text)
        with pytest.raises(ValueError, match=told):
            read_token(file)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "example.org"])
def test_others_need_a_token(run: Path, host: str):
    assert not is_loopback(host)
    with pytest.raises(ValueError, match=f"{host} can be reached by others; give --token-file FILE"):
        serve(Options(run), host, 0, print)
    with pytest.raises(ValueError, match="a server with a name can be reached by others"):
        serve(Options(run, Access(hosts=("explorer.example",))), "127.0.0.1", 0, print)


def test_loopback():
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "localhost")))
