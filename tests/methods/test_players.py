"""The players of SSGAH and SSAH in a fit: the rates of their optimisers, and how A-Net turns features."""

import math

import pytest
import torch

from combemb.methods.ssah import SSAH, Distorter
from combemb.methods.ssgah import SSGAH, Discriminator, Generator
from combemb.system.machine import seeded
from tests.blobs import blobs

SMALL = {"bits": 12, "epochs": 1, "batch_size": 48, "player_width": 8, "device": "cpu", "check": False}
BLOBS = blobs(4, 2, n_each=30, D=16)


@pytest.mark.parametrize(("cls", "first_moments"), [(SSGAH, [0.9, 0.5, 0.5]), (SSAH, [0.9, 0.9])])
def test_optimisers_have_the_rates_of_the_settings(cls, first_moments):
    own = {"learning_rate": 0.02, "weight_decay": 0.3, "player_rate": 3e-5}
    model = cls(**SMALL, **own).fit(BLOBS.x, BLOBS.labels)
    groups = [group for optimiser in model.optimisers() for group in optimiser.param_groups]
    n_players = len(first_moments) - 1
    assert [group["lr"] for group in groups] == [0.02, *n_players * [3e-5]]
    assert [group["weight_decay"] for group in groups] == [0.3, *n_players * [0]]
    assert [group["betas"][0] for group in groups] == first_moments


def test_the_adversary_turns_by_the_tanh_of_its_outputs_times_the_largest_angle(monkeypatch):
    given, distorted = [], Distorter.distorted

    def watched(self, x, keep, angles, scale):
        given.append((self(x)[1].detach(), angles.detach()))
        return distorted(self, x, keep, angles, scale)

    monkeypatch.setattr(Distorter, "distorted", watched)
    SSAH(**SMALL, angle=40.0, pace_share=0.0, player_rate=0.03).fit(BLOBS.x, BLOBS.labels)
    turns, angles = map(torch.cat, zip(*given, strict=True))
    assert turns.abs().max() > 0.5  # where tanh is far from linear
    torch.testing.assert_close(angles, math.radians(40) * turns.tanh())


def test_the_generator_adds_to_the_features_of_an_item():
    generator, x = Generator(6, 8, 3), torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    with seeded(1):
        made = generator(x)
    with seeded(1):
        noise = [torch.randn(4, 3) for _ in range(2)]
    for part, residual, luck in zip(made, (generator.positive, generator.negative), noise, strict=True):
        torch.testing.assert_close(part - x, residual(torch.cat([x, luck], dim=1)))


def test_the_discriminator_of_features_sees_which_item_is_which():
    with seeded(0):
        discriminator, (a, b, c, other) = Discriminator(6, 8), torch.randn(4, 1, 6)
    triplets = ((a, b, c), (a, c, b), (b, a, c), (other, b, c), (a, other, c), (a, b, other))
    assert len({discriminator(*triplet).item() for triplet in triplets}) == len(triplets)
