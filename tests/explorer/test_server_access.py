"""Who may ask: the name in Host, the site that a request comes from, and the token."""

import logging
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from combemb.explorer.server.access import COOKIE, Access, is_loopback, read_token
from combemb.explorer.server.app import Options
from combemb.explorer.server.serving import serve
from tests.commands import files
from tests.explorer.conftest import HERE, client_of
from tests.explorer.sending import code, png, upload

TOKEN = "correct-horse-battery-staple"
UNDO = {"kind": "undo"}
NAME = {"kind": "name", "cluster": "novel-1", "to": "owl"}


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8017", "127.0.0.1.evil.example", "10.0.0.1:8017", ""])
def test_a_name_that_was_made_to_lead_here_is_refused(client: TestClient, host: str):
    for path in ("/", "/api/run", "/static/index.html"):
        assert code(client.get(path, headers={"Host": host})) == (403, "origin")


@pytest.mark.parametrize("host", ["127.0.0.1:8017", "127.0.0.2:8017", "localhost:9", "[::1]:8017", "localhost"])
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
def test_others_need_a_token(run: Path, host: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("combemb.explorer.server.serving.listening", lambda *_: pytest.fail("it listens"))
    assert not is_loopback(host)
    with pytest.raises(ValueError, match=f"{host} can be reached by others; give --token-file FILE"):
        serve(Options(run), host, 0, print)
    with pytest.raises(ValueError, match="a server with a name can be reached by others"):
        serve(Options(run, Access(hosts=("explorer.example",))), "127.0.0.1", 0, print)


def test_loopback():
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "localhost")))
