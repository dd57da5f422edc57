"""`combemb methods`: the table is that of docs/methods.md, and what it says of a method is true."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from combemb import methods
from combemb.cli.methods import BEGIN, END
from combemb.learning.codes import BinaryMethod, CodeMethod
from combemb.search.codebook import ProductCodebook
from combemb.testing import Trial
from tests.commands import done, refused
from tests.learning.kinds import Head, Local, Supervised, Turned

PAGE = Path(__file__).parents[2] / "docs/methods.md"
TO_DO = "run combemb methods --update docs/methods.md"


def test_the_page_has_the_table_that_the_command_prints():
    table = done("methods", "--markdown").stdout
    assert f"{BEGIN}\n{table}{END}\n" in PAGE.read_text(encoding="utf-8"), TO_DO
    assert len(table.splitlines()) == 2 + len(methods.names())
    for name, line in zip(methods.names(), table.splitlines()[2:], strict=True):
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        cls = methods.get(name)
        link = f"[{name}](../combemb/methods/{name}.py)"
        assert cells == [link, cls.supervision(), cls.query_side(), cls.paper, cls.departs]


def test_update_replaces_an_old_table_and_nothing_else(tmp_path: Path):
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    for old in ("", "| an | old | table |\n"):
        page = tmp_path / "page.md"
        page.write_text(f"{before}{BEGIN}\n{old}{END}{after}", encoding="utf-8")
        assert done("methods", "--update", page).stdout == ""
        assert page.read_text(encoding="utf-8") == text, TO_DO


@pytest.mark.parametrize("text", ["no table", f"{BEGIN}\n| a |\n", END])
def test_a_page_without_a_place_for_the_table_is_refused_and_kept(tmp_path: Path, text: str):
    (tmp_path / "page.md").write_text(text)
    assert "has no place for the table; add the lines" in refused("methods", "--update", tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == text


def test_all_methods_are_listed_for_the_terminal():
    shown = done("methods").stdout
    assert [name for name in methods.names() if f"\n{name} " not in shown] == []
    assert done("settings").stdout == shown


def test_a_package_that_cannot_be_imported_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch):
    get = methods.get

    def only_itq(name: str) -> type:
        if name != "itq":
            raise ValueError(f"cannot import [{name}]")
        return get(name)

    monkeypatch.setattr(methods, "get", only_itq)
    result = done("methods")
    assert "itq" in result.stdout
    assert "combemb" not in result.stdout
    assert "cannot import [combemb]" in result.stderr


def test_methods_of_other_packages_are_listed_but_not_in_the_page(monkeypatch: pytest.MonkeyPatch):
    names, get = methods.names, methods.get
    monkeypatch.setattr(methods, "names", lambda: [*names(), "theirs"])
    monkeypatch.setattr(methods, "get", lambda name: Supervised if name == "theirs" else get(name))
    assert "theirs" in done("methods").stdout
    assert "theirs" not in done("methods", "--markdown").stdout


def test_a_bar_in_a_cell_does_not_end_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(methods.get("itq"), "departs", "|x| = 1")
    assert r"\|x\| = 1 |" in done("methods", "--markdown").stdout


# What the classes say


def test_supervision_is_derived_for_every_kind_of_method():
    kinds = {Turned: "unsupervised", Local: "unsupervised", Supervised: "supervised"}
    kinds |= {Head: "supervised with unlabelled data"}
    built_in = {"itq": "unsupervised", "gpq": "supervised with unlabelled data"}
    built_in |= {"combemb": "supervised with unlabelled data"}
    kinds |= {methods.get(name): text for name, text in built_in.items()}
    assert {cls: cls.supervision() for cls in kinds} == kinds


def test_the_query_side_is_derived_and_can_be_overridden():
    @dataclass(kw_only=True, eq=False, repr=False)
    class Signs(BinaryMethod):
        pass

    @dataclass(kw_only=True, eq=False, repr=False)
    class Other(CodeMethod):
        departs: ClassVar[str] = "in nothing"

        @classmethod
        def query_side(cls) -> str:
            return "by ear"

    sides = {Turned: "no codes", Local: "asymmetric tables", Signs: "Hamming, or `asymmetric`", Other: "by ear"}
    assert {cls: cls.query_side() for cls in sides} == sides
    assert Turned.departs == "see its docstring"


@pytest.mark.parametrize("name", methods.names())
def test_what_the_table_says_of_a_method_is_true(name: str):
    """Binarised queries tie with their codes; unsupervised methods make the same codes of other labels."""
    with Trial(methods.get(name)) as trial:
        method, toy = trial.short, trial.plain
        codebook = method.codebook
        signs = isinstance(codebook, ProductCodebook) and codebook.words.abs().unique().tolist() == [1.0]
        is_binary = signs and codebook.words.shape[2] == 1 and codebook.metric == "cosine"
        assert is_binary == method.query_side().startswith("Hamming")
        if is_binary:
            assert trial.small(asymmetric=True).fit(toy.x, toy.labels).codebook.metric == "inner"
        if method.supervision() == "unsupervised":
            other = trial.small().fit(toy.x, toy.labels[::-1].copy())
            assert torch.equal(method.encode(toy.x), other.encode(toy.x))
        else:
            with pytest.raises(ValueError, match="label"):
                trial.small().fit(toy.x, torch.full((len(toy.x),), -1))
