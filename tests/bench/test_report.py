"""The report: means, deviations, orders and marks from result files alone, in three forms that agree."""

import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from combemb.bench import TABLES, report
from combemb.bench.as_latex import escaped
from combemb.bench.cells import cell_of
from combemb.bench.presets import PRESETS
from combemb.bench.report import write_report
from combemb.bench.results import about_code, write_result
from combemb.bench.summary import summary_of
from combemb.bench.tables import Column, Order, Row, Table, fields
from tests.pages import HOSTILE, Page

CPU = PRESETS["cpu"]
BITS = (12, 24)
TOY = Table(
    *("toy", "A toy <table> & 50 %", "Table 1", "digits", "retrieval"),
    tuple(Column(f"{b} bits", "novel_codes", b) for b in BITS),
    (
        Row("ITQ", "itq", published=(0.2, 0.3)),
        Row(HOSTILE[0], "opq", published=(0.1, 0.1)),
        Row("ours", "combemb", published=(0.5, 0.4), is_ours=True),
    ),
    (Column("z", "novel_z", 24),),
    (Order("ITQ is below ours", ("ITQ", "ours")),),
    more_bits_help=True,
    splits=("0", "1"),
    baselines=(Row("floats", "features"),),
)


def fill(folder: Path, title: str, bits: int, split: str, score: float | None = None, **more) -> None:
    row = next(row for row in TOY.all_rows if row.title == title)
    cell = cell_of(TOY, CPU, row, bits, (split, 0))
    data = {"name": "digits", "fingerprint": "abc", "n_train": 1437, "n_test": 360}
    scores = {} if score is None else {"scores": {"novel_codes": score, "novel_z": score, "novel_chance": 0.1}}
    write_result(folder, cell, {"cell": asdict(cell), **about_code(), **scores, "data": data, **more})


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for title, scores in (("ITQ", (0.2, 0.4, 0.3, 0.5)), ("ours", (0.6, 0.62, 0.35, 0.37))):
        for (bits, split), score in zip([(b, s) for b in BITS for s in "01"], scores, strict=True):
            fill(tmp_path, title, bits, split, score)
    fill(tmp_path, HOSTILE[0], 12, "0", failure="ValueError: 5 items; use more")
    return tmp_path


def test_means_deviations_differences_and_the_best(results: Path):
    itq, broken, ours, floats = summary_of(TOY, CPU, results).lines
    assert [str(value) for value in itq.values] == ["0.300 ± 0.141", "0.400 ± 0.141"]
    assert ours.values[0].mean == pytest.approx(0.61)
    assert ours.values[0].deviation == pytest.approx(np.std([0.6, 0.62], ddof=1))
    assert ours.values[0].difference == pytest.approx(0.11)
    assert [value.is_best for value in ours.values] == [True, False]
    assert [value.is_best for value in itq.values] == [False, True]
    assert [str(value) for value in broken.values] == ["failed", "not run"]
    assert [str(value) for value in floats.values] == ["not run", "not run"]


def test_remarks_say_what_holds_what_does_not_and_what_failed(results: Path):
    found = summary_of(TOY, CPU, results)
    assert found.chance == pytest.approx(0.1)
    assert found.remarks == (
        "published order: ITQ is below ours: DOES NOT HOLD (24 bits); holds (12 bits)",
        "ours against the best other method: first by more than the deviation: 12 bits +0.310; "
        "NOT FIRST: 24 bits -0.040",
        "published order: longer codes of ours are not worse: DOES NOT HOLD (24 bits)",
        f"{HOSTILE[0]} failed: ValueError: 5 items; use more",
    )
    fill(results, HOSTILE[0], 12, "1", 0.6)
    fill(results, HOSTILE[0], 12, "0", 0.601)
    lead = next(text for text in summary_of(TOY, CPU, results).remarks if "against the best other" in text)
    assert "first by less than the deviation: 12 bits +0.0" in lead


def test_some_splits_and_other_versions_are_marked(tmp_path: Path):
    fill(tmp_path, "ours", 12, "0", 0.5)
    assert str(summary_of(TOY, CPU, tmp_path).lines[2].values[0]) == "0.500 (1 of 2)"
    fill(tmp_path, "ours", 12, "1", 0.7, version="0.0.1")
    value = summary_of(TOY, CPU, tmp_path).lines[2].values[0]
    assert str(value) == "0.600 ± 0.141 stale"  # kept, and marked
    fill(tmp_path, "floats", 12, "0", 0.3)
    assert str(summary_of(TOY, CPU, tmp_path).lines[3].values[1]) == "0.300 (1 of 2)"  # the same in every column


def test_another_recipe_is_another_cell(results: Path):
    rows = tuple(replace(row, fields=fields(temperature=0.5)) if row.is_ours else row for row in TOY.rows)
    assert str(summary_of(replace(TOY, rows=rows), CPU, results).lines[2].values[0]) == "not run"


def test_the_three_forms_agree_and_are_well_formed(results: Path, tmp_path: Path):
    files = write_report(results, tmp_path / "report", [TOY, TABLES["retrieval-nus_wide"]], [CPU])
    assert [path.name for path in files] == [report.MARKDOWN, report.HTML, report.LATEX, "cpu-toy.png"]
    markdown, latex = files[0].read_text(), files[2].read_text()
    page = Page(files[1])
    for text in (markdown, page.text, latex):
        assert "0.610" in text
        assert "not run" in text.lower()
        assert "ImageNet" in text  # the caveat
        assert "hance level of the mAP" in text
        assert "DOES NOT HOLD" in text
    assert "| ours | **0.610** ± 0.014<br>paper 0.500, +0.110 | 0.360 ± 0.014<br>paper 0.400, -0.040 |" in markdown
    assert "paper 0.500, +0.110" in page.text
    assert HOSTILE[0] in page.text  # as text, not as markup
    assert {"data-value": "0.61"} in page.all("td")
    assert len(page.all("img")) == 1
    assert "http" not in re.sub(r'src="data:[^"]*"', "", files[1].read_text())
    assert r"\caption{A toy \textless{}table\textgreater{} \& 50 \% (Table 1)}" in latex
    assert latex.count("{") == latex.count("}")
    with Image.open(files[3]) as figure:
        assert figure.size[0] > 400


def test_a_report_of_nothing_says_so(tmp_path: Path):
    files = write_report(tmp_path / "none", tmp_path / "report")
    assert len(files) == 3
    text = files[0].read_text()
    assert text.count(": not run.") == len(TABLES)
    assert not (tmp_path / "none").exists()


def test_special_characters_are_no_commands():
    assert escaped("a_b {x} \\ 5 % ±") == r"a\_b \{x\} \textbackslash{} 5 \% $\pm$"
