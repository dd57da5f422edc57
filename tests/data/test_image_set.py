"""What is known of a set of images: labels and ids go with them, a key tells one set from another."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from combemb.data.images import Images, image_suffixes

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 4, 6, 3), dtype=np.uint8)


def known():
    return Images(
        files=[Path(f"{i}.png") for i in range(4)],
        ids=np.array(["a", "b", "c", "d"]),
        labels=np.array([[1, 0], [0, 1], [-1, -1], [1, 1]]),
        class_names=np.array(["cat", "dog"]),
        is_test=np.array([False, True, False, True]),
    )


@pytest.mark.parametrize("rows", [np.array([3, 1]), [3, 1], np.array([3, -3], dtype=np.int8)])
def test_a_subset_keeps_what_is_known(rows):
    part = known().take(rows)
    assert part.files == [Path("3.png"), Path("1.png")]
    assert part.ids.tolist() == ["d", "b"]
    assert part.labels.tolist() == [[1, 1], [0, 1]]
    assert part.class_names.tolist() == ["cat", "dog"]
    assert part.is_test.tolist() == [True, True]
    assert Images(pixels=PIXELS).take(rows).pixels.tolist() == PIXELS[rows].tolist()


def test_a_mask_takes_the_rows_where_it_is_true():
    assert known().take(known().is_test).ids.tolist() == ["b", "d"]
    assert Images(pixels=PIXELS).take(np.arange(5) > 2).pixels.tolist() == PIXELS[3:].tolist()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.array([True, False]), r"rows have shape \(2,\) and dtype bool; give ints, or bool of shape \(4,\)"),
        (np.array([0.0]), "dtype float64"),
        (np.array([[0]]), r"shape \(1, 1\)"),
        ([], "there are no images"),
        (np.zeros(4, bool), "there are no images"),
    ],
)
def test_rows_that_are_none_say_why(rows, message):
    with pytest.raises(ValueError, match=message):
        known().take(rows)


def test_images_travel_to_another_process(tmp_path):
    Image.fromarray(PIXELS[0]).save(tmp_path / "0.png")
    images = Images(files=[tmp_path / "0.png"], ids=np.array(["0.png"]))
    key = images.key
    again = pickle.loads(pickle.dumps(images))  # noqa: S301
    assert again.key == key
    assert again.files == images.files
    np.testing.assert_array_equal(again.read(0), PIXELS[0])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "exactly one of the two"),
        ({"pixels": PIXELS, "files": ["a"]}, "exactly one of the two"),
        ({"files": []}, "there are no images"),
        ({"files": "image.png"}, "files is the one path 'image.png'; give a list"),
        ({"files": Path("image.png")}, "files is the one path 'image.png'; give a list"),
        ({"pixels": PIXELS.transpose(0, 3, 1, 2)}, r"shape \(5, 3, 4, 6\); .*pixels.transpose\(0, 2, 3, 1\)"),
        ({"pixels": PIXELS[0]}, r"shape \(4, 6, 3\); give \(N, H, W, 3\): one image as pixels\[None\]"),
        ({"pixels": PIXELS[..., 0]}, r"shape \(5, 4, 6\); .*np.stack\(\[pixels\] \* 3, axis=-1\)"),
        ({"pixels": PIXELS[..., :1]}, r"shape \(5, 4, 6, 1\); .*np.repeat"),
        ({"pixels": np.zeros((5, 4, 6, 4), np.uint8)}, r"shape \(5, 4, 6, 4\); .*pixels\[..., :3\]"),
        ({"pixels": np.zeros((5, 4), np.uint8)}, r"shape \(5, 4\); give \(N, H, W, 3\)$"),
        ({"pixels": PIXELS / 255}, r"dtype float64; give uint8 in 0..255.*\(pixels \* 255\)"),
        ({"pixels": PIXELS.astype(np.int64)}, "dtype int64; give uint8"),
        ({"pixels": PIXELS.tolist()}, "type list; give a numpy array"),
        ({"pixels": PIXELS[:0]}, "empty"),
        ({"pixels": PIXELS[:, :0]}, "empty"),
        ({"pixels": PIXELS, "ids": np.arange(4)}, r"ids have shape \(4,\) for 5 images"),
        ({"pixels": PIXELS, "labels": np.arange(4)}, r"labels have shape \(4,\) for 5 images"),
        ({"pixels": PIXELS, "is_test": np.zeros(6, bool)}, r"is_test have shape \(6,\) for 5 images"),
        ({"pixels": PIXELS, "is_test": np.zeros(5)}, "is_test has dtype float64; give bool"),
        ({"pixels": PIXELS, "labels": np.zeros((5, 2))}, r"0 class_names for labels of shape \(5, 2\)"),
    ],
)
def test_what_does_not_fit_together_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Images(**fields)


def test_the_key_follows_the_pixels_and_nothing_else():
    changed = PIXELS.copy()
    changed[4, 3, 5, 2] ^= 1
    key = Images(pixels=PIXELS).key
    assert Images(pixels=np.asfortranarray(PIXELS), labels=np.arange(5)).key == key
    others = [changed, PIXELS[:4], PIXELS[::-1], PIXELS.reshape(5, 6, 4, 3)]
    assert len({key, *(Images(pixels=other).key for other in others)}) == 5


def test_the_key_of_a_large_array_is_that_of_its_blocks(monkeypatch):
    key = Images(pixels=PIXELS).key
    monkeypatch.setattr("combemb.data.images.HASH_BYTES", 2 * PIXELS[0].nbytes)
    assert Images(pixels=PIXELS).key == key


def test_the_key_follows_files_by_path_size_and_time(tmp_path):
    files = [tmp_path / "a.png", tmp_path / "b.png"]
    for file in files:
        file.write_bytes(b"12")
        os.utime(file, ns=(0, 1_000_000_007))

    def key(files=files, ids=("a", "b"), **others):
        return Images(files=files, ids=np.array(ids), **others).key

    before = key()
    assert key(labels=np.array(["x", None], dtype=object)) == key(ids=("a", "c")) == before
    moved = [tmp_path / "moved" / file.name for file in files]
    moved[0].parent.mkdir()
    for old, new in zip(files, moved, strict=True):
        old.rename(new)
    missing = key()
    found = {before, missing, key(files=moved), key(moved[:1], ids=["a"])}
    os.utime(moved[0], ns=(0, 1_000_000_008))
    found.add(key(files=moved))
    moved[0].write_bytes(b"123")
    os.utime(moved[0], ns=(0, 1_000_000_007))
    found.add(key(files=moved))
    assert len(found) == 6


def test_suffixes_are_those_of_pictures():
    assert {".jpg", ".jpeg", ".png", ".gif", ".webp", ".tif", ".bmp"} <= image_suffixes()
    assert not {".pdf", ".h5", ".mpg", ".eps", ".txt", ".csv", ""} & image_suffixes()
