"""`combemb discover` on real files: what is written and printed, and what bad input gets."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from pyarrow import csv

from combemb import methods
from tests.cli.found import BLOBS, BROKEN, KEPT, PICTURES, TABLES, N, table, write_labels
from tests.commands import done, files, fitted, refused, told
from tests.pages import Page
from tests.pictures import IDS, LABELS, SEEN

# What is written


def test_every_item_has_its_row_in_both_tables(item_run):
    run, _ = item_run
    found = pq.read_table(run / "discovery.parquet")
    assert [str(field.type) for field in found.schema] == [*["large_string"] * 2, "string", "bool", "float", "string"]
    rows = found.to_pydict()
    assert list(rows) == ["id", "path", "cluster", "is_novel", "confidence", "class"]
    assert rows["class"] == rows["cluster"]  # nobody has changed anything
    assert rows["id"] == [f"item-{i}" for i in range(N)]
    assert set(rows["path"]) == {None}
    assert rows["is_novel"] == (BLOBS.targets >= 4).tolist()
    assert [name for name in rows["cluster"] if not name.startswith("novel-")] == [SEEN[c] for c in BLOBS.targets[:80]]
    novel = list(zip(BLOBS.targets[80:].tolist(), rows["cluster"][80:], strict=True))
    assert len(set(novel)) == 2  # each novel class has one name
    assert {name for _, name in novel} == {"novel-1", "novel-2"}
    confidence = np.array(rows["confidence"])
    assert ((confidence >= 0) & (confidence <= 1)).all()
    assert (confidence[BLOBS.labels >= 0] == 1).all()
    assert (confidence[BLOBS.labels < 0] < 1).all()
    as_text = csv.ConvertOptions(column_types=found.schema)
    in_text = csv.read_csv(run / "discovery.csv", convert_options=as_text).to_pydict()
    assert in_text == rows | {"path": [""] * N}  # text knows no null


def test_a_page_a_map_and_the_clusters_are_written_and_nothing_else(item_run, plain_run: Path):
    run, _ = item_run
    assert files(run).keys() - files(plain_run).keys() == TABLES | PICTURES
    assert all(files(run)[name] == content for name, content in files(plain_run).items())
    page = Page(run / "discovery.html")
    assert f"Classes in {run}" in page.text
    for name in (*SEEN, "novel-1", "novel-2"):
        assert name in page.text
    with Image.open(run / "discovery-map.png") as picture:
        picture.load()
        assert min(picture.size) > 500


def test_the_model_predicts_what_the_tables_say(item_run, items: Path):
    run, _ = item_run
    model = methods.load(run)
    rows = table(run)
    assert model.discovery_.clusters.tolist() == rows["cluster"]
    assert model.discovery_.is_novel.tolist() == rows["is_novel"]
    assert model.discovery_.confidence.tolist() == rows["confidence"]
    predicted = model.predict(items)
    is_near = predicted != "neither"
    assert is_near.mean() > 0.9
    assert predicted[is_near].tolist() == np.array(rows["cluster"])[is_near].tolist()


def test_images_are_listed_by_path_without_broken_ones(photo_run, photos: Path):
    run, result = photo_run
    rows = table(run)
    assert rows["path"] == [str(photos / IDS[i]) for i in KEPT]
    labelled = [(name, LABELS[i]) for name, i in zip(rows["cluster"], KEPT, strict=True) if LABELS[i]]
    assert len(labelled) == 23
    assert all(cluster == label for cluster, label in labelled)
    assert told(result).startswith(f"unreadable images left out of the clusters: 1\n  {photos / BROKEN}: ")
    assert told(result).count("\n") == 2
    assert len(Page(run / "discovery.html").thumbnails()) > 20


def test_a_second_call_replaces_the_files_of_the_first(own_run: Path):
    done("discover", own_run, "--n-novel", "1")
    first = files(own_run)
    done("discover", own_run, "--n-novel", "3")
    second = files(own_run)
    assert second.keys() == first.keys()
    assert {name for name in second if second[name] != first[name]} == TABLES | PICTURES
    assert set(table(own_run)["cluster"]) == {*SEEN, "novel-1", "novel-2", "novel-3"}
    assert "novel-3" in Page(own_run / "discovery.html").text
    assert methods.load(own_run).discovery_.n_novel == 3


def test_without_a_page_an_old_one_does_not_stay(own_run: Path):
    before = files(own_run).keys()
    done("discover", own_run)
    result = done("discover", own_run, "--no-page")
    assert files(own_run).keys() - before == TABLES
    assert f"written to {own_run}: discovery.parquet, discovery.csv\n" in result.stdout


def test_the_same_call_writes_the_same_tables(own_run: Path, item_run):
    done("discover", own_run, "--no-page")
    assert all(files(own_run)[name] == files(item_run[0])[name] for name in TABLES)


KILL = """
import json, os, signal, sys
from pathlib import Path
from combemb.explorer import discovery_map, discovery_page
from combemb.cli import app

run = Path(sys.argv[1])

def contents():
    return {path.name: path.read_bytes() for path in run.iterdir() if not path.name.startswith(".")}

def die_in(file):
    def sync(handle):
        global n
        n += 1
        if n == file:
            os.ftruncate(handle, os.fstat(handle).st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
    return sync

old = contents()
for file in range(1, 6):
    if (child := os.fork()) == 0:
        n, os.fsync = 0, die_in(file)
        app(["discover", str(run), "--n-novel", "2", "--quiet"])
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    now = contents()
    print(json.dumps([status, sorted(now), [name for name in now if now[name] != old.get(name)]]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_kill_while_a_file_is_written_leaves_all_old_ones(own_run: Path):
    done("discover", own_run, "--n-novel", "1")
    names = sorted(files(own_run))
    killed = subprocess.run(
        [sys.executable, "-c", KILL, own_run], check=True, stdout=subprocess.PIPE, env={**os.environ, "NO_COLOR": "1"}
    )
    steps = [json.loads(line) for line in killed.stdout.splitlines()]
    assert steps == 5 * [[-signal.SIGKILL, names, []]], "old and new clusters must not be mixed"
    assert methods.load(own_run).discovery_.n_novel == 1


# What is printed


def test_the_summary_counts_items_and_clusters(item_run):
    run, result = item_run
    first, head, *clusters, last = result.stdout.splitlines()
    low, high = methods.load(run).discovery_.n_novel_interval
    counts = f"4 seen classes, 2 novel, probably {low} to {high}; 40 items belong to novel classes"
    assert first == f"{N} items, 40 of them labelled: {counts}"
    assert head.split() == ["cluster", "items", "labelled", "confidence", "nearest", "seen", "class"]
    cells = [line.split() for line in clusters]
    assert [row[:3] for row in cells] == [
        *[[f"novel-{i}", "20", "0"] for i in (1, 2)],
        *[[name, "20", "10"] for name in SEEN],
    ]
    assert all(row[4] in SEEN for row in cells[:2])
    clusters, confidence = (np.array(table(run)[name]) for name in ("cluster", "confidence"))
    for name, _, _, mean, *_ in cells:
        assert mean == f"{confidence[(clusters == name) & (BLOBS.labels < 0)].mean():.2f}"
    assert last == f"written to {run}: discovery.parquet, discovery.csv, discovery.html, discovery-map.png"
    assert told(result) == ""


def test_many_clusters_are_counted_but_not_all_printed(own_run: Path):
    lines = done("discover", own_run, "--no-page", "--n-novel", "60").stdout.splitlines()
    assert len(lines) == 2 + 40 + 2
    assert lines[-2] == f"... and 24 more, all in {own_run / 'discovery.parquet'}"


def test_every_letter_of_a_name_is_printed(own_run: Path, tmp_path: Path):
    names = np.array(["[red]ant[/]", 100 * "b", "\x1b[2Jcat", "dog\tänd"])[BLOBS.targets % 4]
    labels = tmp_path / "labels.npy"
    np.save(labels, np.where(BLOBS.labels >= 0, names, ""))
    shown = done("discover", own_run, "--no-page", "--labels", labels).stdout
    column = "".join(line[: shown.splitlines()[1].index("items")].strip() for line in shown.splitlines()[2:-1])
    assert column.endswith("\\x1b[2Jcat" + "[red]ant[/]" + 100 * "b" + "dog\\tänd")
    assert "\x1b" not in shown


def test_quiet_prints_nothing(own_run: Path, tmp_path: Path):
    assert done("discover", own_run, "--quiet").output == ""
    assert files(own_run).keys() >= TABLES | PICTURES
    none = write_labels(tmp_path / "none.txt", N * [""])
    assert done("discover", own_run, "--quiet", "--no-page", "--labels", none).output == ""


# The number of novel classes


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_the_number_of_novel_classes_can_be_given(own_run: Path, n: int):
    shown = done("discover", own_run, "--no-page", "--n-novel", n).stdout
    assert f"4 seen classes, {n} novel; " in shown
    rows = table(own_run)
    sizes = Counter(name for name, is_novel in zip(rows["cluster"], rows["is_novel"], strict=True) if is_novel)
    assert sorted(sizes) == [f"novel-{i}" for i in range(1, n + 1)]
    assert [sizes[name] for name in sorted(sizes)] == sorted(sizes.values(), reverse=True)


@pytest.mark.parametrize("count_by", ["merging", "sizes", "codes", "gcd", "dtc"])
def test_each_way_of_counting_gives_a_number(own_run: Path, count_by: str):
    shown = done("discover", own_run, "--no-page", "--count-by", count_by).stdout
    (n,) = re.findall(r"4 seen classes, (\d+) novel", shown)
    assert 1 <= int(n) <= 4


@pytest.fixture
def unfit(items: Path, photos: Path, tmp_path: Path) -> dict[str, Path]:
    """Files by which the command can be misled."""
    np.save(tmp_path / "narrow.npy", BLOBS.x[:, :8])
    np.save(tmp_path / "several.npy", np.eye(6, dtype=int)[BLOBS.targets])
    write_labels(tmp_path / "short.txt", ["ant", "bee", ""])
    names = ("narrow.npy", "several.npy", "short.txt")
    return {"items": items, "photos": photos} | {Path(name).stem: tmp_path / name for name in names}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--n-novel", "-1"], "n_novel=-1; give a whole number, 0 or more"),
        (["--n-novel", "81"], "n_novel=81 novel classes need as many unlabelled items, but there are 80"),
        (["--count-by", "nope"], "count_by='nope' is unknown; choose one of merging, sizes, codes, gcd, dtc"),
        (["--labels", "{short}"], "there are 3 labels for 120 items"),
        (["--labels", "nowhere.txt"], "cannot read labels from nowhere.txt"),
        (["--labels", "{several}"], "discovery takes one label per item, but these may have several"),
        (["--copy"], "--copy only works with --to-folders; use both"),
        (["--images", "{photos}", "--embeddings", "{items}"], "are mutually exclusive; choose one"),
        (["--images", "{items}"], "this is not image data; if it holds embeddings, use --embeddings"),
        (["--images", "{photos}", "--overwrite"], "this model was fitted on embeddings"),
        (["--embeddings", "{photos}"], "this is image data; use --images"),
        (["--embeddings", "{narrow}", "--overwrite"], "x has 8 features; this model was fitted on 12"),
        (["--embeddings", "nowhere.npy"], "cannot read nowhere.npy: there is no such file or folder"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(item_run, unfit, options: list[str], message: str):
    run, _ = item_run
    before = files(run)
    assert message in refused("discover", run, *[option.format(**unfit) for option in options])
    assert files(run) == before


def test_data_that_are_unknown_or_gone_have_to_be_named(items: Path, tmp_path: Path):
    moved = shutil.copy(items, tmp_path / "items.npz")
    run = fitted(moved, tmp_path / "run")
    moved.unlink()
    message = refused("discover", run)
    assert f"are no longer at {moved}; say where they are now, with --images or --embeddings" in message
    assert files(run).keys().isdisjoint(TABLES)
    done("discover", run, "--no-page", "--embeddings", items)
    assert len(table(run)["path"]) == N


def test_a_folder_that_is_no_run_is_named(photos: Path):
    assert f"{photos} is not a readable run folder" in refused("discover", photos)
