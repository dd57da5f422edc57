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
from combemb.bench.claims import checks, leads, verdict
from combemb.bench.presets import PRESETS
from combemb.bench.report import write_report
from combemb.bench.results import about_code, write_result
from combemb.bench.summary import summary_of
from combemb.bench.tables import Column, Order, Row, Table, fields
from tests.browser import browser, page_in
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
        "published order: ITQ is below ours: DOES NOT HOLD (24 bits -0.040); holds (12 bits +0.310)",
        "published order: longer codes of ours are not worse: DOES NOT HOLD (24 bits -0.250)",
        "ours against the best other method: first by more than the deviation: 12 bits +0.310 (ITQ); "
        "NOT FIRST: 24 bits -0.040 (ITQ)",
        f"{HOSTILE[0]} failed: ValueError: 5 items; use more",
    )
    fill(results, HOSTILE[0], 12, "1", 0.6)
    fill(results, HOSTILE[0], 12, "0", 0.601)
    assert "first by less than the deviation: 12 bits +0.009" in lead(results)
    for bits in BITS:
        fill(results, "floats", bits, "0", 0.36)
    assert (
        "ours is NOT above floats, without training: 24 bits -0.010 (1 of 2 runs)"
        in summary_of(TOY, CPU, results).remarks
    )


def lead(folder: Path) -> str:
    return next(text for text in summary_of(TOY, CPU, folder).remarks if "against the best other" in text)


def test_methods_are_compared_on_the_splits_that_both_have(tmp_path: Path):
    fill(tmp_path, "ITQ", 12, "0", 0.2)
    fill(tmp_path, "ITQ", 12, "1", 0.8)
    fill(tmp_path, "ours", 12, "0", 0.3)  # split 1 is easier, so that the means of all say the opposite
    itq, _, ours, _ = summary_of(TOY, CPU, tmp_path).lines
    assert (str(itq.values[0]), str(ours.values[0])) == ("0.500 ± 0.424", "0.300 (1 of 2)")
    assert not any(value.is_best for line in (itq, ours) for value in line.values)  # one has more runs than the other
    assert lead(tmp_path) == (
        "ours against the best other method: first on a single run, which has no deviation: "
        "12 bits +0.100 (ITQ, 1 of 2 runs)"
    )
    fill(tmp_path, HOSTILE[0], 12, "1", 0.9)
    assert "ITQ" in lead(tmp_path)  # the other one has no split in common with ours


def test_a_table_says_which_splits_were_run(results: Path):
    assert summary_of(TOY, CPU, results).progress == "9 of 14 cells were run: split 0: 5 of 7; split 1: 4 of 7."
    for split in "01":
        fill(results, "floats", 12, split, 0.3)
    fill(results, HOSTILE[0], 24, "0", 0.3)
    assert summary_of(TOY, CPU, results).progress == "12 of 14 cells were run: split 0: all of 7; split 1: 5 of 7."
    for bits in BITS:
        fill(results, HOSTILE[0], bits, "1", 0.3)
    assert summary_of(TOY, CPU, results).progress == "All 14 cells were run."


def test_a_verdict_on_all_tables_counts_where_ours_is_first(results: Path):
    other = replace(TOY, name="other", rows=tuple(replace(row, published=()) for row in TOY.rows), more_bits_help=False)
    assert verdict([summary_of(table, CPU, results) for table in (TOY, other)]) == [
        "Retrieval, mAP of novel queries: 4 of 4 cells were run beside another method, 0 of them by all methods in "
        "all runs. CombEmb is first in 2, in 2 by more than the standard deviation.",
        "Retrieval, NOT FIRST: toy: 24 bits -0.040 (ITQ); other: 24 bits -0.040 (ITQ).",
        "Published orders: 0 of 3 hold wherever they can be seen.",
        "Published order that DOES NOT HOLD, toy: ITQ is below ours (24 bits -0.040).",
        "Published order that DOES NOT HOLD, toy: longer codes of ours are not worse (24 bits -0.250).",
        "Published order that DOES NOT HOLD, other: ITQ is below ours (24 bits -0.040).",
    ]
    assert verdict([summary_of(TABLES["retrieval-nus_wide"], CPU, results)]) == []
    for split in "01":
        fill(results, HOSTILE[0], 24, split, 0.1)
    assert (
        "2 of 2 cells were run beside another method, 1 of them by all" in verdict([summary_of(TOY, CPU, results)])[0]
    )


def test_ours_is_compared_with_methods_that_have_as_many_labels_and_not_with_itself(tmp_path: Path):
    def fill_row(table, title: str, score: float) -> None:
        row = next(row for row in table.all_rows if row.title == title)
        cell = cell_of(table, CPU, row, 12, ("0", 0))
        write_result(tmp_path, cell, {"cell": {}, "scores": {"novel_codes": score}})

    few, pairs = TABLES["labels-cifar10"], TABLES["pairs-cifar10"]
    for title, score in (("GPQ, 30 %", 0.3), ("CombEmb (ours), 30 %", 0.5), ("GPQ, 10 %", 0.2), ("k-means", 0.4)):
        fill_row(pairs if title == "k-means" else few, title, score)
    assert [str(found) for found in leads(few, summary_of(few, CPU, tmp_path).lines)] == [
        "12 bits +0.200 (GPQ, 30 %, 1 of 4 runs)"
    ]
    fill_row(few, "CombEmb (ours), 10 %", 0.1)
    (_, tenth) = leads(few, summary_of(few, CPU, tmp_path).lines)
    assert str(tenth) == "12 bits -0.100 (GPQ, 10 %, 1 of 4 runs)"
    fill_row(pairs, "CombEmb (ours)", 0.5)
    assert leads(pairs, summary_of(pairs, CPU, tmp_path).lines) == []
    (check,) = checks(pairs, summary_of(pairs, CPU, tmp_path).lines)
    assert check.holds == ("12 bits +0.100 (1 of 4 runs)",)


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
        assert "CombEmb is first in 1, in 1 by more than the standard deviation" in text
        assert "9 of 14 cells were run: split 0: 5 of 7" in text
    assert "| ours | **0.610** ± 0.014<br>paper 0.500, +0.110 | 0.360 ± 0.014<br>paper 0.400, -0.040 |" in markdown
    assert "paper 0.500, +0.110" in page.text
    assert HOSTILE[0] in page.text  # as text, not as markup
    assert {"data-value": "0.61"} in page.all("td")
    assert len(page.all("img")) == 1
    assert "http" not in re.sub(r'src="data:[^"]*"', "", files[1].read_text())
    assert r"\caption{A toy \textless{}table\textgreater{} \& 50 \% (Table 1 of the paper)}" in latex
    assert latex.count("{") == latex.count("}")
    assert r"{\scriptsize $+0.110$}" in latex  # ours minus the published number
    assert r"\includegraphics[width=0.8\linewidth]{figures/cpu-toy.png}" in latex
    with Image.open(files[3]) as figure:
        assert figure.size[0] > 400


def test_a_click_on_the_head_of_a_column_sorts(results: Path, tmp_path: Path):
    for split in "01":
        fill(results, "floats", 12, split, 0.5)
    _, path, *_ = write_report(results, tmp_path / "report", [TOY], [CPU])
    with browser() as found, page_in(found) as page:
        page.goto(path.as_uri())
        rows = page.locator("table").first.locator("tbody tr")

        def order_after(head: str) -> list[str]:
            page.get_by_role("button", name=head).first.click()
            return [text.split("\n")[0].strip() for text in rows.locator("td:first-child").all_inner_texts()]

        assert order_after("12 bits") == ["ours", "floats", "ITQ", HOSTILE[0]]  # rows without a number last
        assert order_after("12 bits") == ["ITQ", "floats", "ours", HOSTILE[0]]
        assert order_after("method") == sorted(["ours", "floats", "ITQ", HOSTILE[0]], key=str.lower)


def test_a_report_of_nothing_says_so(tmp_path: Path):
    files = write_report(tmp_path / "none", tmp_path / "report")
    assert len(files) == 3
    text = files[0].read_text()
    assert text.count(": not run.") == len(TABLES)
    assert not (tmp_path / "none").exists()


def test_special_characters_are_no_commands():
    assert escaped("a_b {x} \\ 5 % ±") == r"a\_b \{x\} \textbackslash{} 5 \% $\pm$"
