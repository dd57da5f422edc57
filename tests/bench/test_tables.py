"""The tables as data: complete, consistent with each other, and every setting in them exists."""

from dataclasses import replace
from itertools import pairwise

import pytest

from combemb import methods
from combemb.bench import TABLES, chosen
from combemb.bench.cells import cell_of, cells_of, settings_of
from combemb.bench.discovery_tables import MAPS
from combemb.bench.presets import PRESETS
from combemb.bench.recipes import TUNED
from combemb.bench.sources import SOURCES
from combemb.bench.tables import FEATURES, Row, fields

CIFAR10 = TABLES["retrieval-cifar10"]
TUNING = {task: set(found) for task, found in TUNED.items()}


def published(table: str, row: str) -> tuple:
    return next(r.published for r in TABLES[table].all_rows if r.title == row)


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_rows_have_a_number_for_each_column_and_data_and_methods_exist(table):
    for row in table.rows:
        assert len(row.published) in (0, len(table.columns))
        assert row.method in methods.names()
    assert table.dataset in {*SOURCES, "plane"}
    assert len({row.title for row in table.all_rows}) == len(table.all_rows)
    assert all(title in {row.title for row in table.all_rows} for order in table.orders for title in order.rows)


def test_numbers_that_the_paper_prints_twice_agree():
    ours, titled = "CombEmb (ours)", "CombEmb (ours), 30 %"
    assert published("retrieval-cifar10", ours) == published("pairs-cifar10", ours)
    assert published("retrieval-cifar10", ours) == published("losses-cifar10", "Eq. 4, Eq. 6, Eq. 7")
    assert published("retrieval-nus_wide", ours) == published("pairs-nus_wide", ours)
    for dataset in ("cifar100", "cub200"):
        assert published(f"retrieval-{dataset}", ours) == published(f"meta-classes-{dataset}", "K = 4")
    gains = [
        published("labels-cifar10", f"{ours}, {p} %")[2] / published("labels-cifar10", f"GPQ, {p} %")[2]
        for p in (30, 10)
    ]
    assert [round(gain, 1) for gain in gains] == [3.1, 2.6]  # the text says so
    assert titled in {row.title for row in TABLES["labels-cifar10"].rows}


def test_the_published_orders_hold_of_the_published_numbers():
    for table in TABLES.values():
        numbers = {row.title: row.published for row in table.rows}
        for order in table.orders:
            own = [numbers[title] for title in order.rows if numbers.get(title)]
            for low, high in pairwise(own):
                columns = range(len(low))[-1:] if order.last_column_only else range(len(low))
                assert all(low[c] < high[c] for c in columns), (table.name, order.text)
        for row in table.rows:
            if table.more_bits_help and row.is_ours and row.published:
                assert list(row.published) == sorted(row.published), table.name


def test_ours_is_first_in_the_published_main_tables():
    for name in ("retrieval-cifar10", "retrieval-nus_wide", "retrieval-cifar100", "retrieval-cub200"):
        *others, ours = (row.published for row in TABLES[name].rows)
        assert all(max(column) < mine for column, mine in zip(zip(*others, strict=True), ours, strict=True))
    assert len(CIFAR10.rows) == 11
    assert all(len(TABLES[f"discovery-{name}"].rows) == 7 for name in ("cifar10", "cifar100", "tiny_imagenet"))


def test_the_maps_are_rows_of_their_table():
    for table, titles in MAPS.items():
        assert set(titles) <= {row.title for row in TABLES[table].rows}


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda preset: preset.name)
def test_every_setting_of_every_cell_is_one_of_its_method(preset):
    """A setting with a wrong name or value would only show when the cell runs on a machine of somebody else."""
    for table in TABLES.values():
        for cell in cells_of(table, preset):
            if cell.method == FEATURES:
                continue
            cls = methods.get(cell.method)
            known = {name: value for name, value in cell.settings if not str(value).startswith("<")}
            make = getattr(cls, cell.constructor) if cell.constructor else cls
            make(**({} if cell.bits is None else {"bits": cell.bits}), seed=cell.seed, **known).check_settings()


def test_settings_come_in_layers():
    table, preset = CIFAR10, PRESETS["cpu"]
    own = settings_of(table, preset, Row("x", "gpq", fields(sharpness=1.0)))
    assert own["image_size"] == preset.all["image_size"]
    assert own["sub_vector"] == TUNED["retrieval"]["gpq"]["sub_vector"]
    assert own["sharpness"] == 1.0  # the row's, instead of the recipe's
    assert "epochs" not in settings_of(table, PRESETS["smoke"], Row("x", "itq"))  # it trains no network
    assert settings_of(table, PRESETS["smoke"], Row("x", "gpq"))["epochs"] == 2
    assert set(settings_of(table, preset, Row("x", FEATURES))) == {"backbone", "image_size", "n_views"}
    assert "sharpness" not in settings_of(table, replace(preset, is_tuned=False), Row("x", "gpq"))


def test_every_tuned_method_is_in_a_table():
    for task, names in TUNING.items():
        assert names <= {row.method for table in TABLES.values() if table.task == task for row in table.rows}


def test_cells_of_tables_are_shared_and_ordered_by_split():
    preset = PRESETS["cpu"]
    cells = cells_of(CIFAR10, preset)
    assert [cell.split for cell in cells] == sorted(cell.split for cell in cells)
    assert len(set(cells)) == len(cells) == 4 * (11 * 3 + 1 + 3)  # rows and bits, float features, the published form
    shared = set(cells) & set(cells_of(TABLES["pairs-cifar10"], preset))
    assert {(cell.method, cell.bits) for cell in shared} == {("combemb", b) for b in (12, 24, 48)}
    assert shared == set(cells_of(TABLES["losses-cifar10"], preset)) & set(cells)
    assert cells_of(TABLES["discovery-cifar10"], PRESETS["alexnet"]) == []


def test_a_path_is_a_function_of_everything_in_a_cell():
    cell = cell_of(CIFAR10, PRESETS["cpu"], CIFAR10.rows[0], 12, ("0", 0))
    assert cell.path == cell_of(CIFAR10, PRESETS["cpu"], CIFAR10.rows[0], 12, ("0", 0)).path
    changes = {
        **{"preset": "x", "dataset": "x", "task": "x", "method": "x", "settings": (("a", 1),), "bits": 13},
        **{"split": "9", "seed": 9, "seen_share": 0.1, "labelled_share": 0.1, "per_class": 9, "per_class_test": 9},
        **{"stages": (("x", ()),), "constructor": "x"},
    }
    assert changes.keys() == set(vars(cell))
    paths = {replace(cell, **{name: value}).path for name, value in changes.items()}
    assert len(paths | {cell.path}) == len(changes) + 1


def test_tables_are_found_by_name_start_and_data():
    assert chosen(["all"]) == list(TABLES.values())
    assert [table.name for table in chosen(["meta-classes", "digits"])] == [
        *("meta-classes-cifar100", "meta-classes-cub200", "retrieval-digits")
    ]
    assert chosen(["retrieval-cifar10"]) == [CIFAR10]
    with pytest.raises(ValueError, match="there is no table 'nonsense'; choose all"):
        chosen(["nonsense"])
