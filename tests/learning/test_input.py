"""Methods on images with a frozen backbone: what may be given, what is left out, what is kept and what is refused."""

import random
from pathlib import Path

import numpy as np
import pyarrow.csv
import pytest
import torch
import transformers
from safetensors.torch import save_file

from combemb import methods
from combemb.backbones import build
from combemb.data.given import read_given
from combemb.data.images import Images
from combemb.learning.fitting import training_data
from combemb.methods.combemb import CombEmb
from combemb.search.metrics import float_retrieval
from combemb.system.machine import seeded
from tests.pictures import IDS, LABELS, PIXELS, SEEN, TARGETS, cached, write_folder, write_manifest

BROKEN = ("bee/007.png", "unlabelled/030.png")
WHOLE = [row for row, name in enumerate(IDS) if name not in BROKEN]


PRETRAINED = {"backbone": "efficientnet_lite0", "backbone_width": 64, "backbone_weights": None}
TRAINED = {"finetune": "all", "backbone_weights": None}


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """Makes a quick method, whose frozen backbone is small and has weights from a file."""
    path = tmp_path_factory.mktemp("weights") / "resnet.safetensors"
    with seeded(0):
        save_file(build("resnet18", width=4).state_dict(), path)
    backbone = {"backbone": "resnet18", "backbone_width": 4, "backbone_weights": str(path)}
    quick = {"bits": 12, "epochs": 2, "batch_size": 36, "image_size": 16, "n_views": 2, "device": "cpu"}
    return lambda **fields: CombEmb(**{**quick, **backbone, **fields})


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    return write_folder(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def damaged(tmp_path_factory) -> Path:
    return write_folder(tmp_path_factory.mktemp("damaged"), broken=BROKEN)


@pytest.fixture(scope="module")
def fitted(make) -> CombEmb:
    return make().fit(PIXELS, LABELS)


@pytest.fixture
def own_cache(tmp_path, monkeypatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("COMBEMB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def assert_same_state(a: CombEmb, b: CombEmb) -> None:
    assert a.state().keys() == b.state().keys()
    assert [name for name, tensor in a.state().items() if not torch.equal(tensor, b.state()[name])] == []


# What may be given


@pytest.mark.parametrize(
    "form", ["folder", "name of a folder", "tensor", "Images", "array file", "manifest", "Parquet manifest"]
)
def test_the_form_of_the_images_changes_nothing(make, form, photos, fitted, tmp_path):
    np.save(tmp_path / "pixels.npy", PIXELS)
    makers = {
        "folder": lambda: photos,
        "name of a folder": lambda: str(photos),
        "tensor": lambda: torch.from_numpy(PIXELS),
        "Images": lambda: Images(pixels=PIXELS, labels=LABELS),
        "array file": lambda: tmp_path / "pixels.npy",
        "manifest": lambda: write_manifest(tmp_path / "photos.csv", photos),
        "Parquet manifest": lambda: write_manifest(tmp_path / "photos.parquet", photos),
    }
    x = makers[form]()
    model = make().fit(x, LABELS if form in ("tensor", "array file") else None)
    assert model.classes_.tolist() == list(SEEN)
    assert_same_state(model, fitted)
    assert torch.equal(model.encode(x), fitted.encode(PIXELS))


def test_the_classes_are_found_in_pictures(make):
    z = make(**PRETRAINED, image_size=32, epochs=15).fit(PIXELS, LABELS).embed(PIXELS)
    found = float_retrieval(z, z, TARGETS, TARGETS)
    assert found.map > 2 * found.chance


def test_explicit_labels_go_before_those_of_the_folders(make, photos):
    numbers = np.where(np.arange(len(PIXELS)) % 2, np.arange(len(PIXELS)) % 5, -1)
    assert make().fit(photos, numbers).classes_.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="71 labels for 72 items"):
        make().fit(photos, numbers[:-1])


def test_a_folder_without_sub_folders_needs_labels(make, tmp_path, fitted):
    flat = write_folder(tmp_path / "flat", [f"{i:03}.png" for i in range(len(PIXELS))])
    with pytest.raises(ValueError, match="none of the 72 items is labelled"):
        make().fit(flat)
    assert_same_state(make().fit(flat, LABELS), fitted)


def test_a_folder_of_labelled_images_alone_is_learned_from(make, tmp_path):
    method = make().fit(write_folder(tmp_path / "labelled", IDS[:24]))
    assert method.embed(PIXELS[:3]).isfinite().all()


def test_several_labels_per_image_keep_the_names_of_their_classes(make, photos, tmp_path):
    several = [label and f"{label}|{'red' if i % 2 else 'round'}" for i, label in enumerate(LABELS)]
    manifest = write_manifest(tmp_path / "photos.csv", photos, several)
    model = make().fit(manifest, folder=tmp_path / "run")
    names = [*SEEN, "red", "round"]
    assert model.classes_.tolist() == methods.load(tmp_path / "run").classes_.tolist() == names
    assert model.meta_classes_.table.shape[1] == 6


@pytest.mark.parametrize("form", ["manifest", "folder"])
def test_images_to_test_on_are_left_out_of_a_fit(make, form, photos, tmp_path):
    is_test = np.arange(len(PIXELS)) % 3 == 0
    parts = np.where(is_test, "test", "train")
    if form == "manifest":
        labels = np.where(is_test, TARGETS, LABELS)
        x = write_manifest(tmp_path / "photos.csv", photos, labels, split=parts)
    else:
        x = write_folder(tmp_path / "parts", [f"{part}/{name}" for part, name in zip(parts, IDS, strict=True)])
    model = make().fit(x)
    assert model.classes_.tolist() == list(SEEN)  # not eel and fox, which only the test part names
    assert_same_state(model, make().fit(PIXELS[~is_test], LABELS[~is_test]))
    assert len(model.embed(x)) == len(PIXELS)


def test_embeddings_are_taken_where_the_features_fit(fitted):
    features = fitted.read(PIXELS).items.x[:, 0]
    assert features.shape == (len(PIXELS), 32)
    assert torch.equal(fitted.embed(features.astype(np.float32)), fitted.embed(PIXELS))
    with pytest.raises(ValueError, match="x has 31 features; this model was fitted on 32"):
        fitted.embed(features[:, 1:])


@pytest.mark.parametrize("n_features", [16, 32])  # 32 is what the backbone gives
def test_images_are_refused_where_a_model_was_fitted_on_embeddings(make, n_features):
    x = np.random.default_rng(0).normal(size=(72, n_features)).astype(np.float32)
    with pytest.raises(ValueError, match="this model was fitted on embeddings"):
        make().fit(x, LABELS).embed(PIXELS)


def test_a_fit_on_embeddings_forgets_the_images(make, tmp_path):
    model = make().fit(PIXELS, LABELS)
    assert model.image_input_.size == 16
    x = np.random.default_rng(0).normal(size=(72, 16)).astype(np.float32)
    assert_same_state(model.fit(x, LABELS), make().fit(x, LABELS))
    model.save(tmp_path / "run")
    assert methods.load(tmp_path / "run").image_input_ is None


def test_a_missing_folder_is_named(make, tmp_path, fitted):
    for use in (fitted.embed, make().fit):
        with pytest.raises(ValueError, match=f"cannot read {tmp_path / 'photos'}: there is no such file or folder"):
            use(tmp_path / "photos")


# Broken images


@pytest.mark.parametrize("fields", [{}, TRAINED], ids=["frozen", "trained"])
def test_broken_images_are_left_out_and_listed(make, fields, damaged, tmp_path):
    model = make(**fields).fit(damaged, folder=tmp_path / "run")
    assert model.broken_.keys() == set(BROKEN)
    assert "images that could not be read: 2" in model.summary()
    listed = pyarrow.csv.read_csv(tmp_path / "run" / "broken.csv").to_pydict()
    assert listed == {"id": list(BROKEN), "reason": list(model.broken_.values())}
    assert all(listed["reason"])
    with pytest.raises(ValueError, match=r"2 images cannot be read, such as bee/007.png: .*`read`"):
        model.embed(damaged)
    given = model.read(damaged)
    assert given.ids.tolist() == [IDS[row] for row in WHOLE]
    assert given.broken == model.broken_
    z = model.embed(given)
    torch.testing.assert_close(z, model.embed(PIXELS[WHOLE]), rtol=1e-5, atol=1e-6)
    assert torch.equal(model.encode(given), model.codebook.encode(z))


def test_labels_stay_with_their_images_where_some_are_broken(make, damaged):
    shuffled = np.random.default_rng(1).permutation(LABELS)
    data = training_data(make(), read_given(damaged, shuffled), False)
    assert data.labels.texts() == shuffled[WHOLE].tolist()
    assert data.ids.tolist() == [IDS[row] for row in WHOLE]


@pytest.mark.filterwarnings("ignore::combemb.data.first_look.OddLabels")
def test_a_class_whose_images_are_all_broken_is_forgotten(make, tmp_path):
    ids = [("gnu/000.png" if i == 40 else name) for i, name in enumerate(IDS)]
    folder = write_folder(tmp_path / "photos", ids, broken=("gnu/000.png",))
    assert make().fit(folder).classes_.tolist() == list(SEEN)


@pytest.mark.parametrize("fields", [{}, TRAINED], ids=["frozen", "trained"])
def test_too_many_broken_images_are_refused_before_anything_is_written(make, fields, tmp_path):
    folder = write_folder(tmp_path / "photos", broken=tuple(IDS[:8]))
    model = make(**fields)
    with pytest.raises(ValueError, match=r"8 of 72 images cannot be read, more than 10%, such as ant/000.png"):
        model.fit(folder, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="not fitted"):
        model.embed(PIXELS)


def test_broken_images_are_known_when_a_finished_run_is_resumed(make, damaged, tmp_path):
    make().fit(damaged, folder=tmp_path / "run")
    model = make().fit(PIXELS, LABELS)
    assert model.broken_ == {}
    model.fit(damaged, folder=tmp_path / "run", resume=True)
    assert model.broken_.keys() == set(BROKEN)


# The cache


def test_a_second_fit_takes_the_features_of_the_first(make, photos, own_cache):
    first = make().fit(photos)
    before = cached(own_cache)
    assert len(before) == 1
    assert_same_state(make().fit(photos), first)
    assert make(bits=8).fit(photos).encode(photos).shape == (72, 4)
    assert cached(own_cache) == before


def test_a_fit_leaves_nothing_to_extract_when_its_images_are_embedded(make, photos, own_cache, tmp_path):
    model = make().fit(photos, folder=tmp_path / "run")
    before = cached(own_cache)
    z = model.embed(photos)
    assert torch.equal(methods.load(tmp_path / "run").embed(photos), z)
    assert cached(own_cache) == before
    model.embed(PIXELS)
    assert cached(own_cache) == before  # a few other images, such as queries, are not kept


def test_settings_of_the_features_have_features_of_their_own(make, own_cache):
    make().fit(PIXELS, LABELS)
    changes = ({"image_size": 40}, {"crop_area": 0.5}, {"n_views": 3})
    for n, change in enumerate(changes, start=2):
        make(**change).fit(PIXELS, LABELS)
        assert len(cached(own_cache)) == n, change
    make(n_views=1).fit(PIXELS, LABELS)  # which all of them have
    make(seed=1).fit(PIXELS, LABELS)  # a study over seeds extracts once
    assert len(cached(own_cache)) == 1 + len(changes)


# The size of the images


@pytest.mark.parametrize(("side", "expected"), [(32, 96), (110, 110), (300, 224)])
def test_the_size_follows_the_images_within_limits(make, side, expected):
    images = make(**PRETRAINED, image_size=None).image_input()
    images.decide_size(Images(pixels=np.zeros((2, side, side + 5, 3), np.uint8)))
    assert images.size == expected


def test_the_size_is_decided_by_the_fit(make, photos, tmp_path):
    model = make(**PRETRAINED, image_size=None, n_views=1).fit(photos, folder=tmp_path / "run")
    assert model.image_input_.size == 96
    loaded = methods.load(tmp_path / "run")
    assert (loaded.image_size, loaded.image_input_.size) == (None, 96)
    larger = PIXELS[:4].repeat(4, axis=1).repeat(4, axis=2)
    assert torch.equal(loaded.embed(photos), model.embed(photos))
    loaded.image_input_.decide_size(Images(pixels=larger))
    assert loaded.image_input_.size == 96


# Backbones


def test_a_backbone_without_weights_cannot_be_frozen(make, tmp_path):
    for finetune in ("none", "last"):
        with pytest.raises(ValueError, match=r"resnet18 comes without weights; set backbone_weights=FILE, or .*'all'"):
            make(backbone_weights=None, finetune=finetune).fit(PIXELS, LABELS, folder=tmp_path / "run")
    with pytest.raises(ValueError, match="resnet18 comes without weights"):
        methods.get("itq")(backbone="resnet18", bits=12).fit(PIXELS)
    assert not any(tmp_path.iterdir())


def test_a_fit_takes_the_backbone_that_is_set_now(make):
    model = make().fit(PIXELS, LABELS)
    with pytest.raises(ValueError, match="unknown backbone 'nope'"):
        model.set_params(backbone="nope", backbone_width=64).fit(PIXELS, LABELS)


@pytest.mark.parametrize("finetune", ["none", "last"])
def test_a_hugging_face_model_in_a_folder(make, finetune, tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=32, patch_size=8)).save_pretrained(
        tmp_path / "vit"
    )
    (tmp_path / "vit" / "preprocessor_config.json").write_text('{"size": {"height": 32, "width": 32}}')
    model = make(**{**PRETRAINED, "backbone": f"hf:{tmp_path / 'vit'}"}, image_size=None, finetune=finetune)
    model.fit(PIXELS, LABELS, folder=tmp_path / "run")
    assert model.image_input_.size == 32
    assert len(model.feature_map_.mean) == 16
    assert torch.equal(methods.load(tmp_path / "run").embed(PIXELS), model.embed(PIXELS))


# Randomness, the machine and bad settings


def test_the_seed_decides(make, fitted):
    assert_same_state(make().fit(PIXELS, LABELS), fitted)
    assert not torch.equal(make(seed=1).fit(PIXELS, LABELS).embed(PIXELS), fitted.embed(PIXELS))


def test_the_global_random_state_is_neither_used_nor_changed(make, fitted, own_cache):
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    states = (torch.get_rng_state(), np.random.get_state()[1], random.getstate())  # noqa: NPY002
    model = make().fit(PIXELS, LABELS)
    assert torch.equal(model.embed(PIXELS), fitted.embed(PIXELS))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002
    assert random.getstate() == states[2]


def test_the_number_of_threads_is_left_as_it_was(make, own_cache):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        make().fit(PIXELS, LABELS).embed(PIXELS)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_views": 0}, "n_views=0 must be above 0"),
        ({"image_size": -1}, "image_size=-1 must be above 0"),
        ({"image_size": 0}, "image_size=0 must be above 0"),
        ({"image_size": 7}, "too small for resnet18; give 8 or more"),
        ({"crop_area": 2}, "crop_area=2 must be above 0 and at most 1"),
        ({"grey": -0.5}, "grey=-0.5 must be at least 0 and at most 1"),
        ({**PRETRAINED, "backbone": "nope"}, "unknown backbone 'nope'; choose one of alexnet, efficientnet_lite0"),
        ({"backbone": None}, "backbone=None must be text"),
        ({**PRETRAINED, "backbone_width": 32}, "width=32 is for resnet18 only"),
        ({"backbone": "resnet18:layer5"}, "resnet18 has no stage 'layer5'; choose one of stem, layer1, layer2, lay"),
        ({"backbone_weights": "missing.safetensors"}, "cannot read missing.safetensors"),
        ({"device": "abacus"}, "device='abacus' must be one of auto, cuda, mps, cpu"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit_are_refused_before_anything_is_written(make, fields, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        make(**fields).fit(PIXELS, LABELS, folder=tmp_path / "run")
    assert not any(tmp_path.iterdir())


def test_a_device_that_is_not_there_is_refused(make):
    absent = "mps" if torch.cuda.is_available() else "cuda"  # no machine has both
    with pytest.raises(ValueError, match=f"device='{absent}' is not available on this machine; use auto"):
        make(device=absent).fit(PIXELS, LABELS)


# Features of an earlier stage


def test_features_of_a_stage_are_cached_stored_and_told_apart_from_others(make, own_cache, tmp_path):
    side = PIXELS.shape[1]
    names = ["resnet18:layer2", "resnet18:layer3"]
    models = [make(backbone=name, image_size=side).fit(PIXELS, LABELS) for name in names]
    folders = sorted(path.name.rsplit("-", 1) for path in (own_cache / "features").iterdir())
    assert [name for name, _ in folders] == [f"resnet18-layer2-{side}px", f"resnet18-layer3-{side}px"]
    assert len({digest for _, digest in folders}) == 2
    whole = build("resnet18", width=4, weights=models[0].backbone_weights).eval()
    for model, stage in zip(models, ("layer2", "layer3"), strict=True):
        with torch.no_grad():
            maps = whole.maps(torch.from_numpy(PIXELS[:2]).permute(0, 3, 1, 2), stage)
        features = torch.from_numpy(np.array(model.read(PIXELS).items.x[:2, 0], np.float32))
        torch.testing.assert_close(features, maps.mean(dim=(2, 3)), rtol=2e-3, atol=2e-3)
        assert model.n_inputs == maps.shape[1]
        model.save(tmp_path / stage)
        assert torch.equal(methods.load(tmp_path / stage).embed(PIXELS), model.embed(PIXELS))


def test_stages_without_weights_of_their_own_still_differ_in_the_digest(make):
    """With finetune='all' a run folder has the weights, and the digest only what else decides."""
    digests = {
        make(backbone=name, **TRAINED).image_input().digest for name in ("resnet18", "resnet18:layer3", "resnet18:stem")
    }
    assert len(digests) == 3


@pytest.mark.parametrize("finetune", ["last", "all"])
def test_a_backbone_that_ends_earlier_can_be_trained(make, finetune, tmp_path):
    model = make(backbone="resnet18:layer2", finetune=finetune, epochs=1).fit(PIXELS, LABELS, folder=tmp_path / "run")
    assert torch.equal(methods.load(tmp_path / "run").embed(PIXELS), model.embed(PIXELS))
