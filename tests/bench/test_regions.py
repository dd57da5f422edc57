"""The first figure: regions of fitted meta-classifiers, and the plots of measured things."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from combemb.bench import TABLES, regions
from combemb.bench.cells import cell_of, cells_of
from combemb.bench.fits import Places
from combemb.bench.plots import decision_regions, draw, maps
from combemb.bench.presets import PRESETS
from combemb.bench.results import read_result, write_result
from combemb.bench.runner import run
from combemb.bench.summary import summary_of

TABLE, SMOKE = TABLES["regions"], PRESETS["smoke"]


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    assert run(cells_of(TABLE, SMOKE), Places(folder)).n_failed == 0
    return folder


def test_sets_make_two_four_and_seven_regions_and_reserve_some(results: Path):
    found = [read_result(results, cell) for cell in cells_of(TABLE, SMOKE)]
    assert [record["scores"]["n_regions"] for record in found] == [2, 4, 7]  # of lines in general position
    for record, n_own in zip(found, (2, 3, 3), strict=True):
        grid = np.array(list(record["regions"]["grid"]))
        assert len(grid) == regions.SIDE**2
        assert len(set(record["regions"]["classes"])) == n_own  # two sets tell three classes apart
        assert len(record["regions"]["codes"]) >= record["scores"]["n_regions"]


def test_the_figure_counts_what_was_measured(results: Path):
    figure = decision_regions(summary_of(TABLE, SMOKE, results), results)
    labels = [axes.get_xlabel() for axes in figure.axes]
    assert labels == [f"{n} regions, {free} without a seen class" for n, free in ((2, 0), (4, 1), (7, 4))]
    (path,) = draw(summary_of(TABLE, SMOKE, results), results, results)
    with Image.open(path) as image:
        assert image.size[0] > 1000


def test_maps_have_a_panel_for_each_method_and_say_which_was_not_run(tmp_path: Path):
    table = TABLES["discovery-cifar10"]
    row = next(row for row in table.rows if row.method == "orca")
    shown = {"places": [[0, 1], [1, 0], [2, 2]], "targets": [0, 1, 9], "is_novel": [0, 0, 1]}
    write_result(tmp_path, cell_of(table, SMOKE, row, None, ("0", 0)), {"cell": {}, "map": shown, "scores": {}})
    figure = maps(summary_of(table, SMOKE, tmp_path), tmp_path)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["RankStats", "NCL", "ORCA", "GCD", "CombEmb (ours)"]
    assert [bool(axes.texts) for axes in figure.axes] == [True, True, False, True, True]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["class 0", "class 1", "class 9, novel"]
