"""One representation for labelled classes and the ones nobody has named yet.

Notation, used in every shape comment of the package:

    N  items               M  meta-class sets            F  features of the input
    B  batch               K  meta-classes per set       V  views of an item, view 0 the clean one
    Q  queries             d  length of a sub-vector     z  embedding, M sub-vectors of length 1/sqrt(M)
    C  seen classes        D  = M * d, length of z       bits = M * log2(K)

Words, one per concept: *seen* classes have labels, *novel* ones have none. *Labels* are what a model may see, -1 where
an item is unlabelled; *targets* are the hidden truth and reach metrics only. *Codes* are rows of small integers, the
*codebook* turns them into vectors; *queries* search a *database* of codes.
"""

from typing import TYPE_CHECKING, Any

from combemb.data import open_set_split
from combemb.discovery.discovering import discover
from combemb.discovery.result import Discovery
from combemb.methods.combemb import CombEmb
from combemb.system.version import __version__

if TYPE_CHECKING:
    from combemb.search.index import CodeIndex

__all__ = ["CodeIndex", "CombEmb", "Discovery", "__version__", "discover", "open_set_split"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Search is imported when it is asked for: FAISS would cost every start of a fit a part of a second."""
    if name == "CodeIndex":
        from combemb.search.index import CodeIndex  # noqa: PLC0415

        return CodeIndex
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
