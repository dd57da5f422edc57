"""`combemb discover --to-folders`: where images are placed, under which names, and which places are refused."""

import os
import re
import shutil
import unicodedata
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from combemb.collection.folders import _FreeNames
from tests.blobs import blobs
from tests.cli.found import table
from tests.commands import done, files, fitted, refused
from tests.pictures import IDS, LABELS, PIXELS, write_folder


def placed(folder: Path) -> dict[str, list[Path]]:
    """The files in each folder; there is nothing else."""
    assert all(path.is_dir() for path in folder.iterdir())
    return {path.name: sorted(path.iterdir()) for path in sorted(folder.iterdir())}


def test_clusters_become_folders_of_relative_links(plain_photo_run, tmp_path: Path):
    run = shutil.copytree(plain_photo_run, tmp_path / "run")
    result = done("discover", run, "--no-page", "--n-novel", "2", "--to-folders", tmp_path / "a" / "sorted")
    assert result.stdout.endswith(f"71 images linked into {tmp_path / 'a' / 'sorted'}\n")
    rows = table(run)
    found = placed(tmp_path / "a" / "sorted")
    assert found.keys() == set(rows["cluster"])
    links = {str(path.resolve()): folder for folder, paths in found.items() for path in paths}
    assert links == dict(zip(rows["path"], rows["cluster"], strict=True))
    for path in chain(*found.values()):
        assert path.is_symlink()
        assert not path.readlink().is_absolute()
        assert path.name == path.resolve().name


def test_links_do_not_depend_on_the_working_folder(plain_photo_run, photos: Path, tmp_path: Path, monkeypatch):
    run = shutil.copytree(plain_photo_run, tmp_path / "run")
    folder = tmp_path / "there" / "deep" / "sorted"
    folder.mkdir(parents=True)  # an empty one may be there
    (tmp_path / "way").symlink_to(folder.parent, target_is_directory=True)
    monkeypatch.chdir(photos.parent)
    target = os.path.relpath(tmp_path / "way" / "sorted")
    done("discover", run, "--no-page", "--n-novel", "1", "--images", "photos", "--to-folders", target)
    monkeypatch.chdir("/")
    paths = chain(*placed(folder).values())
    assert sorted(str(path.resolve()) for path in paths) == sorted(table(run)["path"])


def test_copies_are_files_of_their_own(plain_photo_run, tmp_path: Path):
    run = shutil.copytree(plain_photo_run, tmp_path / "run")
    result = done("discover", run, "--no-page", "--n-novel", "2", "--to-folders", tmp_path / "sorted", "--copy")
    assert result.stdout.endswith(f"71 images copied into {tmp_path / 'sorted'}\n")
    rows = table(run)
    found = placed(tmp_path / "sorted")
    assert Counter(rows["cluster"]) == {name: len(paths) for name, paths in found.items()}
    for path, cluster in zip(map(Path, rows["path"]), rows["cluster"], strict=True):
        copy = tmp_path / "sorted" / cluster / path.name
        assert not copy.is_symlink()
        assert copy.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("options", [[], ["--copy"]], ids=["links", "copies"])
def test_images_with_equal_names_all_survive(tmp_path: Path, options: list[str]):
    """Also where case does not tell two names apart, and where a name looks like one with a number."""
    names = ["img.png", "img.png", "IMG.PNG", "img-2.png", "img.jpg.png", "img"]
    ids = [f"{label or 'unlabelled'}/{i}/{names[i % 5]}" for i, label in enumerate(LABELS)]
    photos = write_folder(tmp_path / "photos", ids)
    run = fitted(photos, tmp_path / "run")
    done("discover", run, "--no-page", "--n-novel", "1", "--to-folders", tmp_path / "sorted", *options)
    found = placed(tmp_path / "sorted")
    rows = table(run)
    assert Counter(rows["cluster"]) == {name: len(paths) for name, paths in found.items()}
    for cluster, paths in found.items():
        sources = [Path(path) for path, name in zip(rows["path"], rows["cluster"], strict=True) if name == cluster]
        assert sorted(path.read_bytes() for path in paths) == sorted(path.read_bytes() for path in sources)
        assert len({path.name.casefold() for path in paths}) == len(paths)
        assert {path.suffix for path in paths} <= {".png", ".PNG"}


HOSTILE = ["a/b", "a\\b", "..", ".", "CON:", "con", "Nul.txt", "cat", "Cat", "CAT-2", "/etc/passwd", "é", "e\u0301"]
HOSTILE += [300 * "ä", 299 * "ä", "novel-1", "~", "-rf", " x", "tab\there"]


def test_class_names_become_safe_folders_that_differ(plain_photo_run, tmp_path: Path):
    run = shutil.copytree(plain_photo_run, tmp_path / "run")
    target = tmp_path / "in" / "sorted"
    labels = [HOSTILE[i] if i < len(HOSTILE) else None for i in range(len(IDS))]
    given = tmp_path / "labels.npy"
    np.save(given, np.array([label or "" for label in labels]))
    done("discover", run, "--no-page", "--n-novel", "1", "--labels", given, "--to-folders", target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "labels.npy", "run"]
    assert list((tmp_path / "in").iterdir()) == [target]
    found = placed(target)
    assert len(found) == len(set(table(run)["cluster"])) == len(set(HOSTILE) - {labels[13]}) + 1
    assert len({unicodedata.normalize("NFC", name).casefold() for name in found}) == len(found)
    for name in found:
        assert not re.search(r'[\x00-\x1f/\\:*?"<>|]', name)
        assert name.strip(". ") == name
        assert len(name.encode()) <= 143
        assert not re.fullmatch(r"(con|nul)(\..*)?", name, re.IGNORECASE)
    folder_of = {path.resolve().name: folder for folder, paths in found.items() for path in paths}
    names = ["a_b", "a_b-2", "_-2", "_", "CON_", "_con", "_Nul.txt", "cat-3", "Cat", "CAT-2", "_etc_passwd"]
    assert [folder_of[f"{i:03}.png"] for i in range(len(names))] == names  # classes are taken in order of their names


@pytest.mark.parametrize("there", ["folder", "file"])
def test_a_place_that_is_taken_is_refused_before_anything_is_computed(tmp_path: Path, there: str):
    target = tmp_path / "sorted"
    (target / "old").mkdir(parents=True) if there == "folder" else target.write_text("mine")
    message = refused("discover", tmp_path / "no run", "--to-folders", target)
    assert f"{target} exists and is not an empty folder; choose another folder to sort images into" in message


def test_folders_among_the_images_are_refused(plain_photo_run, photos: Path):
    before = files(plain_photo_run)
    for target in (photos / "sorted", photos / ".." / "photos" / "ant" / "sorted"):
        message = refused("discover", plain_photo_run, "--to-folders", target)
        assert f"{target} is inside {photos}, among the images" in message
        assert not target.exists()
    assert files(plain_photo_run) == before


@pytest.mark.parametrize("kind", ["embeddings", "array of images"])
def test_items_that_are_no_image_files_are_refused_before_anything_is_written(tmp_path: Path, kind: str):
    np.save(tmp_path / "items.npy", PIXELS if kind == "array of images" else blobs(2, 1).x)
    run = fitted(tmp_path / "items.npy", tmp_path / "run")
    before = files(run)
    message = refused("discover", run, "--to-folders", tmp_path / "sorted")
    assert "only image files can be sorted into folders, but these items are not image files" in message
    assert not (tmp_path / "sorted").exists()
    assert files(run) == before


def test_files_whose_names_are_no_text_are_linked(plain_photo_run, tmp_path: Path):
    run = shutil.copytree(plain_photo_run, tmp_path / "run")
    try:
        odd = write_folder(tmp_path / "odd", [os.fsdecode(b"ant/\xff.png"), "ant/1.png", "unlabelled/2.png"])
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    done("discover", run, "--no-page", "--images", odd, "--n-novel", "1", "--to-folders", tmp_path / "sorted")
    assert f"{odd}/ant/\\xff.png" in table(run)["path"]
    paths = chain(*placed(tmp_path / "sorted").values())
    assert sorted(path.read_bytes() for path in paths) == sorted(path.read_bytes() for path in odd.rglob("*.png"))


@pytest.mark.parametrize("letter", ["x", "ä"])
def test_long_names_that_are_equal_get_numbers_that_fit(letter: str):
    stem = letter * (251 // len(letter.encode()))
    free = _FreeNames()
    first, second, third = (free.take(stem, ".png") for _ in range(3))
    assert first == f"{stem}.png"
    assert len({first, second, third}) == 3
    assert all(len(os.fsencode(name)) <= 255 and name.endswith(".png") for name in (second, third))
