"""The plot of a training is a PNG that shows what the log holds, whatever is missing in it."""

import io
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from combemb.learning.curves import draw_curves
from combemb.methods.combemb import CombEmb

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def record(epoch: int, **others) -> dict:
    return {
        **{"epoch": epoch, "loss": 2.5, "meta": 2 / epoch, "similarity": 1 / epoch, "consistency": -0.5},
        **{"threshold": 0.5, "positives_per_anchor": 3.0, "pair_precision": 0.9, "pair_recall": 0.4},
        **{"n_codes": 20 * epoch, "n_coded": 100, "code_use": [[0.5, 0.5], [0.1, 0.9]], "items_per_second": 1e4},
        **others,
    }


def picture(log: list[dict], folder: Path) -> np.ndarray:
    """The pixels of the curves of a log."""
    draw_curves(log, folder / "curves.png", CombEmb(pair_rules=("similar",)).panels)
    data = (folder / "curves.png").read_bytes()
    assert data.startswith(SIGNATURE)
    pixels = matplotlib.image.imread(io.BytesIO(data))  # (height, width, RGBA)
    assert pixels.shape[1] > pixels.shape[0] > 300
    return pixels


LOGS = {
    "one epoch": [record(1)],
    "three epochs": [record(1), record(2), record(3)],
    "some values undefined": [record(1, pair_precision=None), record(2), record(3, pair_recall=None)],
    "a value never defined": [record(e, pair_precision=None, positives_per_anchor=None) for e in (1, 2)],
    "a value left out later": [record(1), {k: v for k, v in record(2).items() if k != "pair_recall"}],
    "no positives at all": [record(e, positives_per_anchor=0.0) for e in (1, 2)],
    "nothing to count": [record(e, positives_per_anchor=None, n_codes=None) for e in (1, 2)],
    "sets of different sizes": [record(1, code_use=[[0.5, 0.5], [0.25] * 4])],
    "one word only": [record(1, code_use=[[0.0, 0.0]])],
    "loss terms only": [{"epoch": e, "loss": 1.0, "pull": 0.5, "push": 0.5, "items_per_second": 3.0} for e in (1, 2)],
}


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_every_log_becomes_a_picture(log, tmp_path):
    before = [dict(entry) for entry in log]
    pixels = picture(log, tmp_path)
    assert pixels[..., :3].std() > 0.01, "the picture is blank"
    assert log == before


def test_the_picture_does_not_depend_on_the_name_of_the_file(tmp_path):
    draw_curves(LOGS["three epochs"], tmp_path / ".training.png.x7")  # a temporary file has no suffix of a picture
    assert (tmp_path / ".training.png.x7").read_bytes().startswith(SIGNATURE)


@pytest.mark.parametrize(
    "change",
    [{"meta": 1.5}, {"pair_precision": 0.2}, {"n_codes": 7}, {"code_use": [[0.9, 0.1], [0.1, 0.9]]}],
    ids=["a loss term", "a pair rule", "a count", "the use of the codes"],
)
def test_what_the_log_says_can_be_seen(change, tmp_path):
    log = LOGS["three epochs"]
    assert not np.array_equal(picture(log, tmp_path), picture([*log[:2], record(3, **change)], tmp_path))


def test_a_fit_leaves_its_picture(tmp_path):
    rng = np.random.default_rng(1)
    targets = np.arange(140) % 7
    x = rng.normal(size=(7, 16))[targets] + 0.3 * rng.normal(size=(140, 16))
    labels = np.where((targets < 5) & (np.arange(140) < 90), targets, -1)
    model = CombEmb(bits=12, epochs=3, batch_size=64).fit(x, labels, folder=tmp_path / "run")
    drawn = matplotlib.image.imread(tmp_path / "run/training.png")
    draw_curves(model.log_, tmp_path / "again.png", model.panels)
    assert np.array_equal(drawn, matplotlib.image.imread(tmp_path / "again.png"))
