"""The server that searches an index without a page: what it answers, and who may ask."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from combemb.collection.indexed import Hit, SearchResult
from combemb.data.entries import Entry
from combemb.explorer.server.access import Access
from combemb.explorer.server.shards import shards_application
from tests.pictures import IDS

HERE = "http://127.0.0.1:8017"
TOKEN = "a token of more than 16 characters"


@dataclass
class Answered:
    results: list[SearchResult]
    missing: tuple[str, ...] = ()
    n_missing: int = 0


@dataclass
class Index:
    """Finds the queries themselves; notes what it was asked."""

    missing_now: tuple[str, ...] = ()
    shards: tuple[str, ...] = ("shards/0", "shards/1")
    asked: list[Any] = field(default_factory=list)

    def __len__(self) -> int:
        return 12

    def answer(self, queries: Any, k: int) -> Answered:
        is_image = isinstance(queries, Path)
        self.asked.append((queries.read_bytes() if is_image else queries.copy(), k))
        results = [
            SearchResult(
                Entry(id="q", path=None, label=None),
                [Hit(id=f"{query}-{i}", path=None, label="owl" if i else None, score=1.5 - i) for i in range(k)],
            )
            for query in range(1 if is_image else len(queries))
        ]
        return Answered(results, self.missing_now, 6 * len(self.missing_now))


@pytest.fixture
def index() -> Index:
    return Index()


@pytest.fixture
def client(index: Index) -> TestClient:
    return TestClient(shards_application(index, Access()), base_url=HERE)


def test_features_find_entries(client: TestClient, index: Index):
    found = client.post("/api/search", json={"x": [[1.0, 2.5], [3.0, -4.0]], "k": 2})
    assert found.status_code == 200
    assert found.json() == {
        "hits": [
            [
                {"id": f"{query}-0", "path": None, "label": None, "score": 1.5},
                {"id": f"{query}-1", "path": None, "label": "owl", "score": 0.5},
            ]
            for query in range(2)
        ],
        "missing": [],
        "n_missing": 0,
    }
    ((x, k),) = index.asked
    assert x.dtype == np.float32
    assert (x.tolist(), k) == ([[1.0, 2.5], [3.0, -4.0]], 2)


def test_answers_name_the_shards_that_are_missing(client: TestClient, index: Index):
    index.missing_now = ("shards/1",)
    found = client.post("/api/search", json={"x": [[1.0, 2.5]]}).json()
    assert (found["missing"], found["n_missing"], len(found["hits"][0])) == (["shards/1"], 6, 20)
    assert client.get("/api/index").json() == {
        "n_entries": 12,
        "shards": ["shards/0", "shards/1"],
        "missing": ["shards/1"],
    }


def test_an_image_is_a_query(client: TestClient, index: Index, photos: Path):
    content = (photos / IDS[0]).read_bytes()
    found = client.post("/api/search/image?k=3", content=content, headers={"Content-Type": "image/png"})
    assert [hit["id"] for hit in found.json()["hits"][0]] == ["0-0", "0-1", "0-2"]
    assert index.asked == [(content, 3)]
    broken = client.post("/api/search/image", content=content[:90], headers={"Content-Type": "image/png"})
    assert (broken.status_code, broken.json()["error"]["code"]) == (422, "broken_image")


@pytest.mark.parametrize(
    "body",
    [{}, {"x": []}, {"x": [[1.0], [1.0, 2.0]]}, {"x": [[1.0]], "k": 0}, {"x": [["a"]]}, {"x": [[1.0]], "rows": [0]}],
)
def test_what_cannot_be_searched_is_refused(client: TestClient, index: Index, body: dict):
    answer = client.post("/api/search", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid")
    assert index.asked == []


def test_only_this_machine_or_those_with_the_token_may_ask(index: Index):
    def status(access: Access, **headers: str) -> int:
        client = TestClient(shards_application(index, access), base_url=HERE)
        return client.get("/api/index", headers=headers).status_code

    assert status(Access()) == 200
    assert status(Access(), Host="evil.example") == 403
    assert status(Access(), **{"Sec-Fetch-Site": "cross-site"}) == 403
    assert status(Access(TOKEN)) == 401
    assert status(Access(TOKEN), Authorization=f"Bearer {TOKEN}") == 200


def test_the_api_describes_itself(client: TestClient):
    paths = client.get("/api/openapi.json").json()["paths"]
    assert set(paths) == {"/api/index", "/api/search", "/api/search/image"}
    assert "n_missing" in client.get("/api").text
