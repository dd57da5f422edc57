"""The map of a discovery: positions of the items, and its pictures."""

import colorsys
import json
import time
from dataclasses import replace

import matplotlib.image
import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist, pdist
from threadpoolctl import threadpool_limits

from combemb.explorer import discovery_map
from combemb.explorer.colours import colours
from combemb.explorer.discovery_map import map_figure, map_of, write_map_png
from combemb.system import progress
from combemb.system.machine import limited_threads
from tests.discoveries import found_in

HOSTILE = ["<b>$x_$</b>", "a&amp;b", "q\"'\n", "名前", "a very long name of a class of birds"]


@pytest.fixture
def few_steps(monkeypatch):
    monkeypatch.setattr(discovery_map, "STEPS", (20, 20))


def test_items_of_a_cluster_lie_together():
    z, found = found_in(["ant", "bee", "cat"], 2, per_class=40)
    places, rows = map_of(z)
    assert places.shape == (len(z), 2)
    assert places.dtype == np.float32
    np.testing.assert_array_equal(rows, np.arange(len(z)))
    away = cdist(places, places) + np.diag(np.full(len(z), np.inf))
    np.testing.assert_array_equal(found.assignment[away.argmin(axis=1)], found.assignment)
    assert 0.5 < np.ptp(places[:, 0]) / np.ptp(places[:, 1]) < 2


@pytest.mark.parametrize("grid_items", [1_000, 10], ids=["tree", "grid"])
def test_a_map_depends_on_the_items_and_the_seed_alone(monkeypatch, few_steps, grid_items):
    monkeypatch.setattr(discovery_map, "MIN_GRID_ITEMS", grid_items)
    z = found_in(["ant", "bee"], 2, per_class=10)[0]
    places = map_of(z)[0]
    np.testing.assert_array_equal(map_of(torch.from_numpy(z))[0], places)
    assert not np.array_equal(map_of(z, seed=1)[0], places)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_items_keep_their_distances(n):
    z = np.random.default_rng(0).normal(size=(n, 7))
    places, rows = map_of(z)
    np.testing.assert_array_equal(rows, np.arange(n))
    np.testing.assert_allclose(pdist(places), pdist(z), rtol=1e-5)


@pytest.mark.parametrize("n", [4, 12, 13, 14, 40])
@pytest.mark.parametrize("n_features", [1, 2, 60])
def test_few_items_have_a_map_whatever_the_features(few_steps, n, n_features):
    places = map_of(np.random.default_rng(0).normal(size=(n, n_features)))[0]
    assert places.shape == (n, 2)
    assert np.isfinite(places).all()
    assert len(np.unique(places, axis=0)) == n


def test_items_that_are_all_alike_lie_on_one_place():
    np.testing.assert_array_equal(map_of(np.full((30, 4), 0.1, np.float32))[0], np.zeros((30, 2)))


def test_equal_items_do_no_harm(few_steps):
    z = np.repeat(np.eye(3), 30, axis=0)
    places = map_of(z)[0]
    assert np.isfinite(places).all()
    middles = places.reshape(3, 30, 2).mean(axis=1)
    np.testing.assert_array_equal(cdist(places, middles).argmin(axis=1), np.repeat(np.arange(3), 30))


def test_of_many_items_some_are_drawn(monkeypatch, few_steps):
    monkeypatch.setattr(discovery_map, "MAX_ITEMS", 20)
    z = found_in(["ant", "bee"], 2, per_class=10)[0]
    places, rows = map_of(z)
    assert len(np.unique(rows)) == 20
    assert (np.diff(rows) > 0).all()
    np.testing.assert_array_equal(map_of(z[rows])[0], places)
    assert not np.array_equal(map_of(z, seed=1)[1], rows)


def test_few_items_are_placed_by_one_thread():
    """Threads that wait for each other keep cores busy; a step is too short to be shared."""
    z = found_in(["ant", "bee"], 2, per_class=100)[0]
    with limited_threads(2), threadpool_limits(2, user_api="blas"):
        all_threads, this_thread = time.process_time(), time.thread_time()
        map_of(z)
        all_threads, this_thread = time.process_time() - all_threads, time.thread_time() - this_thread
    assert all_threads < 1.3 * this_thread


@pytest.mark.parametrize(
    ("z", "message"),
    [
        (np.zeros((4, 2, 3)), r"z has shape \(4, 2, 3\); give one embedding per item"),
        (np.array([[0.0, 1.0], [np.nan, 0.0]]), "NaN"),
    ],
)
def test_what_has_no_map_is_refused(z, message):
    with pytest.raises(ValueError, match=message):
        map_of(z)


def test_progress_is_shown(monkeypatch, few_steps, capsys):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    z = found_in(["ant"], 2, per_class=10)[0]
    map_of(z, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("%")[0] for line in lines] == [f"drawing the map {share:>3}" for share in (25, 50, 75, 100)]
    map_of(z, progress=False)
    assert capsys.readouterr().err == ""


def test_novel_classes_are_coloured_more_strongly_than_seen_ones():
    found = found_in(range(100), 100, per_class=2)[1]
    shades = [tuple(bytes.fromhex(colour[1:])) for colour in colours(found)]
    saturation = [colorsys.rgb_to_hls(*(part / 255 for part in shade))[2] for shade in shades]
    assert max(saturation[:100]) < min(saturation[100:]) / 2
    assert pdist(shades[100:110]).min() > 40
    assert len(set(shades)) > 190


def drawn(path, places, found, rows=None):
    write_map_png(path, places, found, np.arange(len(places)) if rows is None else rows)
    return matplotlib.image.imread(path)  # (height, width, RGBA)


@pytest.mark.filterwarnings("ignore::combemb.discovery.discovering.NothingToDiscover")
@pytest.mark.parametrize(
    ("seen", "n_novel"),
    [(["ant", "bee"], 3), ([7, 8], 2), (["ant"], 0), ([], 2), (HOSTILE, 1), (range(120), 80)],
    ids=["few", "numbers", "none novel", "none seen", "hostile names", "200 clusters"],
)
def test_every_discovery_becomes_a_picture(tmp_path, seen, n_novel):
    z, found = found_in(seen, n_novel)
    pixels = drawn(tmp_path / "map.png", z[:, :2], found)
    assert pixels.shape[1] > pixels.shape[0] > 800
    assert pixels[..., :3].std() > 0.01, "the picture is blank"
    assert [path.name for path in tmp_path.iterdir()] == ["map.png"]


def test_places_clusters_and_names_can_be_seen(tmp_path):
    z, found = found_in(["ant", "bee"], 2)
    places = z[:, :2]
    others = {
        "a place": (np.vstack([places[:-1], [0, 0]]), found),
        "a cluster": (places, replace(found, assignment=np.roll(found.assignment, 1))),
        "a name": (places, found_in(["ant", "bees"], 2)[1]),
    }
    pixels = drawn(tmp_path / "map.png", places, found)
    for what, (other_places, other) in others.items():
        assert not np.array_equal(drawn(tmp_path / "other.png", other_places, other), pixels), what
    assert np.array_equal(drawn(tmp_path / "again.png", places, found), pixels)
    rows = np.arange(4, len(z))
    assert drawn(tmp_path / "some.png", places[rows], found, rows).shape == pixels.shape


def test_an_old_picture_is_replaced_not_written_over(tmp_path):
    (tmp_path / "map.png").write_bytes(b"old")
    (tmp_path / "link.png").hardlink_to(tmp_path / "map.png")
    z, found = found_in(["ant", "bee"], 2)
    with pytest.raises((ValueError, IndexError)):
        drawn(tmp_path / "map.png", z[:, :3], found)
    assert (tmp_path / "map.png").read_bytes() == b"old"
    assert len(drawn(tmp_path / "map.png", z[:, :2], found)) > 800
    assert (tmp_path / "link.png").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(("seen", "n_novel"), [(["ant", "bee"], 3), (range(120), 80)], ids=["few", "200 clusters"])
def test_every_item_is_on_the_figure_with_its_id_cluster_and_confidence(seen, n_novel):
    z, found = found_in(seen, n_novel)
    rows = np.arange(3, len(z))
    ids = [f"item-{row}" for row in rows]
    figure = map_figure(z[rows, :2], found, rows, ids)
    assert [trace.name for trace in figure.data] == ["seen classes", "novel classes"]
    about = {}
    for trace, is_novel in zip(figure.data, (False, True), strict=True):
        assert trace.type == "scattergl"
        for x, y, (k, name, cluster, certain) in zip(trace.x, trace.y, trace.customdata, strict=True):
            about[name] = (x, y, k, cluster, certain)
            assert (k >= found.n_seen) == is_novel
    for row, name in zip(rows, ids, strict=True):
        certain = "labelled" if found.is_labelled[row] else f"confidence {found.confidence[row]:.2f}"
        assert about[name] == (*z[row, :2], found.assignment[row], str(found.clusters[row]), certain)
    assert len(about) == len(rows)


def test_names_on_the_figure_do_not_hide_each_other():
    z, found = found_in([f"class {i}" for i in range(120)], 80)
    names = map_figure(z[:, :2], found, np.arange(len(z)), [""] * len(z)).layout.annotations
    assert 10 < len(names) < 200
    assert names[0].text == "<b>novel-1</b>"
    side = np.ptp(z[:, :2], axis=0).max()
    gaps = np.abs(np.array([(a.x - b.x, a.y - b.y) for a in names for b in names if a is not b])) / side
    assert ((gaps[:, 0] > 0.08) | (gaps[:, 1] > 0.04)).all()


def test_names_are_text_on_the_figure():
    z, found = found_in(HOSTILE, 1)
    figure = map_figure(z[:, :2], found, np.arange(len(z)), ["<i>"] * len(z))
    texts = {text for trace in figure.data for row in trace.customdata for text in row[1:3]}
    assert texts == {"&lt;i&gt;", "novel-1", "&lt;b&gt;$x_$&lt;/b&gt;", "a&amp;amp;b", *HOSTILE[2:]}
    assert "</b>" not in json.dumps([a.text for a in figure.layout.annotations if not a.text.startswith("<b>novel")])
