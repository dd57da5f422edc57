"""The contrast of views against loops, and its closed forms."""

import math

import pytest
import torch
from torch import Tensor

from combemb.learning.objectives.contrast import contrastive_loss, other_views, views_of_class
from combemb.system.arrays import unit


def views(n: int, seed: int = 0) -> Tensor:
    return unit(torch.randn(n, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


def naive(v: list[list[float]], positives: list[list[bool]], temperature: float) -> float:
    losses = []
    for i, own in enumerate(v):
        raised = [math.exp(sum(a * b for a, b in zip(own, w, strict=True)) / temperature) for w in v]
        below = sum(value for k, value in enumerate(raised) if k != i)
        terms = [-math.log(raised[j] / below) for j in range(len(v)) if positives[i][j] and j != i]
        losses += [sum(terms) / len(terms)] if terms else []
    return sum(losses) / len(losses) if losses else 0.0


@pytest.mark.parametrize("temperature", [0.07, 0.5, 1.0])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.7, 1.0])
def test_the_loss_equals_the_loops(temperature, share):
    v = views(9)
    positives = torch.rand(9, 9, generator=torch.Generator().manual_seed(1)) < share
    expected = naive(v.tolist(), positives.tolist(), temperature)
    assert contrastive_loss(v, positives, temperature).item() == pytest.approx(expected)


def test_views_without_positives_do_not_count():
    v, positives = views(6), torch.zeros(6, 6, dtype=torch.bool)
    positives[0, 1] = True
    expected = naive(v.tolist(), positives.tolist(), 0.5)
    assert expected > 0
    assert contrastive_loss(v, positives, 0.5).item() == pytest.approx(expected)


def test_a_view_is_no_positive_of_itself():
    v = views(6)
    positives = other_views(3)
    with_self = positives | torch.eye(6, dtype=torch.bool)
    assert torch.equal(contrastive_loss(v, with_self, 0.5), contrastive_loss(v, positives, 0.5))
    assert contrastive_loss(v, torch.eye(6, dtype=torch.bool), 0.5).item() == 0


def test_no_positives_have_a_gradient_of_zero():
    v = views(4).requires_grad_()
    contrastive_loss(v, torch.zeros(4, 4, dtype=torch.bool), 0.5).backward()
    assert not v.grad.any()


def test_equal_views_give_the_logarithm_of_the_number_of_others():
    v = views(1).expand(8, 4)
    assert contrastive_loss(v, other_views(4), 0.1).item() == pytest.approx(math.log(7))
    assert contrastive_loss(v, torch.ones(8, 8, dtype=torch.bool), 0.1).item() == pytest.approx(math.log(7))


def test_orthogonal_items_with_equal_views():
    v = torch.eye(5, dtype=torch.float64).repeat(2, 1)  # two views of each of 5 items: 8 others at a cosine of 0
    expected = math.log(1 + 8 * math.exp(-1 / 0.5))
    assert contrastive_loss(v, other_views(5), 0.5).item() == pytest.approx(expected)


def test_the_other_view_of_an_item_is_n_places_further():
    found = other_views(3)
    assert found.tolist() == [[abs(i - j) == 3 for j in range(6)] for i in range(6)]


def test_views_of_a_class_are_those_of_items_with_its_label():
    labels = [1, 0, 1]
    found = views_of_class(torch.tensor(labels))
    assert found.tolist() == [[labels[i % 3] == labels[j % 3] for j in range(6)] for i in range(6)]


def test_unlabelled_items_share_no_class():
    assert not views_of_class(torch.tensor([-1, 0, -1]))[0].any()
