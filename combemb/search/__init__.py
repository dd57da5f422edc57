"""Codes and how to search them: codebooks, the exact index, indexes of other tools, retrieval metrics.

FAISS is imported with the index only, when it is asked for: every fit needs a codebook, few need an index.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from combemb.search.codebook import Codebook, ProductCodebook, binary_codebook

if TYPE_CHECKING:
    from combemb.search.exchange import from_faiss, from_lance, from_parquet, to_faiss, to_lance, to_parquet
    from combemb.search.index import CodeIndex, Hits

__all__ = ["CodeIndex", "Codebook", "Hits", "ProductCodebook", "binary_codebook"]
__all__ += ["from_faiss", "from_lance", "from_parquet", "to_faiss", "to_lance", "to_parquet"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{'index' if name in ('CodeIndex', 'Hits') else 'exchange'}"), name)
