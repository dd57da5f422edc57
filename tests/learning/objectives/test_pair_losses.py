"""Losses of pairs against loops, and their closed forms."""

import math

import pytest
import torch
from torch import Tensor

from combemb.learning.objectives.pair_losses import pairwise_bce, partner_bce


def probabilities(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).softmax(dim=1)


@pytest.mark.parametrize("m", [6, 4])
def test_the_binary_cross_entropy_equals_the_loops(m):
    p, other = probabilities(6), probabilities(m, seed=1)
    similar = torch.rand(6, m, generator=torch.Generator().manual_seed(2)) < 0.4
    terms = []
    for i in range(6):
        for j in range(m):
            c = sum(a * b for a, b in zip(p[i].tolist(), other[j].tolist(), strict=True))
            terms.append(-math.log(c) if similar[i, j] else -math.log(1 - c))
    assert pairwise_bce(p, other, similar).item() == pytest.approx(sum(terms) / len(terms))


def test_certain_items_have_no_loss_if_the_pairs_are_right_and_a_large_one_if_they_are_wrong():
    p = torch.eye(3, dtype=torch.float64)[[0, 0, 1, 2]]
    same = torch.tensor([[i == j or {i, j} == {0, 1} for j in range(4)] for i in range(4)])
    assert pairwise_bce(p, p, same).item() == pytest.approx(0, abs=1e-6)
    assert pairwise_bce(p, p, ~same).item() == pytest.approx(-math.log(1e-7))


def test_uniform_items_have_closed_forms():
    p = torch.full((5, 4), 0.25, dtype=torch.float64)
    everything = torch.ones(5, 5, dtype=torch.bool)
    assert pairwise_bce(p, p, everything).item() == pytest.approx(math.log(4))
    assert pairwise_bce(p, p, ~everything).item() == pytest.approx(-math.log(0.75))
    assert partner_bce(p, p).item() == pytest.approx(math.log(4))


def test_partners_equal_the_loops():
    p, partner = probabilities(6), probabilities(6, seed=1)
    terms = [
        -math.log(sum(a * b for a, b in zip(u, v, strict=True)))
        for u, v in zip(p.tolist(), partner.tolist(), strict=True)
    ]
    assert partner_bce(p, partner).item() == pytest.approx(sum(terms) / 6)


def test_certain_partners_have_no_loss_if_they_agree_and_a_finite_one_otherwise():
    p = torch.eye(3, dtype=torch.float64)
    assert partner_bce(p, p).item() == 0
    assert partner_bce(p, p.roll(1, 0)).item() == pytest.approx(-math.log(1e-7))


@pytest.mark.parametrize("which", [0, 1])
def test_gradients_reach_both_views_and_are_finite(which):
    logits = [torch.randn(4, 3, generator=torch.Generator().manual_seed(s)).requires_grad_() for s in (0, 1)]
    p, other = (x.softmax(dim=1) for x in logits)
    for loss in (pairwise_bce(p, other, torch.eye(4, dtype=torch.bool)), partner_bce(p, other)):
        (gradient,) = torch.autograd.grad(loss, logits[which], retain_graph=True)
        assert gradient.isfinite().all()
        assert gradient.any(dim=1).all()
