"""Eq. 4, 6 and 7: against loops, at their closed forms, and their gradients."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from combemb.learning.objectives.losses import consistency_loss, meta_class_loss, similarity_loss
from combemb.learning.objectives.meta_classes import meta_labels
from combemb.learning.objectives.prototypes import prototype_matrix, similarities
from combemb.system.arrays import unit
from tests.reference import naive

SHAPES = [(2, 5, 3), (4, 6, 12), (8, 3, 4), (16, 2, 5)]  # K, M, d


def random_units(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return unit(torch.randn(*shape, generator=generator, dtype=torch.float64))


def random_labels(B: int, K: int, M: int) -> Tensor:
    return torch.randint(K, (B, M), generator=torch.Generator().manual_seed(2))


def random_mask(A: int, B: int) -> Tensor:
    """(A, B) bool in which the second anchor has no positive and all others have some."""
    mask = torch.rand(A, B, generator=torch.Generator().manual_seed(3)) < 0.4
    mask[:, 0] = True
    mask[1] = False
    return mask


def meta_loss(z: Tensor, prototypes: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Eq. 4 of sub-vectors z (B, M, d)."""
    cosines = similarities(z.flatten(1), prototype_matrix(prototypes), len(prototypes))
    return meta_class_loss(cosines, labels, temperature)


def members(row: Tensor) -> set[int]:
    return set(torch.nonzero(row)[:, 0].tolist())


# Eq. 4


@pytest.mark.parametrize(("K", "M", "d"), SHAPES)
@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_meta_class_loss_equals_the_loops(K, M, d, temperature):
    z, prototypes, labels = random_units(9, M, d), random_units(M, K, d, seed=1), random_labels(9, K, M)
    loops = [
        naive.meta_loss(item, prototypes.tolist(), own, temperature)
        for item, own in zip(z.tolist(), labels.tolist(), strict=True)
    ]
    assert float(meta_loss(z, prototypes, labels, temperature)) == pytest.approx(naive.mean(loops), rel=1e-12)


@pytest.mark.parametrize(("K", "M", "d"), SHAPES)
def test_equal_prototypes_give_m_log_k(K, M, d):
    prototypes = random_units(M, 1, d, seed=1).expand(M, K, d)
    loss = meta_loss(random_units(9, M, d), prototypes, random_labels(9, K, M), 0.1)
    assert float(loss) == pytest.approx(M * math.log(K), rel=1e-12)


@pytest.mark.parametrize("K", [2, 4, 8, 16])
@pytest.mark.parametrize("temperature", [0.05, 0.1, 1.0])
def test_orthonormal_prototypes_with_every_item_on_its_own(K, temperature):
    M, labels = 5, random_labels(9, K, 5)
    prototypes = torch.linalg.qr(random_units(M, K, K, seed=1)).Q  # (M, K, K), rows orthonormal
    z = torch.stack([prototypes[m, labels[:, m]] for m in range(M)], dim=1)
    expected = M * math.log1p((K - 1) * math.exp(-1 / temperature))
    assert float(meta_loss(z, prototypes, labels, temperature)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("K", "M", "d"), SHAPES)
def test_a_one_hot_membership_gives_the_loss_of_the_label(K, M, d):
    z, prototypes = random_units(9, M, d), random_units(M, K, d, seed=1)
    table = torch.arange(3 * K).remainder(K).expand(M, -1)  # (M, C)
    table = torch.stack(
        [row[torch.randperm(3 * K, generator=torch.Generator().manual_seed(m))] for m, row in enumerate(table)]
    )
    labels = torch.randint(3 * K, (9,), generator=torch.Generator().manual_seed(4))
    one_hot = torch.nn.functional.one_hot(labels, 3 * K).double()
    hard = meta_loss(z, prototypes, meta_labels(table, labels, K), 0.1)
    soft = meta_loss(z, prototypes, meta_labels(table, one_hot, K), 0.1)
    torch.testing.assert_close(soft, hard, rtol=1e-12, atol=0)


def test_two_labels_give_the_mean_of_both_losses():
    z, prototypes = random_units(1, 6, 5), random_units(6, 4, 5, seed=1)
    table = torch.randint(4, (6, 7), generator=torch.Generator().manual_seed(5))
    table[:, 3:] = torch.arange(4)  # every meta-class occurs
    both = torch.zeros(1, 7, dtype=torch.float64)
    both[0, [1, 4]] = 1
    first, second = (meta_loss(z, prototypes, meta_labels(table, torch.tensor([c]), 4), 0.1) for c in (1, 4))
    loss = float(meta_loss(z, prototypes, meta_labels(table, both, 4), 0.1))
    assert loss == pytest.approx(float(first + second) / 2, rel=1e-12)
    assert abs(float(first - second)) > 1e-3  # else the mean would say nothing
    loops = naive.meta_loss_of_classes(z[0].tolist(), prototypes.tolist(), table.tolist(), [1, 4], 0.1)
    assert loss == pytest.approx(loops, rel=1e-12)


def test_gradient_of_the_meta_class_loss():
    z, prototypes = random_units(3, 2, 3).requires_grad_(), random_units(2, 4, 3, seed=1).requires_grad_()
    labels, shares = random_labels(3, 4, 2), torch.softmax(random_units(3, 4, 2, seed=6), dim=1)
    for target in (labels, shares):
        assert torch.autograd.gradcheck(
            lambda z, prototypes, target=target: meta_loss(unit(z), unit(prototypes), target, 0.5), (z, prototypes)
        )


# Eq. 6


@pytest.mark.parametrize(("A", "B", "D"), [(3, 3, 4), (5, 12, 8), (12, 12, 30)])
@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_similarity_loss_equals_the_loops(A, B, D, temperature):
    z, pi, mask = random_units(A, D), random_units(B, D, seed=1), random_mask(A, B)
    loops = [
        naive.similarity_loss([anchor], pi.tolist(), dict.fromkeys(members(row), 1.0), temperature)
        for anchor, row in zip(z.tolist(), mask, strict=True)
    ]
    assert float(similarity_loss(z, pi, mask, temperature)) == pytest.approx(naive.mean(loops), rel=1e-12)


def test_similarity_loss_of_weighted_positives_equals_the_loops():
    z, pi, weights = random_units(5, 8), random_units(12, 8, seed=1), random_units(5, 12, seed=2).relu()
    loops = [
        naive.similarity_loss([anchor], pi.tolist(), dict(enumerate(row)), 0.2)
        for anchor, row in zip(z.tolist(), weights.tolist(), strict=True)
    ]
    assert float(similarity_loss(z, pi, weights, 0.2)) == pytest.approx(naive.mean(loops), rel=1e-12)
    torch.testing.assert_close(similarity_loss(z, pi, 7 * weights, 0.2), similarity_loss(z, pi, weights, 0.2))


@pytest.mark.parametrize("B", [1, 2, 9, 64])
@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_an_identical_batch_gives_log_b(B, temperature):
    z, pi = random_units(1, 8).expand(B, -1), random_units(1, 8, seed=1).expand(B, -1)
    everyone = torch.ones(B, B, dtype=torch.bool)
    assert float(similarity_loss(z, pi, everyone, temperature)) == pytest.approx(math.log(B), rel=1e-12, abs=1e-12)


def test_an_anchor_without_positives_adds_nothing_but_counts():
    z, pi, mask = random_units(4, 8), random_units(6, 8, seed=1), random_mask(4, 6)
    with_it = float(similarity_loss(z, pi, mask, 0.2))
    without = float(similarity_loss(z[[0, 2, 3]], pi, mask[[0, 2, 3]], 0.2))
    assert not mask[1].any()
    assert with_it == pytest.approx(without * 3 / 4, rel=1e-12)
    lonely = z[1:2].clone().requires_grad_()
    loss = similarity_loss(lonely, pi, mask[1:2], 0.2)
    loss.backward()
    assert loss.item() == 0
    assert not lonely.grad.any()


def test_gradient_of_the_similarity_loss():
    z, pi, mask = random_units(3, 4).requires_grad_(), random_units(5, 4, seed=1).requires_grad_(), random_mask(3, 5)
    assert torch.autograd.gradcheck(lambda z, pi: similarity_loss(unit(z), unit(pi), mask, 0.2), (z, pi))


# Eq. 7


@pytest.mark.parametrize(("B", "D"), [(1, 2), (7, 12), (20, 72)])
def test_consistency_loss_equals_the_loops(B, D):
    prediction, pi = 3 * random_units(B, D), 0.2 * random_units(B, D, seed=1)
    loops = [naive.consistency_loss(a, b) for a, b in zip(prediction.tolist(), pi.tolist(), strict=True)]
    assert float(consistency_loss(prediction, pi)) == pytest.approx(naive.mean(loops), rel=1e-12)


def test_equal_views_under_the_identity_give_minus_one():
    pi = 0.3 * random_units(7, 12)
    assert float(consistency_loss(pi, pi)) == pytest.approx(-1, rel=1e-12)


def test_no_gradient_flows_through_the_second_view():
    prediction, pi = random_units(7, 12).requires_grad_(), random_units(7, 12, seed=1).requires_grad_()
    consistency_loss(prediction, pi).backward()
    assert prediction.grad.norm() > 0.01
    assert pi.grad is None


def test_gradient_of_the_consistency_loss():
    prediction, pi = random_units(4, 5).requires_grad_(), random_units(4, 5, seed=1)
    assert torch.autograd.gradcheck(lambda prediction: consistency_loss(prediction, pi), (prediction,))


# All three


@settings(deadline=None, max_examples=25)
@given(items=st.permutations(range(6)), sets=st.permutations(range(3)), words=st.permutations(range(4)))
def test_the_order_of_items_sets_and_meta_classes_does_not_matter(items, sets, words):
    z, prototypes, labels = random_units(6, 3, 5), random_units(3, 4, 5, seed=1), random_labels(6, 4, 3)
    new_number = torch.tensor(words).argsort()  # word k of the old table stands at new_number[k] of the new one
    expected = meta_loss(z, prototypes, labels, 0.1)
    shuffled = meta_loss(z[items][:, sets], prototypes[sets][:, words], new_number[labels][items][:, sets], 0.1)
    torch.testing.assert_close(shuffled, expected)


@settings(deadline=None, max_examples=25)
@given(anchors=st.permutations(range(5)), items=st.permutations(range(6)))
def test_the_order_of_a_batch_does_not_matter_to_the_pair_losses(anchors, items):
    z, pi, mask = random_units(5, 8), random_units(6, 8, seed=1), random_mask(5, 6)
    expected = similarity_loss(z, pi, mask, 0.2)
    torch.testing.assert_close(similarity_loss(z[anchors], pi[items], mask[anchors][:, items], 0.2), expected)
    prediction = random_units(6, 8, seed=2)
    torch.testing.assert_close(consistency_loss(prediction[items], pi[items]), consistency_loss(prediction, pi))
