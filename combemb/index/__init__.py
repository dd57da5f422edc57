"""Exact search among short codes."""

from combemb.index.code_index import CodeIndex, Hits

__all__ = ["CodeIndex", "Hits"]
