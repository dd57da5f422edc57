"""Triplets: their items are what the labels say, drawn evenly, from the given generator; the hinge is its formula."""

import numpy as np
import pytest
import torch

from combemb.data.labels import read_labels, same_class
from combemb.learning.objectives.triplets import (
    one_of_each,
    require_triplets,
    squared_distances,
    triplet_hinge,
    triplets,
)

LABELS = torch.tensor([0, 1, 0, 2, 1, 0, -1])  # the fourth has no positive, the last one shares nothing
SEVERAL = torch.tensor([[1.0, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def possible(labels: torch.Tensor) -> set[tuple[int, int, int]]:
    """All triplets, in loops."""
    rows = labels.tolist()
    classes = [set(np.flatnonzero(np.array(row) > 0)) if labels.ndim == 2 else {row} - {-1} for row in rows]
    n = range(len(rows))
    return {
        (i, j, k)
        for i in n
        for j in n
        for k in n
        if i not in (j, k) and classes[i] & classes[j] and not classes[i] & classes[k]
    }


@pytest.mark.parametrize("labels", [LABELS, SEVERAL])
@pytest.mark.parametrize("diagonal", [True, False])
def test_all_triplets_that_the_labels_allow_are_drawn_and_no_others(labels, diagonal):
    similar, found = same_class(labels, labels).fill_diagonal_(diagonal), set()
    allowed, source = possible(labels), generator()
    for _ in range(200):
        drawn = list(zip(*(part.tolist() for part in triplets(similar, source)), strict=True))
        assert [i for i, _, _ in drawn] == sorted({i for i, _, _ in allowed})  # one for each anchor that has any
        found |= set(drawn)
    assert found == allowed


def test_drawing_is_even_over_the_true_values_of_a_row():
    mask = torch.tensor([[True, False, True, True, True], [False, True, False, False, False]]).repeat(4_000, 1)
    drawn = one_of_each(mask, generator())
    counts = torch.bincount(drawn[::2], minlength=5)
    assert counts[1] == 0
    assert ((counts[[0, 2, 3, 4]] - 1_000).abs() < 120).all()  # four standard deviations
    assert (drawn[1::2] == 1).all()


def test_the_generator_decides_and_torchs_own_is_the_default():
    similar = same_class(*2 * (torch.arange(60) % 5,))
    first, again, other = (torch.stack(triplets(similar, generator(seed))) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    state = torch.get_rng_state()
    try:
        torch.manual_seed(1)
        assert torch.equal(torch.stack(triplets(similar)), first)
    finally:
        torch.set_rng_state(state)


def test_the_hinge_is_its_formula():
    near, far = torch.tensor([0.5, 2.0, 1.0]), torch.tensor([3.0, 1.5, 1.75])
    near.requires_grad_(), far.requires_grad_()
    loss = triplet_hinge(near, far, 1.0)
    assert loss.item() == pytest.approx((0 + 1.5 + 0.25) / 3)
    loss.backward()
    torch.testing.assert_close(near.grad, torch.tensor([0, 1 / 3, 1 / 3]))
    torch.testing.assert_close(far.grad, -near.grad)


def test_no_triplets_give_a_loss_of_zero_that_can_be_descended():
    x = torch.ones(3, 2, requires_grad=True)
    i, j, k = triplets(torch.ones(3, 3, dtype=torch.bool))
    assert len(i) == len(j) == len(k) == 0
    loss = triplet_hinge(squared_distances(x[i], x[j]), squared_distances(x[i], x[k]), 1.0)
    loss.backward()
    assert loss.item() == 0
    assert not x.grad.any()


def test_squared_distances_are_those_of_rows():
    a, b = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[4.0, 6.0], [0.0, 2.0]])
    assert squared_distances(a, b).tolist() == [25, 4]


@pytest.mark.parametrize(
    ("labels", "fits"),
    [
        ([0, 0, 1, -1], True),
        ([0, 1, 2, -1], False),
        ([0, 0, -1, -1], False),
        ([[1, 0, 0], [1, 1, 0], [0, 0, 1]], True),
        ([[1, 0, 0], [1, 1, 0], [-1, -1, -1]], False),  # nothing shares none
        ([[1, 1], [1, 0], [0, 1]], True),  # the second has the first and, as a negative, the third
        ([[1, 0, 0], [0, 1, 0], [0, 0, 1]], False),
        ([[1, 0, 0], [1, 0, 0], [1, 1, 1], [1, 0, 1]], False),
    ],
)
def test_labels_without_a_single_triplet_are_refused(labels, fits):
    found = read_labels(np.array(labels), len(labels))
    values = torch.from_numpy(found.values[found.is_labelled])
    assert bool(possible(values)) == fits
    if fits:
        require_triplets(found)
    else:
        with pytest.raises(ValueError, match=r"no three of the \d labelled items form a triplet.*label at least two"):
            require_triplets(found)
