import numpy as np
import pytest
from PIL import Image

from combemb.data import datasets

# Published names; the first 20 occur often, `zebra` and `whales` equally often, `airport` and `map` hardly ever.
CONCEPTS = ["airport", *(f"often_{i:02d}" for i in range(20)), "map", "whales", "zebra"]
N = 40


def concept_table():
    """(N, 24) of 0/1. Image 0 is only an airport, image 1 only a map, image 2 has nothing at all."""
    table = np.zeros((N, len(CONCEPTS)), dtype=int)
    table[0, CONCEPTS.index("airport")] = table[1, CONCEPTS.index("map")] = 1
    rng = np.random.default_rng(0)
    for column in range(1, 21):
        table[rng.choice(np.arange(3, N), size=15, replace=False), column] = 1
    table[3:8, CONCEPTS.index("whales")] = table[10:15, CONCEPTS.index("zebra")] = 1
    table[3:, 1] |= ~table[3:].any(axis=1)
    return table


TABLE = concept_table()
NAMES = [f"actor\\{i:04d}_{2124494179 + i}.jpg" for i in range(N)]
IS_TEST = np.arange(N) % 3 == 0


def write_lines(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def write_nus_wide(
    folder, lists=("", "Train", "Test"), labels=("AllLabels", "TrainTestLabels"), concepts_in="ConceptsList"
):
    """The published files; of the images only two, because a reader must not need them all."""
    rows = {"": np.arange(N), "Train": np.flatnonzero(~IS_TEST), "Test": np.flatnonzero(IS_TEST)}
    write_lines(folder / concepts_in / "Concepts81.txt", CONCEPTS)
    for part in lists:
        name = f"{part}Imagelist.txt" if part else "Imagelist.txt"
        write_lines(folder / "ImageList" / name, [NAMES[row] for row in rows[part]])
    for column, concept in enumerate(CONCEPTS):
        if "AllLabels" in labels:
            write_lines(folder / f"Groundtruth/AllLabels/Labels_{concept}.txt", TABLE[:, column])
        if "TrainTestLabels" in labels:
            for part in ("Train", "Test"):
                file = folder / f"Groundtruth/TrainTestLabels/Labels_{concept}_{part}.txt"
                write_lines(file, TABLE[rows[part], column])
    for row in (4, 6):
        path = folder / "Flickr" / NAMES[row].replace("\\", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (10 * row,) * 3).save(path)
    return folder


# 20 that occur often, then `whales`, which comes before `zebra` by name
CLASSES = [*CONCEPTS[1:21], "whales"]
COLUMNS = [CONCEPTS.index(name) for name in CLASSES]
KEPT = [row for row in range(N) if TABLE[row, COLUMNS].any()]


def expected(is_test):
    rows = [row for row in KEPT if IS_TEST[row] == is_test]
    return [NAMES[row].replace("\\", "/") for row in rows], TABLE[np.ix_(rows, COLUMNS)].tolist()


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"concepts_in": ""},
        {"labels": ["AllLabels"]},
        {"labels": ["TrainTestLabels"]},
        {"labels": ["TrainTestLabels"], "lists": ["Train", "Test"]},
    ],
)
def test_the_21_most_frequent_concepts_and_the_published_parts_are_read(tmp_path, given):
    dataset = datasets.load("nus_wide", write_nus_wide(tmp_path, **given))
    assert dataset.name == "nus_wide"
    assert dataset.class_names.tolist() == CLASSES
    for is_test, x, targets in (
        (False, dataset.train_x, dataset.train_targets),
        (True, dataset.test_x, dataset.test_targets),
    ):
        assert (x.ids.tolist(), targets.tolist()) == expected(is_test)
        assert x.files == [tmp_path / "Flickr" / name for name in x.ids]
        assert x.labels is None
    assert len(KEPT) == N - 3
    assert (
        dataset.train_x.read(dataset.train_x.ids.tolist().index("actor/0004_2124494183.jpg")).getpixel((0, 0))[0] == 40
    )


def test_the_slip_in_a_published_file_is_read_as_zero(tmp_path):
    folder = write_nus_wide(tmp_path, labels=["TrainTestLabels"])
    file = folder / "Groundtruth/TrainTestLabels/Labels_airport_Train.txt"
    file.write_text(file.read_text().replace("0", "-1130179", 1))
    dataset = datasets.load("nus_wide", folder)
    assert (dataset.train_x.ids.tolist(), dataset.train_targets.tolist()) == expected(is_test=False)


@pytest.mark.parametrize("lists", [[""], ["", "Train", "Test"]])
def test_without_lists_or_on_request_test_images_are_drawn_for_each_concept(tmp_path, lists):
    folder = write_nus_wide(tmp_path, lists=lists, labels=["AllLabels"])
    dataset, again, other = (
        datasets.load("nus_wide", folder, n_concepts=10, test_per_concept=2, seed=seed) for seed in (0, 0, 1)
    )
    assert len(dataset.test_x) == 20
    assert (dataset.test_targets.sum(axis=0) >= 2).all()
    kept = [name.replace("\\", "/") for name, row in zip(NAMES, TABLE[:, 1:11], strict=True) if row.any()]
    assert sorted([*dataset.train_x.ids, *dataset.test_x.ids]) == kept
    assert again.test_x.ids.tolist() == dataset.test_x.ids.tolist()
    assert other.test_x.ids.tolist() != dataset.test_x.ids.tolist()


def test_the_draw_is_of_100_images_unless_told_otherwise(tmp_path):
    folder = write_nus_wide(tmp_path, lists=[""], labels=["AllLabels"])
    with pytest.raises(ValueError, match="a concept has 15 images left to draw 100 from; set test_per_concept"):
        datasets.load("nus_wide", folder)


def test_more_concepts_than_there_are_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"n_concepts=25, but .* lists 24 concepts; use fewer"):
        datasets.load("nus_wide", write_nus_wide(tmp_path), n_concepts=25)


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("Groundtruth/AllLabels/Labels_map.txt", [0, 1], r"Labels_map.txt holds 2 numbers; expected 40 of 0 or 1"),
        ("Groundtruth/AllLabels/Labels_map.txt", [2] * N, r"expected 40 of 0 or 1, one for each image"),
        ("Groundtruth/AllLabels/Labels_map.txt", ["x"] * N, r"cannot read .*Labels_map.txt"),
        ("Groundtruth/AllLabels/Labels_map.txt", None, r"cannot read .*Labels_map.txt"),
        ("ImageList/TestImagelist.txt", ["actor\\9.jpg"], r"names 'actor/9.jpg', which is none of the 40 known ones"),
        ("ConceptsList/Concepts81.txt", None, "is not NUS-WIDE: expected Concepts81.txt"),
    ],
)
def test_files_that_do_not_fit_together_say_which(tmp_path, name, lines, message):
    folder = write_nus_wide(tmp_path)
    (folder / name).unlink()
    if lines is not None:
        write_lines(folder / name, lines)
    with pytest.raises(ValueError, match=message):
        datasets.load("nus_wide", folder)


def test_lists_without_labels_are_not_enough(tmp_path):
    with pytest.raises(ValueError, match=r"is not NUS-WIDE: expected .*Groundtruth/AllLabels/, or"):
        datasets.load("nus_wide", write_nus_wide(tmp_path, labels=[]))
