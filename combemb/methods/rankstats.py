"""RankStats (AutoNovel): unlabelled items are of one class if their strongest features are the same."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from combemb.learning.objectives.pairs import rank_statistics
from combemb.learning.pair_heads import PairHeads
from combemb.learning.settings import setting


@dataclass(kw_only=True, eq=False, repr=False)
class RankStats(PairHeads):
    """R."""

    paper: ClassVar[str] = "RankStats: Automatically Discovering and Learning New Visual Categories, ICLR 2020"
    departs: ClassVar[str] = ""

    n_ranked: int = setting(5, "k, features", above=0)

    def pairs(self, f: Tensor) -> Tensor:
        """Pair."""
        return rank_statistics(f, self.n_ranked)
