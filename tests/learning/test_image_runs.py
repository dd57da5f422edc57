"""Runs on images: other images, weights and settings are noticed; unusual files and numbers work."""

import json
import os
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

from combemb import methods
from combemb.backbones import build
from combemb.backbones.cached import cached
from combemb.cli import app
from combemb.data.folders import read_images
from combemb.methods.combemb import CombEmb
from combemb.methods.itq import ITQ
from combemb.system.files import sealed, unsealed
from combemb.system.machine import seeded
from tests.pictures import IDS, LABELS, PIXELS, write_folder

QUICK = {"bits": 12, "epochs": 2, "batch_size": 36, "image_size": 16, "n_views": 2, "device": "cpu", "check": False}


class Stopped(CombEmb):
    """Stops after the first epoch."""

    def on_epoch(self, data, epoch):
        if epoch > 0:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """Makes a quick method, whose frozen backbone is small and has weights from a file."""
    path = tmp_path_factory.mktemp("weights") / "resnet.safetensors"
    with seeded(0):
        save_file(build("resnet18", width=4).state_dict(), path)
    backbone = {"backbone": "resnet18", "backbone_width": 4, "backbone_weights": str(path)}
    return lambda kind=CombEmb, **fields: kind(**{**QUICK, **backbone, **fields})


# What has changed meanwhile


def test_a_file_that_is_replaced_by_one_of_the_same_size_and_time_is_seen(make, tmp_path):
    folder = write_folder(tmp_path / "photos", [name.replace(".png", ".bmp") for name in IDS])
    images = read_images(folder)
    model = make().fit(images)
    before, file = model.embed(images), images.files[3]
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    file.write_bytes(images.files[30].read_bytes())
    os.utime(file, ns=times)
    for again in (images, folder):
        z = model.embed(again)
        assert not torch.allclose(z[3], before[3], atol=1e-3)
        torch.testing.assert_close(z[4:], before[4:], rtol=1e-4, atol=1e-4)


def test_a_backbone_that_was_trained_as_a_whole_needs_no_other_weights(make, tmp_path):
    weights = tmp_path / "start.safetensors"
    save_file(build("resnet18", width=4).state_dict(), weights)
    model = make(finetune="all", backbone_weights=str(weights)).fit(PIXELS, LABELS, folder=tmp_path / "run")
    weights.unlink()
    loaded = methods.load(tmp_path / "run")
    assert torch.equal(loaded.embed(PIXELS), model.embed(PIXELS))
    with pytest.raises(ValueError, match=r"start.safetensors"):
        loaded.fit(PIXELS, LABELS)


@pytest.mark.parametrize("finetune", ["none", "last", "all"])
def test_other_pixel_scales_of_a_hugging_face_model_are_noticed(tmp_path, monkeypatch, finetune):
    monkeypatch.chdir(tmp_path)
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, image_size=16, patch_size=8
    )
    transformers.ViTModel(config).save_pretrained("vit")
    scale = Path("vit/preprocessor_config.json")
    scale.write_text(json.dumps({"size": {"height": 16, "width": 16}}))
    model = CombEmb(**QUICK, backbone="hf:vit", finetune=finetune).fit(PIXELS, LABELS, folder="run")
    scale, run = scale.absolute(), Path("run").absolute()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert torch.equal(methods.load(run).embed(PIXELS), model.embed(PIXELS))
    scale.write_text(json.dumps({"size": {"height": 16, "width": 16}, "image_mean": [0.1, 0.2, 0.3]}))
    with pytest.raises(ValueError, match="is not the one that this model was fitted with"):
        methods.load(run).embed(PIXELS)


def test_a_run_knows_the_weights_of_its_backbone(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("resnet.safetensors")
    fields = {"backbone_width": 2, "backbone_weights": str(path)}
    save_file(build("resnet18", width=2).state_dict(), path)
    model = make(**fields).fit(PIXELS, LABELS, folder=tmp_path / "run")
    assert model.n_inputs == 16
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert torch.equal(methods.load(tmp_path / "run").embed(PIXELS), model.embed(PIXELS))
    monkeypatch.chdir(tmp_path)
    save_file(build("resnet18", width=2).state_dict(), path)
    with pytest.raises(ValueError, match="resnet18 is not the one that this model was fitted with"):
        methods.load(tmp_path / "run").embed(PIXELS)
    assert not torch.equal(make(**fields).fit(PIXELS, LABELS).embed(PIXELS), model.embed(PIXELS))
    with pytest.raises(ValueError, match="does not fit resnet18"):
        make(**{**fields, "backbone_width": 4}).fit(PIXELS, LABELS)


@pytest.mark.parametrize("change", ["scale of the pixels", "activation"])
def test_other_settings_of_a_hugging_face_model_give_other_features(change, tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.ViTConfig(**sizes, image_size=16, patch_size=8)
    with seeded(0):
        transformers.ViTModel(config).save_pretrained(tmp_path / "vit")
    processor = tmp_path / "vit" / "preprocessor_config.json"
    processor.write_text(json.dumps({"size": {"height": 16, "width": 16}}))
    model = ITQ(bits=8, backbone=f"hf:{tmp_path / 'vit'}", image_size=16)
    first = model.read(PIXELS).items.x
    if change == "activation":
        path = tmp_path / "vit" / "config.json"
        path.write_text(path.read_text().replace('"gelu"', '"relu"'))
    else:
        processor.write_text(json.dumps({"image_mean": [0.1, 0.2, 0.3], "size": {"height": 16, "width": 16}}))
    other = ITQ(bits=8, backbone=f"hf:{tmp_path / 'vit'}", image_size=16).read(PIXELS).items.x
    assert np.abs(np.float32(first) - np.float32(other)).max() > 0.01


def test_a_run_is_not_resumed_with_other_images(make, tmp_path):
    """Of 2,000 rows of features only every second one is looked at; the key of the images sees them all."""
    pixels, labels = np.tile(PIXELS, (28, 1, 1, 1))[:2001, :16, :16], np.tile(LABELS, 28)[:2001]
    with pytest.raises(KeyboardInterrupt):
        make(Stopped, batch_size=512).fit(pixels, labels, folder=tmp_path / "run")
    other = pixels.copy()
    other[1::2] = 255 - other[1::2]
    with pytest.raises(ValueError, match=r"cannot resume .*: the images have changed"):
        make(Stopped, batch_size=512).fit(other, labels, folder=tmp_path / "run", resume=True)


def test_folders_with_files_of_the_same_names_sizes_and_times_are_told_apart(make, tmp_path):
    for name, pixels in (("one", PIXELS), ("two", 255 - PIXELS)):
        for i, image in enumerate(pixels):
            path = tmp_path / name / f"{i:02}.bmp"  # not compressed: all of one size
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(image).save(path)
            os.utime(path, (0, 0))
    one, two = (make().read(tmp_path / name).items.x for name in ("one", "two"))
    assert not np.array_equal(one, two)


# What may be given


def test_names_that_are_no_utf8_are_spelled_out(make, tmp_path):
    folder = write_folder(tmp_path / "photos")
    photo, cut = (os.fsdecode(os.fsencode(folder / "ant") + name) for name in (b"/caf\xe9.png", b"/cut\xe9.png"))
    Path(photo).write_bytes((folder / IDS[0]).read_bytes())
    Path(cut).write_bytes(b"no image")
    model = make().fit(folder, folder=tmp_path / "run")
    assert list(model.broken_) == ["ant/cut\\xe9.png"]
    model.save(tmp_path / "saved")
    for run in ("run", "saved"):
        listed = pyarrow.csv.read_csv(tmp_path / run / "broken.csv").to_pydict()
        assert listed["id"] == ["ant/cut\\xe9.png"]
    done = CliRunner().invoke(app, ["encode", str(tmp_path / "run"), str(folder), "--out", str(tmp_path / "c.parquet")])
    assert done.exit_code == 0, done.output
    assert "ant/caf\\xe9.png" in pq.read_table(tmp_path / "c.parquet")["id"].to_pylist()


def test_the_list_of_broken_images_is_there_after_a_resume(make, tmp_path):
    folder = write_folder(tmp_path / "photos", broken=(IDS[3],))
    with pytest.raises(KeyboardInterrupt):
        make(Stopped).fit(folder, folder=tmp_path / "run")
    (tmp_path / "run" / "broken.csv").unlink()  # as if the process had been killed just before
    config = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps(sealed({**unsealed(config), "method": "combemb"})))
    make().fit(folder, folder=tmp_path / "run", resume=True)
    assert pyarrow.csv.read_csv(tmp_path / "run" / "broken.csv").to_pydict()["id"] == [IDS[3]]


def test_settings_may_be_numbers_of_numpy(make):
    fields = {"image_size": np.int64(16), "n_views": np.int64(2), "crop_area": np.float32(0.5), "seed": np.int32(1)}
    model = make(**fields).fit(PIXELS, LABELS)
    plain = make(image_size=16, n_views=2, crop_area=0.5, seed=1).fit(PIXELS, LABELS)
    assert torch.equal(model.embed(PIXELS), plain.embed(PIXELS))


def test_one_image_and_a_list_of_images_can_be_embedded(make, tmp_path):
    folder = write_folder(tmp_path / "photos")
    model = make().fit(folder)
    z = model.embed(folder)
    names = [str(folder / name) for name in sorted(IDS)]
    torch.testing.assert_close(model.embed(names[5]), z[5:6], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.embed(names[5:9]), z[5:9], rtol=1e-4, atol=1e-5)
    assert model.read(names[5]).ids.tolist() == [names[5]]


@pytest.mark.parametrize("form", ["array", "tensor", "file"])
def test_grey_images_are_told_from_embeddings(make, form, tmp_path):
    grey = PIXELS[..., 0]
    np.save(tmp_path / "grey.npy", grey)
    given = {"array": grey, "tensor": torch.from_numpy(grey), "file": tmp_path / "grey.npy"}[form]
    with pytest.raises(
        ValueError, match=r"grey images as np.stack\(\[pixels\] \* 3, axis=-1\); embeddings .* are floats"
    ):
        make().fit(given, LABELS)


def test_a_method_that_looks_at_clean_images_extracts_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setenv("COMBEMB_CACHE", str(tmp_path))
    ITQ(bits=8, image_size=32).fit(np.tile(PIXELS, (4, 1, 1, 1)))
    assert [found.n_views / found.n_images for found in cached(tmp_path)] == [1]


def test_classes_that_only_the_test_part_has_are_not_seen_classes(make, tmp_path):
    folder = write_folder(tmp_path / "photos")
    rows = [f"{folder / name},{'train' if i % 9 else 'test'},{_labels(i)}" for i, name in enumerate(IDS)]
    (tmp_path / "m.csv").write_text("\n".join(["path,split,label", *rows]) + "\n")
    assert make().fit(tmp_path / "m.csv").classes_.tolist() == ["ant", "bee", "cat", "dog", "small"]


def _labels(i: int) -> str:
    if LABELS[i] is None:
        return "" if i % 9 else "eel|small"
    return f"{LABELS[i]}|small" if i % 3 == 0 else str(LABELS[i])
