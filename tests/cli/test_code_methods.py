"""The commands with each method that has codes, on embeddings: fit, index, search, discover."""

import json
from pathlib import Path

import numpy as np
import pytest

from combemb import methods
from combemb.learning.codes import CodeMethod
from combemb.learning.deep import DeepMethod
from tests.blobs import blobs
from tests.cli.found import table
from tests.commands import done

BLOBS = blobs(4, 2, n_each=20, D=16)
IDS = [f"item-{i}" for i in range(len(BLOBS.x))]
NEW = BLOBS.x[5::20] + np.float32(0.01)  # near an item of each class
NAMES = [name for name in methods.names() if issubclass(methods.get(name), CodeMethod)]


def test_there_are_eleven():
    assert len(NAMES) == 11


@pytest.fixture(scope="module", params=NAMES)
def run(request, tmp_path_factory) -> Path:
    """A run of a method, fitted and indexed on the items; beside it are new items."""
    folder = tmp_path_factory.mktemp(request.param)
    np.savez(folder / "items.npz", x=BLOBS.x, labels=BLOBS.labels, ids=IDS)
    np.savez(folder / "new.npz", x=NEW, ids=[f"new-{i}" for i in range(6)])
    cls = methods.get(request.param)
    settings = {"epochs": 2, "batch_size": 32, "check": False} if issubclass(cls, DeepMethod) else {}
    given = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    arguments = ("--method", request.param, "--bits", 12, *given)
    done("fit", folder / "items.npz", "--out", folder / "run", *arguments)
    assert json.loads((folder / "run/run.json").read_text())["method"] == request.param
    assert "120 entries, 40 of them labelled" in done("index", folder / "run").stdout
    return folder / "run"


def test_a_search_finds_the_ids_with_the_highest_scores_of_the_codebook(run: Path):
    found = json.loads(done("search", run, run.parent / "new.npz", "--json", "-k", 9).stdout)
    model = methods.load(run)
    scores = model.codebook.scores(model.embed(NEW), model.encode(BLOBS.x)).numpy()
    assert [result["query"]["id"] for result in found] == [f"new-{i}" for i in range(6)]
    for result, row in zip(found, scores, strict=True):
        order = np.argsort(-row, kind="stable")[:9]
        assert [hit["id"] for hit in result["hits"]] == [IDS[i] for i in order]
        assert [hit["score"] for hit in result["hits"]] == pytest.approx(row[order], abs=1e-5)


def test_a_discovery_puts_every_item_into_a_class(run: Path):
    done("discover", run, "--n-novel", 2, "--no-page")
    rows = table(run)
    assert rows["id"] == IDS
    is_labelled = BLOBS.labels >= 0
    assert np.array(rows["cluster"])[is_labelled].tolist() == [str(label) for label in BLOBS.labels[is_labelled]]
    assert set(rows["cluster"]) == {"0", "1", "2", "3", "novel-1", "novel-2"}
