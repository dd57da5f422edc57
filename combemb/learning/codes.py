"""Methods whose embeddings become codes."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from combemb.learning.method import Method
from combemb.learning.settings import setting
from combemb.search.codebook import Codebook, ProductCodebook, binary_codebook


@dataclass(kw_only=True, eq=False, repr=False)
class CodeMethod(Method):
    """A method with a codebook, which turns every item into a code."""

    bits: int = setting(48, "length of a code; 12 to 72 are usual", at_least=1)

    @property
    @abstractmethod
    def codebook(self) -> Codebook:
        """The codebook, which encodes embeddings and decodes and scores codes."""

    @classmethod
    def query_side(cls) -> str:
        """Say how queries are compared with codes."""
        return "asymmetric tables"

    def encode(self, x: Any, *, progress: bool | None = None) -> Tensor:
        """Encode the clean view of every item.

        Parameters
        ----------
        x
            As for `embed`.
        progress : bool, optional
            None shows it on a terminal only.

        Returns
        -------
        Tensor (N, M), uint8
        """
        return torch.cat([self.codebook.encode(z) for z in self._embedded(x, progress)])


@dataclass(kw_only=True, eq=False, repr=False)
class BinaryMethod(CodeMethod):
    """A method with one output per bit, whose codes are the signs of the embeddings."""

    asymmetric: bool = setting(
        False, "whether queries keep their real values instead of their signs; the papers compare signs (Hamming)"
    )

    @property
    def codebook(self) -> ProductCodebook:
        """One bit per output: the words are -1 and +1."""
        self._require_fitted()
        return binary_codebook(self.bits, self.asymmetric)

    @classmethod
    def query_side(cls) -> str:
        """Say that signs are compared, or queries with signs."""
        return "Hamming, or `asymmetric`"


def require_codes(method: Method) -> CodeMethod:
    """Return the method if it is a `CodeMethod`; raise a ValueError otherwise."""
    if not isinstance(method, CodeMethod):
        raise ValueError(f"{type(method).__name__} has no codes; fit a method that has, such as combemb")
    return method
