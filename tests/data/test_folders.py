import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from combemb.data import is_images, read_images
from combemb.data.images import BrokenImage


def write_images(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 2), "red").save(path, format="PNG")


def write_text(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# folders


def test_sub_folders_are_classes_and_the_rest_is_unlabelled(tmp_path):
    write_images(tmp_path, "dog/b.jpg", "dog/deep/er/a.PNG", "cat/1.jpeg", "loose.png")
    write_images(tmp_path, "unlabelled/x.jpg", "unlabelled/dog/y.jpg", "Unlabeled/z.jpg", "dog-house/c.png")
    images = read_images(str(tmp_path))
    assert dict(zip(images.ids.tolist(), images.labels.tolist(), strict=True)) == {
        "Unlabeled/z.jpg": None,
        "cat/1.jpeg": "cat",
        "dog-house/c.png": "dog-house",
        "dog/b.jpg": "dog",
        "dog/deep/er/a.PNG": "dog",
        "loose.png": None,
        "unlabelled/dog/y.jpg": None,
        "unlabelled/x.jpg": None,
    }
    assert images.ids.tolist() == sorted(images.ids.tolist())
    assert images.files == [tmp_path / name for name in images.ids]
    assert images.class_names.tolist() == ["cat", "dog", "dog-house"]
    assert images.is_test is None
    assert images.read(0).size == (2, 2)


def test_a_run_folder_among_the_classes_is_none(tmp_path):
    write_images(tmp_path, "cat/1.png", "dog/2.png", "run/training.png")
    write_text(tmp_path / "run/run.json", "{}")
    assert read_images(tmp_path).ids.tolist() == ["cat/1.png", "dog/2.png"]


def test_a_test_part_may_have_no_classes(tmp_path):
    write_images(tmp_path, "train/cat/1.png", "train/dog/2.png", "test/3.png")
    images = read_images(tmp_path)
    assert images.labels.tolist() == [None, "cat", "dog"]
    assert images.is_test.tolist() == [True, False, False]


def test_hidden_files_and_other_suffixes_are_passed_over(tmp_path):
    write_images(tmp_path, "cat/1.png", "cat/.hidden.png", ".git/2.png", "cat/.thumbs/3.png")
    for name in ("cat/Thumbs.db", "cat/notes.txt", "cat/paper.pdf", "cat/labels.csv", "cat/features.h5", "cat/png"):
        write_text(tmp_path / name, "x")
    assert read_images(tmp_path).ids.tolist() == ["cat/1.png"]


def test_photos_that_cannot_be_read_and_images_without_a_suffix_are_listed(tmp_path):
    write_images(tmp_path, "cat/1.png", "dog/2.png")
    (tmp_path / "dog/2.png").rename(tmp_path / "dog/2")
    for name in ("cat/3.HEIC", "cat/4.cr2"):
        write_text(tmp_path / name, "x")
    images = read_images(tmp_path)
    assert images.ids.tolist() == ["cat/1.png", "cat/3.HEIC", "cat/4.cr2", "dog/2"]
    assert images.read(3).mode == "RGB"
    with pytest.raises(BrokenImage, match=r"\.HEIC cannot be read; convert it"):
        images.read(1)


def test_a_file_that_only_looks_like_an_image_is_listed_as_one(tmp_path):
    write_images(tmp_path, "cat/1.png")
    write_text(tmp_path / "cat/2.png", "no image")
    (tmp_path / "cat/3.png").symlink_to(tmp_path / "gone.png")
    assert read_images(tmp_path).ids.tolist() == ["cat/1.png", "cat/2.png", "cat/3.png"]


def test_links_are_followed_but_not_in_circles(tmp_path):
    write_images(tmp_path / "elsewhere", "1.png", "2.png")
    write_images(tmp_path / "pile", "dog/3.png")
    for link, target in {
        "cat": "elsewhere",
        "dog/4.png": "elsewhere/1.png",
        "dog/back": "pile",
        "self": "pile",
    }.items():
        (tmp_path / "pile" / link).symlink_to(tmp_path / target)
    (tmp_path / "elsewhere/again").symlink_to(tmp_path / "elsewhere")
    assert read_images(tmp_path / "pile").ids.tolist() == ["cat/1.png", "cat/2.png", "dog/3.png", "dog/4.png"]


def test_a_folder_without_classes_has_no_labels(tmp_path):
    write_images(tmp_path, "1.png", "unlabelled/2.png")
    images = read_images(tmp_path)
    assert images.ids.tolist() == ["1.png", "unlabelled/2.png"]
    assert images.labels is images.class_names is None


@pytest.mark.parametrize("names", [[], ["notes.txt", "cat/paper.pdf"]])
def test_a_folder_without_images_is_refused(tmp_path, names):
    for name in names:
        write_text(tmp_path / name, "x")
    with pytest.raises(ValueError, match="holds no images; give a folder with sub-folders of images"):
        read_images(tmp_path)


@pytest.mark.parametrize("part", ["test", "val"])
def test_train_and_test_are_parts_and_not_classes(tmp_path, part):
    write_images(tmp_path, "train/cat/1.png", "train/dog/2.png", "train/unlabelled/3.png", "train/4.png")
    write_images(tmp_path, f"{part}/cat/1.png", f"{part}/owl/2.png", f"{part}/train/3.png")
    write_text(tmp_path / "README.txt", "x")
    images = read_images(tmp_path)
    found = {
        id_: (label, is_test) for id_, label, is_test in zip(images.ids, images.labels, images.is_test, strict=True)
    }
    assert found == {
        "train/4.png": (None, False),
        "train/cat/1.png": ("cat", False),
        "train/dog/2.png": ("dog", False),
        "train/unlabelled/3.png": (None, False),
        f"{part}/cat/1.png": ("cat", True),
        f"{part}/owl/2.png": ("owl", True),
        f"{part}/train/3.png": ("train", True),
    }
    assert images.class_names.tolist() == ["cat", "dog", "owl", "train"]


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        (["train/1.png", "test/2.png"], ["test", "train"]),  # no sub-folders
        (["train/1.png", "test/deep/2.png"], ["test", "train"]),
        (["train/steam/1.png", "bus/2.png"], ["bus", "train"]),
        (["train/steam/1.png", "test/tube/2.png", "bus/3.png"], ["bus", "test", "train"]),
        (["train/steam/1.png"], ["train"]),
    ],
)
def test_a_class_may_be_called_train(tmp_path, names, classes):
    write_images(tmp_path, *names)
    images = read_images(tmp_path)
    assert images.class_names.tolist() == classes
    assert images.is_test is None


@pytest.mark.parametrize(
    ("others", "message"),
    [
        (["val/cat/3.png"], "holds test, train, val; give exactly train and test, or train and val"),
        (["unlabelled/3.png"], "holds test, train and unlabelled; .*go into train/unlabelled"),
        (["3.png"], "holds test, train and loose images; "),
    ],
)
def test_parts_beside_other_images_are_refused(tmp_path, others, message):
    write_images(tmp_path, "train/cat/1.png", "test/cat/2.png", *others)
    with pytest.raises(ValueError, match=message):
        read_images(tmp_path)


# manifests


def write_manifest(folder, suffix, **columns):
    path = folder / f"manifest{suffix}"
    if suffix == ".csv":
        rows = zip(*([str(value) for value in values] for values in columns.values()), strict=True)
        return write_text(path, "\n".join(",".join(row) for row in [columns, *rows]) + "\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


SUFFIXES = [".csv", ".parquet", ".pq", ".CSV"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_manifest_names_files_labels_parts_and_ids(tmp_path, suffix):
    write_images(tmp_path, "pictures/b.png", "elsewhere/a.png")
    absolute = str(tmp_path / "elsewhere/a.png")
    path = write_manifest(
        tmp_path / "pictures",
        suffix.lower(),
        path=["b.png", absolute, "gone.png"],
        label=["dog", "", "cat"],
        split=["train", "test", "train"],
        id=["7", "8", "09"],
    )
    images = read_images(path.rename(path.with_suffix(suffix)))
    assert images.files == [tmp_path / "pictures/b.png", tmp_path / "elsewhere/a.png", tmp_path / "pictures/gone.png"]
    assert images.labels.tolist() == ["dog", None, "cat"]
    assert images.class_names.tolist() == ["cat", "dog"]
    assert images.is_test.tolist() == [False, True, False]
    assert images.ids.tolist() == ["7", "8", "09"]
    assert images.read(1).size == (2, 2)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_only_the_path_is_needed(tmp_path, suffix):
    images = read_images(write_manifest(tmp_path, suffix, path=["b.png", "./a.png"]))
    assert images.ids.tolist() == ["b.png", "./a.png"]
    assert images.labels is images.class_names is images.is_test is None


@pytest.mark.parametrize("name", ["label", "labels"])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_several_labels_make_a_table(tmp_path, name, suffix):
    path = write_manifest(tmp_path, suffix, path=list("abcd"), **{name: ["dog|cat", "", "owl", "cat | owl"]})
    images = read_images(path)
    assert images.class_names.tolist() == ["cat", "dog", "owl"]
    assert images.labels.tolist() == [[1, 1, 0], [-1, -1, -1], [0, 0, 1], [1, 0, 1]]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_minus_one_is_no_class(tmp_path, suffix):
    one = read_images(write_manifest(tmp_path, suffix, path=list("abc"), label=["dog", "-1", " -1 "]))
    assert one.labels.tolist() == ["dog", None, None]
    several = read_images(write_manifest(tmp_path, suffix, path=list("abc"), label=["dog|cat", "-1", ""]))
    assert several.class_names.tolist() == ["cat", "dog"]
    assert several.labels.tolist() == [[1, 1], [-1, -1], [-1, -1]]


def test_a_file_that_is_listed_by_two_paths_is_listed_twice(tmp_path):
    path = write_manifest(tmp_path, ".csv", path=["a.png", "b.png", str(tmp_path / "a.png")])
    with pytest.raises(ValueError, match="rows 1 and 3 have the same `path`"):
        read_images(path)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["7", "07", "1e3", "-"], ["7", "07", "1e3", "-"]),
        (["NA", "null", "nan", "None"], ["NA", "null", "nan", "None"]),
        (["true", "2020-01-01", " cat ", "  "], ["true", "2020-01-01", "cat", None]),
        (["Ünï", '"a, b"', '""', '"a\nb"'], ["Ünï", "a, b", None, "a\nb"]),
    ],
)
def test_labels_of_a_csv_stay_text(tmp_path, labels, expected):
    assert read_images(write_manifest(tmp_path, ".csv", path=list("abcd"), label=labels)).labels.tolist() == expected


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([7, None, 0, 7]), ["7", None, "0", "7"]),
        (pa.array(["b", None, "a", ""]), ["b", None, "a", None]),
        (pa.array(["b", None, "a|b", ""], pa.large_string()), [[0, 1], [-1, -1], [1, 1], [-1, -1]]),
        (pa.array(["b", None, "a", "b"]).dictionary_encode(), ["b", None, "a", "b"]),
    ],
)
def test_labels_of_a_parquet_file_become_text(tmp_path, column, expected):
    assert (
        read_images(write_manifest(tmp_path, ".parquet", path=list("abcd"), label=column)).labels.tolist() == expected
    )


def test_labels_that_are_all_empty_are_none(tmp_path):
    assert read_images(write_manifest(tmp_path, ".csv", path=["a", "b"], label=["", ""])).labels is None
    assert read_images(write_manifest(tmp_path, ".parquet", path=["a", "b"], label=pa.nulls(2))).labels is None


def test_a_label_may_hold_line_breaks_in_a_long_table(tmp_path):
    label = "line\n" * 800
    path = write_manifest(tmp_path, ".csv", path=[f"{i}.png" for i in range(800)], label=[f'"{label}"'] * 800)
    images = read_images(path)  # three megabytes, which are read in blocks of one
    assert len(images) == 800
    assert images.class_names.tolist() == [label.strip()]


def test_other_columns_do_not_matter(tmp_path):
    rows = "\n".join(f"{i}.png,{i}" for i in range(200_000))  # the type of `note` changes after a megabyte
    path = write_text(tmp_path / "manifest.csv", f"\ufeffpath, note\n{rows}\nlast.png,text\n")
    assert read_images(path).ids[[0, -1]].tolist() == ["0.png", "last.png"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Empty CSV file"),
        ("path,label\n", "there are no rows"),
        ("file,label\na,b\n", r"found no column `path`, only \['file', 'label'\]; `label`, `split` and `id` are"),
        ("path;label\na;b\n", r"found no column `path`, only \['path;label'\]"),
        ("path,label,labels\na,b,c\n", "there are both `label` and `labels`"),
        ("path,path\na,b\n", "there are two columns `path`"),
        ("path,label\na,b\n,c\n", "`path` is empty in row 2"),
        ("path\na\nb\n./a\n", "rows 1 and 3 have the same `path`, '.*a'; list it once"),
        ("path,id\na,x\nb,x\n", "rows 1 and 2 have the same `id`, 'x'"),
        ("path,split\na,train\nb,dev\n", "`split` is 'dev' in row 2; use train or test"),
        ("path,split\na,\n", "`split` is '' in row 1"),
        ("path,label\na,b|\n", r"label 'b\|' in row 1 holds an empty name"),
        ("path,label\na,b\nc\n", "Expected 2 columns, got 1"),
        ("path,label\na,b,c\n", "Expected 2 columns, got 3"),
    ],
)
def test_a_manifest_that_cannot_be_read_says_why(tmp_path, text, message):
    path = write_text(tmp_path / "manifest.csv", text)
    with pytest.raises(ValueError, match=f"cannot read .*manifest.csv: .*{message}"):
        read_images(path)


def test_an_encoding_other_than_utf_8_says_so(tmp_path):
    (tmp_path / "manifest.csv").write_bytes("path,label\na,Ü\n".encode("latin1"))
    with pytest.raises(ValueError, match="invalid UTF8"):
        read_images(tmp_path / "manifest.csv")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"file": ["a"]}, r"found no column `path`, only \['file'\]"),
        ({"path": ["a"], "label": [0.5]}, "`label` has type double; give strings"),
        ({"path": ["a"], "label": [["x", "y"]]}, r"`label` has type list<.*give strings"),
        ({"path": pa.array([], pa.string())}, "there are no rows"),
        ({"path": ["a", None]}, "`path` is empty in row 2"),
    ],
)
def test_parquet_columns_that_cannot_be_read_say_why(tmp_path, columns, message):
    with pytest.raises(ValueError, match=f"cannot read .*manifest.parquet: {message}"):
        read_images(write_manifest(tmp_path, ".parquet", **columns))


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_missing_and_damaged_manifests_say_which(tmp_path, suffix):
    with pytest.raises(ValueError, match=rf"cannot read .*none{suffix}: .*No such file"):
        read_images(tmp_path / f"none{suffix}")
    whole = write_manifest(tmp_path, ".parquet", path=["a"])
    (tmp_path / f"half{suffix}").write_bytes(whole.read_bytes()[:50])
    with pytest.raises(ValueError, match=f"cannot read .*half{suffix}"):
        read_images(tmp_path / f"half{suffix}")


# arrays, and what is what


def test_an_array_file_is_a_memory_map(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), dtype=np.uint8)
    np.save(tmp_path / "pixels.npy", pixels)
    images = read_images(tmp_path / "pixels.npy")
    assert isinstance(images.pixels, np.memmap)
    np.testing.assert_array_equal(images.pixels, pixels)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (
            np.zeros((2, 3, 8, 8), np.uint8),
            r"pixels.transpose\(0, 2, 3, 1\).*; expected one array \(N, H, W, 3\) of uint8",
        ),
        (np.zeros((2, 3)), r"pixels have shape \(2, 3\)"),
        (np.array([{}]), "Python objects|Array can't be memory-mapped"),
    ],
)
def test_arrays_that_are_no_images_are_refused(tmp_path, array, message):
    np.save(tmp_path / "pixels.npy", array)
    with pytest.raises(ValueError, match=f"cannot read .*pixels.npy: .*{message}"):
        read_images(tmp_path / "pixels.npy")


def test_paths_to_images_are_told_from_embeddings(tmp_path):
    np.save(tmp_path / "images.npy", np.zeros((2, 4, 4, 3), np.uint8))
    np.save(tmp_path / "x.npy", np.zeros((2, 4)))
    (tmp_path / "empty.npy").write_bytes(b"")
    manifest = write_manifest(tmp_path, ".parquet", path=["a"])
    pq.write_table(pa.table({"embedding": [[1.0]], "path": ["a"]}), tmp_path / "embeddings.parquet")
    yes = [tmp_path, manifest, tmp_path / "any.csv", tmp_path / "images.npy"]
    no = [tmp_path / name for name in ("x.npy", "empty.npy", "none.npy", "none.parquet", "embeddings.parquet", "x.npz")]
    assert [is_images(path) for path in yes] == [True] * len(yes)
    assert [is_images(str(path)) for path in no] == [False] * len(no)


def test_what_is_neither_folder_nor_manifest_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read .*nowhere: there is no such file or folder"):
        read_images(tmp_path / "nowhere")
    path = write_text(tmp_path / "file.txt", "x")
    with pytest.raises(
        ValueError, match=r"unknown suffix '.txt'; give an image folder, a manifest \(.csv, .parquet, .pq"
    ):
        read_images(path)
