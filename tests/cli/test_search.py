"""`combemb index` and `combemb search` on real files: what is written, what is found, and what bad input gets."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from rich.console import Console

from combemb import methods
from combemb.backbones.efficientnet_lite0 import EfficientNetLite0
from combemb.cli.search import print_results
from combemb.collection.indexed import Hit, SearchResult
from combemb.data.entries import Entry
from combemb.methods.itq import ITQ
from tests.cli.found import BROKEN, KEPT
from tests.commands import done, files, refused
from tests.pictures import IDS, LABELS, PIXELS, TARGETS, write_folder, write_manifest

ITQ_SMALL = ("--method", "itq", "--bits", "16", "--set", "image_size=32")


def found(run: Path, query: object, *options: object) -> list[dict]:
    return json.loads(done("search", run, query, "--json", *options).stdout)


def entries(run: Path) -> dict[str, list]:
    return pq.read_table(run / "entries.parquet").to_pydict()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pictures, one of which is cut short."""
    return write_folder(tmp_path_factory.mktemp("photos"), broken=(BROKEN,))


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was fitted on the pictures, with its index."""
    folder = tmp_path_factory.mktemp("runs") / "photos"
    settings = [f"--set={text}" for text in ("epochs=3", "batch_size=64", "image_size=32", "n_views=2")]
    done("fit", photos, "--out", folder, "--bits", "24", *settings)
    result = done("index", folder)
    for text in ("71 entries, 23 of them labelled", "distinct codes of 24 bits", "index.safetensors (", " kB)"):
        assert text in result.stdout
    assert f"unreadable images left out of the index: 1\n  {photos / BROKEN}: " in result.stderr
    return folder


@pytest.fixture
def own_run(run: Path, tmp_path: Path) -> Path:
    """A copy of the run that a test may change."""
    return shutil.copytree(run, tmp_path / "run")


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Embeddings with labels, some of them missing, and ids."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("items") / "items.npz"
    labels = np.where(np.arange(60) % 3 == 0, "", np.array(["ant", "bee"])[np.arange(60) % 2])
    np.savez(path, x=rng.normal(size=(60, 16)), labels=labels, ids=[f"item-{i}" for i in range(60)])
    return path


@pytest.fixture
def item_run(items: Path, tmp_path: Path) -> Path:
    done("fit", items, "--out", tmp_path / "items", "--method", "itq", "--bits", "16", "--quiet")
    return tmp_path / "items"


def test_a_search_imports_only_what_it_needs(run: Path, photos: Path):
    """These libraries take longer to import than the search itself takes."""
    slow = ("kornia", "scipy.optimize", "scipy.special", "sklearn", "matplotlib", "plotly", "openTSNE", "jinja2")
    code = f"import sys, atexit; atexit.register(lambda: print([name for name in {slow} if name in sys.modules]))"
    shown = subprocess.run(
        [sys.executable, "-c", f"{code}; import combemb.__main__", "search", run, photos / IDS[0], "-k", "1"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert str(photos / IDS[0]) in shown.stdout
    assert shown.stdout.splitlines()[-1] == "[]"


def test_entries_have_absolute_paths_and_labels(run: Path, photos: Path):
    paths = [str(photos / IDS[i]) for i in KEPT]
    assert entries(run) == {"id": paths, "path": paths, "label": [LABELS[i] for i in KEPT]}
    assert not [path.name for path in run.iterdir() if path.name.startswith(".")]


def test_scores_and_order_are_those_of_scoring_every_code(run: Path, photos: Path):
    model = methods.load(run)
    z = model.embed(model.read(photos))
    scores = model.codebook.scores(z, model.codebook.encode(z)).numpy()
    results = found(run, photos, "-k", 10)
    assert len(results) == len(KEPT)
    for row, result in zip(scores, results, strict=True):
        order = np.argsort(-row, kind="stable")[:10]
        expected = [(str(photos / IDS[KEPT[i]]), LABELS[KEPT[i]], row[i]) for i in order]
        assert [(hit["path"], hit["label"], hit["score"]) for hit in result["hits"]] == expected


def test_an_image_of_the_index_has_the_largest_score_itself(run: Path, photos: Path):
    for name in ("ant/000.png", "dog/023.png", "unlabelled/071.png"):
        ((query, hits),) = (result.values() for result in found(run, photos / name, "-k", 71))
        assert (query["path"], query["label"]) == (str(photos / name), None)
        best = [hit["id"] for hit in hits if hit["score"] == hits[0]["score"]]
        assert str(photos / name) in best
        assert len(best) < len(hits)


def test_a_search_finds_the_kind_of_its_query(run: Path, photos: Path):
    target = {str(photos / name): target for name, target in zip(IDS, TARGETS, strict=True)}
    results = found(run, photos, "-k", 6)
    same = [target[hit["id"]] == target[result["query"]["id"]] for result in results for hit in result["hits"]]
    assert np.mean(same) > 0.4  # chance is one in six


def test_a_k_above_the_number_of_entries_gives_all(run: Path, photos: Path):
    ((result),) = found(run, photos / "bee/007.png", "-k", 1000)
    assert sorted(hit["id"] for hit in result["hits"]) == sorted(str(photos / IDS[i]) for i in KEPT)


def test_plain_columns_when_piped(run: Path, photos: Path):
    lines = done("search", run, photos / "bee/007.png", "-k", 3).stdout.splitlines()
    assert lines[0].split() == ["rank", "score", "label", "path", "or", "id"]
    hits = found(run, photos / "bee/007.png", "-k", 3)[0]["hits"]
    expected = [[str(i), f"{hit['score']:.3f}", hit["label"] or "-", hit["id"]] for i, hit in enumerate(hits, 1)]
    assert [line.split() for line in lines[1:]] == expected


def test_each_of_several_queries_gets_its_list(run: Path, photos: Path):
    shown = done("search", run, photos, "-k", 2)
    assert shown.stdout.count("rank") == len(KEPT)
    assert f"{photos / 'ant/000.png'}  (ant)\n" in shown.stdout
    assert f"unreadable images left out of the search: 1\n  {photos / BROKEN}" in shown.stderr


def test_a_terminal_gets_a_table_with_every_letter_of_a_name():
    name = "/photos/[bold]some/very-long-name-of-a-picture\n.jpg"
    console = Console(file=io.StringIO(), force_terminal=True, width=40, color_system=None)
    print_results([SearchResult(Entry("q"), [Hit(id=name, path=name, label="[red]", score=1.5)])], console)
    shown = console.file.getvalue()
    assert re.sub(r"\s", "", shown) == "rankscorelabelpathorid11.500[red]" + name.replace("\n", "\\n")


def test_a_page_holds_the_query_and_its_hits(run: Path, photos: Path, tmp_path: Path):
    page = tmp_path / "hits.html"
    result = done("search", run, photos / "bee/007.png", "-k", 5, "--html", page)
    assert f"written to {page}" in result.stdout
    assert page.read_text().count("<img ") == 6
    assert len(found(run, photos / "bee/007.png", "-k", 7, "--html", page)[0]["hits"]) == 7  # and nothing but JSON
    assert page.read_text().count("<img ") == 8


def test_files_that_no_longer_exist_are_marked(own_run: Path, photos: Path, tmp_path: Path):
    pile = shutil.copytree(photos, tmp_path / "pile")
    done("index", own_run, "--images", pile, "--overwrite")
    gone = {str(pile / name) for name in ("ant/000.png", "bee/008.png")}
    for name in gone:
        Path(name).unlink()
    query, page = photos / "ant/000.png", tmp_path / "page.html"
    hits = found(own_run, query, "-k", 71)[0]["hits"]
    assert {hit["id"] for hit in hits if hit["is_missing"]} == gone
    shown = done("search", own_run, query, "-k", 71, "--html", page).stdout.splitlines()
    assert {line.split()[3] for line in shown if line.endswith("  (missing)")} == gone
    assert f"files that no longer exist: 2, marked as missing; combemb index {own_run} --remove ID" in shown[-2]
    assert page.read_text().count("file is missing") == 2


def test_one_broken_query_of_a_few_is_left_out(run: Path, photos: Path, tmp_path: Path):
    queries = shutil.copytree(photos / "cat", tmp_path / "queries")
    for name in sorted(queries.iterdir())[3:]:
        name.unlink()
    assert (queries / "013.png").exists()
    result = done("search", run, queries, "--json", "-k", 1)
    assert len(json.loads(result.stdout)) == 2
    assert f"unreadable images left out of the search: 1\n  {queries / '013.png'}: " in result.stderr


def test_quiet_prints_nothing(own_run: Path, photos: Path, tmp_path: Path):
    assert done("index", own_run, "--images", photos / "ant", "--overwrite", "--quiet").output == ""
    assert done("search", own_run, photos / "ant/000.png", "--quiet", "--html", tmp_path / "page.html").output == ""
    assert (tmp_path / "page.html").exists()


# Other sources


def test_new_photos_are_added(own_run: Path, tmp_path: Path):
    Image.fromarray(255 - PIXELS[0]).save(write_folder(tmp_path / "new", ids=["gnu/000.png"]) / "gnu/001.png")
    assert "73 entries, 25 of them labelled" in done("index", own_run, "--images", tmp_path / "new", "--add").stdout
    ((result),) = found(own_run, tmp_path / "new/gnu/001.png", "-k", 80)
    best = [hit for hit in result["hits"] if hit["score"] == result["hits"][0]["score"]]
    assert (str(tmp_path / "new/gnu/001.png"), "gnu") in [(hit["path"], hit["label"]) for hit in best]
    before = files(own_run)
    again = done("index", own_run, "--images", tmp_path / "new", "--add").stdout
    assert "entries added: 0; skipped, in the index already: 2\n" in again
    assert f"unchanged in {own_run}: " in again
    assert files(own_run) == before


def test_a_folder_that_grew_is_added_again_without_what_was_there(own_run: Path, photos: Path, tmp_path: Path):
    grown = shutil.copytree(photos, tmp_path / "grown")
    done("index", own_run, "--images", grown, "--overwrite", "--quiet")
    shutil.copy(grown / "ant/000.png", grown / "ant/new.png")
    result = done("index", own_run, "--images", grown, "--add")
    assert "entries added: 1; skipped, in the index already: 71\n" in result.stdout
    assert f"unreadable images left out of the index: 1\n  {grown / BROKEN}: " in result.stderr
    before = files(own_run)
    again = done("index", own_run, "--images", grown, "--add")  # the broken one is all that is new
    assert "entries added: 0; skipped, in the index already: 72\n" in again.stdout
    assert str(grown / BROKEN) in again.stderr
    assert files(own_run) == before
    for number in range(8):
        (grown / f"ant/empty-{number}.png").touch()
    assert "at least 9 of 81 images cannot be read" in refused("index", own_run, "--images", grown, "--add")
    assert files(own_run) == before


def test_adding_one_photo_extracts_one_photo(own_run: Path, photos: Path, tmp_path: Path, monkeypatch):
    grown = shutil.copytree(photos, tmp_path / "grown")
    done("index", own_run, "--images", grown, "--overwrite", "--quiet")
    (grown / BROKEN).unlink()
    Image.fromarray(255 - PIXELS[0]).save(grown / "ant/first.png")
    seen: list[int] = []
    forward = EfficientNetLite0.before_last

    def counted(self, pixels):
        seen.append(len(pixels))
        return forward(self, pixels)

    monkeypatch.setattr(EfficientNetLite0, "before_last", counted)
    assert (
        "entries added: 1; skipped, in the index already: 71\n"
        in done("index", own_run, "--images", grown, "--add").stdout
    )
    assert sum(seen[1:]) == 1  # the first one shows how many features there are


def test_entries_are_removed_by_id_by_path_and_by_a_file_of_ids(
    own_run: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(photos)
    (tmp_path / "gone.txt").write_text(f"{photos / 'bee/007.png'}\n\nbee/008.png\n")
    gone = [str(photos / "ant/000.png"), "ant/001.png", tmp_path / "gone.txt"]
    result = done("index", own_run, *(part for name in gone for part in ("--remove", name)))
    assert "entries removed: 4\n" in result.stdout
    assert "67 entries" in result.stdout
    names = {str(photos / name) for name in ("ant/000.png", "ant/001.png", "bee/007.png", "bee/008.png")}
    assert entries(own_run)["id"] == [str(photos / IDS[i]) for i in KEPT if str(photos / IDS[i]) not in names]
    assert names.isdisjoint(hit["id"] for hit in found(own_run, "ant/000.png", "-k", 100)[0]["hits"])


def test_an_index_is_kept_without_overwrite(own_run: Path, photos: Path, monkeypatch: pytest.MonkeyPatch):
    before = files(own_run)
    assert "use overwrite to replace it, or add" in refused("index", own_run)
    assert files(own_run) == before
    monkeypatch.chdir(photos / "bee")
    done("index", own_run, "--images", "../ant", "--overwrite")
    assert entries(own_run)["path"] == [str(photos / f"ant/{i:03}.png") for i in range(6)]


def test_several_labels_are_joined_and_the_part_to_test_on_is_left_out(photos: Path, tmp_path: Path):
    labels = ["" if i % 3 == 0 else "red|round" if i % 3 == 1 else "red" for i in range(len(IDS))]
    split = ["test" if i % 6 == 5 else "train" for i in range(len(IDS))]
    manifest = write_manifest(tmp_path / "photos.csv", photos, labels, split=split, id=[f"n{i}" for i in range(72)])
    done("fit", manifest, "--out", tmp_path / "run", *ITQ_SMALL)
    done("index", tmp_path / "run")
    table = entries(tmp_path / "run")
    rows = [i for i in KEPT if split[i] == "train"]
    assert table["id"] == table["path"] == [str(photos / IDS[i]) for i in rows]
    assert table["label"] == [labels[i] or None for i in rows]
    done("index", tmp_path / "run", "--images", manifest, "--overwrite")
    assert len(entries(tmp_path / "run")["id"]) == len(KEPT)


def test_images_of_an_array_file_are_found_by_row(tmp_path: Path):
    array = tmp_path / "pixels.npy"
    np.save(array, PIXELS)
    done("fit", array, "--out", tmp_path / "run", *ITQ_SMALL)
    (tmp_path / "labels.txt").write_text("".join(f"{label or ''}\n" for label in LABELS))
    done("index", tmp_path / "run", "--labels", tmp_path / "labels.txt")
    table = entries(tmp_path / "run")
    assert table["id"] == [f"{array}#{i}" for i in range(72)]
    assert table["label"] == LABELS.tolist()
    Image.fromarray(PIXELS[40]).save(tmp_path / "query.png")
    page = tmp_path / "page.html"
    ((result),) = found(tmp_path / "run", tmp_path / "query.png", "-k", 72, "--html", page)
    assert {hit["score"]: hit["id"] for hit in reversed(result["hits"])}[16.0] == f"{array}#40"
    assert page.read_text().count("<img ") == 73


def test_embeddings_keep_their_ids_and_labels(item_run: Path, items: Path):
    assert "60 entries, 40 of them labelled" in done("index", item_run).stdout
    with np.load(items) as archive:
        x, labels = archive["x"], [label or None for label in archive["labels"].tolist()]
    assert entries(item_run) == {"id": [f"item-{i}" for i in range(60)], "path": [None] * 60, "label": labels}
    results = found(item_run, items, "-k", 1)
    codes = methods.load(item_run).encode(x)
    for i, result in enumerate(results):
        (hit,) = result["hits"]
        first = int((codes == codes[i]).all(dim=1).int().argmax())
        expected = {"id": f"item-{first}", "path": None, "label": labels[first], "score": 16.0}
        expected |= {"is_missing": False, "name": None}
        assert (result["query"]["label"], hit) == (labels[i], expected)


# What bad input gets


def test_data_that_are_unknown_or_gone_have_to_be_named(items: Path, tmp_path: Path):
    with np.load(items) as archive:
        x = archive["x"]
    ITQ(bits=8).fit(x, folder=tmp_path / "unknown")
    message = refused("index", tmp_path / "unknown")
    assert "were not read from a path; say where they are, with --images or --embeddings" in message
    np.save(tmp_path / "x.npy", x)
    ITQ(bits=8).fit(tmp_path / "x.npy", folder=tmp_path / "gone")
    (tmp_path / "x.npy").unlink()
    assert f"are no longer at {tmp_path / 'x.npy'}" in refused("index", tmp_path / "gone")
    done("index", tmp_path / "gone", "--embeddings", items)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--images", "{photos}", "--embeddings", "{items}"], "are mutually exclusive; choose one"),
        (["--images", "{items}"], "this is not image data; if it holds embeddings, use --embeddings"),
        (["--embeddings", "{photos}"], "this is image data; use --images"),
        (["--embeddings", "{items}", "--overwrite"], "x has 16 features; this model was fitted on 1280"),
        (["--images", "nowhere"], "cannot read nowhere: there is no such file or folder"),
        (["--add"], "--add needs data to add; use --images or --embeddings"),
        (["--add", "--overwrite"], "--add, --remove and --overwrite are mutually exclusive"),
        (["--remove", "x", "--overwrite"], "--add, --remove and --overwrite are mutually exclusive"),
        (["--remove", "x", "--images", "{photos}"], "--remove takes ids; leave --images"),
        (["--remove", "x", "--remove", "y"], "2 of 2 ids are not in the index, such as 'x'; give ids as in the column"),
        (["--remove", "{photos}/cat/013.png"], "neither an id of the index nor a text file of ids"),
        (["--overwrite", "--labels", "{items}"], "cannot read labels from"),
    ],
)
def test_an_index_of_the_wrong_things_is_refused(
    run: Path, photos: Path, items: Path, options: list[str], message: str
):
    before = files(run)
    assert message in refused("index", run, *[option.format(photos=photos, items=items) for option in options])
    assert files(run) == before


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("{items}", "x has 16 features; this model was fitted on 1280"),
        ("{photos}/nothing.jpg", "there is no such file or folder"),
        ("{photos}/cat/013.png", "error: cannot read {photos}/cat/013.png: "),
        ("{run}/run.json", "unknown suffix '.json'"),
    ],
)
def test_a_query_of_the_wrong_kind_is_refused(run: Path, photos: Path, items: Path, query: str, message: str):
    places = {"run": run, "photos": photos, "items": items}
    assert message.format(**places) in refused("search", run, query.format(**places))


def test_an_image_cannot_query_embeddings(item_run: Path, photos: Path):
    done("index", item_run)
    assert "this model was fitted on embeddings" in refused("search", item_run, photos / "ant/000.png")


def test_without_an_index_the_command_that_makes_one_is_named(item_run: Path, items: Path, tmp_path: Path):
    moved = item_run.rename(tmp_path / "my items")
    assert f"has no index yet; make one: combemb index '{moved}'" in refused("search", moved, items)
    assert "has no index yet" in refused("index", moved, "--add", "--embeddings", items)


@pytest.mark.parametrize("command", ["index", "search"])
def test_a_folder_that_is_no_run_is_named(photos: Path, command: str):
    arguments = [photos / "ant/000.png"] if command == "search" else []
    assert f"{photos} is not a readable run folder" in refused(command, photos, *arguments)


@pytest.mark.parametrize("page", ["page.txt", "nowhere/page.html"])
def test_a_page_that_cannot_be_written_is_refused_at_once(item_run: Path, items: Path, tmp_path: Path, page: str):
    assert f"{tmp_path / page}".removesuffix("/page.html") in refused(
        "search", item_run, items, "--html", tmp_path / page
    )


def test_a_new_fit_has_no_index(item_run: Path, items: Path):
    done("index", item_run)
    done("fit", items, "--out", item_run, "--method", "itq", "--bits", "16", "--seed", "1", "--overwrite")
    assert "has no index yet; make one: combemb index " in refused("search", item_run, items)
    assert "has no index yet" in refused("index", item_run, "--add", "--embeddings", items)
    done("index", item_run)
    assert len(found(item_run, items)) == 60


def test_names_that_are_no_text_are_spelled_out(run: Path, tmp_path: Path):
    folder = tmp_path / "odd"
    folder.mkdir()
    try:
        write_folder(folder, ids=[os.fsdecode(b"\xff.png")])
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    ((result),) = found(run, folder, "-k", 1)
    assert result["query"]["id"] == f"{folder}/\\xff.png"


@pytest.mark.parametrize("name", ["index.safetensors", "entries.parquet"])
def test_a_damaged_file_is_named_with_the_command_that_makes_it_again(item_run: Path, items: Path, name: str):
    done("index", item_run)
    (item_run / name).write_bytes((item_run / name).read_bytes()[:-200])
    message = refused("search", item_run, items)
    assert f"cannot read {item_run / name}: " in message
    assert f"combemb index {item_run} --overwrite" in message
    done("index", item_run, "--overwrite")
    assert len(found(item_run, items)) == 60
