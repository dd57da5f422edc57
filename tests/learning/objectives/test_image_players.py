"""Convolutional players: shapes, the range of pixels, occlusion and rotation against what torch does by other means."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from combemb.learning.objectives.image_players import (
    ImageDiscriminator,
    ImageDistorter,
    ImageGenerator,
    Residual,
    scaled,
    steady_statistics,
    unscaled,
)
from combemb.system.machine import seeded

GREY = 127.5
SCALES = (2, 4)


@pytest.fixture
def pixels():
    return 255 * torch.rand(5, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def distorter():
    with seeded(0):
        return ImageDistorter(SCALES, width=4)


def all_kept(n=5):
    return [torch.ones(n, g * g) for g in SCALES]


def test_scaling_is_undone_and_grey_is_zero(pixels):
    assert scaled(torch.tensor([0.0, GREY, 255.0])).tolist() == [-1, 0, 1]
    torch.testing.assert_close(unscaled(scaled(pixels)), pixels)


@pytest.mark.parametrize("side", [8, 18, 32])
def test_generated_images_have_the_shape_and_range_of_pixels(side):
    with seeded(0):
        generator, discriminator = ImageGenerator(width=4, n_noise=3), ImageDiscriminator(width=4)
        x = 255 * torch.rand(2, 3, side, side)
        made = generator(x)
        again = generator(x)
    for part, other in zip(made, again, strict=True):
        assert part.shape == x.shape
        assert 0 <= part.min() < part.max() <= 255
        assert not torch.equal(part, other)  # noise
    assert not torch.equal(*made)
    assert discriminator(x, *made).shape == (2,)
    assert discriminator(x[:0], x[:0], x[:0]).shape == (0,)


def test_each_half_of_the_generator_makes_its_own_image(pixels):
    with seeded(0):
        generator = ImageGenerator(width=4, n_noise=3)
        made = generator(pixels)
    for part, own, other in zip(made, ("positive", "negative"), ("negative", "positive"), strict=True):
        weights = [getattr(generator, name)[0].weight for name in (own, other)]
        mine, theirs = torch.autograd.grad(part.square().mean(), weights, allow_unused=True)
        assert mine.abs().sum() > 0
        assert theirs is None


def test_what_is_made_depends_on_the_image(pixels):
    with seeded(0):
        generator = ImageGenerator(width=4, n_noise=3)
    made = []
    for image in (pixels[:1], pixels[1:2]):
        with seeded(1):  # the same noise
            made.append(generator(image))
    for first, second in zip(*made, strict=True):
        assert (first - second).abs().mean() > 1


def test_a_residual_block_is_added_to_its_input():
    block = Residual(4)
    x = torch.randn(2, 4, 5, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(block(x) - x, block.residual(x))


def test_a_judge_sees_which_image_is_which(pixels):
    with seeded(0):
        discriminator = ImageDiscriminator(width=4)
    a, b, c, other = pixels[:4].split(1)
    triplets = ((a, b, c), (a, c, b), (b, a, c), (other, b, c), (a, other, c), (a, b, other))
    assert len({discriminator(*triplet).item() for triplet in triplets}) == len(triplets)


def test_nothing_occluded_and_no_turn_leave_images_as_they_are(pixels, distorter):
    scale = torch.tensor([0, 1, 0, 1, 1])
    same = distorter.distorted(pixels, all_kept(), torch.zeros(5, 2), scale)
    torch.testing.assert_close(same, pixels, atol=1e-3, rtol=0)


def test_cells_of_the_chosen_scale_become_grey(pixels, distorter):
    keep = all_kept()
    keep[0][:, 1] = 0  # top right of 2 x 2
    keep[1][:, 8] = 0  # third row, first column of 4 x 4
    hard = distorter.distorted(pixels, keep, torch.zeros(5, 2), torch.tensor([0, 1, 0, 1, 1]))
    for image, original, scale in zip(hard, pixels, (0, 1, 0, 1, 1), strict=True):
        expected = original.clone()
        if scale == 0:
            expected[:, :8, 8:] = GREY
        else:
            expected[:, 8:12, :4] = GREY
        torch.testing.assert_close(image, expected, atol=1e-3, rtol=0)


def test_images_turn_by_the_angle_of_their_scale(pixels, distorter):
    angles = torch.tensor([[math.pi / 2, math.pi]]).expand(5, -1)
    hard = distorter.distorted(pixels, all_kept(), angles, torch.tensor([0, 1, 0, 1, 1]))
    for image, original, scale in zip(hard, pixels, (0, 1, 0, 1, 1), strict=True):
        turns = [torch.rot90(original, k, (1, 2)) for k in ((1, 3) if scale == 0 else (2,))]
        assert any(torch.allclose(image, turn, atol=1e-2) for turn in turns)


def test_occlusion_comes_before_rotation(pixels, distorter):
    keep = all_kept()
    keep[0][:, 1] = 0
    half = torch.full((5, 2), math.pi)
    hard = distorter.distorted(pixels, keep, half, torch.zeros(5, dtype=torch.int64))
    torch.testing.assert_close(hard[:, :, 8:, :8], torch.full((5, 3, 8, 8), GREY), atol=1e-2, rtol=0)


def test_logits_and_turns_belong_to_cells_and_scales(pixels, distorter):
    logits, turns = distorter(pixels)
    assert [tuple(part.shape) for part in logits] == [(5, 4), (5, 16)]
    assert turns.shape == (5, 2)
    brighter = pixels.clone()
    brighter[:, :, :8, 8:] = 255  # the second of 2 x 2 cells
    change = (distorter(brighter)[0][0] - logits[0]).abs().mean(dim=0)
    assert change.argmax() == 1


def test_both_parts_of_a_distortion_have_gradients(pixels, distorter):
    keep, angles = [cells.requires_grad_() for cells in all_kept()], torch.full((5, 2), 0.1, requires_grad=True)
    hard = distorter.distorted(pixels, keep, angles, torch.tensor([0, 1, 0, 1, 1]))
    functional.mse_loss(hard, torch.zeros_like(hard)).backward()
    assert all(cells.grad.abs().sum() > 0 for cells in keep)
    assert angles.grad[0, 0] != 0
    assert angles.grad[0, 1] == 0  # the other scale


def test_statistics_are_steady_inside_only():
    norm = nn.BatchNorm1d(3)
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)) + 5
    with steady_statistics(nn.Sequential(norm)):
        inside = norm(x)
    assert norm.running_mean.tolist() == [0, 0, 0]
    torch.testing.assert_close(inside.mean(dim=0), torch.zeros(3), atol=1e-5, rtol=0)  # by their own statistics
    norm(x)
    torch.testing.assert_close(norm.running_mean, 0.1 * x.mean(dim=0))
