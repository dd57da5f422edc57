"""What the API says about a run is what the command line and the package say about it."""

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from pyarrow import csv
from starlette.testclient import TestClient

from combemb import methods
from combemb.collection.class_log import read_log
from combemb.collection.classes import classes_of
from combemb.collection.indexed import Collection
from combemb.collection.predicted import predict_in
from combemb.data import read_images
from combemb.discovery.result import Discovery
from combemb.explorer.server.routes.exports import zipped
from combemb.explorer.stored_map import StoredMap
from combemb.learning.run_folder import DISCOVERY, PLACES, TABLE, RunFolder
from tests.commands import done, files

N, N_LABELLED = 72, 24


def got(client: TestClient, path: str, status: int = 200):
    answer = client.get(path)
    assert answer.status_code == status, answer.text
    return answer.json()


def posted(client: TestClient, path: str, status: int = 200, **body):
    answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def uploaded(client: TestClient, path: str, file: Path):
    answer = client.post(path, content=file.read_bytes(), headers={"Content-Type": "image/png"})
    assert answer.status_code == 200, answer.text
    return answer.json()


def changed(client: TestClient, kind: str, status: int = 200, **body):
    return posted(client, "/api/changes", status, kind=kind, **body)


def error(answer) -> tuple[str, str]:
    return answer["error"]["code"], answer["error"]["message"]


def names_by_row(client: TestClient) -> list[str | None]:
    """The class of each item, as the page puts it together."""
    listed = got(client, "/api/clusters")
    numbers = np.frombuffer(client.get("/api/assignment").content, "<i4", N)
    names = [cluster["name"] for cluster in listed["clusters"]]
    return [None if number < 0 else names[number] for number in numbers]


def test_run(client: TestClient, run: Path, photos: Path):
    found = got(client, "/api/run")
    told = {"name": "photos", "method": "itq", "data": str(photos), "n_items": N, "n_labelled": N_LABELLED, "bits": 12}
    told |= {"n_seen": 4, "n_novel": 2, "n_novel_interval": [2, 2], "has_pictures": True, "notes": []}
    assert told.items() <= found.items()
    assert (found["discovery"], found["index"], found["map"]) == ("ready", "ready", "ready")
    assert found["classes"] == ["ant", "bee", "cat", "dog"]
    (bits,) = [setting for setting in found["settings"] if setting["name"] == "bits"]
    assert (bits["value"], bits["default"]) == (12, 48)
    assert found["meta_classes"] is None
    shares = {metric["name"]: metric["value"] for metric in found["metrics"]}
    discovery = Discovery.load(run / DISCOVERY)
    assert shares["unlabelled items in novel classes"] == pytest.approx(
        discovery.is_novel[~discovery.is_labelled].mean()
    )


def test_map_and_assignment(client: TestClient, run: Path):
    answer = client.get("/api/map")
    places = np.frombuffer(answer.content, "<f4").reshape(2, N).T
    np.testing.assert_array_equal(places, StoredMap.open(run).places)
    assert abs(places).max() == pytest.approx(1)
    state = got(client, "/api/clusters")["state"]
    assert answer.headers["X-Combemb-Discovery"] == state.partition("-")[0]
    answer = client.get("/api/assignment")
    assert (answer.headers["X-Combemb-Items"], answer.headers["X-Combemb-State"]) == (str(N), state)
    table = pq.read_table(run / TABLE)
    assert names_by_row(client) == table["cluster"].to_pylist()
    flags, confidence = np.frombuffer(answer.content, np.uint8, offset=4 * N).reshape(2, N)
    np.testing.assert_array_equal(flags, np.asarray(table["confidence"]) == 1)
    np.testing.assert_allclose(confidence / 255, table["confidence"], atol=0.5 / 255 + 1e-6)


def test_clusters_are_those_of_the_command_line(client: TestClient, run: Path):
    listed, classes = got(client, "/api/clusters"), classes_of(run)
    assert [cluster["name"] for cluster in listed["clusters"]] == classes.order
    confidence = np.asarray(classes.table["confidence"])
    for number, cluster in enumerate(listed["clusters"]):
        rows = classes.rows(cluster["name"])
        free = rows[~classes.is_labelled[rows]]
        assert (cluster["number"], cluster["n_items"]) == (number, len(rows))
        assert cluster["n_labelled"] == len(rows) - len(free)
        assert cluster["n_left"] == len(free)
        assert cluster["confidence"] == pytest.approx(confidence[free].mean())
        assert cluster["is_seen"] == cluster["is_named"] == (cluster["name"] in classes.seen)
        suggested = [about["name"] for about in cluster["suggestions"]]
        nearest = Discovery.load(run / DISCOVERY).neighbours
        assert suggested == [] if cluster["is_seen"] else suggested[0] == nearest[cluster["name"]]
    assert (listed["n_items"], listed["n_left"], listed["n_rejected"]) == (N, N - N_LABELLED, 0)
    assert len({cluster["colour"] for cluster in listed["clusters"]}) == 6


def test_items_in_all_orders(client: TestClient, run: Path):
    found = Discovery.load(run / DISCOVERY)

    def rows(query: str) -> list[int]:
        page = got(client, f"/api/items?{query}")
        assert page["total"] >= len(page["items"])
        return [item["row"] for item in page["items"]]

    assert rows("cluster=novel-1&n=500") == found.exemplars("novel-1", N).tolist()
    assert rows("cluster=novel-1&start=3&n=4") == found.exemplars("novel-1", 7)[3:].tolist()
    assert rows("cluster=ant&order=borderline&n=500") == found.borderline("ant", N).tolist()
    free = np.flatnonzero(~found.is_labelled)
    doubtful = free[np.argsort(found.confidence[free], kind="stable")]
    assert rows("order=doubt&n=500") == doubtful.tolist()
    assert rows("rows=5,17,3") == [5, 17, 3]
    assert rows("order=row&start=70") == [70, 71]
    assert error(got(client, "/api/items?cluster=owl", 400))[1].startswith("there is no cluster 'owl'; choose one of")
    assert error(got(client, "/api/items?rows=72", 404)) == ("missing", "there is no item 72; there are 72")
    assert error(got(client, "/api/items?rows=x", 422))[0] == "invalid"


def test_an_item(client: TestClient, run: Path, photos: Path):
    (item,) = got(client, "/api/items?rows=30")["items"]
    table = pq.read_table(run / TABLE).slice(30, 1).to_pylist()[0]
    assert item["id"] == table["id"]
    assert item["name"] == str(Path(table["id"]).relative_to(photos))
    assert (item["cluster"], item["found"], item["is_novel"]) == (table["cluster"], table["cluster"], table["is_novel"])
    assert item["confidence"] == pytest.approx(table["confidence"])
    assert item["doubt"] == pytest.approx(1 - table["confidence"])


def test_pictures(client: TestClient, run: Path):
    state = got(client, "/api/clusters")["state"]
    answer = client.get(f"/api/items/3/thumbnail?side=64&v={state.partition('-')[0]}")
    assert answer.headers["Content-Type"] == "image/jpeg"
    assert "immutable" in answer.headers["Cache-Control"]
    shown = np.asarray(Image.open(io.BytesIO(answer.content)), dtype=float)
    path = pq.read_table(run / TABLE)["path"][3].as_py()
    assert abs(shown - np.asarray(Image.open(path), dtype=float)).mean() < 12, "a JPEG of the same picture"
    assert client.get("/api/items/3/thumbnail?side=64&v=other").headers["Cache-Control"] == "no-store"
    assert client.get("/api/entries/3/thumbnail").status_code == 200
    assert client.get("/api/items/3/picture").status_code == 200
    for path, status in (("items/72/thumbnail", 404), ("entries/-1/picture", 404), ("items/3/thumbnail?side=65", 422)):
        assert client.get(f"/api/{path}").status_code == status, path


def test_every_change_is_that_of_the_command_line(client: TestClient, run: Path, finished_run: Path, tmp_path: Path):
    other = tmp_path / "other"
    other.mkdir()
    for name, content in files(finished_run).items():
        (other / name).write_bytes(content)
    ids = pq.read_table(run / TABLE)["id"].to_pylist()
    first, second = (
        [item["row"] for item in got(client, f"/api/items?cluster={name}&n=3")["items"]]
        for name in ("novel-1", "novel-2")
    )
    told = changed(client, "split", cluster="novel-1", items=first)
    assert told["text"] == "3 items: novel-1 -> novel-3"
    assert told["groups"] == [{"n": 3, "to": "novel-3"}]
    done("classes", other, "split", "novel-1", *(ids[row] for row in first))
    told = changed(client, "name", cluster="novel-3", to=" wasp ", state=told["clusters"]["state"])
    done("classes", other, "name", "novel-3", "wasp")
    assert told["clusters"]["can_undo"] == "name novel-3"
    changed(client, "merge", clusters=["wasp", "novel-2"])
    done("classes", other, "merge", "wasp", "novel-2")
    changed(client, "move", to="novel-1", items=second)
    done("classes", other, "move", "novel-1", *(ids[row] for row in second))
    told = changed(client, "reject", cluster="novel-1", items=second[:2])
    assert told["groups"] == [{"n": 2, "to": None}]
    assert told["clusters"]["n_rejected"] == 2
    done("classes", other, "reject", "novel-1", *(ids[row] for row in second[:2]))
    changed(client, "reject", cluster="novel-1")
    changed(client, "undo")
    done("classes", other, "reject", "novel-1")
    done("classes", other, "undo")
    changed(client, "split", cluster="wasp", into=2)
    done("classes", other, "split", "wasp")
    changed(client, "name", cluster="ant", to="ant")
    done("classes", other, "name", "ant", "ant")
    assert (run / "classes.jsonl").read_bytes() == (other / "classes.jsonl").read_bytes()
    assert names_by_row(client) == classes_of(other).names.tolist()
    rejected = got(client, "/api/items?rejected=true")["items"]
    assert sorted(item["row"] for item in rejected) == sorted(second[:2])
    assert {(item["cluster"], item["number"]) for item in rejected} == {(None, -1)}
    said = got(client, "/api/changes")["changes"]
    assert [change["kind"] for change in said] == ["name", "split", "reject", "move", "merge", "name", "split"]


def test_what_is_left_to_decide(client: TestClient):
    left = got(client, "/api/clusters")["n_left"]
    n = next(c["n_items"] for c in got(client, "/api/clusters")["clusters"] if c["name"] == "novel-1")
    told = changed(client, "name", cluster="novel-1", to="owl")
    assert told["clusters"]["n_left"] == left - n == got(client, "/api/items?order=doubt")["total"]
    items = got(client, "/api/items?order=doubt&n=500")["items"]
    doubts = [item["doubt"] for item in items]
    assert doubts == sorted(doubts, reverse=True)
    assert not any(item["is_said"] or item["is_labelled"] for item in items)
    assert all(item["is_said"] for item in got(client, "/api/items?cluster=owl")["items"])
    suggested = next(c["suggestions"] for c in told["clusters"]["clusters"] if c["name"] == "novel-2")
    assert {"name": "owl", "reason": "given before"} in suggested


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"kind": "name", "cluster": "owl", "to": "x"}, "there is no cluster 'owl'"),
        ({"kind": "name", "cluster": "novel-1", "to": "a|b"}, "cannot be a name"),
        ({"kind": "name", "cluster": "novel-1", "to": "novel-7"}, "combemb uses it for items without one"),
        ({"kind": "name", "cluster": "novel-1", "to": "  "}, "the name is empty"),
        ({"kind": "name", "cluster": "ant", "to": "emmet"}, "'ant' is a class of the labels"),
        ({"kind": "merge", "clusters": ["novel-1", "novel-1"]}, "two different clusters"),
        ({"kind": "merge", "clusters": ["novel-1", "ant"]}, "name it first in the merge"),
        ({"kind": "move", "to": "novel-1", "items": []}, "no items were given"),
        ({"kind": "move", "to": "novel-1", "items": [0]}, "is labelled, and keeps its label"),
        ({"kind": "split", "cluster": "novel-1", "items": []}, "choose some, not all"),
        ({"kind": "split", "cluster": "novel-1", "into": 100}, "too few for 100 parts"),
        ({"kind": "undo"}, "there is no change to undo"),
    ],
)
def test_refused_changes_leave_the_run_as_it_was(client: TestClient, run: Path, body: dict, message: str):
    before = files(run)
    assert message in error(posted(client, "/api/changes", 400, **body))[1]
    assert files(run) == before


def test_an_old_state_is_refused(client: TestClient, run: Path):
    state = got(client, "/api/clusters")["state"]
    changed(client, "name", cluster="novel-1", to="owl", state=state)
    assert error(changed(client, "undo", 409, state=state))[0] == "changed"
    assert len(read_log(run)) == 1


def test_changes_of_others_are_seen_at_once(client: TestClient, run: Path):
    before = got(client, "/api/clusters")["state"]
    done("classes", run, "name", "novel-1", "owl")
    listed = got(client, "/api/clusters")
    assert "owl" in [cluster["name"] for cluster in listed["clusters"]]
    assert listed["state"] != before
    done("discover", run, "--n-novel", "1", "--no-page")
    again = got(client, "/api/clusters")
    assert again["state"].partition("-")[0] != before.partition("-")[0]
    assert error(got(client, "/api/map", 409)) == ("unavailable", "photos has no map yet")
    assert got(client, "/api/run")["map"] == "missing"


def test_search_is_that_of_the_command_line(client: TestClient, run: Path):
    ids = pq.read_table(run / TABLE)["id"].to_pylist()
    (expected,) = Collection.open(run).search(ids[40], k=12)
    hits = [hit for hit in expected.hits if hit.id != ids[40]][:10]
    found = posted(client, "/api/search", row=40, k=10)
    assert [hit["id"] for hit in found["hits"]] == [hit.id for hit in hits]
    np.testing.assert_allclose([hit["score"] for hit in found["hits"]], [hit.score for hit in hits], rtol=1e-5)
    assert found["query"]["row"] == 40
    assert [ids[hit["row"]] for hit in found["hits"]] == [hit.id for hit in hits]
    assert client.get(found["hits"][0]["thumbnail"]).status_code == 200
    found = uploaded(client, "/api/search/image?k=12", Path(ids[40]))
    assert [hit["id"] for hit in found["hits"]] == [hit.id for hit in expected.hits]
    (prediction,) = predict_in(run, [ids[40]], progress=False).items
    assert (found["query"]["cluster"], found["query"]["kind"]) == (prediction.name, prediction.kind)


@pytest.mark.parametrize("k", [3, 500])
def test_filters_keep_the_order_of_the_whole_ranking(client: TestClient, k: int):
    everything = posted(client, "/api/search", row=40, k=1_000)["hits"]
    assert len(everything) == N - 1
    for query, passes in (
        ({"kind": "novel"}, lambda hit: hit["is_novel"]),
        ({"kind": "seen"}, lambda hit: not hit["is_novel"]),
        ({"cluster": "bee"}, lambda hit: hit["cluster"] == "bee"),
        ({"cluster": "bee", "kind": "novel"}, lambda hit: False),
    ):
        found = posted(client, "/api/search", row=40, k=k, **query)["hits"]
        assert found == [hit for hit in everything if passes(hit)][:k], query


def test_predict_and_embed(client: TestClient, run: Path):
    ids = pq.read_table(run / TABLE)["id"].to_pylist()
    model = methods.load(run)
    found = posted(client, "/api/embed", rows=[40, 3])
    z = model.embed([ids[40], ids[3]])
    np.testing.assert_allclose(found["z"], z, atol=1e-5)
    assert found["codes"] == model.codebook.encode(z).tolist()
    np.testing.assert_allclose(uploaded(client, "/api/embed/image", Path(ids[40]))["z"], z[:1], atol=1e-5)
    (expected,) = predict_in(run, [ids[40]], progress=False).items
    told = uploaded(client, "/api/predict/image", Path(ids[40]))
    assert (told["name"], told["kind"]) == (expected.name, expected.kind)
    assert error(posted(client, "/api/predict", 400, x=[[1.0, 2.0]]))[0] == "refused"
    assert error(posted(client, "/api/embed", 422))[1] == "give either rows or x, exactly one of the two"


def test_without_a_map_items_are_embedded_again(client: TestClient, run: Path):
    expected = posted(client, "/api/search", row=40, k=10)["hits"]
    (run / PLACES).unlink()
    again = posted(client, "/api/search", row=40, k=10)["hits"]
    assert [hit["id"] for hit in again] == [hit["id"] for hit in expected]


def test_exports(client: TestClient, run: Path, tmp_path: Path):
    changed(client, "name", cluster="novel-1", to="owl")
    changed(client, "reject", cluster="novel-2")
    file = tmp_path / "labels.csv"
    done("classes", run, "labels", "--out", file)
    assert client.get("/api/export/labels.csv").content == file.read_bytes()
    table = pq.read_table(io.BytesIO(client.get("/api/export/labels.parquet").content))
    labels = classes_of(run).labels()
    assert table["label"].to_pylist() == labels
    answer = client.get("/api/export/manifest.csv")
    assert answer.headers["Content-Disposition"] == 'attachment; filename="manifest.csv"'
    (tmp_path / "manifest.csv").write_bytes(answer.content)
    images = read_images(tmp_path / "manifest.csv")
    assert images.labels.tolist() == labels
    names = classes_of(run).names
    with zipfile.ZipFile(io.BytesIO(client.get("/api/export/images.zip").content)) as archive:
        assert archive.testzip() is None
        folders = [Path(name).parent.name for name in archive.namelist()]
    assert sorted(folders) == sorted(name or "neither" for name in names)
    told = posted(client, "/api/export/folders")
    assert told == {"folder": f"{run}-sorted-1", "n": N}
    assert len(list(Path(told["folder"]).glob("owl/*"))) == (names == "owl").sum()
    assert posted(client, "/api/export/folders", copy=True)["folder"] == f"{run}-sorted-2"
    assert not any(path.is_symlink() for path in Path(f"{run}-sorted-2").rglob("*"))


def test_an_archive_has_images_of_any_age(tmp_path: Path):
    file = tmp_path / "image.png"
    file.write_bytes(b"pixels")
    os.utime(file, (0, 0))  # an archive cannot say that a file is from 1970
    with zipfile.ZipFile(io.BytesIO(b"".join(zipped([file], ["owl"])))) as archive:
        assert archive.read("owl/image.png") == b"pixels"


def test_exported_labels_are_read_as_csv(client: TestClient):
    table = csv.read_csv(io.BytesIO(client.get("/api/export/labels.csv").content))
    assert (table.column_names, len(table)) == (["id", "label"], N)
    assert isinstance(table, pa.Table)


def test_curves(client: TestClient, run: Path):
    assert got(client, "/api/curves") == {"epochs": [], "panels": [], "code_use": None}
    log = [{"epoch": 1, "loss": 2.0, "meta": 1.5}, {"epoch": 2, "loss": 1.0, "meta": None, "code_use": [[0.5, 0.5]]}]
    for line in log:
        RunFolder(run).append_log(line)
    told = got(client, "/api/curves")
    assert told["epochs"] == [1, 2]
    assert told["panels"][0]["lines"] == [{"name": "meta", "values": [1.5, None]}]
    assert told["code_use"] == [[0.5, 0.5]]


def test_a_run_without_a_discovery_says_what_to_do(run: Path, client: TestClient):
    for name in (DISCOVERY, TABLE):
        (run / name).unlink()
    told = got(client, "/api/run")
    assert (told["discovery"], told["map"], told["state"], told["n_items"]) == ("missing", "missing", None, None)
    for path in ("clusters", "assignment", "map", "items", "export/labels.csv", "changes"):
        answer = got(client, f"/api/{path}", 409)
        assert error(answer) == ("unavailable", "photos has no discovery yet")
        assert answer["error"]["do"] == f"combemb discover {run}"
