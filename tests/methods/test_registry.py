"""Methods by name: built-in files, entry points of other packages, and `package.module:Class`."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

from combemb import methods
from tests.blobs import blobs
from tests.learning.kinds import Queue


def test_the_list_of_methods_is_the_list_of_files():
    files = Path(methods.__file__).parent.glob("*.py")
    assert sorted(path.stem for path in files if path.stem != "__init__") == methods.names()
    for name in methods.names():
        assert methods.get(name).__module__ == f"combemb.methods.{name}"


def test_a_class_that_can_be_imported_is_a_method():
    assert methods.get("tests.learning.kinds:Queue") is Queue


def test_entry_points_are_listed_and_loaded(monkeypatch):
    point = EntryPoint("kangaroo", "tests.learning.kinds:Queue", "combemb.methods")
    monkeypatch.setattr(methods, "entry_points", lambda group, name="kangaroo": [point] if name == "kangaroo" else [])
    assert "kangaroo" in methods.names()
    assert methods.get("kangaroo") is Queue


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("base", r"there is no method 'base'; choose one of combemb, .*itq, .*or package\.module:Class"),
        ("tests.learning.kinds:Nothing", "cannot import the method 'tests.learning.kinds:Nothing'.*Nothing"),
        ("no.such.module:Class", "cannot import the method 'no.such.module:Class': No module named 'no'"),
        ("tests.learning.kinds:", "cannot import the method"),
        (":Queue", "cannot import the method"),
        ("pathlib:Path", "'pathlib:Path' is not a method; give a subclass of combemb.methods.Method"),
        ("tests.learning.kinds:PAPER", "is not a method"),
    ],
)
def test_what_is_no_method_is_refused(name, message):
    with pytest.raises(ValueError, match=message):
        methods.get(name)


def test_a_run_of_a_method_of_another_package_comes_back(tmp_path, monkeypatch):
    (tmp_path / "their_methods.py").write_text(
        "from dataclasses import dataclass\nfrom tests.learning.kinds import Queue\n\n"
        "@dataclass(kw_only=True, eq=False, repr=False)\nclass Theirs(Queue):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    x, labels = (made := blobs(3, 1)).x, made.labels
    model = methods.get("their_methods:Theirs")(epochs=1, batch_size=32).fit(x, labels, folder=tmp_path / "run")
    loaded = methods.load(tmp_path / "run")
    assert type(loaded).__name__ == "Theirs"
    assert torch.equal(loaded.embed(x), model.embed(x))
    monkeypatch.undo()
    monkeypatch.delitem(sys.modules, "their_methods")
    with pytest.raises(ValueError, match=r"cannot import the method 'their_methods:Theirs'.*is its package installed"):
        methods.load(tmp_path / "run")
