"""NCL: the targets of the contrast, hard negatives, the terms against loops, the order of the queues."""

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from combemb.learning.batches import Batch
from combemb.learning.objectives.queues import Queue
from combemb.learning.tower import Tower
from combemb.methods.ncl import NCL, hard_negatives, label_targets, latest, neighbour_loss, neighbour_targets
from combemb.system.arrays import unit
from combemb.system.machine import seeded
from tests.blobs import blobs

N_LABELLED, N, F, N_SEEN, N_NOVEL = 5, 12, 4, 2, 1
GIVEN = torch.tensor([0, 1, 1, 0, 1, *[-1] * 7])
QUEUED, LENGTH = torch.tensor([1, 0, 0, 1, 1]), 20


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def directions(*shape: int, seed: int = 0) -> Tensor:
    return unit(normal(*shape, seed=seed))


def training(n_queued: int = 14, **settings) -> tuple[NCL, Batch]:
    """A method in training with queues that hold something, and a batch."""
    method = NCL(**{"width": 6, "queue_length": LENGTH, "temperature": 0.3, "positive_threshold": 0.6, **settings})
    method.image_input_ = None
    with seeded(0):
        network = method.network(F, N_SEEN, N_NOVEL).double()
    method.tower_ = Tower(None, torch.nn.Identity(), network)
    method.queues[0].push(directions(5, 6, seed=8), QUEUED)
    method.queues[1].push(directions(n_queued, 6, seed=9))
    method.scratch.n_queued = [10, 12]
    views = {"x": normal(N, F, seed=2).requires_grad_(), "other": normal(N, F, seed=3).requires_grad_()}
    return method, Batch(torch.arange(N), labels=GIVEN, n_labelled=N_LABELLED, fraction_done=0.5, **views)


def log_softmax(logits: list[Tensor]) -> list[Tensor]:
    total = sum(torch.exp(value) for value in logits)
    return [value - torch.log(total) for value in logits]


# Targets


@pytest.mark.parametrize("k", [0, 1, 3, 7, 9])
def test_a_target_sums_to_one_with_its_share_for_the_other_view(k):
    cosines = normal(6, 7)
    targets = neighbour_targets(cosines, k, 0.2)
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(6).double())
    for row, found in zip(cosines, targets, strict=True):
        near = sorted(range(7), key=lambda j: -row[j].item())[:k]
        expected = [0.2 if k else 1.0] + [0.8 / min(k, 7) if j in near else 0.0 for j in range(7)]
        assert found.tolist() == pytest.approx(expected)


def test_an_empty_queue_leaves_the_other_view_alone():
    z, other = directions(4, 3), directions(4, 3, seed=1)
    targets = neighbour_targets(z @ z[:0].T, 3, 0.2)
    assert targets.tolist() == [[1.0]] * 4
    assert neighbour_loss(z, other, z[:0], targets, temperature=0.05).item() == pytest.approx(0)


def test_the_target_of_a_labelled_item_is_even_over_its_class():
    targets = label_targets(torch.tensor([0, 1, 2]), torch.tensor([0, 1, 0, 0]))
    third, quarter = 1 / 2, 1 / 4
    expected = [[quarter, quarter, 0, quarter, quarter], [third, 0, third, 0, 0], [1, 0, 0, 0, 0]]
    torch.testing.assert_close(targets, torch.tensor(expected))


# The contrast


def test_all_items_alike_give_the_logarithm_of_their_number():
    z = unit(torch.ones(3, 4))
    targets = neighbour_targets(torch.ones(3, 6), 2, 0.2)
    assert neighbour_loss(z, z, z[:1].repeat(6, 1), targets, temperature=0.05).item() == pytest.approx(math.log(7))


def test_the_contrast_is_that_of_a_loop_and_passes_gradients_to_one_view():
    z, other = (directions(4, 3, seed=seed).requires_grad_() for seed in (0, 1))
    queue, hard = directions(5, 3, seed=2), 0.3 * normal(4, 2)
    targets = neighbour_targets(z.detach() @ queue.T, 2, 0.2)
    loss = neighbour_loss(z, other, queue, targets, temperature=0.3, hard=hard)
    total = 0
    for i in range(4):
        cosines = [z[i] @ other[i].detach(), *[z[i] @ row for row in queue], *hard[i]]
        log_p = log_softmax([value / 0.3 for value in cosines])
        total = total - sum(t * value for t, value in zip(targets[i], log_p[:6], strict=True)) / 4
    torch.testing.assert_close(loss, total)
    gradients = torch.autograd.grad(loss, [z, other], allow_unused=True)
    torch.testing.assert_close(gradients[0], torch.autograd.grad(total, z)[0])
    assert gradients[1] is None


def test_hard_negatives_are_the_nearest_mixtures_of_far_and_labelled_items(monkeypatch):
    z, queue, labelled = directions(3, 4), directions(6, 4, seed=1), directions(5, 4, seed=2)
    drawn = torch.arange(3 * 8).view(3, 8) % 5
    monkeypatch.setattr(torch, "randint", lambda high, shape, generator: drawn if (high, *shape) == (5, 3, 8) else None)
    found = hard_negatives(z, queue, labelled, n_far=2, n_rounds=4, n_hard=5)
    for i in range(3):
        far = sorted(range(6), key=lambda j: (z[i] @ queue[j]).item())[:2] * 4
        mixed = [
            unit(a * queue[q][None] + (1 - a) * labelled[m][None])[0]
            for a, (q, m) in product((1 / 3, 2 / 3), zip(far, drawn[i], strict=True))
        ]
        assert found[i].tolist() == pytest.approx(sorted((float(z[i] @ g) for g in mixed), reverse=True)[:5])


def test_hard_negatives_need_both_queues_and_may_be_few():
    z, some = directions(3, 4), directions(2, 4, seed=1)
    assert hard_negatives(z, some[:0], some, n_far=2, n_rounds=2, n_hard=9).shape == (3, 0)
    assert hard_negatives(z, some, some[:0], n_far=2, n_rounds=2, n_hard=9).shape == (3, 0)
    assert hard_negatives(z, some, some, n_far=5, n_rounds=2, n_hard=9).shape == (3, 8)


# The queues


def test_the_latest_rows_come_in_the_order_in_which_they_were_pushed():
    queue = Queue(5, 1)
    assert [len(part) for part in latest(queue, 3)] == [0, 0]
    for start in (0, 3, 6):
        queue.push(torch.arange(start, start + 3.0)[:, None], torch.arange(start, start + 3))
        for n in (1, 4, 9):
            expected = list(range(start + 3))[-min(n, 5) :]
            rows, labels = latest(queue, n)
            assert rows[:, 0].tolist() == labels.tolist() == expected


@pytest.mark.parametrize("n_queued", [0, 4, 14])
def test_the_terms_are_those_of_loops(n_queued):
    method, batch = training(n_queued, neighbour_weight=0.7, label_weight=0.4)
    terms = method.losses(batch)
    z, other = (unit(method.network_.trunk(x)) for x in (batch.x, batch.other))
    queue, labelled = directions(n_queued, 6, seed=9)[-12:], directions(5, 6, seed=8)
    k = min(n_queued, 12) // 6  # three classes
    near, same = 0, 0
    for i in range(N_LABELLED, N):
        log_p = log_softmax([z[i] @ row / 0.3 for row in (other[i].detach(), *queue)])
        order = sorted(range(len(queue)), key=lambda j: -(z[i] @ queue[j]).item())[:k]
        own = 0.2 if k else 1.0
        near = near - (own * log_p[0] + sum(0.8 / k * log_p[1 + j] for j in order)) / (N - N_LABELLED)
    for i in range(N_LABELLED):
        log_p = log_softmax([z[i] @ row / 0.3 for row in (other[i].detach(), *labelled)])
        members = [0] + [1 + j for j in range(5) if QUEUED[j] == GIVEN[i]]
        same = same - sum(log_p[j] for j in members) / len(members) / N_LABELLED
    assert list(terms) == ["classes", "pairs", "consistency", "neighbours", "of_class"]
    for name, expected in (("neighbours", 0.7 * near), ("of_class", 0.4 * same)):
        torch.testing.assert_close(terms[name], expected)
        found, wanted = (
            torch.autograd.grad(loss, [batch.x, batch.other], retain_graph=True, allow_unused=True)
            for loss in (terms[name], expected)
        )
        torch.testing.assert_close(found[0], wanted[0])
        assert found[1] is None


def test_queues_get_the_first_view_of_a_batch_after_its_losses():
    method, batch = training(3)
    z = unit(method.network_.trunk(batch.x)).detach()
    before = method.losses(batch)["neighbours"]
    for queue, rows, labels, n in (
        (method.queues[0], z[:N_LABELLED], GIVEN[:N_LABELLED], 5),
        (method.queues[1], z[N_LABELLED:], GIVEN[N_LABELLED:], 3),
    ):
        assert len(queue) == n + len(rows)
        found = latest(queue, len(rows))
        torch.testing.assert_close(found[0], rows)
        assert torch.equal(found[1], labels)
        assert not queue.rows.requires_grad
    assert not torch.isclose(method.losses(batch)["neighbours"], before)


def test_pairs_are_those_with_a_large_cosine():
    f = torch.relu(normal(20, 5)) * 3
    expected = [
        [float(unit(f[i : i + 1]) @ unit(f[j : j + 1]).T) >= 0.8 or i == j for j in range(20)] for i in range(20)
    ]
    assert NCL(positive_threshold=0.8).pairs(f).tolist() == expected


def test_hard_negatives_join_the_contrast_of_unlabelled_items_and_are_off_by_default():
    assert NCL().hard_negatives is False
    some = {"n_far": 4, "n_rounds": 2, "n_hard": 7}
    method, batch = training(hard_negatives=True, **some)
    with seeded(0):
        terms = method.losses(batch)
    z, other = (unit(method.network_.trunk(x))[N_LABELLED:] for x in (batch.x, batch.other))
    queue, labelled = directions(14, 6, seed=9)[-12:], directions(5, 6, seed=8)
    with seeded(0):
        hard = hard_negatives(z, queue, labelled, **some)
    near = neighbour_targets(z @ queue.T, 2, 0.2)
    expected = 0
    for i in range(len(z)):
        log_p = log_softmax([value / 0.3 for value in (z[i] @ other[i].detach(), *(queue @ z[i]), *hard[i])])
        expected = expected - sum(t * value for t, value in zip(near[i], log_p[:13], strict=True)) / len(z)
    torch.testing.assert_close(terms["neighbours"], expected)
    without = training()[0].losses(training()[1])
    assert terms["neighbours"] > without["neighbours"]
    assert terms["of_class"] == without["of_class"]


def test_queues_of_small_data_are_at_most_half_of_it():
    seen = []

    class Watched(NCL):
        def terms(self, f, other, batch):
            seen.append(self.scratch.n_queued)
            return super().terms(f, other, batch)

    toy = blobs(2, 1, n_each=9, D=6)
    settings = {"device": "cpu", "epochs": 2, "start_steps": 2, "n_novel": 1, "width": 8, "batch_size": 12}
    model = Watched(**settings, hard_negatives=True).fit(toy.x, toy.labels, progress=False)
    assert seen[0] == [4, 9]
    assert model.embed(toy.x).isfinite().all()


def test_the_defaults_are_those_of_the_release():
    method = NCL()
    assert (method.queue_length, method.temperature, method.own_share) == (2000, 0.05, 0.2)
    assert (method.neighbour_weight, method.label_weight) == (1.0, 0.1)
    assert (method.n_far, method.n_rounds, method.n_hard) == (50, 5, 400)
