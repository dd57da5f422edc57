"""What looks wrong in labels and ids is said before anything is learned from them."""

import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

from combemb import CombEmb
from combemb.data.first_look import OddLabels, look_at
from combemb.data.given import read_given
from combemb.methods.itq import ITQ
from tests.commands import call
from tests.pictures import IDS, PIXELS, write_folder

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 8)).astype(np.float32)
LABELS = np.array([*(["ant", "bee"] * 10), *[""] * 20])


def notes(x, labels=None) -> list[str]:
    with warnings.catch_warnings(record=True, action="always") as caught:
        look_at(read_given(x, labels))
    assert {warning.category for warning in caught} <= {OddLabels}
    return [str(warning.message) for warning in caught]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "photos")


def test_nothing_is_said_of_good_labels(photos: Path):
    assert notes(photos) == []
    assert notes(X, LABELS) == []


def test_identical_files_under_different_labels(photos: Path):
    shutil.copy(photos / "ant/000.png", photos / "dog/twin.png")
    shutil.copy(photos / "ant/000.png", photos / "unlabelled/twin.png")
    shutil.copy(photos / "bee/006.png", photos / "bee/same-class.png")
    assert notes(photos) == [
        "identical images under different labels: 1, such as ant/000.png (ant) and dog/twin.png (dog); "
        "keep the right one of each"
    ]


def test_files_of_equal_size_are_told_apart(tmp_path: Path):
    """The first two differ in one byte beyond the sample; the third and fourth are the same, the last two empty."""
    content = bytearray(RNG.bytes(50_000))
    other = content.copy()
    other[-1] ^= 1
    for name, written in (("a/1", content), ("b/1", other), ("b/2", content[::-1]), ("a/2", content[::-1])):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.jpg").write_bytes(written)
    for name in ("a/3.jpg", "b/3.jpg"):
        (tmp_path / name).write_bytes(b"")
    (note,) = notes(tmp_path)
    assert note.startswith("identical images under different labels: 1, such as a/2.jpg (a) and b/2.jpg (b);")


def test_only_files_that_may_be_identical_are_read(photos: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copy(photos / "ant/000.png", photos / "dog/twin.png")
    sizes = [(photos / name).stat().st_size for name in IDS]
    read = []
    opened = Path.open
    monkeypatch.setattr(Path, "open", lambda path, *mode: read.append(path.name) or opened(path, *mode))
    assert len(notes(photos)) == 1
    assert {"000.png", "twin.png"} <= set(read)
    assert all(sizes.count(next(photos.rglob(name)).stat().st_size) > 1 for name in set(read) - {"000.png", "twin.png"})


def test_identical_rows_and_pixels_under_different_labels():
    x = X.copy()
    x[3] = x[6]
    (note,) = notes(x, LABELS)
    assert note == (
        "identical items under different labels: 1, such as 3 (bee) and 6 (ant); keep the right one of each"
    )
    views = np.stack([x, RNG.normal(size=x.shape)], axis=1)
    assert notes(views, LABELS) == [note]
    pixels = PIXELS[:40].copy()
    pixels[3] = pixels[6]
    assert notes(pixels, LABELS) == [note.replace("items", "images")]
    several = np.where(np.arange(40)[:, None] < 20, np.eye(2)[np.arange(40) % 2], -1)
    assert notes(x, several)[0].startswith("identical items under different labels: 1, such as 3 (1) and 6 (0)")


def test_classes_of_one_image_and_a_single_class():
    labels = LABELS.copy()
    labels[[20, 21]] = "emu", "fox"
    few = "classes with a single labelled item: 2 (emu, fox); little can be learned about them, so label more of each"
    assert notes(X, labels) == [few]
    assert notes(X, np.where(LABELS == "ant", "ant", "")) == [
        "only one class has labels, ant: they only tell what is not new; label a second class"
    ]
    assert (
        "single labelled item: 9 (c0, c1, c2, c3, c4, ...)" in notes(X, [*(f"c{i}" for i in range(9)), *[""] * 31])[0]
    )


def test_ids_that_occur_twice_are_refused_by_a_fit(tmp_path: Path):
    ids = [f"item-{i // 2}" for i in range(40)]
    np.savez(tmp_path / "items.npz", x=X, labels=LABELS, ids=ids)
    with pytest.raises(ValueError, match="20 ids occur more than once, such as 'item-0'; every item needs its own"):
        ITQ(bits=4).fit(tmp_path / "items.npz", folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_it_is_said_before_a_backbone_is_loaded(photos: Path, tmp_path: Path):
    shutil.copy(photos / "ant/000.png", photos / "dog/twin.png")
    note, error = call("fit", photos, "--out", tmp_path / "run", "--set=backbone=nope").stderr.splitlines()
    assert note.startswith("note: identical images under different labels: 1, such as ant/000.png (ant)")
    assert error.startswith("error: unknown backbone")


def test_python_warns_too():
    labels = LABELS.copy()
    labels[20] = "emu"
    with pytest.warns(OddLabels, match=r"single labelled item: 1 \(emu\)"):
        CombEmb(bits=12, epochs=1, check=False).fit(X, labels)
