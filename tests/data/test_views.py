import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from kornia.enhance import adjust_hue
from PIL import Image

from combemb.data.augmentation import (
    NO_STEPS,
    STEPS,
    Augmentation,
    Views,
    clean_window,
    random_steps,
    random_window,
)
from combemb.data.colour import coloured, shifted_hue
from combemb.data.image_items import ImageItems
from combemb.data.images import BrokenImage, Images

NOTHING = Augmentation(crop_area=1, crop_ratio=1, flip=0, colour=0, grey=0, blur=0)
GREY = np.array([0.299, 0.587, 0.114])


def random_image(width, height, seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def smooth_image(width, height):
    return random_image(6, 6).resize((width, height), Image.Resampling.BICUBIC)


def some_pixels(n=6, side=40):
    return Images(pixels=np.random.default_rng(0).integers(0, 256, (n, side, side, 3), dtype=np.uint8))


def only(**steps):
    """A row of STEPS that does these and nothing else."""
    row = NO_STEPS.copy()
    for name, value in steps.items():
        row[STEPS.index(name)] = value
    return row


@pytest.mark.parametrize("name", [field.name for field in fields(Augmentation)])
@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), "much", None])
def test_strengths_outside_their_range_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name}=.* is not in"):
        Augmentation(**{name: value})


def test_a_crop_needs_an_area():
    with pytest.raises(ValueError, match=r"crop_area=0 is not in \(0, 1\]"):
        Augmentation(crop_area=0)
    Augmentation(flip=0, colour=0, colour_probability=0, grey=0, blur=0)


@pytest.mark.parametrize(("width", "height"), [(30, 30), (50, 30), (30, 50)])
def test_the_clean_window_is_the_square_in_the_middle(width, height):
    image = random_image(width, height)
    window = clean_window(image, 30)
    left, top = (width - 30) // 2, (height - 30) // 2
    assert window.dtype == np.uint8
    assert np.array_equal(window, np.asarray(image)[top : top + 30, left : left + 30])


@pytest.mark.parametrize(("side", "error"), [(16, 0), (45, 0), (100, 3), (400, 3)])
def test_the_clean_window_is_scaled_by_bicubic_interpolation(side, error):
    image = smooth_image(side, side)
    plain = np.asarray(image.resize((32, 32), Image.Resampling.BICUBIC))
    assert np.abs(clean_window(image, 32).astype(float) - plain).max() <= error
    wide = clean_window(smooth_image(side + 20, side), 32).astype(float)
    cropped = smooth_image(side + 20, side).crop((10, 0, 10 + side, side)).resize((32, 32), Image.Resampling.BICUBIC)
    assert np.abs(wide - np.asarray(cropped))[:, 4:-4].max() <= error + 1  # near the border it sees what lies beyond


def gradient(width, height):
    """An image that tells where a pixel was: red is its column, green its row, both from 0 to 255."""
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return Image.fromarray(np.stack([x, y, np.zeros_like(x)], axis=-1).round().astype(np.uint8))


@pytest.mark.parametrize("shape", [(300, 300), (400, 250), (600, 150)])
def test_crops_keep_to_the_area_and_the_ratio_asked_for(shape):
    augmentation, image = Augmentation(crop_area=0.3, crop_ratio=0.75), gradient(*shape)
    areas, ratios, places = [], [], []
    for seed in range(60):
        window = random_window(image, 32, augmentation, np.random.default_rng(seed)).astype(float)
        wide = abs(window[:, -1, 0].mean() - window[:, 0, 0].mean()) / 255 * 32 / 31
        high = (window[-1, :, 1].mean() - window[0, :, 1].mean()) / 255 * 32 / 31
        areas.append(wide * high)
        ratios.append(wide / high * shape[0] / shape[1])
        places.append(window[:, :, :2].mean(axis=(0, 1)))
    assert 0.72 < min(ratios) < 0.85
    assert 1.2 < max(ratios) < 1.4
    assert max(areas) < 1.03
    if shape[0] == shape[1]:
        assert min(areas) > 0.28
    assert min(areas) < 0.4
    assert np.std(places, axis=0).max() > 10


def test_half_of_the_views_are_mirrored():
    image = gradient(64, 64)
    drawn = [random_window(image, 32, replace(NOTHING, flip=0.5), np.random.default_rng(seed)) for seed in range(200)]
    mirrored = [np.array_equal(window, clean_window(image, 32)[:, ::-1]) for window in drawn]
    assert 70 < sum(mirrored) < 130
    assert all(m or np.array_equal(window, clean_window(image, 32)) for m, window in zip(mirrored, drawn, strict=True))


def test_steps_are_drawn_as_often_and_as_strongly_as_asked_for():
    augmentation = Augmentation(colour=0.4, colour_probability=0.8, grey=0.2, blur=0.5)
    rng = np.random.default_rng(0)
    steps = np.stack([random_steps(augmentation, rng) for _ in range(4000)])
    assert steps.dtype == np.float32
    jittered = steps[(steps[:, :4] != NO_STEPS[:4]).any(axis=1)]
    assert len(jittered) / len(steps) == pytest.approx(0.8, abs=0.03)
    assert steps[:, 4].mean() == pytest.approx(0.2, abs=0.03)
    assert set(np.unique(steps[:, 4])) == {0, 1}
    assert (steps[:, 5] > 0).mean() == pytest.approx(0.5, abs=0.03)
    assert steps[:, 5][steps[:, 5] > 0].min() >= 0.1
    assert steps[:, 5].max() <= 2
    for column, (low, high) in enumerate([(0.6, 1.4)] * 3 + [(-0.1, 0.1)]):
        assert jittered[:, column].min() == pytest.approx(low, abs=0.01)
        assert jittered[:, column].max() == pytest.approx(high, abs=0.01)


def test_with_all_strengths_at_zero_every_view_is_the_clean_one():
    views = Views(some_pixels(), 32, NOTHING)
    for i in range(6):
        windows, steps = views.read(i, range(4))
        assert (windows == windows[0]).all()
        assert (steps == NO_STEPS).all()
        assert torch.equal(
            coloured(torch.from_numpy(windows), torch.from_numpy(steps))[3].byte(), as_pixels(windows)[0]
        )


def as_pixels(windows):
    return torch.from_numpy(windows).permute(0, 3, 1, 2)


@pytest.mark.parametrize(
    ("name", "neutral"), [("brightness", 1), ("contrast", 1), ("saturation", 1), ("hue", 0), ("hue", 1), ("hue", -1)]
)
def test_a_neutral_step_changes_nothing(name, neutral):
    windows = np.stack([np.asarray(random_image(24, 24, seed)) for seed in range(5)])
    # a tiny amount of another step, so that the row is worked on at all
    steps = np.tile(only(**{"brightness": 1 + 1e-6, name: neutral}), (5, 1))
    found = coloured(torch.from_numpy(windows), torch.from_numpy(steps))
    assert torch.allclose(found, as_pixels(windows).float(), atol=2e-3)


def naive(window, row):
    """The steps one after the other on one image, in numpy."""
    steps = dict(zip(STEPS, row.astype(float), strict=True))
    x = window / 255
    x = np.clip(x * steps["brightness"], 0, 1)
    x = np.clip((x - (x @ GREY).mean()) * steps["contrast"] + (x @ GREY).mean(), 0, 1)
    grey = (x @ GREY)[..., None]
    x = np.clip(grey + steps["saturation"] * (x - grey), 0, 1)
    if steps["hue"] != 0:
        x = adjust_hue(torch.from_numpy(x).permute(2, 0, 1)[None], 2 * np.pi * steps["hue"])[0].permute(1, 2, 0).numpy()
    if steps["grey"]:
        x = np.repeat((x @ GREY)[..., None], 3, axis=2)
    if steps["blur"] > 0:
        x = naive_blur(x, steps["blur"])
    return 255 * x


def naive_blur(x, sigma):
    radius = (int(np.ceil(len(x) / 10)) // 2 * 2 + 1) // 2
    weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    padded = np.pad(x, ((radius, radius), (radius, radius), (0, 0)), mode="reflect")
    for axis in (0, 1):
        padded = np.apply_along_axis(np.convolve, axis, padded, weights / weights.sum(), mode="valid")
    return padded


@pytest.mark.parametrize(
    "row",
    [
        only(brightness=0.6),
        only(brightness=1.4),
        only(contrast=0.6),
        only(contrast=1.4),
        only(saturation=0.6),
        only(saturation=1.4),
        only(saturation=0),
        only(hue=0.1),
        only(hue=-0.1),
        only(hue=0.5),
        only(grey=1),
        only(blur=0.1),
        only(blur=1.7),
        only(brightness=0.7, contrast=1.3, saturation=0.8, hue=0.07, grey=1, blur=1),
        only(brightness=1.3, contrast=0.7, saturation=1.4, hue=-0.09, blur=0.6),
    ],
    ids=str,
)
def test_steps_agree_with_naive_formulas(row):
    windows = np.stack([np.asarray(random_image(30, 30, seed)) for seed in range(3)])
    windows[2] = np.asarray(smooth_image(30, 30))
    found = coloured(torch.from_numpy(windows), torch.from_numpy(np.tile(row, (3, 1))))
    assert found.dtype == torch.float32
    assert found.shape == (3, 3, 30, 30)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert found.min() >= -1e-3
    assert found.max() <= 255.001
    for window, pixels in zip(windows, found, strict=True):
        assert np.allclose(pixels.permute(1, 2, 0).numpy(), naive(window, row), atol=0.02)


def test_each_window_has_steps_of_its_own():
    windows = np.stack([np.asarray(random_image(20, 20, seed)) for seed in range(4)])
    rows = np.stack([only(), only(brightness=0.5), only(grey=1, hue=0.1), only(blur=1)])
    found = coloured(torch.from_numpy(windows), torch.from_numpy(rows))
    for window, pixels, row in zip(windows, found, rows, strict=True):
        assert np.allclose(pixels.permute(1, 2, 0).numpy(), naive(window, row), atol=0.02)
    assert torch.equal(found[0], as_pixels(windows)[0].float())


def test_the_hue_shift_is_the_one_through_hsv():
    corners = torch.tensor([[r, g, b] for r in (0.0, 0.5, 1.0) for g in (0.0, 0.5, 1.0) for b in (0.0, 0.5, 1.0)])
    x = torch.cat([corners.T.reshape(1, 3, 27, 1), torch.rand(1, 3, 27, 1, generator=torch.Generator().manual_seed(0))])
    for turns in (-0.6, -0.1, 0.0, 0.05, 1 / 3, 0.5):
        found = shifted_hue(x, torch.full((2,), turns))
        assert torch.allclose(found, adjust_hue(x, torch.full((2,), 2 * np.pi * turns)), atol=1e-5)
    red = torch.tensor([1.0, 0, 0]).reshape(1, 3, 1, 1)
    assert torch.allclose(shifted_hue(red, torch.tensor([1 / 3])).flatten(), torch.tensor([0, 1.0, 0]), atol=1e-6)


def test_views_do_not_depend_on_what_else_is_asked_for():
    views = Views(some_pixels(), 32, Augmentation(blur=0.3))
    windows, steps = views.read(4, range(6))
    for number in (5, 2, 0, 3):
        alone, its_steps = views.read(4, [number])
        assert np.array_equal(alone[0], windows[number])
        assert np.array_equal(its_steps[0], steps[number])
    fewer = replace(views, images=Images(pixels=views.images.pixels[:5]))
    assert np.array_equal(fewer.read(4, range(6))[0], windows)


def test_pixels_do_not_depend_on_the_batch():
    items = ImageItems(Views(some_pixels(12), 32, Augmentation(blur=0.3)))
    rows, numbers = torch.arange(12).repeat(3), torch.arange(3).repeat_interleave(12)
    whole = items.take(rows, numbers)
    order = torch.randperm(36, generator=torch.Generator().manual_seed(0))
    for n in (1, 5, 36):
        parts = [items.take(rows[part], numbers[part]) for part in order.split(n)]
        assert torch.equal(torch.cat(parts), whole[order])


def test_views_depend_on_content_seed_and_number_alone():
    same = np.tile(np.asarray(random_image(40, 40)), (3, 1, 1, 1))
    same[2, 0, 0, 0] ^= 1
    found = [
        [
            Views(Images(pixels=same), 32, Augmentation(), seed).read(i, [number])[0].tobytes()
            for seed in (0, 1)
            for number in (1, 2, 3)
        ]
        for i in range(3)
    ]
    assert found[0] == found[1]
    assert len({*found[0], *found[2]}) == 12


def test_view_zero_is_the_clean_one_whatever_the_seed():
    images = some_pixels()
    for seed in (0, 5):
        windows, steps = Views(images, 32, Augmentation(), seed).read(2, [3, 0])
        assert np.array_equal(windows[1], clean_window(images.read(2), 32))
        assert np.array_equal(steps[1], NO_STEPS)


@pytest.mark.parametrize(("name", "value"), [("size", 0), ("seed", -1)])
def test_views_refuse_what_they_cannot_make(name, value):
    with pytest.raises(ValueError, match=f"{name}={value}; give"):
        Views(some_pixels(), **{"size": 32, "augmentation": NOTHING, name: value})


def test_views_go_to_other_processes_unchanged():
    views = Views(some_pixels(), 32, Augmentation())
    copy = pickle.loads(pickle.dumps(views))  # noqa: S301
    assert np.array_equal(copy.read(3, range(3))[0], views.read(3, range(3))[0])


def test_the_clean_view_of_a_jpeg_is_the_same_alone_and_beside_others(tmp_path):
    smooth_image(300, 280).save(tmp_path / "a.jpg")
    views = Views(Images(files=[tmp_path / "a.jpg"]), 32, Augmentation())
    assert np.array_equal(views.read(0, [0])[0][0], views.read(0, [0, 1, 2])[0][0])


def test_image_items_give_the_views_of_their_rows():
    views = Views(some_pixels(8), 32, Augmentation())
    items = ImageItems(views, rows=np.array([1, 4, 6]))
    assert len(items) == 3
    assert items.n_views == 2**16
    found = items.take(torch.tensor([2, 0]), torch.tensor([2**16 - 1, 0]))
    assert found.dtype == torch.float32
    assert found.shape == (2, 3, 32, 32)
    windows, steps = views.read(6, [2**16 - 1])
    assert torch.equal(found[0], coloured(torch.from_numpy(windows), torch.from_numpy(steps))[0])
    assert torch.equal(found[1], as_pixels(views.read(1, [0])[0])[0].float())
    assert torch.equal(items.take(torch.tensor([2, 0]), 5), items.take(torch.tensor([2, 0]), torch.tensor([5, 5])))


def test_items_can_be_trained_on_and_asked_for_from_threads():
    items = ImageItems(Views(some_pixels(), 32, Augmentation(colour_probability=1)))
    weight = torch.ones(1, requires_grad=True)
    (items.take(torch.arange(6), 1) * weight).mean().backward()
    assert weight.grad > 0
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda view: items.take(torch.arange(6), view), [1, 2, 1, 2]))
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])


@pytest.mark.parametrize("ids", [None, np.array(["first", "second"])])
def test_a_broken_image_is_named(tmp_path, ids):
    random_image(40, 40).save(tmp_path / "good.png")
    content = (tmp_path / "good.png").read_bytes()
    (tmp_path / "bad.png").write_bytes(content[: len(content) // 2])
    items = ImageItems(Views(Images(files=[tmp_path / "good.png", tmp_path / "bad.png"], ids=ids), 32, NOTHING))
    assert items.take(torch.tensor([0])).shape == (1, 3, 32, 32)
    with pytest.raises(BrokenImage, match=r"bad.png: .*" if ids is None else "second: .*"):
        items.take(torch.tensor([0, 1]))
