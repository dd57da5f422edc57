"""What can be refused is refused before long work, and nothing is asked for that is not needed."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from combemb import CombEmb, methods
from combemb.collection.discovered import discover_in
from combemb.data.given import Given, read_given
from combemb.learning.input import ImageInput
from combemb.methods.itq import ITQ
from tests.blobs import blobs
from tests.pictures import IDS, LABELS, PIXELS, TARGETS, write_folder, write_manifest

BLOBS = blobs(4, 2, n_each=10, D=16)
SMALL = {"backbone": "resnet18", "backbone_width": 4, "image_size": 16}


@pytest.fixture
def unreadable(monkeypatch):
    """Images must not be read."""

    def fail(*args, **options):
        raise AssertionError("images were read")

    monkeypatch.setattr(ImageInput, "load", fail)


def test_stored_labels_are_read_only_where_they_are_used(tmp_path):
    model = ITQ(bits=8).fit(BLOBS.x)
    table = pa.table({"embedding": pa.array(list(BLOBS.x)), "label": np.linspace(0, 1, len(BLOBS.x))})
    pq.write_table(table, tmp_path / "odd.parquet")
    assert len(model.embed(tmp_path / "odd.parquet")) == len(model.encode(tmp_path / "odd.parquet")) == len(BLOBS.x)
    with pytest.raises(ValueError, match="labels hold"):
        model.discover(tmp_path / "odd.parquet")


def test_predicting_before_discovering_reads_nothing(unreadable):
    model = ITQ(bits=8)
    for use in (model.predict, model.novelty):
        with pytest.raises(ValueError, match="not fitted"):
            use(PIXELS)
    model.fit(BLOBS.x)
    for use in (model.predict, model.novelty):
        with pytest.raises(ValueError, match="nothing was discovered yet"):
            use(PIXELS)


def test_labels_are_checked_before_a_backbone_is_loaded():
    with pytest.raises(ValueError, match="none of the 72 items is labelled"):
        CombEmb(backbone="hf:/nowhere").fit(PIXELS, np.full(len(PIXELS), -1))


def test_a_resume_with_other_settings_reads_nothing(tmp_path, unreadable):
    ITQ(bits=8).fit(BLOBS.x, folder=tmp_path / "run")
    with pytest.raises(ValueError, match=r"cannot resume .*bits was 8, now it is 12"):
        ITQ(bits=12).fit(PIXELS, folder=tmp_path / "run", resume=True)
    config = json.loads((tmp_path / "run/run.json").read_text())
    (tmp_path / "run/run.json").write_text(json.dumps({**config, "format_version": 1}))
    with pytest.raises(ValueError, match=r"written by another version of combemb.*fit again"):
        ITQ(bits=8).fit(PIXELS, folder=tmp_path / "run", resume=True)


def test_labels_given_for_test_items_are_used_by_discovery(tmp_path):
    folder = write_folder(tmp_path / "photos")
    is_test = np.arange(len(IDS)) % 3 == 0
    manifest = write_manifest(tmp_path / "m.csv", folder, LABELS, split=np.where(is_test, "test", "train"))
    weights = {**SMALL, "finetune": "all", "epochs": 1, "batch_size": 36}
    CombEmb(bits=12, **weights).fit(folder, folder=tmp_path / "run")
    given = np.where(is_test, TARGETS, LABELS)
    found = discover_in(tmp_path / "run", manifest, labels=given, n_novel=1, progress=False).found
    assert found.is_labelled.sum() == sum(label is not None for label in given)
    stored = discover_in(tmp_path / "run", manifest, n_novel=1, overwrite=True, progress=False).found
    assert stored.is_labelled.sum() == sum(label is not None for label in LABELS)


def test_rows_of_an_array_keep_their_numbers():
    given = read_given(PIXELS).take(np.array([7, 9]))
    assert isinstance(given, Given)
    assert given.ids.tolist() == [7, 9]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[(key, ...) for key in ("method", "settings", "classes", "images", "n_novel", "path")],
        *[("method", 7), ("settings", []), ("classes", "a"), ("classes", [1, "a"]), ("classes", [10**30]), ("path", 7)],
        *[
            ("images", 7),
            ("images", {"size": 0, "backbone_digest": "a"}),
            ("images", {"size": 8, "backbone_digest": []}),
        ],
        *[("n_novel", -1), ("n_novel", "two"), ("data", 7)],
    ],
    ids=str,
)
def test_a_configuration_that_was_edited_into_nonsense_is_refused_by_name(tmp_path, key, value):
    ITQ(bits=8).fit(BLOBS.x, folder=tmp_path / "run")
    config = json.loads((tmp_path / "run/run.json").read_text())
    config.pop(key) if value is ... else config.update({key: value})
    (tmp_path / "run/run.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=rf"run.json is damaged: .*{key}.*fit again"):
        methods.load(tmp_path / "run")
