"""Batches of two views: their sizes and order, what is random in them, and how several processes share them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from combemb.data.items import ArrayItems, chunks
from combemb.data.labels import read_labels
from combemb.learning.batches import Batch, Batches, MappedItems, jitter


def numbered(N: int, V: int, F: int = 3) -> np.ndarray:
    """(N, V, F) in which every feature of view v of item i is 10 i + v + 1."""
    numbers = 10 * np.arange(N)[:, None] + np.arange(V) + 1
    return np.repeat(numbers[:, :, None], F, axis=2).astype(np.float32)


def partly(
    N: int = 60,
    n_labelled: int = 24,
    V: int = 4,
    *,
    batch_size: int = 16,
    labelled_share: float = 0.5,
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
    multi: bool = False,
) -> Batches:
    """Every (N / n_labelled)-th item or so is labelled, with 3 classes."""
    order = np.random.default_rng(5).permutation(N)
    labels = np.full(N, -1)
    labels[order[:n_labelled]] = np.arange(n_labelled) % 3
    values = np.where(labels[:, None] >= 0, np.eye(3)[labels], -1) if multi else labels
    return Batches(
        ArrayItems(numbered(N, V)),
        read_labels(values, N),
        batch_size,
        labelled_share,
        seed,
        0.5,
        0.1,
        rank,
        world_size,
    )


def assert_equal(first: Batch, second: Batch) -> None:
    assert first.n_labelled == second.n_labelled
    for name in ("rows", "x", "other", "labels"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name


# One batch


@pytest.mark.parametrize(
    ("batch_size", "share", "sizes"),
    [(16, 0.5, (8, 8)), (16, 0.25, (4, 12)), (17, 0.5, (8, 9)), (2, 0.5, (1, 1)), (60, 0.5, (24, 30))],
)
@pytest.mark.parametrize("V", [1, 2, 4])
def test_batches_have_the_sizes_asked_for_with_the_labelled_items_first(batch_size, share, sizes, V):
    data = partly(V=V, batch_size=batch_size, labelled_share=share)
    is_labelled = torch.from_numpy(data.labels.is_labelled)
    batches = list(data.epoch(0))
    assert len(batches) == len(data) == -(-60 // sum(sizes))
    for batch in batches:
        assert (batch.n_labelled, len(batch.rows) - batch.n_labelled) == sizes
        assert batch.x.shape == batch.other.shape == (sum(sizes), 3)
        assert batch.x.dtype == torch.float32
        assert is_labelled[batch.rows].tolist() == [True] * sizes[0] + [False] * sizes[1]
        assert len(set(batch.rows.tolist())) == len(batch.rows)
        assert batch.labels.tolist() == data.labels.values[batch.rows].tolist()


def test_a_batch_larger_than_the_data_takes_every_item_once():
    data = partly(batch_size=1000)
    (batch,) = data.epoch(0)
    assert sorted(batch.rows.tolist()) == list(range(60))
    assert batch.n_labelled == 24


def test_few_labelled_items_are_all_in_every_batch():
    data = partly(n_labelled=3, batch_size=16)
    for batch in data.epoch(0):
        assert (batch.n_labelled, len(batch.rows)) == (3, 11)
        assert set(batch.rows[:3].tolist()) == set(np.flatnonzero(data.labels.is_labelled).tolist())


def test_labels_of_several_classes_are_rows():
    data = partly(multi=True)
    batch = next(data.epoch(0))
    assert batch.labels.shape == (16, 3)
    assert batch.labels[:8].sum(dim=1).tolist() == [1.0] * 8
    assert (batch.labels[8:] == -1).all()


@pytest.mark.parametrize("fields", [{"batch_size": 1}, {"batch_size": 2, "world_size": 2}])
def test_a_batch_too_small_for_both_parts_is_refused(fields):
    with pytest.raises(ValueError, match="use a larger batch"):
        next(partly(**fields).epoch(0))


# Views


@pytest.mark.parametrize("V", [2, 3, 5])
def test_two_distinct_views_of_the_same_items(V):
    firsts, pairs = set(), set()
    for epoch in range(10):
        for batch in partly(V=V).epoch(epoch):
            assert (batch.x == batch.x[:, :1]).all()  # all features of one item and view
            first, second = (view[:, 0].long() - 1 - 10 * batch.rows for view in (batch.x, batch.other))
            assert (first != second).all()
            firsts |= set(first.tolist())
            pairs |= set(zip(first.tolist(), second.tolist(), strict=True))
    assert firsts == set(range(V))  # the clean one included
    assert pairs == {(a, b) for a in range(V) for b in range(V) if a != b}


def test_items_with_one_view_are_jittered_twice():
    data = partly(V=1)
    batch = next(data.epoch(0))
    clean = data.items.take(batch.rows)
    for view in (batch.x, batch.other):
        assert not torch.isclose(view, clean).any()
        kept = view != 0
        assert 0.5 < kept.float().mean() < 1
        relative = (view / clean - 1)[kept]  # numbered items have features of one size
        assert 0.3 < relative.std() < 0.8
        assert relative.abs().max() < 2.5
    assert not torch.isclose(batch.x, batch.other).all(dim=1).any()


def draw(x: Tensor, noise: float, dropout: float, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return jitter(x, noise, dropout, rows=torch.arange(len(x)), n=len(x), generator=generator)


def test_jitter_has_the_noise_and_the_dropout_asked_for():
    x = torch.randn(400, 50, generator=torch.Generator().manual_seed(1))
    assert torch.equal(draw(x, 0.0, 0.0), x)
    dropped = draw(x, 0.0, 0.3)
    assert ((dropped == x) | (dropped == 0)).all()
    assert (dropped == 0).float().mean() == pytest.approx(0.3, abs=0.02)
    change = draw(x, 0.5, 0.0) - x
    size = x.square().mean(dim=1, keepdim=True).sqrt()
    assert (change / size).std() == pytest.approx(0.5, abs=0.02)
    assert (change / size).mean() == pytest.approx(0.0, abs=0.02)


def test_jitter_is_in_proportion_to_the_item():
    x = torch.randn(20, 8, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(draw(128 * x, 0.5, 0.1), 128 * draw(x, 0.5, 0.1))
    assert not torch.equal(draw(x, 0.5, 0.1), draw(x, 0.5, 0.1, seed=1))


# Epochs


@pytest.mark.parametrize("V", [1, 3])
def test_an_epoch_is_the_same_whenever_it_is_asked_for(V):
    data, alike = partly(V=V), partly(V=V)
    expected = list(data.epoch(3))
    list(data.epoch(7))
    torch.manual_seed(123)
    for again in (data.epoch(3), alike.epoch(3)):
        for first, second in zip(expected, again, strict=True):
            assert_equal(first, second)


@pytest.mark.parametrize("V", [1, 3])
def test_epochs_and_seeds_differ(V):
    first, others = next(partly(V=V).epoch(0)), (next(partly(V=V).epoch(1)), next(partly(V=V, seed=1).epoch(0)))
    for other in others:
        assert first.rows.tolist() != other.rows.tolist()
    within = list(partly(V=V).epoch(0))
    assert within[0].rows.tolist() != within[1].rows.tolist()


def test_the_global_random_state_is_left_alone():
    torch.manual_seed(1)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    list(partly(V=1).epoch(0))
    assert torch.equal(torch.get_rng_state(), before)
    assert np.random.get_state()[1].tolist() == numpy_before  # noqa: NPY002


@settings(deadline=None, max_examples=40)
@given(
    N=st.integers(10, 80),
    part=st.floats(0.1, 0.9),
    batch_size=st.integers(2, 40),
    share=st.sampled_from([0.25, 0.5, 0.75]),
)
def test_no_item_comes_twice_before_the_others_have_come(N, part, batch_size, share):
    n_labelled = min(max(round(part * N), 1), N - 1)
    data = partly(N, n_labelled, V=2, batch_size=max(batch_size, 4), labelled_share=share)
    batches = list(data.epoch(0))
    assert len(batches) == len(data)
    for rows, n, total in (
        ([b.rows[: b.n_labelled] for b in batches], data.n_labelled, n_labelled),
        ([b.rows[b.n_labelled :] for b in batches], data.n_unlabelled, N - n_labelled),
    ):
        assert all(len(some) == n for some in rows)
        per_pass = total // n  # whole batches in one pass over the items
        for start in range(0, len(rows), per_pass):
            drawn = torch.cat(rows[start : start + per_pass]).tolist()
            assert len(set(drawn)) == len(drawn)


def test_every_item_is_drawn_over_many_epochs_and_about_equally_often():
    data = partly(batch_size=14)  # neither part of the data is a multiple of 7
    counts = torch.zeros(60)
    n_epochs = 200
    for epoch in range(n_epochs):
        for batch in data.epoch(epoch):
            counts[batch.rows] += 1
    is_labelled = torch.from_numpy(data.labels.is_labelled)
    for part in (counts[is_labelled], counts[~is_labelled]):
        expected = n_epochs * len(data) * 7 / len(part)
        assert part.min() > 0.8 * expected
        assert part.max() < 1.2 * expected


# Labelled items drawn evenly over the classes


SIZES = (1, 2, 3, 5, 40)


def uneven(n_unlabelled: int = 49, multi: bool = False, **fields: Any) -> Batches:
    """Classes of very different sizes and unlabelled items, in random order; labelled ones are drawn evenly."""
    labels = np.repeat([*range(len(SIZES)), -1], [*SIZES, n_unlabelled])
    labels = np.random.default_rng(3).permutation(labels)
    values = np.where(labels[:, None] >= 0, np.eye(len(SIZES))[labels], -1) if multi else labels
    given = {"batch_size": 24, "labelled_share": 0.5, "seed": 0, "noise": 0.5, "balanced": True, **fields}
    return Batches(ArrayItems(numbered(len(labels), 2)), read_labels(values, len(labels)), **given)


def evenly(sizes: Sequence[int], n: int) -> list[set[int]]:
    """How many items of each class n draws may hold: two of every class before the next two of any."""
    taken = [0] * len(sizes)
    for turn in range(max(sizes)):
        wanted = [min(size, 2 * turn + 2) for size in sizes]
        if sum(wanted) > n:
            return [set(range(low, high + 1)) for low, high in zip(taken, wanted, strict=True)]
        taken = wanted
    return [{size} for size in taken]


@pytest.mark.parametrize("batch_size", [10, 18, 24, 40, 100])
def test_two_of_every_class_come_before_the_next_two_of_any(batch_size):
    data = uneven(batch_size=batch_size)
    expected = evenly(SIZES, data.n_labelled)
    for epoch in range(5):
        for batch in data.epoch(epoch):
            counts = batch.labels[: batch.n_labelled].bincount(minlength=len(SIZES)).tolist()
            assert sum(counts) == data.n_labelled == batch.n_labelled
            assert all(n in may for n, may in zip(counts, expected, strict=True)), counts
            assert len(set(batch.rows.tolist())) == len(batch.rows)
            assert batch.labels.tolist() == data.labels.values[batch.rows].tolist()


def test_at_most_one_class_has_an_item_without_another_of_its_class():
    """The batch ends amid a pair if it is odd, or after a class with an odd number of items."""
    for batch in uneven(batch_size=14).epoch(0):  # 7 labelled items of 5 classes, one of which has a single item
        counts = batch.labels[: batch.n_labelled].bincount(minlength=len(SIZES))
        assert (counts[1:] == 1).sum() <= 1


def test_which_classes_are_left_out_and_which_items_are_taken_is_left_to_luck():
    data = uneven(batch_size=8)  # 4 labelled items, of 5 classes
    labelled = [batch.labels[:4] for epoch in range(40) for batch in data.epoch(epoch)]
    assert set(torch.cat(labelled).tolist()) == set(range(len(SIZES)))
    rows = torch.cat([batch.rows[: batch.n_labelled] for epoch in range(200) for batch in data.epoch(epoch)])
    assert set(rows.tolist()) == set(np.flatnonzero(data.labels.is_labelled).tolist())


def test_items_of_a_class_are_drawn_equally_often():
    data = uneven()
    counts = torch.zeros(len(data.labels))
    for epoch in range(300):
        for batch in data.epoch(epoch):
            counts[batch.rows] += 1
    large = counts[torch.from_numpy(data.labels.values == 4)]
    assert large.min() > 0.6 * large.mean()
    assert large.max() < 1.4 * large.mean()


def test_items_with_several_labels_are_drawn_as_they_come():
    for first, second in zip(uneven(multi=True).epoch(0), uneven(multi=True, balanced=False).epoch(0), strict=True):
        assert_equal(first, second)


# Unlabelled items that come with their neighbours


def ringed(**fields: Any) -> Batches:
    """Items on a ring, each with two neighbours on either side, every fifth item with one."""
    data = uneven(**fields)
    N = len(data.labels)
    near = (torch.arange(N)[:, None] + torch.tensor([-1, 1, -2, 2])) % N
    near[::5, 2:] = -1
    data.neighbours = near
    return data


@pytest.mark.parametrize("n_together", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("batch_size", [4, 24, 60, 1000])
def test_batches_with_neighbours_have_their_size_and_no_repeats(batch_size, n_together):
    data = ringed(batch_size=batch_size, n_together=n_together)
    batches = list(data.epoch(0))
    assert len(batches) == len(data)
    for batch in batches:
        assert (batch.n_labelled, len(batch.rows)) == (data.n_labelled, data.n_labelled + data.n_unlabelled)
        assert len(set(batch.rows.tolist())) == len(batch.rows)
        assert (batch.labels[: batch.n_labelled] >= 0).all()
        assert (batch.labels[batch.n_labelled :] == -1).all()


@pytest.mark.parametrize("n_together", [2, 3])
def test_the_first_of_a_batch_are_joined_by_neighbours_of_theirs(n_together):
    data, alone = ringed(n_together=n_together), ringed(n_together=1)
    is_labelled = torch.from_numpy(data.labels.is_labelled)
    n_firsts = -(-data.n_unlabelled // n_together)
    n_joined = 0
    for batch in data.epoch(0):
        rows = batch.rows[batch.n_labelled :].tolist()
        firsts = rows[:n_firsts]
        for row in firsts:
            near = [j for j in data.neighbours[row].tolist() if j >= 0 and not is_labelled[j]]
            if len(near) == 4:  # all it has are there to be picked
                assert len(set(near) & set(rows)) >= n_together - 1
        near_firsts = {j for row in firsts for j in data.neighbours[row].tolist()}
        n_joined += len(near_firsts & set(rows[n_firsts:]))
    by_chance = 0
    for batch in alone.epoch(0):
        rows = batch.rows[batch.n_labelled :].tolist()
        near_firsts = {j for row in rows[:n_firsts] for j in data.neighbours[row].tolist()}
        by_chance += len(near_firsts & set(rows[n_firsts:]))
    assert n_joined > 1.2 * by_chance


def test_items_without_neighbours_come_as_if_there_were_none():
    data = ringed(n_together=4)
    data.neighbours = torch.full_like(data.neighbours, -1)
    assert torch.equal(next(data.epoch(0)).rows, next(uneven().epoch(0)).rows)


@pytest.mark.parametrize("make", [uneven, ringed])
def test_even_and_grouped_batches_are_functions_of_seed_and_epoch(make):
    fields = {"n_together": 3}
    data, alike = make(**fields), make(**fields)
    expected = list(data.epoch(3))
    list(data.epoch(7))
    torch.manual_seed(123)
    for again in (data.epoch(3), alike.epoch(3)):
        for first, second in zip(expected, again, strict=True):
            assert_equal(first, second)
    assert expected[0].rows.tolist() != next(data.epoch(4)).rows.tolist()
    assert expected[0].rows.tolist() != next(make(**fields, seed=1).epoch(3)).rows.tolist()


@pytest.mark.parametrize("make", [uneven, ringed])
def test_even_and_grouped_batches_are_shared_by_the_processes(make):
    fields = {"n_together": 3}
    alone = list(make(**fields).epoch(2))
    parts = [list(make(**fields, rank=rank, world_size=2).epoch(2)) for rank in range(2)]
    for whole, *own in zip(alone, *parts, strict=True):
        for name in ("rows", "x", "other", "labels"):
            labelled = torch.cat([getattr(batch, name)[: batch.n_labelled] for batch in own])
            unlabelled = torch.cat([getattr(batch, name)[batch.n_labelled :] for batch in own])
            assert torch.equal(torch.cat([labelled, unlabelled]), getattr(whole, name))


# Several processes


@pytest.mark.parametrize("V", [1, 3])
@pytest.mark.parametrize("world_size", [2, 3])
def test_the_processes_together_have_the_batch_of_one(V, world_size):
    fields = {"V": V, "batch_size": 24}
    alone = list(partly(**fields).epoch(2))
    parts = [list(partly(**fields, rank=rank, world_size=world_size).epoch(2)) for rank in range(world_size)]
    for whole, *own in zip(alone, *parts, strict=True):
        assert {batch.n_labelled for batch in own} == {12 // world_size}
        assert {len(batch.rows) for batch in own} == {24 // world_size}
        for name in ("rows", "x", "other", "labels"):
            labelled = torch.cat([getattr(batch, name)[: batch.n_labelled] for batch in own])
            unlabelled = torch.cat([getattr(batch, name)[batch.n_labelled :] for batch in own])
            torch.testing.assert_close(torch.cat([labelled, unlabelled]), getattr(whole, name), rtol=0, atol=0)


def test_an_uneven_batch_is_cut_so_that_every_process_has_equally_many():
    data = [partly(batch_size=18, rank=rank, world_size=2) for rank in range(2)]
    for first, second in zip(data[0].epoch(0), data[1].epoch(0), strict=True):
        assert first.n_labelled == second.n_labelled == 4
        assert len(first.rows) == len(second.rows) == 8
        assert not set(first.rows.tolist()) & set(second.rows.tolist())


# Items


def test_rows_are_read_as_float32_and_transformed():
    x = numbered(6, 2).astype(np.float16)
    items = MappedItems(x, lambda rows: rows[:, :2] / 2)
    found = items.take(torch.tensor([4, 0]), torch.tensor([1, 0]))
    assert found.dtype == torch.float32
    assert found.tolist() == [[21.0, 21.0], [0.5, 0.5]]
    assert items.take(torch.tensor([4, 0]), 1).tolist() == [[21.0, 21.0], [1.0, 1.0]]


def test_items_without_a_view_axis_have_one_view():
    items = ArrayItems(numbered(6, 1)[:, 0])
    assert (len(items), items.n_views) == (6, 1)
    assert torch.equal(torch.cat(list(chunks(items))), torch.from_numpy(numbered(6, 1)[:, 0]))


def test_chunks_are_the_clean_view_in_order():
    items = ArrayItems(numbered(10, 3))
    items.n_rows = 4
    found = list(chunks(items))
    assert [len(chunk) for chunk in found] == [4, 4, 2]
    assert torch.cat(found)[:, 0].tolist() == [10 * i + 1 for i in range(10)]


@pytest.mark.parametrize(("limit", "is_held"), [(10 * 3 * 2 * 4, True), (10 * 3 * 2 * 4 - 1, False)])
def test_items_that_fit_are_held_in_memory_and_are_the_same(limit, is_held):
    transform: Callable[[Tensor], Tensor] = lambda rows: rows[:, :2] ** 2  # noqa: E731
    items = MappedItems(numbered(10, 3), transform)
    held = items.in_memory(limit)
    assert (held is not items) == is_held
    assert isinstance(held, MappedItems) != is_held
    rows, views = torch.tensor([7, 0, 3]), torch.tensor([2, 0, 1])
    assert torch.equal(held.take(rows, views), items.take(rows, views))
