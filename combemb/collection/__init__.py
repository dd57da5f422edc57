"""The items of a run folder: indexed, discovered, sorted into folders."""

from combemb.collection.indexed import Collection, Hit, SearchResult

__all__ = ["Collection", "Hit", "SearchResult"]
