"""Exact search among short codes, and indexes for other tools."""

from combemb.index.code_index import CodeIndex, Hits
from combemb.index.exchange import from_faiss, from_lance, from_parquet, to_faiss, to_lance, to_parquet

__all__ = [
    "CodeIndex",
    "Hits",
    "from_faiss",
    "from_lance",
    "from_parquet",
    "to_faiss",
    "to_lance",
    "to_parquet",
]
