"""Queues of what earlier batches gave, first in, first out."""

import torch
from torch import Tensor, nn

from combemb.system import processes


class Queue(nn.Module):
    """The last rows that were pushed, with labels; a new row takes the place of the oldest one.

    The state is in buffers, so that checkpoints hold it. Rows of all processes are pushed in order of rank: every
    process has the same queue.
    """

    rows: Tensor  # (length, D)
    labels: Tensor  # (length,), -1 = unlabelled
    n_pushed: Tensor  # () since the start

    def __init__(self, length: int, n_features: int):
        super().__init__()
        self.register_buffer("rows", torch.zeros(length, n_features))
        self.register_buffer("labels", torch.full((length,), -1))
        self.register_buffer("n_pushed", torch.zeros((), dtype=torch.int64))

    def __len__(self) -> int:
        """Return the number of rows in it, at most its length."""
        return min(int(self.n_pushed), len(self.rows))

    @property
    def is_full(self) -> bool:
        """Whether every place holds a row."""
        return len(self) == len(self.rows)

    def content(self) -> tuple[Tensor, Tensor]:
        """Return copies of the rows (n, D) in it and of their labels (n,), in no particular order."""
        n = len(self)
        return self.rows[:n].clone(), self.labels[:n].clone()

    @torch.no_grad()
    def push(self, rows: Tensor, labels: Tensor | None = None) -> None:
        """Add rows (n, D), in order; of more rows than the queue is long, the last ones stay."""
        labels = torch.full((len(rows),), -1, device=rows.device) if labels is None else labels
        rows, labels = processes.gather(rows.detach()), processes.gather(labels)
        n, length = len(rows), len(self.rows)
        last = slice(max(n - length, 0), n)
        places = (self.n_pushed + torch.arange(n, device=rows.device))[last] % length
        self.rows[places], self.labels[places] = rows[last], labels[last]
        self.n_pushed += n
