"""The commands with each method that has a head over all classes, on embeddings."""

import json
from pathlib import Path

import numpy as np
import pytest

from combemb import methods
from combemb.learning.head import HeadMethod
from tests.blobs import blobs
from tests.commands import done, refused, told

BLOBS = blobs(4, 2, n_each=20, D=16)
NAMES = [name for name in methods.names() if issubclass(methods.get(name), HeadMethod)]


def test_there_are_six():
    assert NAMES == ["dtc", "dualrank", "gcd", "ncl", "orca", "rankstats"]


@pytest.fixture(scope="module", params=NAMES)
def fitted(request, tmp_path_factory) -> tuple[str, Path, str]:
    """The name of a method, its run, and what the fit said."""
    folder = tmp_path_factory.mktemp(request.param)
    np.savez(folder / "items.npz", x=BLOBS.x, labels=BLOBS.labels)
    np.savez(folder / "new.npz", x=BLOBS.x[5::20], ids=[f"new-{i}" for i in range(6)])
    settings = {"epochs": 4, "width": 24, "batch_size": 64, "start_steps": 30, "n_novel": 2}
    given = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    fit = done("fit", folder / "items.npz", "--out", folder / "run", "--method", request.param, *given)
    return request.param, folder, told(fit) + fit.stdout


def test_the_fit_says_the_number_of_classes_and_the_run_stores_it(fitted):
    _, folder, said = fitted
    assert "head over 4 seen and 2 novel classes (given)\n" in said
    assert json.loads((folder / "run/run.json").read_text())["n_novel"] == 2
    assert "next: combemb discover" in said


def test_new_items_get_the_classes_of_the_head_without_a_discovery(fitted):
    name, folder, _ = fitted
    found = json.loads(done("predict", folder / "run", folder / "new.npz", "--by", "head", "--json").stdout)
    expected = methods.get(name).load(folder / "run").predict(folder / "new.npz").tolist()
    assert [item["name"] for item in found] == [str(label) for label in expected]
    assert [item["kind"] for item in found] == ["known" if label in {0, 1, 2, 3} else "found" for label in expected]
    assert {item["confidence"] for item in found} == {None}
    assert "new-5" in done("predict", folder / "run", folder / "new.npz", "--by", "head").stdout


def test_a_discovery_clusters_the_embedding_for_the_page_and_the_commands(fitted):
    _, folder, _ = fitted
    assert "discover first" in refused("predict", folder / "run", folder / "new.npz")
    done("discover", folder / "run", "--n-novel", "2")
    assert "novel-2" in (folder / "run/discovery.html").read_text()
    found = json.loads(done("predict", folder / "run", folder / "new.npz", "--json").stdout)
    assert [item["kind"] for item in found] == [*4 * ["known"], *2 * ["found"]]
    done("classes", folder / "run", "name", "novel-1", "hawk")
    assert "hawk" in done("predict", folder / "run", folder / "new.npz").stdout


def test_a_search_needs_codes(fitted):
    name, folder, _ = fitted
    text = f"{methods.get(name).__name__} has no codes; fit a method that has, such as combemb"
    assert text in refused("index", folder / "run")
    assert text in refused("search", folder / "run", folder / "new.npz")


def test_a_run_estimates_the_classes_and_does_not_send_to_a_search_that_needs_codes(tmp_path):
    np.savez(tmp_path / "items.npz", x=BLOBS.x, labels=BLOBS.labels)
    small = [f"--set={text}" for text in ("epochs=4", "width=24", "batch_size=64")]
    asked = ("run", tmp_path / "items.npz", "--out", tmp_path / "run", "--method", "orca", *small)
    shown = done(*asked).stdout
    stored = json.loads((tmp_path / "run/run.json").read_text())
    n = stored["n_novel"]
    assert stored["settings"]["n_novel"] is None
    assert f"head over 4 seen and {n} novel class{'' if n == 1 else 'es'} (estimated)\n" in shown
    assert f"combemb predict {tmp_path / 'run'} NEW-ITEMS" in shown
    assert "combemb search" not in shown
    steps = json.loads(done(*asked, "--json").stdout)["steps"]
    assert steps == dict.fromkeys(("fit", "discover", "page"), "unchanged")


def test_methods_without_a_head_say_so(tmp_path):
    np.savez(tmp_path / "items.npz", x=BLOBS.x, labels=BLOBS.labels)
    done("fit", tmp_path / "items.npz", "--out", tmp_path / "run", "--method", "itq", "--bits", "12")
    asked = ("predict", tmp_path / "run", tmp_path / "items.npz")
    assert "ITQ has no head of its own" in refused(*asked, "--by", "head")
    assert "choose clusters or head" in refused(*asked, "--by", "heads")
