"""Deep methods with a head over all classes, seen and novel."""

from abc import abstractmethod
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from combemb.data.labels import Labels
from combemb.discovery.class_number import Pile, count_novel, counted_rows
from combemb.discovery.discovering import NOVEL
from combemb.discovery.result import free_names
from combemb.learning.batches import Batches
from combemb.learning.deep import DeepMethod
from combemb.learning.settings import setting
from combemb.system.errors import require
from combemb.system.machine import resolved


@dataclass(kw_only=True, eq=False, repr=False)
class HeadMethod(DeepMethod):
    """A deep method whose network has an output for every class, which `predict` uses.

    `n_novel_`, the number of novel classes, is determined before the network is built and stored in run.json.
    """

    predicts_by: ClassVar[str] = "head"

    n_novel: int | None = setting(
        None, "novel classes that the head has outputs for; None: estimated on the features before training", at_least=0
    )

    @abstractmethod
    def logits(self, features: Tensor) -> Tensor:
        """Return scores of all classes, seen ones first: mapped features (n, F') -> (n, n_seen + n_novel_)."""

    def check_labels(self, labels: Labels) -> None:
        """Require one label per item, in addition to what every deep method requires."""
        require(not labels.is_multi, f"{type(self).__name__} takes one label per item, but these may have several")
        super().check_labels(labels)

    def predict(
        self, x: Any, *, by: Literal["clusters", "head"] | None = None, progress: bool | None = None
    ) -> np.ndarray:
        """Return the class of each item, by default from the head; see `Method.predict`."""
        if by == "clusters":
            return super().predict(x, by=by, progress=progress)
        require(by in {None, "head"}, f"by={by!r}; choose 'head' or 'clusters'")
        places = []
        for chunk in self._chunks(x, progress):
            with torch.no_grad():
                places.append(self.logits(self.tower_.features(chunk.to(resolved(self.device)))).argmax(dim=1).cpu())
        seen = self.classes_.tolist()
        names = np.array([*seen, *islice(free_names(NOVEL, set(seen)), self.n_novel_), None], dtype=object)
        return np.asarray(names[torch.cat(places).numpy()])

    def report(self) -> list[str]:
        """Return a line with the number of classes of the head, and whether that of the novel ones was estimated."""
        how = "estimated" if self.n_novel is None else "given"
        return [f"head over {len(self.classes_)} seen and {self.n_novel_} novel classes ({how}); `predict` uses it"]

    def _count_novel(self, data: Batches, progress: bool | None) -> None:
        if self.n_novel is not None:
            self.n_novel_ = int(self.n_novel)
        elif not hasattr(self, "n_novel_"):  # a resumed run has it
            rows = counted_rows(data.labels.values, int(self.seed))
            x = self.clean_features(data.items, torch.from_numpy(rows)).numpy()
            self.n_novel_ = count_novel(Pile(x, data.labels.values[rows], seed=int(self.seed), progress=progress)).n
