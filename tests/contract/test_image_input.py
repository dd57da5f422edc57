"""What every method must do with images: the same from an array and from a folder, and back from a run folder."""

import pytest
import torch

from combemb import methods
from tests.contract.quick import BITS, CODED, contents, small
from tests.pictures import LABELS, PIXELS, SEEN, write_folder

QUICK = {"image_size": 32, "n_views": 2}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module", params=["array", "folder"])
def given(request, photos):
    """Images and their labels, which a folder has itself."""
    return (PIXELS, LABELS) if request.param == "array" else (photos, None)


@pytest.fixture(scope="module")
def run(name, given, tmp_path_factory):
    folder = tmp_path_factory.mktemp(name) / "run"
    return small(name, **QUICK).fit(*given, folder=folder), folder


def test_images_become_finite_vectors(run, given):
    fitted, _ = run
    z = fitted.embed(given[0])
    assert len(z) == len(PIXELS)
    assert z.dtype == torch.float32
    assert z.isfinite().all()
    assert len(z.unique(dim=0)) > len(PIXELS) // 2
    assert torch.equal(fitted.embed(given[0]), z)
    torch.testing.assert_close(fitted.embed(PIXELS[:3]), z[:3], rtol=1e-2, atol=1e-2)  # features are kept in float16
    assert fitted.classes_.tolist() == list(SEEN)


@pytest.mark.parametrize("name", CODED, indirect=True, scope="module")
def test_images_become_codes(run, given):
    fitted, _ = run
    codes = fitted.encode(given[0])
    assert fitted.codebook.bits == BITS
    assert codes.dtype == torch.uint8
    assert codes.shape == (len(PIXELS), len(fitted.codebook.sizes))
    assert torch.equal(codes, fitted.codebook.encode(fitted.embed(given[0])))


def test_the_form_of_the_images_changes_nothing(run, photos):
    fitted, _ = run
    assert torch.equal(fitted.embed(photos), fitted.embed(PIXELS))


def test_a_run_folder_gives_a_method_for_images_back(run, given, tmp_path):
    fitted, folder = run
    fitted.save(tmp_path / "saved")
    for place in (folder, tmp_path / "saved"):
        loaded = methods.load(place)
        assert loaded.get_params() == fitted.get_params()
        assert torch.equal(loaded.embed(given[0]), fitted.embed(given[0]))
    assert "broken.csv" not in contents(folder)


def test_images_that_do_not_fit_are_refused_before_anything_is_written(name, tmp_path):
    for x, word in ((PIXELS.astype(float), "uint8"), (PIXELS.transpose(0, 3, 1, 2), "H, W, 3"), (PIXELS[:-1], "72")):
        with pytest.raises(ValueError, match=word):
            small(name, **QUICK).fit(x, LABELS, folder=tmp_path / "run")
    assert not any(tmp_path.iterdir())
