import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from combemb.data import Images, datasets, sources


@pytest.fixture(scope="module")
def dataset():
    return datasets.load("digits", n_views=4, seed=7)


def moved(image, dy, dx):
    """The image moved down by dy and right by dx pixels, zeros entering, one pixel at a time."""
    out = np.zeros_like(image)
    for row in range(8):
        for column in range(8):
            if 0 <= row - dy < 8 and 0 <= column - dx < 8:
                out[row, column] = image[row - dy, column - dx]
    return out


def test_every_fifth_image_is_a_test_image(dataset):
    pixels, targets = load_digits(return_X_y=True)
    test = [i for i in range(len(pixels)) if i % 5 == 0]
    train = [i for i in range(len(pixels)) if i % 5 != 0]
    np.testing.assert_allclose(dataset.test_x, pixels[test] / 16)
    np.testing.assert_allclose(dataset.train_x[:, 0], pixels[train] / 16)  # view 0 is the clean one
    np.testing.assert_array_equal(dataset.test_targets, targets[test])
    np.testing.assert_array_equal(dataset.train_targets, targets[train])
    assert dataset.name == "digits"
    assert dataset.class_names.tolist() == list("0123456789")


def test_shapes_types_and_range(dataset):
    assert dataset.train_x.shape == (1437, 4, 64)
    assert dataset.test_x.shape == (360, 64)
    assert dataset.train_x.dtype == dataset.test_x.dtype == np.float32
    assert dataset.train_x.min() >= 0
    assert dataset.train_x.max() <= 1


def test_views_are_the_image_moved_by_at_most_a_pixel_with_noise(dataset):
    shifts = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]
    found, noise = [], []
    for clean, *views in dataset.train_x[:200].reshape(200, 4, 8, 8):
        candidates = np.stack([moved(clean, dy, dx) for dy, dx in shifts])
        for view in views:
            best = np.square(view - candidates).sum(axis=(1, 2)).argmin()
            found.append(best)
            middle = np.abs(candidates[best] - 0.5) < 0.1  # clipping leaves these alone
            noise.append((view - candidates[best])[middle])
    assert abs(np.concatenate(noise).std() - 0.1) < 0.01
    share = np.bincount(found, minlength=9) / len(found)
    assert np.abs(share - 1 / 9).max() < 0.05  # 4 standard errors of 600 draws


def test_the_seed_decides(dataset):
    again, other = (datasets.digits(n_views=2, seed=seed) for seed in (7, 8))
    np.testing.assert_array_equal(again.train_x, dataset.train_x[:, :2])
    assert (other.train_x[:, 1] != again.train_x[:, 1]).any()


def test_one_view_is_the_clean_one(dataset):
    np.testing.assert_array_equal(datasets.digits(n_views=1).train_x, dataset.train_x[:, :1])


def test_the_former_name_of_the_package_still_works():
    assert sources is datasets


def test_unknown_names_list_the_choices():
    assert datasets.names() == ["cifar10", "cifar100", "cub200", "digits", "nus_wide", "tiny_imagenet"]
    with pytest.raises(ValueError, match=r"dataset 'digit' is unknown; choose one of .*digits"):
        datasets.load("digit")
    with pytest.raises(ValueError, match="n_views=0; use at least 1"):
        datasets.load("digits", n_views=0)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "cub200", "nus_wide", "tiny_imagenet"])
def test_a_path_that_is_missing_or_holds_something_else_says_what_is_expected(tmp_path, name):
    with pytest.raises(ValueError, match=f"dataset '{name}' needs the path"):
        datasets.load(name)
    with pytest.raises(ValueError, match=f"there is no .*nowhere; give the path of .*'{name}'"):
        datasets.load(name, tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"is not [-A-Za-z0-9 ]+: expected .*"):
        datasets.load(name, str(tmp_path))


def test_the_digits_are_read_from_no_path(tmp_path):
    with pytest.raises(ValueError, match="dataset 'digits' comes with the package"):
        datasets.load("digits", tmp_path)


def write_image(path, colour=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (colour, colour, colour)).save(path)


def colours(images):
    """The grey level of each image."""
    return [images.read(i).getpixel((4, 4))[0] for i in range(len(images))]


# Tiny ImageNet


def write_tiny_imagenet(folder):
    """Three classes with two training images and one or two validation images each, in the published layout."""
    wnids = ["n02124075", "n01443537", "n04067472"]  # not sorted, as published
    folder.mkdir(parents=True)
    (folder / "wnids.txt").write_text("\n".join(wnids) + "\n")
    words = [
        "n00001740\tentity",
        "n01443537\tgoldfish, Carassius auratus",
        "n02124075\tEgyptian cat",
        "n04067472\treel",
    ]
    (folder / "words.txt").write_text("\n".join(words) + "\n")
    for c, wnid in enumerate(wnids):
        for i in range(2):
            write_image(folder / f"train/{wnid}/images/{wnid}_{i}.JPEG", 100 + 10 * c + i)
        (folder / f"train/{wnid}/{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t10\t63\t58\n")
    rows = [("val_0.JPEG", 2), ("val_10.JPEG", 0), ("val_2.JPEG", 1), ("val_3.JPEG", 0)]
    for i, (name, _) in enumerate(rows):
        write_image(folder / "val/images" / name, 200 + i)
    lines = [f"{name}\t{wnids[c]}\t0\t32\t44\t62\n" for name, c in rows]
    (folder / "val/val_annotations.txt").write_text("".join(lines))
    write_image(folder / "test/images/test_0.JPEG")  # published without labels, and therefore not read
    return folder


@pytest.mark.parametrize("is_above", [True, False])
def test_tiny_imagenet_is_read(tmp_path, is_above):
    folder = write_tiny_imagenet(tmp_path / "tiny-imagenet-200")
    dataset = datasets.load("tiny_imagenet", tmp_path if is_above else folder)
    assert dataset.name == "tiny_imagenet"
    assert dataset.class_names.tolist() == ["Egyptian cat", "goldfish, Carassius auratus", "reel"]
    assert dataset.train_targets.tolist() == [1, 1, 0, 0, 2, 2]
    assert colours(dataset.train_x) == [110, 111, 100, 101, 120, 121]
    assert dataset.test_targets.tolist() == [2, 0, 1, 0]
    assert colours(dataset.test_x) == [200, 201, 202, 203]
    assert dataset.train_x.ids[0] == "train/n01443537/images/n01443537_0.JPEG"
    assert dataset.test_x.ids[1] == "val/images/val_10.JPEG"
    assert dataset.train_x.labels is dataset.test_x.labels is None


def test_tiny_imagenet_with_a_class_that_is_not_listed_is_refused(tmp_path):
    folder = write_tiny_imagenet(tmp_path / "tiny")
    (folder / "wnids.txt").write_text("n02124075\nn01443537\n")
    with pytest.raises(ValueError, match="names 'n04067472', which is none of the 2 known ones"):
        datasets.load("tiny_imagenet", folder)
    (folder / "words.txt").unlink()
    with pytest.raises(ValueError, match=r"cannot read .*words.txt: .*No such file"):
        datasets.load("tiny_imagenet", folder)


# CUB-200-2011


def write_cub200(folder):
    """Three classes, five images, in the published layout."""
    folder.mkdir(parents=True)
    files = [
        "001.Black_footed_Albatross/Black_Footed_Albatross_0046_18.jpg",
        "001.Black_footed_Albatross/Black_Footed_Albatross_0009_34.jpg",
        "002.Laysan_Albatross/Laysan_Albatross_0002_1027.jpg",
        "010.Red_winged_Blackbird/Red_Winged_Blackbird_0017_4116.jpg",
        "002.Laysan_Albatross/Laysan_Albatross_0003_1033.jpg",
    ]
    texts = {
        "images.txt": [f"{i} {file}" for i, file in enumerate(files, start=1)],
        "image_class_labels.txt": ["1 1", "2 1", "3 2", "4 10", "5 2"],
        "classes.txt": ["1 001.Black_footed_Albatross", "2 002.Laysan_Albatross", "10 010.Red_winged_Blackbird"],
        "train_test_split.txt": ["1 0", "2 1", "3 1", "4 1", "5 0"],  # 1 is for training
        "bounding_boxes.txt": ["1 60.0 27.0 325.0 304.0"],
    }
    for name, lines in texts.items():
        (folder / name).write_text("\n".join(lines) + "\n")
    for i, file in enumerate(files, start=1):
        write_image(folder / "images" / file, 50 * i)
    return folder


@pytest.mark.parametrize("is_above", [True, False])
def test_cub200_is_read(tmp_path, is_above):
    folder = write_cub200(tmp_path / "CUB_200_2011")
    dataset = datasets.load("cub200", tmp_path if is_above else folder)
    assert dataset.class_names.tolist() == [
        "001.Black_footed_Albatross",
        "002.Laysan_Albatross",
        "010.Red_winged_Blackbird",
    ]
    assert dataset.train_targets.tolist() == [0, 1, 2]
    assert colours(dataset.train_x) == [100, 150, 200]
    assert dataset.test_targets.tolist() == [0, 1]
    assert colours(dataset.test_x) == [50, 250]
    assert dataset.test_x.ids[0] == "001.Black_footed_Albatross/Black_Footed_Albatross_0046_18.jpg"
    assert dataset.train_x.labels is dataset.test_x.labels is None


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("image_class_labels.txt", "1 1\n2 1\n", "image_class_labels.txt and images.txt list different images"),
        ("image_class_labels.txt", "1 1\n2 1\n3 2\n4 7\n5 2\n", "names '7', which is none of the 3 known ones"),
        ("train_test_split.txt", "1 0\n2 1\n3 1\n4 x\n5 0\n", "train_test_split.txt names 'x'"),
        ("images.txt", "\n", "images.txt is empty"),
        ("classes.txt", None, "cannot read .*classes.txt"),
        ("classes.txt", "1\n2\n10\n", "classes.txt, line 1: expected 2 fields, found 1"),
    ],
)
def test_cub200_whose_files_do_not_fit_together_is_refused(tmp_path, name, text, message):
    folder = write_cub200(tmp_path / "CUB_200_2011")
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        datasets.load("cub200", folder)


# image folders


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "cub200"])
def test_a_divided_image_folder_is_read(tmp_path, name):
    for i, file in enumerate(["train/dog/1", "train/dog/2", "train/cat/1", "test/cat/1", "test/ship/1"]):
        write_image(tmp_path / f"{file}.png", 10 + i)
    dataset = datasets.load(name, tmp_path)
    assert dataset.name == name
    assert dataset.class_names.tolist() == ["cat", "dog", "ship"]
    assert dataset.train_targets.tolist() == [0, 1, 1]
    assert colours(dataset.train_x) == [12, 10, 11]
    assert dataset.test_targets.tolist() == [0, 2]
    assert dataset.test_x.ids.tolist() == ["test/cat/1.png", "test/ship/1.png"]
    assert isinstance(dataset.train_x, Images)
    assert dataset.train_x.labels is dataset.train_x.is_test is dataset.test_x.labels is None


def test_an_image_folder_with_images_outside_of_classes_is_refused(tmp_path):
    for name in ("train/cat/1", "train/2", "test/cat/3"):
        write_image(tmp_path / f"{name}.png")
    with pytest.raises(
        ValueError, match="not divided into train/<class>/ and test/<class>/ with every image in a class"
    ):
        datasets.load("cub200", tmp_path)
