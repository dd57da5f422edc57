"""Methods whose embeddings become codes."""

from abc import abstractmethod
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from combemb.learning.method import Method
from combemb.learning.settings import setting
from combemb.search.codebook import Codebook


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
        """Say how queries are compared with codes; a method with the setting `asymmetric` is a binary one."""
        is_binary = any(field.name == "asymmetric" for field in fields(cls))
        return "Hamming, or `asymmetric`" if is_binary else "asymmetric tables"

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


def require_codes(method: Method) -> CodeMethod:
    """Return the method if it is a `CodeMethod`; raise a ValueError otherwise."""
    if not isinstance(method, CodeMethod):
        raise ValueError(f"{type(method).__name__} has no codes; fit a method that has, such as combemb")
    return method
