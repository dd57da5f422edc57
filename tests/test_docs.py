"""What the texts point to is there, and what names methods names all of them."""

import re
import tomllib
from pathlib import Path

import pytest

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
