"""The network of DualRank: a global and a local branch, a dictionary of parts, and memories."""

import torch
from torch import Tensor, nn

from combemb.learning.objectives.head_network import HeadNetwork
from combemb.learning.objectives.queues import Queue

DELTA = 0.5  # start of the running mean; the release's


class TwoBranches(HeadNetwork):
    """Both branches with two heads each, the dictionary of parts, and a memory for each branch.

    The features of the global branch are the network's output.

    Parameters
    ----------
    n_features, width, heads
        Those of the global branch, a `HeadNetwork`.
    local : Module or None
        Maps items to the maps (B, D', h, w) of the local branch; None if that is a copy of a backbone's last stage.
    local_width, n_words, n_memory : int
        D', and the lengths of the dictionary and of both memories.
    """

    delta: Tensor  # (), the mean squared distance from a place to the nearest word

    def __init__(
        self,
        n_features: int,
        width: int | None,
        heads: dict[str, int],
        local: nn.Module | None,
        *,
        local_width: int,
        n_words: int,
        n_memory: int,
    ):
        super().__init__(n_features, width, heads)
        self.local = local
        self.local_heads = nn.ModuleDict({name: nn.Linear(local_width, n) for name, n in heads.items()})
        self.words, self.local_memory = Queue(n_words, local_width), Queue(n_memory, local_width)
        self.memory = Queue(n_memory, self.n_outputs)
        self.register_buffer("delta", torch.tensor(DELTA))
