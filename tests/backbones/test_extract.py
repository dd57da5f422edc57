import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from combemb.backbones import decoding, feature_cache
from combemb.backbones import extract as features
from combemb.backbones.feature_cache import cache_root
from combemb.data.augmentation import Augmentation, Views
from combemb.data.image_items import ImageItems
from combemb.data.images import Images
from combemb.system import progress
from tests.backbones.tiny import SETTINGS, SIZE, Tiny, files, pixels, run, some_images


def expected(images, n_views=3, last_stage=False, seed=0):
    """(N, V, F) by the plain network on the pixels of each view."""
    items, backbone = ImageItems(Views(images, SIZE, Augmentation(), seed)), Tiny().eval()
    rows = torch.arange(len(images))
    with torch.no_grad():
        through = (lambda x: backbone.before_last(x).flatten(1)) if last_stage else backbone
        return torch.stack([through(items.take(rows, view)) for view in range(n_views)], dim=1).numpy()


@pytest.mark.parametrize("last_stage", [False, True])
def test_features_are_those_of_the_network_on_each_view(tmp_path, last_stage):
    images = some_images()
    found = run(images, tmp_path, last_stage=last_stage)
    assert found.x.shape == (30, 3, 80 if last_stage else 6)
    assert found.x.dtype == np.float16
    assert np.allclose(found.x, expected(images, last_stage=last_stage), rtol=2e-3, atol=2e-3)
    assert found.rows.tolist() == list(range(30))
    assert found.broken == {}
    assert found.folder.is_relative_to(tmp_path)
    assert not found.is_hit


def test_what_the_last_stage_gets_leads_to_the_features(tmp_path):
    maps = run(some_images(), tmp_path, last_stage=True).x
    with torch.no_grad():
        last = Tiny().eval().last(torch.from_numpy(maps[:, 2].astype(np.float32)).view(30, 5, 4, 4))
    assert np.allclose(last, run(some_images(), tmp_path).x[:, 2], rtol=0.01, atol=0.01)


def test_features_are_a_map_that_cannot_be_written_to(tmp_path):
    found = run(some_images(), tmp_path)
    assert isinstance(found.x, np.memmap)
    assert not found.x.flags.writeable


@pytest.mark.parametrize("n_workers", [0, 1, 2])
def test_files_and_arrays_give_the_same_whoever_decodes(tmp_path, n_workers):
    found = run(files(tmp_path / "files"), tmp_path / "a", n_workers=n_workers)
    assert np.array_equal(found.x, run(some_images(), tmp_path / "b").x)


@pytest.mark.parametrize("batch_size", [1, 7, 30, 100])
def test_the_batch_size_changes_no_more_than_rounding(tmp_path, batch_size):
    found = run(some_images(), tmp_path / "a", batch_size=batch_size)
    assert np.allclose(found.x, run(some_images(), tmp_path / "b").x, rtol=2e-3, atol=1e-3)


def test_many_files_are_decoded_by_other_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(decoding, "FEW_FILES", 30)
    found = run(files(tmp_path / "files"), tmp_path / "a", n_workers=None)
    assert np.array_equal(found.x, run(some_images(), tmp_path / "b").x)
    assert decoding.default_workers(some_images(), 30) == 0
    assert decoding.default_workers(files(tmp_path / "files"), 29) == 0


def test_the_second_call_does_nothing(tmp_path):
    images, backbone = some_images(), Tiny()
    first, n_seen = run(images, tmp_path, backbone), backbone.n_seen
    assert n_seen == 90
    second = run(images, tmp_path, backbone)
    assert second.is_hit
    assert backbone.n_seen == n_seen
    assert np.array_equal(first.x, second.x)


def test_what_is_told_of_the_backbone_may_be_nested(tmp_path):
    about = {"name": "tiny", "widths": (5, 6), 1: None}
    assert not run(some_images(), tmp_path, about=about).is_hit
    assert run(some_images(), tmp_path, about=about).is_hit


@pytest.mark.parametrize(
    "changed",
    [
        {"about": {"name": "tiny", "seed": 1}},
        {"size": 20},
        {"last_stage": True},
        {"n_views": 4},
        {"augmentation": Augmentation(colour=0.3)},
        {"seed": 1},
    ],
    ids=str,
)
def test_another_recipe_is_not_served_from_the_cache(tmp_path, changed):
    images = some_images()
    before = run(images, tmp_path)
    other = run(images, tmp_path, **changed)
    assert not other.is_hit
    assert other.x.shape != before.x.shape or "about" in changed or not np.array_equal(other.x, before.x)
    assert run(images, tmp_path, **changed).is_hit
    assert run(images, tmp_path).is_hit


def test_a_changed_pixel_makes_other_features(tmp_path):
    run(some_images(), tmp_path)
    other = pixels()
    other[17, 3, 4, 1] ^= 255
    found = run(Images(pixels=other), tmp_path)
    assert not found.is_hit
    assert np.flatnonzero((found.x != run(some_images(), tmp_path).x).any(axis=(1, 2))).tolist() == [17]


def test_a_touched_file_is_extracted_again(tmp_path):
    images = files(tmp_path / "files")
    run(images, tmp_path / "cache")
    assert run(Images(files=images.files), tmp_path / "cache").is_hit
    os.utime(images.files[3], ns=(1, 1))
    assert not run(Images(files=images.files), tmp_path / "cache").is_hit


def test_one_more_image_is_the_only_one_that_is_extracted(tmp_path):
    folder = tmp_path / "files"
    images, backbone = files(folder), Tiny()
    before = np.array(run(images, tmp_path / "cache").x)
    Image.fromarray(pixels(31)[30]).save(folder / "007a.png")  # in the middle of the list
    more = run(Images(files=sorted(folder.iterdir())), tmp_path / "cache", backbone)
    assert not more.is_hit
    assert backbone.n_seen == 3
    assert np.array_equal(np.delete(more.x, 8, axis=0), before)
    assert np.allclose(more.x[8], expected(Images(pixels=pixels(31)))[30], rtol=2e-3, atol=2e-3)
    assert run(Images(files=sorted(folder.iterdir())), tmp_path / "cache").is_hit


def test_fewer_images_and_another_order_extract_nothing(tmp_path):
    images, backbone = files(tmp_path / "files"), Tiny()
    whole = run(images, tmp_path / "cache").x
    for rows in (np.arange(0, 30, 2), np.arange(30)[::-1], np.array([7]), np.array([3, 3, 1])):
        for n_views in (3, 1):
            found = run(images.take(rows), tmp_path / "cache", backbone, n_views=n_views)
            assert found.is_hit
            assert np.array_equal(found.x, whole[rows, :n_views])
            assert not found.x.flags.writeable
    assert backbone.log.batches == []


def test_a_changed_file_is_the_only_one_that_is_extracted_again(tmp_path):
    images, backbone = files(tmp_path / "files"), Tiny()
    before = np.array(run(images, tmp_path / "cache").x)
    Image.fromarray(255 - pixels()[5]).save(images.files[5])
    after = run(images, tmp_path / "cache", backbone)
    assert backbone.n_seen == 3
    assert np.flatnonzero((after.x != before).any(axis=(1, 2))).tolist() == [5]


def test_features_do_not_depend_on_what_was_in_the_cache(tmp_path):
    """Views are those of the content: neither the place of an image nor its file's name counts."""
    images = files(tmp_path / "files")
    fresh = run(images, tmp_path / "fresh").x
    run(images.take(np.array([20, 4, 11])), tmp_path / "cache", n_views=2)
    run(images.take(np.arange(29, 10, -1)), tmp_path / "cache", n_views=1)
    assert np.allclose(run(images, tmp_path / "cache").x, fresh, rtol=2e-3, atol=1e-3)
    images.files[0].rename(tmp_path / "other.png")
    moved = run(Images(files=[tmp_path / "other.png"]), tmp_path / "cache")
    assert not moved.is_hit
    assert np.allclose(moved.x, fresh[:1], rtol=2e-3, atol=1e-3)


def test_only_the_views_that_an_image_lacks_are_computed(tmp_path):
    images, backbone = some_images(), Tiny()
    run(images.take(np.arange(10)), tmp_path, n_views=1)
    run(images.take(np.arange(5)), tmp_path, n_views=2)
    run(images, tmp_path, backbone)
    assert backbone.n_seen == 5 * 1 + 5 * 2 + 20 * 3


def test_features_from_several_places_that_exceed_the_memory_are_in_a_file_that_vanishes(tmp_path, monkeypatch):
    monkeypatch.setattr(feature_cache, "MAX_BYTES_IN_MEMORY", 100)
    monkeypatch.setattr(feature_cache, "COPY_ROWS", 7)
    images = some_images()
    run(images.take(np.arange(12, 20)), tmp_path / "a")
    found = run(images, tmp_path / "a")
    assert isinstance(found.x, np.memmap)
    assert not found.x.flags.writeable
    assert np.allclose(found.x, run(images, tmp_path / "b").x, rtol=2e-3, atol=1e-3)
    assert len(list(found.folder.glob("[!.]*"))) == 6


def test_the_clean_view_alone_comes_from_any_file(tmp_path):
    images, backbone = some_images(), Tiny()
    whole = run(images, tmp_path)
    for changed in ({}, {"seed": 5}, {"augmentation": Augmentation(crop_area=1)}):
        clean = run(images, tmp_path, backbone, n_views=1, **changed)
        assert clean.is_hit
        assert np.array_equal(clean.x, whole.x[:, :1])
    assert backbone.log.batches == []


def test_fewer_views_of_the_same_recipe_come_from_the_file_with_more(tmp_path):
    whole = run(some_images(), tmp_path)
    fewer = run(some_images(), tmp_path, n_views=2)
    assert fewer.is_hit
    assert np.array_equal(fewer.x, whole.x[:, :2])


@pytest.mark.parametrize(
    ("n_before", "seed", "n_new"), [(1, 0, 60), (2, 0, 30), (2, 1, 60)], ids=["clean", "same", "other"]
)
def test_views_that_are_there_are_copied(tmp_path, n_before, seed, n_new):
    run(some_images(), tmp_path / "a", n_views=n_before, seed=seed)
    backbone = Tiny()
    found = run(some_images(), tmp_path / "a", backbone)
    assert backbone.n_seen == n_new
    assert np.array_equal(found.x, run(some_images(), tmp_path / "b").x)


def test_copied_views_keep_to_the_images_that_can_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(feature_cache, "COPY_ROWS", 4)
    images = files(tmp_path / "files", broken=(0, 13, 29))
    run(images, tmp_path / "a", n_views=1)
    found, whole = run(images, tmp_path / "a"), run(images, tmp_path / "b")
    assert np.array_equal(found.x, whole.x)
    assert found.broken == whole.broken


@pytest.mark.parametrize("n_workers", [0, 2])
@pytest.mark.parametrize("broken", [(0,), (13, 14), (29,), (0, 15, 29)], ids=str)
def test_broken_images_are_left_out_and_listed(tmp_path, broken, n_workers):
    images = files(tmp_path / "files", broken=broken)
    kept = np.delete(np.arange(30), broken)
    for is_hit in (False, True):
        found = run(images, tmp_path / "a", n_workers=n_workers)
        assert found.is_hit == is_hit
        assert found.rows.tolist() == kept.tolist()
        assert sorted(found.broken) == list(broken)
        assert all(found.broken.values())
        assert np.array_equal(found.x, run(some_images(), tmp_path / "b").x[kept])
    assert {path.suffix for path in found.folder.iterdir() if path.name != ".lock"} == {".json", ".keys", ".rows"}


def test_features_that_are_not_kept_are_the_same_and_leave_no_file(tmp_path):
    images = files(tmp_path / "files", broken=(0, 15))
    found = run(images, tmp_path / "none", keep=False)
    kept = run(images, tmp_path / "cache")
    assert np.array_equal(found.x, kept.x)
    assert found.rows.tolist() == kept.rows.tolist()
    assert found.broken == kept.broken
    assert not (tmp_path / "none").exists()
    assert run(images, tmp_path / "cache", keep=False).is_hit


def test_more_than_a_tenth_broken_is_refused_as_soon_as_it_is_certain(tmp_path):
    images, backbone = files(tmp_path / "files", n=60, broken=range(0, 20, 2)), Tiny()
    with pytest.raises(
        ValueError, match=r"at least 8 of 60 images cannot be read.* such as .*000.png: zero bytes; .*002"
    ):
        run(images, tmp_path / "cache", backbone)
    assert backbone.n_seen <= 2 * 8 * 3
    files(tmp_path / "files", n=60)  # all of them whole again
    assert len(run(Images(files=images.files), tmp_path / "cache").x) == 60


def hide(images, rows):
    """The same images while some files are away, and what brings them back. The key stays: it is computed here."""
    away = [images.files[row].rename(images.files[row].with_suffix(".away")) for row in rows]
    assert images.key
    return lambda: [path.rename(path.with_suffix(".png")) for path in away]


def test_after_too_many_broken_files_all_are_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(features, "SECONDS_BETWEEN_SAVES", 0.0)
    images = files(tmp_path / "files", n=20)
    bring_back = hide(images, (7, 8, 9))
    with pytest.raises(ValueError, match="at least 3 of 20 images cannot be read"):
        run(images, tmp_path / "cache")
    bring_back()
    assert len(run(images, tmp_path / "cache").x) == 20


@pytest.mark.parametrize("n_views", [1, 3])
def test_an_image_that_can_be_read_again_comes_back(tmp_path, n_views):
    """Its key is what it was before: `images` was asked for it once, and a right to read leaves no trace in it."""
    images = files(tmp_path / "files")
    bring_back = hide(images, (4,))
    assert run(images, tmp_path / "cache", n_views=1).broken == {4: "no such file"}
    assert run(images, tmp_path / "cache", n_views=1).is_hit
    bring_back()
    found = run(images, tmp_path / "cache", n_views=n_views)
    assert found.broken == {}
    assert np.array_equal(found.x, run(some_images(), tmp_path / "other", n_views=n_views).x)
    assert run(images, tmp_path / "cache", n_views=n_views).is_hit


@pytest.mark.parametrize("n", [1, 20])
def test_nothing_but_broken_images_is_refused(tmp_path, n):
    with pytest.raises(
        ValueError, match=f"of {n} images cannot be read" if n > 1 else "^cannot read .*zero bytes; fix"
    ):
        run(files(tmp_path / "files", n=n, broken=range(n)), tmp_path / "cache")


@pytest.mark.parametrize("scale", [1e9, float("nan")])
def test_features_that_are_not_finite_name_the_image(tmp_path, scale):
    dark = np.zeros((20, 20, 20, 3), np.uint8)
    dark[13] = pixels(1)[0]
    backbone = Tiny()
    if np.isnan(scale):
        dark[:] = 0
    backbone.stages["second"][0].weight.data *= scale
    name = "0" if np.isnan(scale) else "13"
    with pytest.raises(ValueError, match=f"view 0 of image {name} are not finite in float16"):
        run(Images(pixels=dark), tmp_path, backbone)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_views": 0}, "n_views=0 and batch_size=8 must be 1 or more"),
        ({"batch_size": 0}, "batch_size=0 must be 1 or more"),
        ({"size": 7}, "size=7 is too small for tiny; give 8 or more"),
        ({"seed": -1}, "seed=-1; give 0 or more"),
        ({"n_views": 10**12}, "n_views=1,000,000,000,000 is more than the 65,536 that there are"),
    ],
)
def test_settings_that_cannot_be_met_are_refused(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        run(some_images(), tmp_path, **settings)


def test_features_that_exceed_the_disk_are_refused(tmp_path):
    message = r"the features take 12,000,000 MB, but .* left; .*COMBEMB_CACHE"
    with pytest.raises(ValueError, match=message):
        feature_cache.Writer(feature_cache.Store(tmp_path, {}), 6, 10**12, "torch")


def test_the_state_of_the_caller_is_left_alone(tmp_path):
    images, backbone = files(tmp_path / "files"), Tiny()
    torch.manual_seed(3)
    before, numpys, n_threads = torch.get_rng_state(), np.random.get_state()[1].copy(), torch.get_num_threads()  # noqa: NPY002
    weights = [parameter.clone() for parameter in backbone.parameters()]
    run(images, tmp_path / "cache", backbone, n_workers=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpys)  # noqa: NPY002
    assert torch.get_num_threads() == n_threads
    assert backbone.training
    assert all(torch.equal(a, b) for a, b in zip(weights, backbone.parameters(), strict=True))
    assert all(parameter.requires_grad for parameter in backbone.parameters())


def test_the_record_says_what_the_rows_are(tmp_path):
    found = run(files(tmp_path / "files", broken=(4,)), tmp_path, seed=7)
    (path,) = found.folder.glob("*.json")
    record = json.loads(path.read_text())
    assert record["n_features"] == 6
    assert record["holds"]["backbone"] == SETTINGS["about"]
    assert record["holds"]["size"] == SIZE
    assert record["network"] == f"torch {torch.__version__}"
    assert record["combemb"]
    stored = np.fromfile(path.with_suffix(".rows"), np.float16)
    assert np.array_equal(stored.reshape(29, 3, 6), found.x)


def test_the_cache_lies_where_the_user_wants_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("COMBEMB_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_root(None) == tmp_path / "home" / ".cache" / "combemb"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root(None) == tmp_path / "xdg" / "combemb"
    monkeypatch.setenv("COMBEMB_CACHE", "~/own")
    assert cache_root(None) == tmp_path / "home" / "own"
    assert cache_root(tmp_path) == tmp_path
    assert run(some_images(), None).folder.is_relative_to(tmp_path / "home" / "own")


def test_names_with_slashes_stay_in_the_cache(tmp_path):
    backbone = Tiny()
    backbone.name = "hf:some/../../model"
    found = run(some_images(), tmp_path, backbone)
    assert found.folder.parent == tmp_path / "features"
    assert Path(found.folder).name.startswith("hf-some-..-..-model-16px-")


def test_progress_is_shown_where_it_is_wanted(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    run(some_images(), tmp_path / "a", progress=False)
    assert capsys.readouterr().err == ""
    run(some_images(), tmp_path / "b", progress=True)
    assert "extracting features  53%" in capsys.readouterr().err
