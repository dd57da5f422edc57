"""Photos and their run are moved; one command, and everything works as before."""

import json
import re
import shutil
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest

from combemb.collection.class_log import read_log
from combemb.collection.discovered import discover_in, write_tables
from combemb.collection.relocated import relocate
from combemb.learning.run_folder import RunFolder
from combemb.methods.itq import ITQ
from combemb.system.tables import read_table
from tests.cli.found import BLOBS, NAMES, table
from tests.commands import done, files, fitted, refused
from tests.pictures import write_folder
from tests.real_processes import ended, killed_at, started


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos and their run, with an index, a discovery, its page and a named class, all in one folder."""
    root = tmp_path_factory.mktemp("used") / "a & b"
    photos = write_folder(root / "my photos")
    run = fitted(photos, root / "run")
    done("discover", run, "--n-novel", "2")
    done("index", run)
    done("classes", run, "name", "novel-1", "hawk")
    done("classes", run, "split", "novel-2")
    return root


def hits(run: Path, query: Path) -> list[dict]:
    return json.loads(done("search", run, query, "--json", "-k", "5").stdout)[0]["hits"]


def test_all_works_after_photos_and_run_were_moved(used: Path, tmp_path: Path):
    before = hits(used / "run", next((used / "my photos/ant").iterdir()))
    listed = done("classes", used / "run").stdout
    predicted = json.loads(done("predict", used / "run", used / "my photos", "--json").stdout)
    moved = tmp_path / "c <d>"
    shutil.copytree(used, moved)
    hidden = used.rename(used.with_name("gone"))  # really gone, until the end
    try:
        run, photos = moved / "run", moved / "my photos"
        query = next((photos / "ant").iterdir())
        assert all(hit["is_missing"] for hit in hits(run, query))
        n = len(table(run)["id"])
        said = done("relocate", run, "--to", photos).stdout
        assert said == f"paths changed in {run}: {n + 1:,}\n", "all photos, and their folder"
        after = hits(run, query)
        assert [hit | {"id": "", "path": ""} for hit in after] == [hit | {"id": "", "path": ""} for hit in before]
        assert [hit["path"] for hit in after] == [hit["path"].replace(str(used), str(moved)) for hit in before]
        done("search", run, query, "--html", tmp_path / "hits.html")
        page = re.sub("Classes in [^<]*", "", (run / "discovery.html").read_text())  # where the run was, in the title
        links = [unquote(urlsplit(link).path) for link in re.findall(r'href="(file:[^"]*)"', page)]
        assert len(links) > 20
        assert all(Path(link.replace("&amp;", "&")).is_file() for link in links)
        assert "Paths are below" in page
        assert "a &amp; b" not in page
        pages = {"discovery.html", "discovery-map.png"}
        assert not [name for name, content in files(run).items() if str(used).encode() in content and name not in pages]
        assert done("classes", run).stdout == listed.replace(str(used), str(moved))
        again = json.loads(done("predict", run, photos, "--json").stdout)
        assert [item["name"] for item in again] == [item["name"] for item in predicted]
        shutil.copy(query, photos / "new.png")
        added = done("index", run, "--images", photos, "--add").stdout
        assert f"entries added: 1; skipped, in the index already: {n}\n" in added
        result = done("discover", run, "--n-novel", "2", "--no-page")
        assert "changes by `combemb classes` that hold: 2" in result.stdout
        assert "not among the discovered items" not in result.stderr
    finally:
        hidden.rename(used)


def test_a_relocation_that_is_killed_anywhere_is_done_or_not(used: Path, tmp_path: Path):
    was, now = used / "my photos", shutil.copytree(used / "my photos", tmp_path / "photos")
    found = []
    for number in range(60):
        run = shutil.copytree(used / "run", tmp_path / f"{number}", ignore=shutil.ignore_patterns("*.html", "*.png"))
        code = ended(started(killed_at, number, relocate, run, now))
        starts = {RunFolder(run).config()["path"]}
        tables = [read_table(run / name)[0]["path"].to_pylist() for name in ("entries.parquet", "discovery.parquet")]
        items = [item for said in read_log(run) for group in said.groups for item in group]
        starts |= {str(Path(path).parents[1]) for path in [*tables[0], *tables[1], *items]}
        assert starts in ({str(was)}, {str(now)}), number
        found.append(starts == {str(now)})
        if code == 0:
            break
    assert found == sorted(found)
    assert {False, True} == set(found)


def test_embeddings_move_too(tmp_path: Path):
    np.savez(tmp_path / "x.npz", x=BLOBS.x, labels=NAMES)
    run = tmp_path / "run"
    ITQ(bits=12, backbone_weights=str(tmp_path / "weights")).fit(tmp_path / "x.npz", folder=run)
    (tmp_path / "x.npz").rename(tmp_path / "y.npz")
    assert "are no longer at" in refused("discover", run)
    done("relocate", run, "--to", tmp_path / "y.npz")
    write_tables(discover_in(run))
    shutil.copytree(tmp_path, tmp_path / "all", ignore=lambda *_: ["all"])
    done("relocate", tmp_path / "all/run", "--from", tmp_path, "--to", tmp_path / "all")
    config = RunFolder(tmp_path / "all/run").config()
    assert config["path"] == str(tmp_path / "all/y.npz")
    assert config["settings"]["backbone_weights"] == str(tmp_path / "all/weights")


def test_what_makes_no_sense_is_refused_and_nothing_is_written(used: Path, tmp_path: Path):
    run = used / "run"
    before = files(run)
    assert f"there is no {tmp_path / 'x'}; give the path where the data are now" in refused(
        "relocate", run, "--to", tmp_path / "x"
    )
    told = refused("relocate", run, "--from", f"{used}/my", "--to", tmp_path)  # not a folder, only a beginning
    assert f"no path in {run} begins with {used}/my; it has {used}/my photos" in told
    assert "is not a readable run folder" in refused("relocate", tmp_path, "--to", tmp_path)
    assert files(run) == before
