"""Queues against a list that forgets its first entries."""

import pytest
import torch

from combemb.learning.objectives.queues import Queue
from combemb.system import processes


def rows(start: int, n: int) -> torch.Tensor:
    return torch.arange(start, start + n).float()[:, None].expand(n, 2)


@pytest.mark.parametrize("sizes", [[2, 2], [3, 3, 3], [5], [4, 1, 4], [7], [1] * 12, [2, 13, 3], [11]])
def test_the_queue_is_a_list_that_forgets_its_first_entries(sizes):
    queue, expected, start = Queue(5, 2), [], 0
    for n in sizes:
        queue.push(rows(start, n), torch.arange(start, start + n) % 3)
        expected = [*expected, *range(start, start + n)][-5:]
        start += n
        content, labels = queue.content()
        assert sorted(content[:, 0].int().tolist()) == expected
        assert torch.equal(content[:, 0], content[:, 1])
        assert labels.tolist() == [int(value) % 3 for value in content[:, 0]]  # rows keep their labels
        assert (len(queue), queue.is_full) == (len(expected), len(expected) == 5)


def test_a_new_row_takes_the_place_of_the_oldest():
    queue = Queue(3, 2)
    queue.push(rows(0, 3))
    queue.push(rows(3, 1))
    assert queue.rows[:, 0].tolist() == [3, 1, 2]
    queue.push(rows(4, 3))
    assert queue.rows[:, 0].tolist() == [6, 4, 5]


def test_an_empty_queue_has_no_content():
    queue = Queue(4, 2)
    content, labels = queue.content()
    assert content.shape == (0, 2)
    assert labels.shape == (0,)
    assert not queue.is_full


def test_rows_without_labels_are_unlabelled():
    queue = Queue(4, 2)
    queue.push(rows(0, 3), torch.tensor([4, 5, 6]))
    queue.push(rows(3, 3))
    assert queue.labels.tolist() == [-1, -1, 6, -1]


def test_rows_of_all_processes_are_pushed_in_order_of_rank(monkeypatch):
    monkeypatch.setattr(processes, "gather", lambda part: torch.cat([part, part + 10]))  # what a second one would have
    queue = Queue(5, 2)
    queue.push(rows(0, 3), torch.tensor([1, 2, 3]))
    assert queue.n_pushed == 6
    assert queue.rows[:, 0].tolist() == [12, 1, 2, 10, 11]  # the sixth row replaced the first
    assert queue.labels.tolist() == [13, 2, 3, 11, 12]


def test_content_is_a_copy_and_has_no_gradient():
    queue, pushed = Queue(2, 2), rows(1, 2).clone().requires_grad_()
    queue.push(pushed)
    content, labels = queue.content()
    assert not content.requires_grad
    queue.push(rows(7, 2), torch.tensor([1, 1]))
    assert content[:, 0].tolist() == [1, 2]
    assert labels.tolist() == [-1, -1]


def test_the_state_of_a_module_has_the_queue():
    queue = Queue(3, 2)
    queue.push(rows(0, 4), torch.arange(4))
    again = Queue(3, 2)
    again.load_state_dict(queue.state_dict())
    for queues in (queue, again):
        queues.push(rows(8, 1))
    assert torch.equal(again.rows, queue.rows)
    assert torch.equal(again.labels, queue.labels)
    assert again.rows[:, 0].tolist() == [3, 8, 2]
