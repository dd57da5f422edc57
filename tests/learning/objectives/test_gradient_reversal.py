"""Gradient reversal changes no value and the sign of every gradient before it, and of none after it."""

import torch

from combemb.learning.objectives.gradient_reversal import gradient_reversed


def test_values_stay_and_gradients_before_it_change_their_sign():
    generator = torch.Generator().manual_seed(0)
    x, before, after = (torch.randn(5, 5, generator=generator, requires_grad=True) for _ in range(3))
    plain = ((x @ before).tanh() @ after).square().sum()
    expected = torch.autograd.grad(plain, [x, before, after])
    turned = (gradient_reversed((x @ before).tanh()) @ after).square().sum()
    found = torch.autograd.grad(turned, [x, before, after])
    assert torch.equal(turned, plain)
    for sign, a, b in zip((-1, -1, 1), found, expected, strict=True):
        torch.testing.assert_close(a, sign * b)
        assert a.abs().max() > 0
