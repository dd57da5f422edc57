"""What no method with codes can learn from is refused before an image is read, and the message says what to change."""

import numpy as np
import pytest

from combemb import methods
from combemb.learning.input import ImageInput
from tests.pictures import PIXELS

N = len(PIXELS)
HALF = np.where(np.arange(N) < N // 2, np.arange(N) % 4, -1)  # labels of four classes
ALL_SHARE = np.where(np.arange(N)[:, None] < N // 2, np.stack([np.ones(N), np.arange(N) % 2], axis=1), -1)
NETWORK = {"backbone": "resnet18", "backbone_width": 4, "image_size": 16}  # of 32 features
SUPERVISED = ("sdh", "cnnh", "ninh", "ssdh", "ssgah", "gpq", "ssah")
CASES = [
    *[(name, HALF * 0 - 1, {}, "none of the 72 items is labelled; label some items") for name in SUPERVISED],
    *[(name, np.minimum(HALF, 0), {}, "only one class.*label items of at least two") for name in SUPERVISED],
    *[(name, np.abs(HALF), {}, "all 72 items.*add unlabelled") for name in ("ssdh", "ssgah", "gpq", "ssah")],
    *[
        (name, np.where(np.arange(N) < 4, HALF, -1), {}, "form a triplet.*label at least two")
        for name in ("ninh", "ssdh", "ssgah", "ssah")
    ],
    *[(name, ALL_SHARE, {}, "form a triplet.*label at least two") for name in ("ninh", "ssdh", "ssgah", "ssah")],
    ("cnnh", ALL_SHARE, {}, "any two labelled items share a label.*label items that share none"),
    ("combemb", HALF * 0 - 1, {}, "none of the 72 items is labelled; label some items"),
    ("combemb", HALF, {"bits": 13, "n_meta_classes": 4}, "bits=13 is not a multiple.*use 12 or 14"),
    ("gpq", HALF, {"bits": 13}, "bits=13 is not a multiple of 4; use 12 or 16"),
    ("opq", None, {"bits": 13}, "bits=13 is no multiple of the 4 bits.*use 16 bits"),
    ("lopq", None, {"bits": 13}, "bits=13 is not 2 log2.*use 12, 24, 48 or 72"),
    ("itq", None, {"bits": 48}, "bits=48 does not fit 72 items with 32 features; use 1 to 32 bits"),
    ("opq", None, {"bits": 144}, "bits=144 makes 36 sets of words for 32 features; use fewer bits"),
    ("lopq", None, {"bits": 144}, "bits=144 makes 34 sets of words for 32 features; use fewer bits"),
]


@pytest.fixture(autouse=True)
def unreadable(monkeypatch):
    """Images must not be read."""

    def fail(*args, **options):
        raise AssertionError("images were read")

    monkeypatch.setattr(ImageInput, "load", fail)


@pytest.mark.parametrize(("name", "labels", "settings", "message"), CASES, ids=lambda given: str(given)[:40])
def test_unsuitable_labels_and_bits_are_refused(name, labels, settings, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        methods.get(name)(**{"bits": 12, **NETWORK, **settings}).fit(PIXELS, labels, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("itq", "bits=12 does not fit 10 items.*use 1 to 10 bits"),
        ("opq", "n_words=16 for 10 items; use fewer words or more items"),
        ("lopq", "10 items for 16 words or cells; use fewer of them or more items"),
    ],
)
def test_too_few_items_are_refused(name, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        methods.get(name)(bits=12, **NETWORK).fit(PIXELS[:10], folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
