"""`combemb compare`: from data with labels to a table, a plot and sentences, and what it refuses."""

from pathlib import Path

import numpy as np
import pytest

from tests.blobs import blobs
from tests.commands import done, refused
from tests.pages import Page

OPTIONS = ("--bits", 12, "--splits", "0", "1", "2", "--seeds", 2, "--set", "check=False", "--set", "epochs=2")


@pytest.fixture(scope="module")
def items(tmp_path_factory) -> Path:
    """Five classes of embeddings and some items of no known class."""
    found = blobs(5, 0, n_each=20, spread=0.35)
    path = tmp_path_factory.mktemp("items") / "items.npz"
    names = [f"class {c}" for c in found.targets]
    names[-1] = ""
    np.savez(path, x=found.x, labels=names)
    return path


@pytest.fixture(scope="module")
def compared(items: Path):
    """A comparison and what was printed of it."""
    folder = items.parent / "compared"
    return folder, done("compare", items, "--methods", "itq", "itq,iterations=2", "combemb", *OPTIONS, "--out", folder)


def test_it_writes_a_table_a_plot_and_sentences(compared):
    folder, result = compared
    assert {path.name for path in folder.iterdir()} == {"results", "figures", "report.md", "report.html", "report.tex"}
    assert "24 cells were run" in result.stdout  # four rows, three splits, two seeds
    rows = {line.split("  ")[0]: line for line in result.stdout.splitlines() if "±" in line}
    assert list(rows) == ["itq", "itq, iterations=2", "combemb", "float features"]
    text = (folder / "report.md").read_text()
    for sentence in ("mAP novel, 12 bits: ", "ACC all: "):
        assert sentence in result.stdout
        assert sentence in text
    assert "sign-flip test" in text
    assert "5 classes, 100 items" in text
    assert "Chance level" in text
    assert len(Page(folder / "report.html").all("img")) == 1
    assert [path.name for path in (folder / "figures").iterdir()] == ["compare-compare-scores.png"]


def test_the_same_command_runs_only_what_is_missing(compared, items: Path):
    folder, _ = compared
    shown = done("compare", items, "--methods", "itq", "gpq", *OPTIONS, "--out", folder).stdout
    assert "6 cells were run; 12 had a result before" in shown


def test_bad_input_says_what_is_needed(items: Path, tmp_path: Path):
    assert "there is no method 'x'" in refused("compare", items, "--methods", "x")
    assert "ITQ has no setting 'x'" in refused("compare", items, "--methods", "itq,x=1")
    assert "has no setting 'x'" in refused("compare", items, "--set", "x=1")
    few = blobs(3, 0, n_each=20)
    np.savez(tmp_path / "few.npz", x=few.x, labels=few.targets)
    assert "3 of 3 classes of" in refused("compare", tmp_path / "few.npz", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert "split '9' is unknown" in refused("compare", items, "--splits", "9", "--out", tmp_path / "out")
