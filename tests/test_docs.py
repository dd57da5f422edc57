"""Links, paths, commands and names in the documentation exist, and its example method works."""

import re
import tomllib
from pathlib import Path

import pytest

from combemb import methods
from combemb.testing import check_method

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path):
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_commands_of_the_benchmarks_exist():
    named = set(re.findall(r"benchmarks/\w+\.py", " ".join(page.read_text() for page in PAGES)))
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_import_contract_knows_every_method():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (independent,) = [contract["modules"] for contract in contracts if contract["type"] == "independence"]
    assert independent == ["combemb.methods.*"]


def test_the_map_shows_every_room():
    text = (ROOT / "docs/architecture.md").read_text()
    table = re.findall(r"^\| `(\w+)/` \|", text, re.MULTILINE)
    rooms = sorted(path.parent.name for path in (ROOT / "combemb").glob("*/__init__.py"))
    assert sorted(table) == rooms
    picture = text.split("```")[1]
    assert [room for room in rooms if f"{room}/" not in picture] == []


def test_the_walks_name_functions_that_exist():
    text = (ROOT / "docs/architecture.md").read_text()
    named = re.findall(r"`([\w/]+\.py): ([\w.]+)`", text)
    assert len(named) > 20
    for path, name in named:
        defined = (ROOT / "combemb" / path).read_text()
        assert re.search(rf"^\s*(def|class) {name.split('.')[-1]}\b", defined, re.MULTILINE), (path, name)


def test_the_method_in_contributing_keeps_every_promise(tmp_path, monkeypatch):
    """The example is a whole file that works as it stands."""
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    (tmp_path / "linear_hash_example.py").write_text(example)
    monkeypatch.syspath_prepend(str(tmp_path))
    check_method(methods.get("linear_hash_example:LinearHash"))
