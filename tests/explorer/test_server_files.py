"""What is served: files of the page, pictures below the folder of the data, and headers of every answer."""

import os
import threading
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from combemb.data.entries import Entry
from combemb.explorer.server import pictures
from combemb.explorer.server.access import Access
from combemb.explorer.server.problems import Refused
from combemb.explorer.server.routes import pages
from tests.explorer.conftest import client_of, run_on
from tests.explorer.sending import asked, code, png
from tests.pictures import write_folder

TOKEN = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures for these tests alone, which change some: their features would be extracted again elsewhere."""
    return write_folder(tmp_path_factory.mktemp("files") / "photos")


@pytest.fixture(scope="module")
def finished_run(photos: Path) -> Path:
    return run_on(photos)


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


def test_static_files_are_no_links(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "static"
    folder.mkdir()
    (folder / "page.js").write_text("1")
    (tmp_path / "secret.js").write_text("secret")
    (folder / "link.js").symlink_to(tmp_path / "secret.js")
    monkeypatch.setattr(pages, "STATIC", folder)
    with client_of(run) as client:
        assert client.get("/static/page.js").text == "1"
        assert client.get("/static/page.js").headers["Cache-Control"] == "no-cache"
        assert code(client.get("/static/link.js")) == (404, "missing")


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


def test_a_named_pipe_among_the_images_is_not_waited_for(photos: Path):
    pipe = photos / "unlabelled" / "pipe.png"
    os.mkfifo(pipe)
    told: list[Refused] = []

    def ask() -> None:
        try:
            pictures.Pictures(str(photos)).jpeg(Entry(str(pipe), str(pipe)), 64)
        except Refused as error:
            told.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    try:
        asking.start()
        asking.join(20)
        assert [str(error) for error in told] == ["the picture cannot be read: not a file"]
    finally:
        pipe.unlink()


def test_pictures_with_too_many_pixels_are_not_decoded(client: TestClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pictures, "MAX_PIXELS", 1_000)
    answer = client.get("/api/items/3/picture")
    assert code(answer) == (404, "missing")
    assert "1,024 pixels" in answer.json()["error"]["message"]
