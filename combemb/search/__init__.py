"""Codes and how to search them: codebooks, the exact index, indexes of other tools, retrieval metrics.

FAISS is imported with `combemb.search.index` only: every fit needs a codebook, few need an index.
"""
