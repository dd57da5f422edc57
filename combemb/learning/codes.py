"""Methods whose embeddings become codes."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from combemb.learning.method import Method
from combemb.learning.settings import setting
from combemb.search.codebook import Codebook


@dataclass(kw_only=True, eq=False, repr=False)
class CodeMethod(Method):
    """A method that turns every item into a code: it has a codebook."""

    bits: int = setting(48, "length of a code; 12 to 72 are usual", at_least=1)

    @property
    @abstractmethod
    def codebook(self) -> Codebook:
        """What the codes stand for, and how they are scored."""

    @property
    def _codebook(self) -> Codebook:
        return self.codebook

    def encode(self, x: Any, *, progress: bool | None = None) -> Tensor:
        """Return the codes (N, M) uint8 of the clean view of every item of x, which is as for `embed`."""
        return torch.cat([self.codebook.encode(z) for z in self._embedded(x, progress)])


def require_codes(method: Method) -> CodeMethod:
    """Return the method if it gives codes; raise a ValueError otherwise."""
    if not isinstance(method, CodeMethod):
        raise ValueError(f"{type(method).__name__} gives no codes; fit a method that does, such as combemb")
    return method
