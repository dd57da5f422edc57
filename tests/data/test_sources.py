import numpy as np
import pytest
from sklearn.datasets import load_digits

from combemb.data import sources


@pytest.fixture(scope="module")
def source():
    return sources.load("digits", n_views=4, seed=7)


def moved(image, dy, dx):
    """The image moved down by dy and right by dx pixels, zeros entering, one pixel at a time."""
    out = np.zeros_like(image)
    for row in range(8):
        for column in range(8):
            if 0 <= row - dy < 8 and 0 <= column - dx < 8:
                out[row, column] = image[row - dy, column - dx]
    return out


def test_every_fifth_image_is_a_test_image(source):
    pixels, targets = load_digits(return_X_y=True)
    test = [i for i in range(len(pixels)) if i % 5 == 0]
    train = [i for i in range(len(pixels)) if i % 5 != 0]
    np.testing.assert_allclose(source.test_x, pixels[test] / 16)
    np.testing.assert_allclose(source.train_x[:, 0], pixels[train] / 16)  # view 0 is the clean one
    np.testing.assert_array_equal(source.test_targets, targets[test])
    np.testing.assert_array_equal(source.train_targets, targets[train])
    assert source.name == "digits"


def test_shapes_types_and_range(source):
    assert source.train_x.shape == (1437, 4, 64)
    assert source.test_x.shape == (360, 64)
    assert source.train_x.dtype == source.test_x.dtype == np.float32
    assert source.train_x.min() >= 0
    assert source.train_x.max() <= 1


def test_views_are_the_image_moved_by_at_most_a_pixel_with_noise(source):
    shifts = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]
    found, noise = [], []
    for clean, *views in source.train_x[:200].reshape(200, 4, 8, 8):
        candidates = np.stack([moved(clean, dy, dx) for dy, dx in shifts])
        for view in views:
            best = np.square(view - candidates).sum(axis=(1, 2)).argmin()
            found.append(best)
            middle = np.abs(candidates[best] - 0.5) < 0.1  # clipping leaves these alone
            noise.append((view - candidates[best])[middle])
    assert abs(np.concatenate(noise).std() - 0.1) < 0.01
    share = np.bincount(found, minlength=9) / len(found)
    assert np.abs(share - 1 / 9).max() < 0.05  # 4 standard errors of 600 draws


def test_the_seed_decides(source):
    again, other = (sources.digits(n_views=2, seed=seed) for seed in (7, 8))
    np.testing.assert_array_equal(again.train_x, source.train_x[:, :2])
    assert (other.train_x[:, 1] != again.train_x[:, 1]).any()


def test_one_view_is_the_clean_one(source):
    np.testing.assert_array_equal(sources.digits(n_views=1).train_x, source.train_x[:, :1])


def test_unknown_names_list_the_choices():
    assert "digits" in sources.names()
    with pytest.raises(ValueError, match=r"dataset 'digit' is unknown; choose one of .*digits"):
        sources.load("digit")
    with pytest.raises(ValueError, match="n_views=0; use at least 1"):
        sources.load("digits", n_views=0)
