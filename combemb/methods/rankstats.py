"""RankStats (AutoNovel): unlabelled items are of one class if their strongest features are the same ones."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor

from combemb.learning.objectives.pairs import ALL, rank_statistics
from combemb.learning.pair_heads import PairHeads
from combemb.learning.settings import setting


@dataclass(kw_only=True, eq=False, repr=False)
class RankStats(PairHeads):
    """Rank statistics (AutoNovel, Han et al. 2020): pairs of items whose largest features are the same ones.

    L = CE + BCE + w(t) * MSE, as in `PairHeads`. With f = max(0, ...) the features of the trunk, i and j are of one
    class if the n_ranked (k) largest features of f_i and f_j are the same set, in any order; of equal features, the
    first ones count as larger. f has no gradient there.

    Departures, besides those of `PairHeads`: the backbone learns by SimCLR instead of rotations before it learns the
    labels, as in the comparison of the CombEmb paper; the variant with pseudo-labels for a head over all classes (IL)
    is left out. On frozen features, k = 1: a layer on them has fewer items whose five largest features agree than a
    trained stage of a network.
    """

    paper: ClassVar[str] = "RankStats: Automatically Discovering and Learning New Visual Categories, ICLR 2020"
    departs: ClassVar[str] = f"SimCLR instead of rotations; {PairHeads.departs}; fewer ranked features"

    n_ranked: int = setting(
        1, "k, largest features that are compared; ours for a layer on frozen features, the paper has 5", above=0
    )

    @classmethod
    def as_published(cls, **settings: Any) -> Self:
        """Return the form of the release for CIFAR-10, for a GPU; see `PairHeads.as_published`."""
        return super().as_published(**{"n_ranked": 5, **settings})

    def pairs(self, f: Tensor, rows: slice = ALL) -> Tensor:
        """Pair items with the same largest features."""
        return rank_statistics(f, self.n_ranked, rows)
